package plan

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What another module has is shared only where both say so, and only when it is there; else it is that one's.
func TestDecideShared(t *testing.T) {
	shares := fleet.Policy{Shared: new(true)}
	has := func(shared bool, state RecordState) *Record {
		r := owned(cm("a"))
		r.Module, r.Shared, r.State = other, shared, state
		return &r
	}
	for name, tc := range map[string]struct {
		f    Facts
		want Verb
	}{
		"both say so":             {Facts{Record: has(true, Owned), Policy: shares}, Share},
		"both, and it is held":    {Facts{Record: has(true, Owned), Policy: shares, Hold: true}, Share},
		"both, by the hub, too":   {Facts{Record: has(true, Owned), Policy: shares, Yields: true}, Share},
		"the owner does not":      {Facts{Record: has(false, Owned), Policy: shares}, Conflict},
		"only the owner does":     {Facts{Record: has(true, Owned)}, Conflict},
		"an exception":            {Facts{Record: has(true, Owned), Policy: fleet.Policy{Shared: new(false)}}, Conflict},
		"the owner has not begun": {Facts{Policy: shares, Yields: true}, Conflict},
		"it is not there yet":     {Facts{Record: has(true, Intent), Policy: shares}, Conflict},
	} {
		tc.f.Module = shop
		if got := Decide(tc.f); got.Verb != tc.want || got.Verb.Writes() {
			t.Errorf("%s: %+v, want %v", name, got, tc.want)
		}
	}
}
