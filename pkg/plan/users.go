package plan

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// User is an object by which pods run, or are reached, that may use what a module drops: those of a revision before need what that
// listed, however the workload is judged now.
type User struct {
	ID fleet.ObjectID
	// Module has it, where that is not the module that drops; zero: that one has.
	Module fleet.ModuleRef
	// Old is how many pods of an older template it has; less than 0: it is not through with its update.
	Old int
	// Unseen says that nothing is known of it now, Differs that what its pods are made by, or who is reached, is not as the module says.
	Unseen, Differs bool
}

// WithGiver are the givers of an object that a module hands over. It stays without where its kind uses nothing.
func (r Record) WithGiver(ref fleet.ModuleRef) string {
	if !MayUse(r.ID) || r.GivenBy(ref) {
		return r.Givers
	}
	return strings.TrimSpace(r.Givers + " " + ref.String())
}

// GivenBy reports that a module handed the object over, and it is not through since.
func (r Record) GivenBy(ref fleet.ModuleRef) bool {
	return slices.Contains(strings.Fields(r.Givers), ref.String())
}

// MayUse reports that objects of a kind may use others by name: those by which pods run or are reached. Of a custom kind nobody knows.
func MayUse(id fleet.ObjectID) bool {
	_, listed := parts[id.Kind]
	return listed || IsCustom(id)
}

// text is why what the module drops is to wait for it; empty: it is through.
func (u User) text() string {
	name := u.ID.String()
	if u.Module != (fleet.ModuleRef{}) {
		name += " of module " + u.Module.Display()
	}
	switch {
	case u.Unseen:
		return name + ", of which nothing is known now"
	case u.Differs:
		return name + " is not as the revision says"
	case u.Old > 0:
		return fmt.Sprintf("%s has %d", name, u.Old)
	case u.Old < 0 && u.Module != fleet.ModuleRef{} && IsCustom(u.ID):
		return name + " is not ready there (" + fleet.ReadyAnnotation + ": " + fleet.ReadyIgnore + " in its manifest ends that)"
	case u.Old < 0 && u.Module != fleet.ModuleRef{}:
		return name + " is not through with what that module makes of it"
	case u.Old < 0:
		return name + " is not through with its update"
	}
	return ""
}

// UsersText names those for which what a module drops is to wait; empty: for none.
func UsersText(list []User) string {
	var out []string
	for _, u := range list {
		if text := u.text(); text != "" {
			out = append(out, text)
		}
	}
	return Names(out)
}

// staying is an object that does not go now, the one that would go first, and why; without a reason there is none.
type staying struct {
	record Record
	why    string
}

// stayingText is said of what waits for something else.
const stayingText = "which stays for now"

func (s *staying) take(r Record, why string, stage func(Record) deleteStage) {
	if s.why == "" || stage(r).compare(stage(s.record)) < 0 {
		s.record, s.why = r, why
	}
}

// takeUser is take for an object that may use others.
func (s *staying) takeUser(r Record, why string, stage func(Record) deleteStage) {
	if r.Written() && MayUse(r.ID) {
		s.take(r, why, stage)
	}
}

// before reports that an object goes after the one that stays.
func (s *staying) before(r Record, stage func(Record) deleteStage) bool {
	return s.why != "" && stage(s.record).compare(stage(r)) < 0
}

// firstStaying is what may use others and does not go though it is decided that it does: it waits for something else, or goes to another module as it is.
// What a policy keeps is as people want it.
func (in PruneInput) firstStaying(out *PrunePlan, stage func(Record) deleteStage) (first staying) {
	for _, k := range out.Kept {
		waits := slices.Contains([]string{ReasonHeld, ReasonAwaitingHeir, ReasonAwaitingModules, ReasonAwaitingConfirm}, k.Reason)
		if waits && !in.keepsAnyway(k.Record) {
			first.takeUser(k.Record, stayingText, stage)
		}
	}
	for _, h := range out.Handover {
		first.takeUser(h.Record, "which goes to module "+h.To.Display(), stage)
	}
	return first
}

// keepsAnyway reports that the policies keep an object, whatever else it waits for.
func (in PruneInput) keepsAnyway(r Record) bool {
	return in.Releases(r) || in.Keeps(r, in.labels(r))
}

// InOrder takes out of a plan what would go after objects that are found to stay, and may use it.
func (in PruneInput) InOrder(p *PrunePlan, stays []Record) {
	own := ownGroups(in.Records)
	stage := func(r Record) deleteStage { return deleteStageOf(r, own) }
	var first staying
	for _, r := range stays {
		first.takeUser(r, stayingText, stage)
	}
	for i := range p.Delete {
		p.Delete[i] = slices.DeleteFunc(p.Delete[i], func(r Record) bool {
			after := first.before(r, stage) && in.awaitsPods(r)
			if after {
				p.Kept = append(p.Kept, first.goesFirst(r))
			}
			return after
		})
	}
}

// goesFirst is said of an object that waits for the turn of the one that stays.
func (s *staying) goesFirst(r Record) Kept {
	return Kept{r, RuleOrder, ReasonRemoving, "goes after " + s.record.ID.String() + ", " + s.why}
}
