// How much memory a header may take.

package checkpoint

import "fmt"

// budget is the memory that opening a file may take, in bytes: twice the file and
// a little. No checkpoint with weights comes near it; a file that is all header
// could take ten times its size.
type budget struct{ size, left int64 }

// budgetSlack is enough for 15000 tensors without data.
const budgetSlack = 8 << 20

func newBudget(size int64) *budget { return &budget{size, 2*size + budgetSlack} }

// spend is an error once the budget is used up.
func (b *budget) spend(bytes int) error {
	if b.left -= int64(bytes); b.left < 0 {
		return fmt.Errorf("what the header describes takes more memory than twice the file's %d bytes", b.size)
	}
	return nil
}

// What things take beside their texts, with tables that grow by doubling, measured
// and rounded up.
const (
	tensorMemory   = 512 // a tensor and its entry while it is read
	keyMemory      = 192 // a key of the metadata with a boxed value
	stringMemory   = 16  // a string in a list
	arrayMemory    = 96  // a list in a list
	readAheadTimes = 5   // a string while the JSON decoder reads it, by its length
)
