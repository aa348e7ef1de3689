// What a page table, a prefix sum or a list of lengths must hold before a body
// may follow it.

package native

import "fmt"

// PageError says which request of a paged or ragged call is refused.
type PageError struct {
	Request int // -1: the fault is not in one request
	Index   int // place in the array at fault, -1 where there is none
	Reason  string
}

func (e *PageError) Error() string { return e.Reason }

func pageError(request, index int, format string, args ...any) error {
	return &PageError{request, index, fmt.Sprintf(format, args...)}
}

// CheckIndptr returns an error unless indptr holds requests+1 prefix sums that
// start at 0, never decrease and end at most at total. name is that of the
// array: qo_indptr, kv_indptr, kv_page_indptr or cu_seqlens.
func CheckIndptr(name string, indptr []int32, requests, total int) error {
	if requests < 0 || len(indptr) != requests+1 {
		return pageError(-1, -1, "%s must have %d elements for %d requests, got %d", name, max(requests, 0)+1, max(requests, 0), len(indptr))
	}
	if indptr[0] != 0 {
		return pageError(-1, 0, "%s must start at 0, got %d", name, indptr[0])
	}
	for r := range requests {
		if indptr[r+1] < indptr[r] {
			return pageError(r, r+1, "request %d: %s must not decrease, got %d then %d at index %d", r, name, indptr[r], indptr[r+1], r+1)
		}
	}
	if end := int(indptr[requests]); end > total {
		return pageError(requests-1, requests, "request %d: %s ends at %d at index %d, there are %d", requests-1, name, end, requests, total)
	}
	return nil
}

// CheckRagged returns an error unless the two prefix sums cut queries and keys
// into the same number of sequences.
func CheckRagged(qIndptr, kvIndptr []int32, queries, keys int) error {
	if len(qIndptr) == 0 {
		return pageError(-1, -1, "qo_indptr must have at least 1 element, got 0")
	}
	if err := CheckIndptr("qo_indptr", qIndptr, len(qIndptr)-1, queries); err != nil {
		return err
	}
	return CheckIndptr("kv_indptr", kvIndptr, len(qIndptr)-1, keys)
}

// CheckLengths returns an error unless there is one length in 0..most for each
// of the batches.
func CheckLengths(lengths []int32, batches, most int) error {
	if len(lengths) != batches {
		return pageError(-1, -1, "kv_len must have %d elements for %d requests, got %d", batches, batches, len(lengths))
	}
	for b, n := range lengths {
		if n < 0 || int(n) > most {
			return pageError(b, b, "request %d: kv_len must be 0 to %d, got %d at index %d", b, most, n, b)
		}
	}
	return nil
}

// CheckPages returns an error unless every page of the table is inside a pool
// of that many pages and belongs to one request alone, and the lengths fit.
func CheckPages(t PageTable, requests, pages int) error {
	if t.PageSize < 1 || t.PageSize > 256 || t.PageSize&(t.PageSize-1) != 0 {
		return pageError(-1, -1, "page_size must be a power of two from 1 to 256, got %d", t.PageSize)
	}
	if err := CheckIndptr("kv_page_indptr", t.Indptr, requests, len(t.Indices)); err != nil {
		return err
	}
	if len(t.LastPageLen) != requests {
		return pageError(-1, -1, "kv_last_page_len must have %d elements for %d requests, got %d", requests, requests, len(t.LastPageLen))
	}
	taken := takenPages.take(max(pages, 0))
	defer takenPages.give(taken)
	clear(taken)
	for r := range requests {
		first, end := int(t.Indptr[r]), int(t.Indptr[r+1])
		for i, page := range t.Indices[first:end] {
			switch i += first; {
			case uint(uint32(page)) >= uint(len(taken)): // a negative one too
				return pageError(r, i, "request %d: page %d at index %d of kv_page_indices is outside the pool of %d pages", r, page, i, pages)
			case taken[page]:
				return pageError(r, i, "request %d: page %d at index %d of kv_page_indices is in the table twice", r, page, i)
			}
			taken[page] = true
		}
		if n := int(t.LastPageLen[r]); first < end && (n < 1 || n > t.PageSize) {
			return pageError(r, r, "request %d: kv_last_page_len must be 1 to the page size %d, got %d at index %d", r, t.PageSize, n, r)
		}
	}
	return nil
}

// takenPages are the page sets of CheckPages.
var takenPages scratch[bool]

// CheckAppend returns an error unless every request has room for the tokens
// that it brings. The table, which counts them already, has passed CheckPages
// and qIndptr CheckIndptr.
func CheckAppend(t PageTable, qIndptr []int32) error {
	for r := range len(qIndptr) - 1 {
		if n := int(qIndptr[r+1] - qIndptr[r]); n > t.Length(r) {
			return pageError(r, -1, "request %d: %d new tokens do not fit into the %d that its pages hold", r, n, t.Length(r))
		}
	}
	return nil
}

// CheckSlots returns an error unless every slot is -1 (no request) or inside a
// pool of that many slots.
func CheckSlots(slots []int32, pool int) error {
	for t, slot := range slots {
		if slot < -1 || int(slot) >= pool {
			return pageError(-1, t, "token %d: slot %d is outside the pool of %d slots", t, slot, pool)
		}
	}
	return nil
}

// CheckElements returns an error unless a tensor of the shape can be indexed
// with 64 bits (and held by a slice of this machine).
func CheckElements(name string, shape ...int) error {
	n := 1
	for _, s := range shape {
		if s < 0 {
			return fmt.Errorf("%s: negative size in shape %v", name, shape)
		}
		if s != 0 && n > maxElements/s {
			return fmt.Errorf("%s: shape %v has more elements than can be indexed", name, shape)
		}
		n *= max(s, 1)
	}
	return nil
}

// maxElements of 8 bytes still have offsets that fit an int.
const maxElements = int(^uint(0)>>1) / 8
