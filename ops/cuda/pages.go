package cuda

import "fmt"

// CheckPages refuses a page table that would read outside the pool, before any launch: indptr are prefix sums of pages,
// indices page ids, last the tokens in each request's last page.
func CheckPages(pageSize, poolPages int, indptr, indices, last []int32) error {
	if _, err := pageLog2("page table", pageSize); err != nil {
		return err
	}
	if len(indptr) != len(last)+1 || indptr[0] != 0 {
		return fmt.Errorf("page table: indptr of %d+1 entries that starts at 0 is required, got %d entries %v", len(last), len(indptr), head(indptr))
	}
	for b, n := range last {
		pages := int64(indptr[b+1]) - int64(indptr[b])
		switch {
		case pages < 0:
			return fmt.Errorf("page table: indptr decreases at request %d: %d, %d", b, indptr[b], indptr[b+1])
		case pages == 0:
			continue // no request: its last page is not looked at
		case n < 1 || int(n) > pageSize:
			return fmt.Errorf("page table: the last page of request %d holds 1 to %d tokens, got %d", b, pageSize, n)
		}
	}
	if int(indptr[len(last)]) > len(indices) {
		return fmt.Errorf("page table: indptr ends at %d, there are %d page ids", indptr[len(last)], len(indices))
	}
	for i, id := range indices[:indptr[len(last)]] {
		if id < 0 || int(id) >= poolPages {
			return fmt.Errorf("page table: page id %d at %d: the pool has pages 0 to %d", id, i, poolPages-1)
		}
	}
	return nil
}

func head(x []int32) []int32 { return x[:min(len(x), 4)] }
