package plan

import (
	"fmt"
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Rule names what keeps an object, or lets it go. The numbers are those of the prune-safety rules.
type Rule string

// Rules.
const (
	RulePositiveIntent   Rule = "1 positive intent"
	RuleCompleteness     Rule = "2 completeness"
	RuleLineage          Rule = "3 same lineage"
	RuleApplyFirst       Rule = "5 apply first"
	RuleOwnershipLive    Rule = "6 ownership, checked live"
	RuleIntentIsNotOwned Rule = "7 intent is not ownership"
	RulePrecondition     Rule = "8 precondition"
	RuleWantedElsewhere  Rule = "9 not wanted elsewhere"
	RuleSensitiveKind    Rule = "10 not by default"
	RuleProtection       Rule = "11 protection"
	RuleGuard            Rule = "12 blast radius"
	RuleUnknownKind      Rule = "16 unknown kinds stay"
	RuleOrder            Rule = "17 order"
)

// Reasons of objects that stay.
const (
	ReasonKept            = "Kept"
	ReasonLegacy          = "KeptLegacy"
	ReasonAwaitingApply   = "AwaitingApply"
	ReasonAwaitingReady   = "AwaitingReady"
	ReasonAwaitingUpdate  = "AwaitingUpdate"
	ReasonAwaitingConfirm = "AwaitingConfirm"
	ReasonAwaitingModules = "AwaitingModules"
	ReasonAwaitingSearch  = "AwaitingSearch"
	ReasonAwaitingHeir    = "AwaitingHeir"
	ReasonHeld            = fleet.ObjectHeld
	// ReasonDenied: the cluster's own policy does not accept it. ReasonDeleteBudget: that lets no more be deleted in this hour.
	ReasonDenied       = "DeniedByPolicy"
	ReasonDeleteBudget = "DeleteBudget"
	ReasonIncomplete   = "Incomplete"
	ReasonUnknownKind  = "UnknownKind"
	ReasonUnsettled    = "Unsettled"
	ReasonNotOurs      = "NotOurs"
	ReasonTerminating  = "Terminating"
	ReasonRemoving     = "Removing"
	ReasonNotEmpty     = "NamespaceNotEmpty"
	ReasonInUse        = "InstancesLeft"
	// ReasonUncounted is of a module that is ready though an object of it is not healthy, by the word of its manifest.
	ReasonUncounted = "ReadinessIgnored"
)

// PruneInput is what Prune needs about one module.
type PruneInput struct {
	Module fleet.ModuleRef
	// Age of the sync or tombstone.
	Age fleet.Age
	// Tombstone takes the whole module away; Policy says whether its objects are deleted or released.
	Tombstone bool
	Policy    string
	// Desired reports whether the sync lists an object; not used for a tombstone.
	Desired func(fleet.ObjectID) bool
	// Reads reports that the sync lists an object to read it only: it is let go of at once, wherever it is; nil: it lists none so.
	Reads func(fleet.ObjectID) bool
	// Complete says that the sync's bundle is here, with the digest and the count that were promised.
	Complete bool
	// Lineage is the one that the hub speaks for now. A sync or tombstone of an older one deletes nothing.
	Lineage uint64
	// Applied says that every object of the sync is applied; Ready that all are healthy, too.
	Applied, Ready bool
	// Old names who may use what goes (UsersText): of a sync what it lists, and what went to other modules; of a tombstone the latter.
	Old string
	// Confirmed says that a person confirmed what the sync drops.
	Confirmed bool
	// Recycles are orders of people to delete trackers of revisions.
	Recycles []fleet.Recycle
	// Change is what the module lost already since something was to go, as the last plan had it.
	Change Change
	// Hold stops every write, Held those to single objects, of which it says why; nil: there are none.
	Hold bool
	Held func(fleet.ObjectID) (why string)
	// Records are all of the module.
	Records []Record
	// Policies of the sync. For a tombstone those that the records remember hold, and these, of the sync that it takes away, keep what
	// they keep by labels that are seen.
	Policies []fleet.Policy
	// Labels are those that were seen on an object that a sync does not list, where AsksLabels asks for them; nil: they are not known, as
	// all are where the function is nil. What they come to is verified when the object is to go.
	Labels func(Record) map[string]string
	// WantedBy is another module that lists the object and waits for it.
	WantedBy func(fleet.ObjectID) (fleet.ModuleRef, bool)
	// Heirs are modules that are to have objects of this one and are not here with them yet.
	Heirs []fleet.Heir
	// Untaken are modules whose newest sync is not known here: it may list anything.
	Untaken []fleet.ModuleRef
	// AppliedUID reports whether an object that the sync lists has this UID under another name or group.
	AppliedUID func(uid string) bool
	// Alias reports that an object may be one that the sync lists in another group with the same kind, namespace and name,
	// and has not applied yet; nil: none is.
	Alias func(fleet.ObjectID) bool
	// First says for which modules all that would go waits, under the reason FirstReason; empty: for none.
	FirstReason, First string
	// Dependent finds an object of these API groups that another module has which is being removed; only asked for a
	// tombstone.
	Dependent func(groups map[string]bool) (Record, bool)
	// Kind says whether the cluster has the kind of a record, and why that cannot be said.
	Kind func(Record) (KindState, string)
}

// KindState says whether objects of a kind can be looked at.
type KindState int

// States of a kind.
const (
	// KindServed: the cluster has it, in whichever version.
	KindServed KindState = iota
	// KindUnknown: it cannot be said now.
	KindUnknown
	// KindGone: the cluster says that it has no such kind and nothing that defines it.
	KindGone
)

// Kept is an object that stays for now, and why.
type Kept struct {
	Record  Record
	Rule    Rule
	Reason  string
	Message string
}

// Rescued reports that it was decided that an object goes, and that it is to stay after all, until something else is decided. What only
// waits is decided still.
func (k Kept) Rescued() bool {
	return k.Record.Goes() && keptByPolicy(k.Reason) && k.Rule != RuleLineage && k.Rule != RulePositiveIntent
}

// ByPolicy reports that a policy keeps the object.
func (k Kept) ByPolicy() bool { return k.Rule == RuleProtection && keptByPolicy(k.Reason) }

// Handover is an object that goes to another module without a request.
type Handover struct {
	Record Record
	To     fleet.ModuleRef
}

// PrunePlan is what happens to the objects that a sync omits or a tombstone names. Each of them is in exactly one list.
type PrunePlan struct {
	// Delete in this order, stage by stage; every one only after Verify.
	Delete [][]Record
	// Release takes our marks and keeps the object.
	Release []Record
	// Unuse takes our fields back from what is somebody else's.
	Unuse []Record
	// Settle are intents: only a look at the cluster can tell whether they are ours.
	Settle   []Record
	Handover []Handover
	// Forget has gone together with its kind.
	Forget []Record
	Kept   []Kept
	// Held is what waits for a confirm. It is also in Kept.
	Held []fleet.ObjectID
	// Change is to be noted durably before anything goes.
	Change Change
}

// Prune says what happens to every record that is not wanted any more.
func Prune(in PruneInput) PrunePlan {
	out := PrunePlan{Change: in.Change}
	var doomed, change []Record
	for _, r := range in.Records {
		if in.keepsListed(r) {
			continue
		}
		rule, reason, message := in.silent(r)
		to, moves := in.moves(r)
		if reason == "" && !moves {
			rule, reason, message = in.keeps(r)
		}
		switch {
		case !r.Written() && (rule == RuleApplyFirst || keptByPolicy(reason) && in.speaksOf(r)):
			// Whether it became ours can be found out at once; until then it is no object of ours to list.
			out.Settle = append(out.Settle, r)
		case reason != "" && in.reads(r.ID):
			// It is listed, and the sync says why it is still ours.
		case reason != "":
			out.Kept = append(out.Kept, Kept{r, rule, reason, message})
			switch reason {
			case ReasonAwaitingConfirm:
				out.Held = append(out.Held, r.ID)
			case ReasonAwaitingApply, ReasonAwaitingReady, ReasonAwaitingUpdate, ReasonAwaitingDependency, ReasonUnknownKind:
				if r.State == Owned {
					change = append(change, r)
				}
			}
		case !r.Written():
			out.Settle = append(out.Settle, r)
		case moves:
			out.Handover = append(out.Handover, Handover{r, to})
		case r.State == Used:
			out.Unuse = append(out.Unuse, r)
		case in.kind(r) == KindGone:
			out.Forget = append(out.Forget, r)
		case in.Releases(r):
			out.Release = append(out.Release, r)
		default:
			doomed = append(doomed, r)
		}
	}
	doomed = in.withoutOccupied(doomed, &out)
	change = append(change, doomed...)
	for _, r := range out.Release {
		if !in.reads(r.ID) {
			change = append(change, r)
		}
	}
	change = slices.DeleteFunc(change, in.recycled) // a person was shown each of them
	if in.speaks() {
		doomed = in.guard(change, doomed, &out)
	}
	doomed = in.inOrder(doomed, &out)
	slices.SortFunc(out.Held, fleet.ObjectID.Compare)
	out.Delete = DeleteStages(doomed, in.Records)
	return out
}

// keptByPolicy reports that an object stays for a reason that does not end by itself.
func keptByPolicy(reason string) bool { return reason == ReasonKept || reason == ReasonLegacy }

// keepsListed reports that the sync lists the object of a record as the module's own.
func (in PruneInput) keepsListed(r Record) bool {
	return !in.Tombstone && in.Desired(r.ID) && !in.reads(r.ID)
}

// reads reports that the sync lists an object that it is not to have.
func (in PruneInput) reads(id fleet.ObjectID) bool {
	return !in.Tombstone && in.Reads != nil && in.Reads(id)
}

// withoutOccupied keeps the namespaces in which something of the module stays: whatever is in a namespace goes with it.
func (in PruneInput) withoutOccupied(doomed []Record, out *PrunePlan) []Record {
	staying := map[string][]string{}
	stays := func(id fleet.ObjectID) {
		if id.Namespace != "" {
			staying[id.Namespace] = append(staying[id.Namespace], id.Kind+" "+id.Name)
		}
	}
	for _, k := range out.Kept {
		stays(k.Record.ID)
	}
	for _, r := range in.Records {
		if !in.Tombstone && r.Module == in.Module && in.Desired(r.ID) {
			stays(r.ID)
		}
	}
	return slices.DeleteFunc(doomed, func(r Record) bool {
		in := staying[r.ID.Name]
		if !TakesNamespace(r.ID) || len(in) == 0 {
			return false
		}
		out.Kept = append(out.Kept, Kept{r, RuleSensitiveKind, ReasonNotEmpty, "the namespace holds objects that stay: " + Names(in)})
		return true
	})
}

// maxNamed is how many objects a message names.
const maxNamed = 5

// Names lists a few of the objects, in order, and counts the others.
func Names(list []string) string {
	return fleet.Some(slices.Sorted(slices.Values(list)), maxNamed)
}

// speaks reports that sync or tombstone say something now.
func (in PruneInput) speaks() bool {
	return !in.Hold && in.Age.Lineage == in.Lineage && (in.Tombstone || in.Complete)
}

// speaksOf reports that sync or tombstone say something about an object.
func (in PruneInput) speaksOf(r Record) bool {
	_, reason, _ := in.silent(r)
	return reason == ""
}

// silent applies the rules by which sync or tombstone say nothing about an object; an empty reason means that they do.
func (in PruneInput) silent(r Record) (Rule, string, string) {
	held := in.held(r.ID)
	switch {
	case in.Hold:
		return RuleProtection, ReasonHeld, "nothing is written while the hold lasts"
	case held != "":
		return RuleProtection, ReasonHeld, held
	case in.Age.Lineage != in.Lineage:
		return RuleLineage, ReasonKept, "the hub was joined anew since its module was written, and has not said anything newer of it"
	case r.Module != in.Module:
		return RuleWantedElsewhere, ReasonKept, "it belongs to module " + r.Module.Display()
	case in.Age.Compare(r.Age()) < 0, !in.Tombstone && in.Age == r.Age():
		return RulePositiveIntent, ReasonKept, fmt.Sprintf("generation %d says nothing about what generation %d wrote", in.Age.Generation, r.Generation)
	case !in.Tombstone && !in.Complete:
		return RuleCompleteness, ReasonIncomplete, "the newer bundle is not here in full"
	}
	return "", "", ""
}

func (in PruneInput) held(id fleet.ObjectID) string {
	if in.Held == nil {
		return ""
	}
	return in.Held(id)
}

// moves is the module that an object goes to. What keeps an object from being deleted does not keep it from moving: no
// request is made, and the object stays as it is until its new module applies it.
func (in PruneInput) moves(r Record) (fleet.ModuleRef, bool) {
	to, wanted := in.WantedBy(r.ID)
	return to, wanted && to != in.Module
}

// keeps applies the rules that let an object stay which nobody else wants here; an empty reason means that none does.
func (in PruneInput) keeps(r Record) (Rule, string, string) {
	if in.First != "" && r.Written() {
		return RuleOrder, in.FirstReason, in.First
	}
	if in.reads(r.ID) {
		return in.unseen(r)
	}
	if to, promised := assemble.HeirOf(in.Heirs, r.ID); promised && r.Written() {
		return RuleWantedElsewhere, ReasonAwaitingHeir, heirText(to, in.Module)
	}
	if len(in.Untaken) > 0 && r.Written() {
		return RuleWantedElsewhere, ReasonAwaitingModules, untakenText(in.Untaken)
	}
	if !in.Tombstone {
		if rule, reason, message := in.waits(r); reason != "" {
			return rule, reason, message
		}
	}
	return in.unseen(r)
}

// unseen keeps what cannot be looked at.
func (in PruneInput) unseen(r Record) (Rule, string, string) {
	if state, why := in.Kind(r); r.Written() && state == KindUnknown {
		return RuleUnknownKind, ReasonUnknownKind, "nothing can be said about the object now: " + why
	}
	return "", "", ""
}

func untakenText(list []fleet.ModuleRef) string {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.Display()
	}
	return "may be an object of a module whose newest sync the agent could not take: " + Names(names)
}

