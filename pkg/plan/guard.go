package plan

import (
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// GuardObjects is one limit of the guard: a change that drops more objects than that, and more than half of a module,
// waits for a person.
const GuardObjects = 10

// Change is what a module loses from when something is to go to when nothing is left to go. The guard looks at it as a
// whole: it may take many looks, more than one revision and restarts of the agent.
type Change struct {
	// Owned is how many objects the module had when the change began; 0: there is none.
	Owned int
	// Gone is how many of them went since without a person's word. Whoever deletes or releases counts.
	Gone int
	// Confirmed is the age of the word whose decisions about what he was shown a person confirmed; zero: none.
	Confirmed fleet.Age
}

// Unanswered reports that it was decided without a person's word that an object goes.
func (c Change) Unanswered(r Record) bool { return r.Goes() && (r.Deleting != c.Confirmed || !r.Asked) }

// answered reports that a person let the object go: he confirmed the list that it was on.
func (in PruneInput) answered(r Record) bool { return in.Confirmed && r.Asked }

// Asks reports that an object is on the list that a person is shown, by a plan that holds it or not. A confirm is of the last list before
// it, so that one which is there already, or that nothing is said for now, leaves that as it is. What goes by an answer stays answered.
func (in PruneInput) Asks(r Record, held bool) bool {
	if in.Tombstone || in.Confirmed || !in.speaks() {
		return r.Asked
	}
	return held || r.Asked && r.Goes()
}

// Unshown reports that an object is on the list that the agent waited with when the answer came, and not on the one that was answered: it came
// there while the person was shown that. What goes already does so by another answer, or was none of what waits.
func (in PruneInput) Unshown(r Record, shown []uint64) bool {
	return in.Confirmed && len(shown) > 0 && r.Asked && !in.allowed(r) && !assemble.Holds(shown, r.ID)
}

// news reports that an object goes by the answer of a person, which was not noted yet.
func (in PruneInput) news(r Record) bool { return in.answered(r) && !in.allowed(r) }

// allowed reports that an earlier decision let the object go, so that it goes on whatever comes later in the same lineage: who speaks
// in a new one may never have been asked about it. The order to leave the fleet is over when the cluster is told something else.
func (in PruneInput) allowed(r Record) bool {
	return r.Goes() && r.Deleting.Lineage == in.Age.Lineage && r.Deleting.Generation <= in.Age.Generation
}

// Doom is the record of an object that is going to be deleted or released. What an earlier word decided stays its decision, unless a
// person confirmed it under this one.
func (in PruneInput) Doom(r Record) Record {
	if in.answered(r) || !in.allowed(r) {
		r.Deleting = in.Age
	}
	return r
}

// guard keeps what goes if the change as a whole is too large. change is what is to go, now or later. What is kept after all, and is on its
// way out already, goes as well.
func (in PruneInput) guard(change, doomed []Record, out *PrunePlan) []Record {
	c, begun := in.Change, 0
	for _, k := range out.Kept { // the others are decided anew by now
		if k.Rescued() && c.Unanswered(k.Record) {
			begun++
		}
	}
	switch {
	case in.Tombstone, len(change) == 0 && !slices.ContainsFunc(out.Kept, waitsStill):
		out.Change = Change{}
		return doomed
	case len(change) == 0: // it is not over
		return doomed
	}
	rest := slices.DeleteFunc(slices.Clone(change), in.answered)
	switch {
	case slices.ContainsFunc(doomed, in.news), slices.ContainsFunc(out.Release, in.news): // from here on the rest is another change
		c = Change{Owned: in.owned(rest)}
	case c.Owned == 0:
		c.Owned = in.owned(rest) + begun
	}
	if in.Confirmed {
		c.Confirmed = in.Age // what he let go is noted as of the newest word
	}
	c.Owned = max(min(c.Owned, c.Gone+begun+in.left(rest)), 1) // what went otherwise, to another module too, is not of this one any more
	out.Change = c
	goes := c.Gone + begun
	for _, r := range rest {
		if !in.allowed(r) || c.Unanswered(r) {
			goes++
		}
	}
	if goes <= GuardObjects || 2*goes <= c.Owned {
		return doomed
	}
	held := map[fleet.ObjectID]bool{}
	for _, r := range rest {
		if !in.allowed(r) {
			held[r.ID] = true
			out.Held = append(out.Held, r.ID)
		}
	}
	return in.hold(held, doomed, out)
}

// waitsStill reports that an object is to go as well, unless another module takes it. When its waiting ends it counts with what has gone by
// then.
func waitsStill(k Kept) bool {
	waits := k.Reason == ReasonAwaitingHeir || k.Reason == ReasonAwaitingModules || k.Reason == ReasonHeld
	return waits && k.Record.State == Owned
}

// hold has objects wait for a confirm, whatever else they wait for.
func (in PruneInput) hold(held map[fleet.ObjectID]bool, doomed []Record, out *PrunePlan) []Record {
	for i, k := range out.Kept {
		if held[k.Record.ID] && k.Reason != ReasonUnknownKind {
			out.Kept[i] = awaitingConfirm(k.Record)
		}
	}
	stays := func(r Record) bool {
		if held[r.ID] {
			out.Kept = append(out.Kept, awaitingConfirm(r))
		}
		return held[r.ID]
	}
	out.Release = slices.DeleteFunc(out.Release, stays)
	return slices.DeleteFunc(doomed, stays)
}

func awaitingConfirm(r Record) Kept {
	return Kept{r, RuleGuard, ReasonAwaitingConfirm, "dropping more than half of the module waits for a confirm"}
}

// owned is how many objects the module had before this sync, with those that are to go. Of what labels may keep that are not known it
// cannot be said that it goes, so that it does not count; 0 would say that there is no change.
func (in PruneInput) owned(change []Record) int {
	unknown := 0
	for _, r := range change {
		if in.labels(r) == nil && in.AsksLabels(r) {
			unknown++
		}
	}
	return max(in.left(change)-unknown, 1)
}

// left is how many objects of before this sync the module still has, whatever becomes of them.
func (in PruneInput) left(change []Record) int {
	n := len(change)
	for _, r := range in.Records {
		if in.Desired(r.ID) && r.State == Owned && r.bornBefore(in.Age) {
			n++
		}
	}
	return n
}
