package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/assemble"
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
	in.confirm(out)
	if out := Prune(in); len(slices.Concat(out.Delete...)) != 9 || len(out.Held) != 0 {
		t.Errorf("after the confirm %d go, %d are held", len(slices.Concat(out.Delete...)), len(out.Held))
	}
}

// TestGuardOverWaiting: a change is not over while some of it waits that is to go as well, and counts with what is gone then.
func TestGuardOverWaiting(t *testing.T) {
	for name, wait := range map[string]func(*PruneInput, []fleet.ObjectID){
		"for heirs": func(in *PruneInput, ids []fleet.ObjectID) {
			var keys []uint64
			for _, id := range ids {
				keys = append(keys, assemble.HeirKey(id))
			}
			slices.Sort(keys)
			in.Heirs = []fleet.Heir{{Module: other, Keys: keys}}
		},
		"for a module that could not be taken": func(in *PruneInput, _ []fleet.ObjectID) { in.Untaken = []fleet.ModuleRef{other} },
		"held": func(in *PruneInput, ids []fleet.ObjectID) {
			in.Held = func(id fleet.ObjectID) string {
				if slices.Contains(ids, id) {
					return "annotation"
				}
				return ""
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Records = nil
			var waiting []fleet.ObjectID
			for i := range 28 { // of 40; 12 are gone
				r := owned(cm(fmt.Sprintf("cm-%02d", i)))
				if in.Records = append(in.Records, r); i < 12 {
					waiting = append(waiting, r.ID)
				}
			}
			in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-12" }
			in.Change = Change{Owned: 28, Gone: 12}
			after := in
			wait(&in, waiting)
			out := Prune(in)
			if out.Change != in.Change || len(out.Delete)+len(out.Held) != 0 {
				t.Errorf("while they wait: %+v, %d stages, %d held", out.Change, len(out.Delete), len(out.Held))
			}
			after.Change = out.Change
			out = Prune(after)
			if len(out.Held) != 12 || len(out.Delete) != 0 {
				t.Errorf("when they wait no more %d are held, and %d stages go", len(out.Held), len(out.Delete))
			}
			after.confirm(out)
			if out := Prune(after); len(out.Held) != 0 || len(slices.Concat(out.Delete...)) != 12 {
				t.Errorf("after the confirm %d are held", len(out.Held))
			}
			after.Records = slices.DeleteFunc(slices.Clone(after.Records), func(r Record) bool { return slices.Contains(waiting, r.ID) })
			if out := Prune(after); out.Change != (Change{}) {
				t.Errorf("when another module has them: %+v", out.Change)
			}
		})
	}
}

// TestGuardOfWhatIsLeft: while a change is not over, what another module took over, or others deleted, is not of the module any more.
func TestGuardOfWhatIsLeft(t *testing.T) {
	in := input()
	hangs := owned(cm("cm-hangs"))
	hangs.Deleting = fleet.Age{Lineage: in.Age.Lineage, Generation: 1}
	in.Records = []Record{hangs}
	for i := range 20 { // of 100
		in.Records = append(in.Records, owned(cm(fmt.Sprintf("cm-%02d", i))))
	}
	in.Change = Change{Owned: 100}
	in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-18" && id != hangs.ID }
	out := Prune(in)
	if len(out.Held) != 18 || out.Change.Owned != 21 {
		t.Errorf("%d are held of 18 that go; %+v", len(out.Held), out.Change)
	}
	in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-09" && id != hangs.ID }
	if out := Prune(in); len(out.Held) != 0 {
		t.Errorf("%d are held, of 9 of 20", len(out.Held))
	}
}

// confirm has a person confirm what he is shown by a plan.
func (in *PruneInput) confirm(shown PrunePlan) {
	in.Records = slices.Clone(in.Records)
	for i, r := range in.Records {
		in.Records[i].Asked = in.Asks(r, slices.Contains(shown.Held, r.ID))
	}
	in.Confirmed = true
}

// without is what is left when something is gone, as the agent notes it.
func (in *PruneInput) without(gone []Record) {
	for _, r := range gone {
		in.Records = slices.DeleteFunc(slices.Clone(in.Records), func(x Record) bool { return x.ID == r.ID })
		if in.Change.Owned > 0 && in.Change.Unanswered(in.Doom(r)) {
			in.Change.Gone++
		}
	}
}