func heirText(to fleet.Heir, from fleet.ModuleRef) string {
	switch {
	case to.Module == from && to.Unknown:
		return "stays until it is known whether the module's newest revision lists it, which is being made"
	case to.Module == from:
		return "stays, for the revision that the module is going to lists it, and is not in this cluster yet"
	case to.Unknown:
		return "stays until it is known whether module " + to.Module.Display() + " lists it, whose newest revision is being made, or cannot be read by the hub"
	}
	return "goes to module " + to.Module.Display() + ", whose newest revision lists it and is not in this cluster"
}

// AsksLabels reports that what becomes of an object depends on the labels that are seen on it.
func (in PruneInput) AsksLabels(r Record) bool {
	if r.State != Owned || in.keepsListed(r) || in.reads(r.ID) || !in.speaksOf(r) {
		return false
	}
	if _, moves := in.moves(r); moves {
		return false
	}
	if in.Tombstone {
		return in.Policy != fleet.DeleteOrphan && r.Prune != fleet.PruneNever && r.Delete != fleet.DeleteOrphan && mayBeKeptBy(in.Policies, r.ID)
	}
	return askLabels(in.Policies, r)
}

// labels are those that were seen on an object; nil: they are not known.
func (in PruneInput) labels(r Record) map[string]string {
	if in.Labels == nil {
		return nil
	}
	return in.Labels(r)
}

