// A bounded cache of encoded words.

package tokenizer

import "hash/maphash"

// A cached word and its ids fill one cache line. Longer ones are encoded
// afresh each time.
const (
	cacheWords   = 1 << 13
	cacheKeySize = 22
	cacheIDs     = 10
)

type cachedWord struct {
	size, count uint8
	key         [cacheKeySize]byte
	ids         [cacheIDs]int32
}

var cacheSeed = maphash.MakeSeed()

// cached returns the entry where word belongs, which holds it or another word
// or nothing; nil for a word too long to cache.
func (s *scratch) cached(word string) *cachedWord {
	if len(word) > cacheKeySize {
		return nil
	}
	if s.cache == nil {
		s.cache = make([]cachedWord, cacheWords)
	}
	return &s.cache[maphash.String(cacheSeed, word)%cacheWords]
}

func (c *cachedWord) holds(word string) bool { return string(c.key[:c.size]) == word }

func (c *cachedWord) put(word string, ids []int32) {
	if len(ids) > cacheIDs {
		return
	}
	c.size, c.count = uint8(len(word)), uint8(len(ids))
	copy(c.key[:], word)
	copy(c.ids[:], ids)
}