// TestUnshown: of what the agent waits with nobody was asked about what the list that was confirmed does not have, but for what goes already.
func TestUnshown(t *testing.T) {
	id := cm("a")
	shown, other := assemble.HeldKeys([]fleet.ObjectID{id}), assemble.HeldKeys([]fleet.ObjectID{cm("b")})
	for name, tc := range map[string]struct {
		change func(in *PruneInput, r *Record)
		shown  []uint64
		want   bool
	}{
		"on both lists":            {func(*PruneInput, *Record) {}, shown, false},
		"on the agent's alone":     {func(*PruneInput, *Record) {}, other, true},
		"on none":                  {func(_ *PruneInput, r *Record) { r.Asked = false }, other, false},
		"the list is not known":    {func(*PruneInput, *Record) {}, nil, false},
		"nothing is confirmed":     {func(in *PruneInput, _ *Record) { in.Confirmed = false }, other, false},
		"goes already":             {func(in *PruneInput, r *Record) { r.Deleting = in.Age }, other, false},
		"was to go by another hub": {func(in *PruneInput, r *Record) { r.Deleting = fleet.Age{Lineage: in.Age.Lineage + 1, Generation: 1} }, other, true},
	} {
		in, r := input(), owned(id)
		in.Confirmed, r.Asked = true, true
		tc.change(&in, &r)
		if got := in.Unshown(r, tc.shown); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestConfirmIsOfTheListThatWasShown: what was held by itself, or waited for an heir, when a person confirmed was on no list. When that ends
// it counts as a change of its own, also if it ends little by little, and while what he confirmed waits still.
func TestConfirmIsOfTheListThatWasShown(t *testing.T) {
	of := func(free int) func(fleet.ObjectID) string {
		return func(id fleet.ObjectID) string {
			if id.Name >= fmt.Sprintf("cm-%02d", free) && id.Name < "cm-15" {
				return "held"
			}
			return ""
		}
	}
	start := func() (PruneInput, PrunePlan) {
		in := input()
		in.Records, in.Held = nil, of(0)
		for i := range 40 {
			in.Records = append(in.Records, owned(cm(fmt.Sprintf("cm-%02d", i))))
		}
		in.Desired = func(id fleet.ObjectID) bool { return id.Name >= "cm-30" }
		return in, Prune(in)
	}
	t.Run("all at once", func(t *testing.T) {
		in, out := start()
		if len(out.Held) != 15 || len(out.Delete) != 0 {
			t.Fatalf("%d are held", len(out.Held))
		}
		in.Change = out.Change
		in.confirm(out)
		in.Age.Generation++
		out = Prune(in)
		if gone := slices.Concat(out.Delete...); len(gone) != 15 || len(out.Held) != 0 {
			t.Fatalf("%d go", len(gone))
		}
		in.Change = out.Change
		in.without(slices.Concat(out.Delete...))
		in.Age.Generation++
		in.Held = nil
		out = Prune(in)
		if len(out.Held) != 15 || len(out.Delete) != 0 {
			t.Fatalf("%d are held of 15 that were on no list, %d stages go", len(out.Held), len(out.Delete))
		}
		in.Change, in.Confirmed = out.Change, false
		in.Age.Generation++
		if out = Prune(in); len(out.Held) != 15 {
			t.Fatalf("%d are held when the hub asks", len(out.Held))
		}
		in.confirm(out)
		if out = Prune(in); len(slices.Concat(out.Delete...)) != 15 {
			t.Errorf("after the second confirm %d are held", len(out.Held))
		}
	})
	t.Run("little by little", func(t *testing.T) {
		in, out := start()
		in.Change = out.Change
		in.confirm(out)
		for free := range 15 {
			in.Age.Generation++
			in.Held = of(free)
			out = Prune(in)
			in.Change = out.Change
			in.without(slices.Concat(out.Delete...))
		}
		if n := len(in.Records); n != 15 {
			t.Errorf("%d are left of 25, ten of which the module lists: ten may go unasked", n)
		}
	})
	t.Run("while it waits", func(t *testing.T) {
		in, out := start()
		in.Change = out.Change
		in.confirm(out)
		in.Ready = false
		in.Change = Prune(in).Change
		in.Held = nil
		out = Prune(in)
		if len(out.Held) != 15 || slices.ContainsFunc(out.Held, func(id fleet.ObjectID) bool { return id.Name >= "cm-15" }) {
			t.Errorf("%v are held, of which the first 15 were on no list", out.Held)
		}
	})
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
	holds   map[fleet.ObjectID]bool // nothing is written to them
	shown   map[fleet.ObjectID]bool // to a person, last
	change  Change                  // durable
	next    int

	// The naive history: what there was when the change began, and what went of it without a person's word.
	before map[fleet.ObjectID]bool
	mine   map[fleet.ObjectID]bool // what of that no other module took
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
			r.Deleting = fleet.Age{}
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
		if w.mayGo(id) && !w.blamed[id] {
			w.before[id] = true
		}
	}
	w.mine = maps.Clone(w.before)
}

// handOver has another module take what this one listed, but for what was being deleted: that is lost.
func (w *world) handOver(t *rapid.T) {
	for _, id := range sorted(w.desired) {
		_, have := w.records[id]
		if _, begun := w.stuck[id]; have && !begun && rapid.IntRange(0, 9).Draw(t, "hand over") < 4 {
			delete(w.desired, id)
			delete(w.records, id)
			delete(w.mine, id)
			delete(w.blamed, id)
			delete(w.kept, id)
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
	if r := w.records[id]; w.change.Owned > 0 && w.change.Unanswered(r) {
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
	in.Held = func(id fleet.ObjectID) string {
		if w.holds[id] {
			return "held"
		}
		return ""
	}
	return in
}

// hold has nothing written to some of what is to go, or ends that.
func (w *world) hold(t *rapid.T) {
	for _, id := range sorted(w.records) {
		if rapid.IntRange(0, 9).Draw(t, "hold") < 3 {
			w.holds[id] = !w.holds[id]
		}
	}
}

// ask shows a person what is held, as long as he has not confirmed it.
func (w *world) ask(in PruneInput, out PrunePlan) {
	if in.Confirmed {
		return
	}
	w.shown = map[fleet.ObjectID]bool{}
	for _, id := range out.Held {
		w.shown[id] = true
	}
	for id, r := range w.records {
		r.Asked = in.Asks(r, w.shown[id])
		w.records[id] = r
	}
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
	for id := range w.records {
		if w.mayGo(id) && !w.blamed[id] { // what came since, or is kept no more, is the module's, too
			w.mine[id] = true
		}
	}
	in := w.input()
	out := Prune(in)
	if w.rescue(out.Kept) {
		in = w.input()
		out = Prune(in)
	}
	w.change = out.Change
	w.ask(in, out)
	going, decided := slices.Concat(out.Delete...), false
	for _, r := range going {
		decided = decided || !r.Goes()
		w.records[r.ID] = in.Doom(r)
	}
	answered := false
	for id, r := range w.records {
		if in.Confirmed && w.shown[id] && !w.desired[id] && !w.kept[id] && r.Deleting == in.Age && !w.blamed[id] {
			w.blamed[id], answered = true, true
		}
	}
	if answered { // a person looked: from here on it is another change
		w.count()
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
	if decided && w.lost > GuardObjects && 2*w.lost > len(w.mine) {
		t.Fatalf("%d of %d that no other module took went without a confirm", w.lost, len(w.mine))
	}
}

// rescue ends what was decided of what is kept after all, unless its deletion has begun.
func (w *world) rescue(kept []Kept) (any bool) {
	for _, k := range kept {
		if _, begun := w.stuck[k.Record.ID]; begun || !k.Rescued() {
			continue
		}
		r := w.records[k.Record.ID]
		r.Deleting = fleet.Age{}
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
		w := &world{in: input(), records: map[fleet.ObjectID]Record{}, desired: map[fleet.ObjectID]bool{}, stuck: map[fleet.ObjectID]bool{}, holds: map[fleet.ObjectID]bool{},
			kept: map[fleet.ObjectID]bool{}, blamed: map[fleet.ObjectID]bool{}}
		for range rapid.IntRange(5, 50).Draw(t, "objects") {
			w.next++
			w.desired[cm(fmt.Sprintf("cm-%03d", w.next))] = true
		}
		w.applyAll()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"revision", "keep", "ready", "unready", "old pods", "apply", "hand over", "confirm", "hold", "asks", "end", "pass", "pass", "pass"}).Draw(t, "step") {
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
			case "hand over":
				w.handOver(t)
			case "confirm":
				w.in.Confirmed = true
			case "hold":
				w.in.Age.Generation++
				w.hold(t)
			case "asks": // the hub, of what was on no list
				w.in.Age.Generation++
				w.in.Confirmed = false
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