// waits applies the rules for objects that a sync omits.
func (in PruneInput) waits(r Record) (Rule, string, string) {
	p, _ := in.policy(r, in.labels(r))
	if in.labels(r) == nil && in.AsksLabels(r) { // they may say so
		p.PruneWhen = fleet.PruneAfterReady
	}
	switch {
	case p.Prune != fleet.PruneOnUpdate:
		return RuleProtection, ReasonKept, in.keptText(r, p)
	case sensitive(r.ID) && !Named(in.Policies, r.ID):
		return RuleSensitiveKind, ReasonKept, "objects of this kind stay unless a policy that names the kind says prune: OnUpdate"
	case in.AppliedUID(r.UID) && r.State == Owned:
		return RuleWantedElsewhere, ReasonKept, "the sync lists the same object in another group"
	case p.KeepsLegacy() && in.orderedUnasked(r): // which says to the hub that the order is through
		return RuleProtection, ReasonKept, "policy keepLegacy: stays, for the order to delete its tracker was given before the hub had heard what is here; order it again"
	case p.KeepsLegacy() && !in.recycled(r):
		return RuleProtection, ReasonLegacy, in.legacyText(r)
	case r.Found && !(in.Confirmed && r.Asked) && !in.recycled(r):
		return RuleIntentIsNotOwned, ReasonAwaitingConfirm, "the agent has lost its record; that this is ours says only the object itself"
	case p.PruneWhen == fleet.PruneFirst && (in.Alias == nil || !in.Alias(r.ID)):
		return "", "", ""
	case !in.Applied:
		return RuleApplyFirst, ReasonAwaitingApply, "goes when everything else is applied"
	case p.PruneWhen == fleet.PruneAfterReady && !in.Ready:
		return RuleApplyFirst, ReasonAwaitingReady, "goes when everything else is ready"
	case p.PruneWhen == fleet.PruneAfterReady && in.Old != "":
		return RuleApplyFirst, ReasonAwaitingUpdate, oldText + " (pruneWhen: AfterApply does not wait): " + in.Old
	}
	return "", "", ""
}

