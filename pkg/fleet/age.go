package fleet

import "cmp"

// Age orders what a cluster was told. Generations are compared only within the lineage that counted them, a hub's store
// from one new beginning to the next; lineages are numbered as an agent came to accept them, and a later one is newer.
type Age struct{ Lineage, Generation uint64 }

// Compare is negative if a is older than b.
func (a Age) Compare(b Age) int {
	return cmp.Or(cmp.Compare(a.Lineage, b.Lineage), cmp.Compare(a.Generation, b.Generation))
}

// Age of what the sync says.
func (s Sync) Age() Age { return Age{s.Lineage, s.Generation} }

// Age of what the tombstone says.
func (t Tombstone) Age() Age { return Age{t.Lineage, t.Generation} }
