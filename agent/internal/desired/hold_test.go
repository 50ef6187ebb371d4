package desired

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// heldNow is what is held of a module, in words: how it is on hold, and the keys of single objects.
func heldNow(s *Store, name string) string {
	h := s.Held()
	for _, x := range slices.Concat(h.Assemblage.Syncs, h.Strays) {
		if x.Module == ref(name) {
			return fmt.Sprintf("sync@%d %t %v", x.Generation, x.Hold, x.Held)
		}
	}
	for _, x := range h.Assemblage.Tombstones {
		if x.Module == ref(name) {
			return fmt.Sprintf("tombstone@%d %t", x.Generation, x.Hold)
		}
	}
	return "nothing"
}

// TestHoldInAWordThatIsRefused: a person stops a module of which the agent cannot take the newest word, for the hub is newer, or for its contents: what the agent
// keeps of it stops. It goes on when the newest word says no hold, taken or not; and a word that is refused ends no hold of what is kept.
func TestHoldInAWordThatIsRefused(t *testing.T) {
	h := newHub()
	junk := h.put([]byte(`[{"delete":"Archive"}]`))
	good := func(generation uint64, change func(*fleet.Sync)) *agentv1.Index {
		x := h.sync("web", generation, 2, "a")
		change(&x)
		return index(20, []fleet.Sync{x})
	}
	bad := func(generation uint64, change func(*fleet.Sync)) *agentv1.Index {
		return good(generation, func(x *fleet.Sync) {
			x.Policies = junk
			change(x)
		})
	}
	unread := func(generation uint64, change func(*fleet.Sync)) *agentv1.Index {
		return good(generation, func(x *fleet.Sync) {
			x.Objects = 1 << 20
			change(x)
		})
	}
	free := func(*fleet.Sync) {}
	all := func(x *fleet.Sync) { x.Hold = true }
	some := func(keys ...uint64) func(*fleet.Sync) { return func(x *fleet.Sync) { x.Held = keys } }
	tombstone := func(generation uint64, policy string, hold bool) *agentv1.Index {
		return index(20, nil, fleet.Tombstone{Module: ref("web"), Generation: generation, Policy: policy, Hold: hold})
	}
	for name, steps := range map[string][]struct {
		in   *agentv1.Index
		want string
	}{
		"a word of a policy": {{good(5, free), "sync@5 false []"}, {bad(9, all), "sync@5 true []"}, {bad(9, free), "sync@5 false []"}},
		"what is not read":   {{good(5, free), "sync@5 false []"}, {unread(9, all), "sync@5 true []"}, {good(10, free), "sync@10 false []"}},
		"an object":          {{good(5, some(7)), "sync@5 false [7]"}, {bad(9, some(3, 7, 9)), "sync@5 false [3 7 9]"}, {bad(9, free), "sync@5 false [7]"}},
		"a hold that was taken is not ended by what is refused": {{good(5, all), "sync@5 true []"}, {bad(9, free), "sync@5 true []"}, {good(10, free), "sync@10 false []"}},
		"a stray keeps it": {{good(5, free), "sync@5 false []"}, {bad(9, all), "sync@5 true []"}, {index(20, nil), "sync@5 true []"}, {index(20, nil), "sync@5 true []"},
			{good(10, free), "sync@10 false []"}},
		"a removal": {{good(5, free), "sync@5 false []"}, {tombstone(9, "Archive", true), "sync@5 true []"}, {tombstone(9, fleet.DeleteDelete, false), "tombstone@9 false"}},
		"a removal that goes on": {{good(5, free), "sync@5 false []"}, {tombstone(9, fleet.DeleteDelete, false), "tombstone@9 false"}, {bad(10, some(7)), "tombstone@9 true"},
			{bad(10, free), "tombstone@9 false"}},
		"nothing is kept": {{bad(9, all), "nothing"}, {good(10, free), "sync@10 false []"}},
	} {
		t.Run(name, func(t *testing.T) {
			state := newMemory()
			s := open(t, state)
			for i, step := range steps {
				r := accept(t, s, h, step.in)
				if r.Code != "" {
					t.Fatalf("step %d: refused as a whole: %+v", i, r)
				}
				again := open(t, state)
				if got, then := heldNow(s, "web"), heldNow(again, "web"); got != step.want || then != step.want {
					t.Errorf("step %d: held %q, want %q; after a restart %q; refused %s", i, got, step.want, then, strings.TrimSpace(refusals(r)))
				}
			}
		})
	}
}