// oldText is said of what waits for pods.
const oldText = "goes when nothing of an older template runs any more that may use it"

// awaitsPods reports that an object that goes is to wait for the pods that may use it.
func (in PruneInput) awaitsPods(r Record) bool {
	p, _ := in.policy(r, in.labels(r))
	return in.Tombstone || p.PruneWhen == fleet.PruneAfterReady
}

// Keeping is the reason for which an object stays whose labels were seen.
func (in PruneInput) Keeping(r Record, labels map[string]string) string {
	if p, _ := in.policy(r, labels); p.Prune == fleet.PruneOnUpdate && !in.orderedUnasked(r) {
		return ReasonLegacy
	}
	return ReasonKept
}

// recycled reports that a person ordered exactly this object to go, with the tracker of the revision that listed it last.
func (in PruneInput) recycled(r Record) bool {
	x, named := in.order(r)
	return named && !x.Unasked
}

// orderedUnasked reports that the object was ordered to go by a word that does not count.
func (in PruneInput) orderedUnasked(r Record) bool {
	x, named := in.order(r)
	return named && x.Unasked
}

// order is the one that names the object, by the revision that listed it last.
func (in PruneInput) order(r Record) (_ fleet.Recycle, named bool) {
	for _, x := range in.Recycles {
		if x.Revision == r.Tracker() {
			_, named = slices.BinarySearch(x.Keys, assemble.HeirKey(r.ID))
			return x, named
		}
	}
	return fleet.Recycle{}, false
}

