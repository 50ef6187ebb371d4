package apply

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// An older agent noted the generation that decided to delete an object, and not its lineage: that was the one of the last write, or a
// later one.
func TestLineageOfADeletionThatAnOlderAgentNoted(t *testing.T) {
	for _, tc := range []struct {
		stored storedRecord
		want   fleet.Age
	}{
		{storedRecord{Lineage: 2}, fleet.Age{}},
		{storedRecord{Lineage: 2, Deleting: 7}, fleet.Age{Lineage: 2, Generation: 7}},
		{storedRecord{Lineage: 2, Deleting: 7, DeletingIn: 3}, fleet.Age{Lineage: 3, Generation: 7}},
	} {
		if got := tc.stored.deleting(); got != tc.want {
			t.Errorf("%+v: decided by %+v, want %+v", tc.stored, got, tc.want)
		}
	}
}
