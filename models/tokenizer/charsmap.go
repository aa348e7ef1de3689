// The character map of SentencePiece normalizers (nmt_nfkc and others): a
// double-array trie of byte strings, each with its replacement.

package tokenizer

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// charsMap is the precompiled_charsmap of a model: the size of the trie in
// bytes, its units (Darts-clone, 32 bits each), then the replacements, each
// ending in NUL.
type charsMap struct {
	units        []byte
	replacements []byte
}

func parseCharsMap(data []byte) (*charsMap, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap: required 4 bytes of size, got %d", len(data))
	}
	size := binary.LittleEndian.Uint32(data)
	if uint64(size) >= uint64(len(data)-4) || size%4 != 0 {
		return nil, fmt.Errorf("precompiled_charsmap: trie of %d bytes in %d", size, len(data)-4)
	}
	m := &charsMap{units: data[4 : 4+size], replacements: data[4+size:]}
	for text := range bytes.SplitSeq(m.replacements, []byte{0}) {
		if len(text) > maxGrowth {
			return nil, fmt.Errorf("precompiled_charsmap: a replacement of %d bytes: at most %d are supported", len(text), maxGrowth)
		}
	}
	return m, nil
}

// unit is the one at a place; there is one.
func (m *charsMap) unit(at uint32) uint32 { return binary.LittleEndian.Uint32(m.units[4*at:]) }

// inside says that there is a unit at a place.
func (m *charsMap) inside(at uint32) bool { return uint64(at) < uint64(len(m.units)/4) }

// lookup returns the replacement of the longest entry that text starts with,
// and the entry's length; 0 if there is none.
func (m *charsMap) lookup(text string) (replacement string, length int) {
	if !m.inside(0) {
		return "", 0
	}
	value := uint32(0)
	node := unitOffset(m.unit(0))
	for i := range len(text) {
		node ^= uint32(text[i])
		if !m.inside(node) {
			break
		}
		unit := m.unit(node)
		if unit&(1<<31|0xFF) != uint32(text[i]) {
			break
		}
		node ^= unitOffset(unit)
		if !m.inside(node) {
			break
		}
		if unit>>8&1 == 1 { // the unit at the offset holds a value
			value, length = m.unit(node)&(1<<31-1), i+1
		}
	}
	if length == 0 || uint64(value) > uint64(len(m.replacements)) {
		return "", 0
	}
	rest := m.replacements[value:]
	if end := bytes.IndexByte(rest, 0); end >= 0 {
		rest = rest[:end]
	}
	return string(rest), length
}

// unitOffset is the distance from a unit to its children.
func unitOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