// legacyText says how what keepLegacy keeps goes.
func (in PruneInput) legacyText(r Record) string {
	text := "policy keepLegacy: stays until the tracker of the revision that listed it last is deleted"
	if n := r.Tracker(); n != 0 {
		text = fmt.Sprintf("policy keepLegacy: stays until the tracker of r%d, which listed it last, is deleted", n)
	}
	if !fleet.Resolve(in.Policies, r.ID, in.labels(r)).KeepsLegacy() {
		text += ", or a policy says keepLegacy: false"
	}
	return text
}

// keptText says which policy keeps an object.
func (in PruneInput) keptText(r Record, p fleet.Policy) string {
	text := "policy prune: " + p.Prune
	if fleet.Resolve(in.Policies, r.ID, in.labels(r)).Prune != p.Prune {
		text += " of the revision that listed it; one that says prune: " + fleet.PruneOnUpdate + " lets it go"
	}
	return text
}

func (in PruneInput) kind(r Record) KindState {
	state, _ := in.Kind(r)
	return state
}

// Survives reports that an object stays in the cluster when its module is deleted, by the policies of the module's sync:
// they say so, or its kind holds data that nobody can bring back and none of them names it.
func Survives(policies []fleet.Policy, id fleet.ObjectID, labels map[string]string) bool {
	p := effective(policies, id, labels)
	in := PruneInput{Tombstone: true, Policy: fleet.DeleteDelete}
	return in.Releases(Record{ID: id, Prune: p.Prune, Delete: p.Delete, Named: Named(policies, id)})
}

