package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
)

// TestGuardOverPasses: what readiness lets go in parts is one change.
func TestGuardOverPasses(t *testing.T) {
	for name, waits := range map[string]func(*PruneInput){
		"not applied": func(in *PruneInput) { in.Applied, in.Ready = false, false },
		"not ready":   func(in *PruneInput) { in.Ready = false },
		"old pods":    func(in *PruneInput) { in.Old = "Deployment web has 2" },
	} {
		t.Run(name, func(t *testing.T) { guardOverPasses(t, waits) })
	}
}

func guardOverPasses(t *testing.T, waits func(*PruneInput)) {
	in := input()
	in.Records = nil
	var first []string
	for i := range 30 {
		r := owned(cm(fmt.Sprintf("cm-%02d", i)))
		if in.Records = append(in.Records, r); i < 9 {
			first = append(first, r.ID.Name)
		}
	}
	in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-18" }
	in.Policies = []fleet.Policy{{Match: fleet.PolicyMatch{Names: first}, PruneWhen: fleet.PruneFirst}}
	waits(&in)
	out := Prune(in)
	if n := len(slices.Concat(out.Delete...)); n != 0 || len(out.Held) != 18 {
		t.Errorf("%d go, and %d are held, of 18 that the change drops", n, len(out.Held))
	}
	for _, k := range out.Kept {
		if k.Reason != ReasonAwaitingConfirm {
			t.Errorf("%s: %s", k.Record.ID, k.Reason)
		}
	}
	in.Confirmed = true
	if out := Prune(in); len(slices.Concat(out.Delete...)) != 9 || len(out.Held) != 0 {
		t.Errorf("after the confirm %d go, %d are held", len(slices.Concat(out.Delete...)), len(out.Held))
	}
}

func sorted[V any](m map[fleet.ObjectID]V) []fleet.ObjectID {
	return slices.SortedFunc(maps.Keys(m), fleet.ObjectID.Compare)
}

// world is a module in a cluster, as the agent keeps it, with a history that no agent has.
type world struct {
	in      PruneInput
	records map[fleet.ObjectID]Record
	desired map[fleet.ObjectID]bool
	stuck   map[fleet.ObjectID]bool // their deletion does not end
	kept    map[fleet.ObjectID]bool // by a policy of the newest revision, when it drops them
	change  Change                  // durable
	next    int

	// The naive history: what there was when the change began, and what went of it without a person's word.
	before map[fleet.ObjectID]bool
	lost   int
	blamed map[fleet.ObjectID]bool // a person let it go
}

func (w *world) revision(t *rapid.T) {
	w.in.Age.Generation++
	w.in.Confirmed = false
	for _, id := range sorted(w.desired) {
		if rapid.IntRange(0, 9).Draw(t, "drop") < 3 {
			delete(w.desired, id)
		}
	}
	for range rapid.IntRange(0, 5).Draw(t, "new") {
		w.next++
		w.desired[cm(fmt.Sprintf("cm-%03d", w.next))] = true
	}
	for id := range w.desired { // listed again: nobody deletes it any more
		if r, ok := w.records[id]; ok {
			r.Deleting = 0
			w.records[id] = r
			delete(w.blamed, id)
		}
	}
}

// keep has the next revision keep some, and let others go that the one before kept.
func (w *world) keep(t *rapid.T) {
	w.in.Age.Generation++
	w.in.Confirmed = false
	for _, id := range sorted(w.records) {
		if rapid.IntRange(0, 9).Draw(t, "turn") < 3 {
			w.kept[id] = !w.kept[id]
		}
	}
	w.in.Policies = nil
	for _, id := range sorted(w.kept) {
		said := fleet.PruneOnUpdate
		if w.kept[id] {
			said = fleet.PruneNever
		}
		w.in.Policies = append(w.in.Policies, fleet.Policy{Match: fleet.PolicyMatch{Names: []string{id.Name}}, Prune: said})
	}
}

// mayGo reports that an object is not listed and not kept, or was there before the newest revision.
func (w *world) mayGo(id fleet.ObjectID) bool {
	if w.desired[id] {
		return w.records[id].Born < w.in.Age.Generation
	}
	return !w.kept[id]
}

// count notes what there is when a change begins.
func (w *world) count() {
	w.before, w.lost = map[fleet.ObjectID]bool{}, 0
	for id := range w.records {
		if w.mayGo(id) {
			w.before[id] = true
		}
	}
}

