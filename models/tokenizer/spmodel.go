// tokenizer.model: the fields of a SentencePiece model file.

package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// pieceType is the type of a piece; GGUF uses the same numbers.
type pieceType int32

const (
	normalPiece  pieceType = 1
	unknownPiece pieceType = 2
	controlPiece pieceType = 3
	userPiece    pieceType = 4
	unusedPiece  pieceType = 5
	bytePiece    pieceType = 6
)

// spPieces are the pieces of a model; places are ids.
type spPieces interface {
	tokens
	weight(place uint32) float32
	kind(place uint32) pieceType
}

// messages are pieces as they stand in the file, which is kept: 5 bytes a piece.
type messages struct {
	file  []byte
	at    []uint32 // of the field of each
	kinds []uint8  // and 8 times the distance of the text, where that is short and stands behind its length in one byte, else 0
}

const kindBits = 3

func (m *messages) text(place uint32) string {
	if from := m.at[place] + uint32(m.kinds[place]>>kindBits); from > m.at[place] {
		return view(m.file[from : from+uint32(m.file[from-1])])
	}
	var text []byte
	m.fields(place, func(f protoField) {
		if f.number == 1 {
			text = f.data
		}
	})
	return view(text)
}

func (m *messages) id(place uint32) int32 { return int32(place) }

func (m *messages) weight(place uint32) (score float32) {
	m.fields(place, func(f protoField) {
		if f.number == 2 {
			score = f.float()
		}
	})
	return score
}

func (m *messages) kind(place uint32) pieceType { return pieceType(m.kinds[place] & (1<<kindBits - 1)) }

// fields are those of a message that was read before.
func (m *messages) fields(place uint32, yield func(protoField)) {
	piece, _, err := readProtoField(m.file[m.at[place]:])
	for message := piece.data; err == nil && len(message) > 0; {
		var f protoField
		var n int
		if f, n, err = readProtoField(message); err == nil {
			yield(f)
			message = message[n:]
		}
	}
}

// spModel is what decides the ids of a SentencePiece model.
type spModel struct {
	spPieces
	count int

	unigram            bool // else BPE
	byteFallback       bool
	whitespaceAsSuffix bool
	unknownSurface     string
	bos, eos, pad      int32

	charsMap         *charsMap // nil: identity
	dummyPrefix      bool
	removeExtraSpace bool
	escapeSpace      bool
}

// parseSPModel reads the wire format; defaults are those of the schema.
func parseSPModel(data []byte) (*spModel, error) {
	m := &spModel{
		unigram: true, unknownSurface: " ⁇ ", bos: 1, eos: 2, pad: -1,
		dummyPrefix: true, removeExtraSpace: true, escapeSpace: true,
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("at most %d bytes are read, got %d", maxFile, len(data))
	}
	if err := protoFields(data, func(f protoField) error {
		if f.number == 1 {
			m.count++
		}
		return nil
	}); err != nil {
		return nil, err
	}
	pieces := &messages{data, make([]uint32, 0, m.count), make([]uint8, 0, m.count)}
	m.spPieces = pieces
	err := protoFields(data, func(f protoField) error {
		switch f.number {
		case 1:
			return pieces.add(f)
		case 2:
			return m.parseTrainer(f.data)
		case 3:
			return m.parseNormalizer(f.data)
		case 5:
			return parseDenormalizer(f.data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, m.check()
}

// add takes a piece of the file.
func (m *messages) add(f protoField) error {
	place, kind, distance := uint32(len(m.at)), int32(normalPiece), 0
	if err := protoFields(f.data, func(part protoField) error {
		switch part.number {
		case 1:
			distance = f.end - f.at - len(f.data) + part.end - len(part.data)
			if n := len(part.data); n == 0 || n > 127 || f.data[part.end-n-1] != byte(n) {
				distance = 1 << 8
			}
		case 3:
			kind = part.int32()
		}
		return nil
	}); err != nil {
		return fmt.Errorf("piece %d: %w", place, err)
	}
	if distance >= 1<<(8-kindBits) {
		distance = 0
	}
	m.at, m.kinds = append(m.at, uint32(f.at)), append(m.kinds, uint8(distance<<kindBits|int(kind)&(1<<kindBits-1)))
	if kind < 1 || kind > int32(bytePiece) {
		return fmt.Errorf("piece %d: %q: type %d is unknown", place, m.text(place), kind)
	}
	if text := m.text(place); text == "" || !utf8.ValidString(text) {
		return fmt.Errorf("piece %d: required text, got %q", place, text)
	}
	return nil
}

func (m *spModel) parseTrainer(data []byte) error {
	return protoFields(data, func(f protoField) error {
		switch f.number {
		case 3:
			switch f.value {
			case 1:
				m.unigram = true
			case 2:
				m.unigram = false
			default:
				return fmt.Errorf("trainer_spec: model_type %d is not supported: required 1 (unigram) or 2 (BPE)", f.value)
			}
		case 24:
			m.whitespaceAsSuffix = f.bool()
		case 35:
			m.byteFallback = f.bool()
		case 41:
			m.bos = f.int32()
		case 42:
			m.eos = f.int32()
		case 43:
			m.pad = f.int32()
		case 44:
			m.unknownSurface = string(f.data)
		}
		return nil
	})
}

func (m *spModel) parseNormalizer(data []byte) error {
	return protoFields(data, func(f protoField) (err error) {
		switch f.number {
		case 2:
			m.charsMap, err = parseCharsMap(f.data)
		case 3:
			m.dummyPrefix = f.bool()
		case 4:
			m.removeExtraSpace = f.bool()
		case 5:
			m.escapeSpace = f.bool()
		}
		return err
	})
}

func parseDenormalizer(data []byte) error {
	return protoFields(data, func(f protoField) error {
		if f.number == 2 && len(f.data) > 0 {
			return fmt.Errorf("denormalizer_spec: precompiled_charsmap is not supported")
		}
		return nil
	})
}

// check holds the rules that SentencePiece holds when it loads a model.
func (m *spModel) check() error {
	if m.count == 0 {
		return fmt.Errorf("pieces: at least one is required, got none")
	}
	seen := indexFor(m, m.count)
	unknown, bytesFound := 0, 0
	for i := range uint32(m.count) {
		piece := m.text(i)
		if _, ok := seen.place(piece); ok {
			return fmt.Errorf("piece %d: %q is there already", i, piece)
		}
		seen.put(piece, i)
		switch m.kind(i) {
		case normalPiece, controlPiece, userPiece:
		case unusedPiece:
			if !m.unigram {
				return fmt.Errorf("piece %d: %q: type UNUSED is not supported in a BPE model", i, piece)
			}
		case unknownPiece:
			unknown++
		case bytePiece:
			if _, ok := byteOfToken(piece); !ok || !m.byteFallback {
				return fmt.Errorf("piece %d: %q: a byte piece needs byte_fallback and the form <0xNN>", i, piece)
			}
			bytesFound++
		}
	}
	if unknown != 1 {
		return fmt.Errorf("required one piece of type UNKNOWN, got %d", unknown)
	}
	if m.byteFallback && bytesFound != 256 {
		return fmt.Errorf("byte_fallback needs 256 byte pieces, got %d", bytesFound)
	}
	return nil
}
