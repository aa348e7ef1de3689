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

// spModel is what decides the ids of a SentencePiece model.
type spModel struct {
	pieces []string
	scores []float32
	types  []pieceType

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
	err := protoFields(data, func(f protoField) error {
		switch f.number {
		case 1:
			return m.parsePiece(f.data)
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

func (m *spModel) parsePiece(data []byte) error {
	piece, score, kind := "", float32(0), normalPiece
	err := protoFields(data, func(f protoField) error {
		switch f.number {
		case 1:
			piece = string(f.data)
		case 2:
			score = f.float()
		case 3:
			kind = pieceType(f.int32())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("piece %d: %w", len(m.pieces), err)
	}
	m.pieces = append(m.pieces, piece)
	m.scores = append(m.scores, score)
	m.types = append(m.types, kind)
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
	if len(m.pieces) == 0 {
		return fmt.Errorf("pieces: at least one is required, got none")
	}
	seen := indexFor(len(m.pieces))
	seen.tokens = m.pieces
	unknown, bytesFound := 0, 0
	for i, piece := range m.pieces {
		if piece == "" || !utf8.ValidString(piece) {
			return fmt.Errorf("piece %d: required text, got %q", i, piece)
		}
		if _, ok := seen.id(piece); ok {
			return fmt.Errorf("piece %d: %q is there already", i, piece)
		}
		seen.put(piece, int32(i))
		switch m.types[i] {
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
		default:
			return fmt.Errorf("piece %d: %q: type %d is unknown", i, piece, m.types[i])
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
