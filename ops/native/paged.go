// Attention over pages of keys and values.
package native

// pageTable tells where the tokens of each request lie in a pool of pages.
type pageTable struct {
	pageSize                     int // 0: not paged
	indptr, indices, lastPageLen []int32
}

// length returns how many tokens request b has.
func (t *pageTable) length(b int) int {
	pages := int(t.indptr[b+1]) - int(t.indptr[b])
	if pages <= 0 {
		return 0
	}
	return (pages-1)*t.pageSize + int(t.lastPageLen[b])
}

// slot returns the place of token j of request b, in tokens of the pool.
func (t *pageTable) slot(b, j int) int {
	page := int(t.indices[int(t.indptr[b])+j/t.pageSize])
	return page*t.pageSize + j%t.pageSize
}