// Leaves reports that what we wrote into a used object with these labels stays there when the module lets it go.
func (in PruneInput) Leaves(r Record, labels map[string]string) bool {
	if in.Tombstone {
		return in.stays(RememberLabels(in.Policies, r, labels))
	}
	p, _ := in.policy(r, labels)
	return in.stays(r) || p.Delete == fleet.DeleteOrphan
}

// Keeps reports that a policy keeps an object with these labels that the sync does not list.
func (in PruneInput) Keeps(r Record, labels map[string]string) bool {
	p, _ := in.policy(r, labels)
	return !in.Tombstone && !in.reads(r.ID) && (p.Prune != fleet.PruneOnUpdate || p.KeepsLegacy() && !in.recycled(r))
}

// Releases reports that the object stays in the cluster without our marks.
func (in PruneInput) Releases(r Record) bool { return ofCluster(r.ID) || in.stays(r) }

// stays reports that the policies, or what they say nothing of, let what the module has stay in the cluster.
func (in PruneInput) stays(r Record) bool {
	p, named := in.policy(r, in.labels(r))
	if in.reads(r.ID) || p.Delete == fleet.DeleteOrphan || madeByCluster(r.ID) && !named {
		return true
	}
	if !in.Tombstone {
		return false
	}
	return in.Policy == fleet.DeleteOrphan || p.Prune == fleet.PruneNever || sensitive(r.ID) && !named
}

// policy is what holds for a record, and whether a policy names its kind.
func (in PruneInput) policy(r Record, labels map[string]string) (fleet.Policy, bool) {
	switch {
	case in.Tombstone:
	case labels == nil && !askLabels(in.Policies, r): // whatever they are
		return effective(withNoted(in.Policies, r), r.ID, nil), Named(in.Policies, r.ID)
	default:
		return effective(lasting(in.Policies, r, labels), r.ID, labels), Named(in.Policies, r.ID)
	}
	return fleet.Resolve([]fleet.Policy{{Prune: r.Prune, Delete: r.Delete}}, r.ID, labels), r.Named
}

// sensitive kinds hold data that nobody can bring back.
func sensitive(id fleet.ObjectID) bool {
	return id.Group == "" && (id.Kind == "PersistentVolume" || id.Kind == "PersistentVolumeClaim")
}

// Named reports that a policy names the kind and says what happens when it goes.
func Named(policies []fleet.Policy, id fleet.ObjectID) bool {
	return namesKind(policies, id, func(p fleet.Policy) bool { return p.Prune != "" || p.Delete != "" })
}

// namesKind reports that one of the policies that say something names the kind of the object, and matches it whatever its labels
// are: they are not known here, and one that is labelled to be kept must not count as selected.
func namesKind(policies []fleet.Policy, id fleet.ObjectID, says func(fleet.Policy) bool) bool {
	for _, p := range policies {
		if !says(p) || !slices.Contains(p.Match.Kinds, id.Kind) || !p.Match.Labels.Everything() {
			continue
		}
		probe := fleet.Policy{Match: p.Match, Recreate: "probe"}
		if fleet.Resolve([]fleet.Policy{probe}, id, nil).Recreate == "probe" {
			return true
		}
	}
	return false
}