func (w *world) applyAll() {
	for id := range w.desired {
		if _, ok := w.records[id]; !ok {
			r := owned(id)
			r.Born, r.Generation = w.in.Age.Generation, w.in.Age.Generation
			w.records[id] = r
		}
	}
}

// leftovers are what is to go.
func (w *world) leftovers() (out []fleet.ObjectID) {
	for id := range w.records {
		if !w.desired[id] && !w.kept[id] {
			out = append(out, id)
		}
	}
	return out
}

// forget is Drop of the inventory.
func (w *world) forget(id fleet.ObjectID) {
	if r := w.records[id]; w.change.Owned > 0 && r.Deleting != 0 && r.Deleting != w.change.Confirmed {
		w.change.Gone++
	}
	delete(w.records, id)
	delete(w.stuck, id)
}

func (w *world) input() PruneInput {
	in := w.in
	in.Records, in.Change = nil, w.change
	for _, id := range sorted(w.records) {
		in.Records = append(in.Records, w.records[id])
	}
	in.Desired = func(id fleet.ObjectID) bool { return w.desired[id] }
	return in
}

// pass looks once. It may be cut short at any point after what it noted durably, as by a crash.
func (w *world) pass(t *rapid.T) {
	if len(w.leftovers()) == 0 {
		w.before, w.lost, w.change = nil, 0, Change{}
		return
	}
	if w.before == nil {
		w.count()
	}
	in := w.input()
	out := Prune(in)
	if w.rescue(out.Kept) {
		in = w.input()
		out = Prune(in)
	}
	w.change = out.Change
	if in.Confirmed { // a person looked: from here on it is another change
		w.count()
	}
	going := slices.Concat(out.Delete...)
	for _, r := range going {
		if r.Deleting == 0 || in.Confirmed {
			r.Deleting = in.Age.Generation
			w.records[r.ID] = r
		}
	}
	for id, r := range w.records {
		if in.Confirmed && !w.desired[id] && !w.kept[id] && r.Deleting == in.Age.Generation {
			w.blamed[id] = true
		}
	}
	for _, r := range going[:rapid.IntRange(0, len(going)).Draw(t, "done")] {
		if _, known := w.stuck[r.ID]; !known {
			w.stuck[r.ID] = rapid.IntRange(0, 3).Draw(t, "stuck") == 0
			if !w.blamed[r.ID] {
				w.lost++
			}
		}
		if !w.stuck[r.ID] {
			w.forget(r.ID)
		}
	}
	if w.lost > GuardObjects && 2*w.lost > len(w.before) {
		t.Fatalf("%d of %d went without a confirm", w.lost, len(w.before))
	}
}

// rescue ends what was decided of what is kept after all, unless its deletion has begun.
func (w *world) rescue(kept []Kept) (any bool) {
	for _, k := range kept {
		if _, begun := w.stuck[k.Record.ID]; begun || !k.Rescued() {
			continue
		}
		r := w.records[k.Record.ID]
		r.Deleting = 0
		w.records[r.ID] = r
		delete(w.blamed, r.ID)
		any = true
	}
	return any
}

// TestGuardProperty: however a change is cut into revisions, looks and crashes, no more than half of what was there goes
// without a person's word, but for ten.
func TestGuardProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: input(), records: map[fleet.ObjectID]Record{}, desired: map[fleet.ObjectID]bool{}, stuck: map[fleet.ObjectID]bool{},
			kept: map[fleet.ObjectID]bool{}, blamed: map[fleet.ObjectID]bool{}}
		for range rapid.IntRange(5, 50).Draw(t, "objects") {
			w.next++
			w.desired[cm(fmt.Sprintf("cm-%03d", w.next))] = true
		}
		w.applyAll()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"revision", "keep", "ready", "unready", "old pods", "apply", "confirm", "end", "pass", "pass", "pass"}).Draw(t, "step") {
			case "revision":
				w.revision(t)
			case "keep":
				w.keep(t)
			case "ready":
				w.in.Applied, w.in.Ready, w.in.Old = true, true, ""
			case "unready":
				w.in.Ready = false
			case "old pods":
				w.in.Old = "Deployment web has 2"
			case "apply":
				w.applyAll()
			case "confirm":
				w.in.Confirmed = true
			case "end": // of the deletions that hung
				for _, id := range sorted(w.stuck) {
					if w.stuck[id] && !w.desired[id] {
						w.forget(id)
					}
				}
			case "pass":
				w.pass(t)
			}
		}
	})
}
