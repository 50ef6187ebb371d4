package record

import (
	"context"
	"errors"
	"maps"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Succession finds, cluster by cluster, which modules are about to list what one lets go: others, or a later revision of its
// own. It serves one goroutine, under one view of the store, and makes no commit depend on what it reads.
type Succession struct {
	bundles Bundles
	treats  treatments
	ref     fleet.ModuleRef
	others  []successor
	own     courses
	read    bool
	moves   map[[2]fleet.Digest][]uint64 // from one bundle to the next
	sets    map[fleet.Digest]fleet.PolicySet
	lets    *letting
	// overtaken says that others have seen something else in the module's source than it has, so that it may list again itself what it lets go.
	overtaken bool
	// by is what clusters let go by where somebody was found to be an heir who is only so by that.
	by decision
	// asked is by what a module was asked about last (see Asks).
	asked map[fleet.ModuleRef]decision
	// Unknown are those found so far of which it cannot be said what they are going to list: any may be an heir (see assemble.Heirs, which names one).
	Unknown map[fleet.ModuleRef]bool
	// Rollout is the number of the one that lets go, as far as that is not in the desired records: what comes later counts.
	Rollout int64
	// Drafts says what a put that is queued behind a rollout is going to list; nil: that is not known.
	Drafts Drafts
}

// Drafts is what the put of a module is going to list whose rollout, of this number, has no revision yet.
type Drafts func(ctx context.Context, m *wire.Module, rec *storev1.ModuleRecord, number int64) Draft

// Draft is what is known of such a put.
type Draft struct {
	// Entries are what it lists, by the key of the variant.
	Entries map[string][]fleet.BundleEntry
	// ByCapabilities says that variants are also by what clusters can do.
	ByCapabilities bool
	Known          bool
	// Coming says that it is not known yet: it is being fetched, or cannot be for now.
	Coming bool
	// Failed says that what the source has now cannot be rendered; what else is said is of before.
	Failed bool
	// Ref is what the source's ref was and Files the digest of its files, which were fetched when the store was at least at the revision At.
	Ref   string
	Files fleet.Digest
	At    int64
}

// NewSuccession is for what one module lets go.
func NewSuccession(bundles Bundles, ref fleet.ModuleRef) *Succession {
	return &Succession{bundles: bundles, treats: treatments{bundles: bundles}, ref: ref, own: newCourses(bundles, false), moves: map[[2]fleet.Digest][]uint64{},
		sets: map[fleet.Digest]fleet.PolicySet{}, Unknown: map[fleet.ModuleRef]bool{}}
}

// Of are the heirs in a cluster of what the desired record next of the module drops that old had. Whatever the agent says
// is left there, and what old already kept for somebody, is dropped, too.
func (x *Succession) Of(ctx context.Context, r store.Reader, c fleet.Cluster, old, next *storev1.DesiredRecord) ([]fleet.Heir, error) {
	dropped, unknown, err := x.dropped(ctx, r, c.Name, old, next)
	if err != nil || len(dropped) == 0 && !unknown {
		return nil, err
	}
	if err := x.load(ctx, r); err != nil {
		return nil, err
	}
	if unknown {
		if err := x.dropAll(ctx, c, next, dropped); err != nil {
			return nil, err
		}
	}
	claimants, err := x.itself(ctx, r, c, next)
	if err != nil {
		return nil, err
	}
	by := decisionOf(r, next)
	for i := range x.others {
		claim, claims, err := x.claim(ctx, r, c, &x.others[i], dropped, by)
		if err != nil {
			return nil, err
		}
		if claims && !(next.GetFinal() && !claim.Unknown && x.awaitsUs(r, c.Name, claim.Module, map[fleet.ModuleRef]bool{})) {
			claimants = append(claimants, claim)
			if claim.Unknown {
				x.Unknown[claim.Module], x.by = true, x.by.and(by)
			}
		}
	}
	if x.overtaken && next.GetSync() != nil {
		claimants = append(claimants, assemble.Claimant{Module: x.ref, Unknown: true})
		x.Unknown[x.ref] = true
	}
	return assemble.Heirs(dropped, claimants), nil
}

// awaitsUs reports that an heir comes only after our own removal, and never if that waits for it: the heir has the name of a module that
// goes first, and what is kept of that has heirs who come after another such removal, and so on up to ours. Of the removals in such a
// circle the first by name lets go.
func (x *Succession) awaitsUs(r store.Reader, c fleet.ClusterName, heir fleet.ModuleRef, seen map[fleet.ModuleRef]bool) bool {
	d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(c, heir))
	if seen[heir] || compareNames(heir, x.ref) < 0 || !d.GetFinal() {
		return false
	}
	seen[heir] = true
	return slices.ContainsFunc(d.GetTombstone().GetHeirs(), func(h *agentv1.Heir) bool {
		to, err := fleet.ParseModuleRef(h.GetModule())
		return err == nil && !h.GetUnknown() && (to == x.ref || x.awaitsUs(r, c, to, seen))
	})
}

// claim is what another module is about to have of what is dropped in a cluster.
func (x *Succession) claim(ctx context.Context, r store.Reader, c fleet.Cluster, o *successor, dropped map[uint64]bool, by decision) (claim assemble.Claimant, claims bool, err error) {
	behind := o.behind != nil && o.behind(by)
	if o.held && !behind {
		return claim, false, nil
	}
	d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(c.Name, o.ref))
	there := hasModule(d)
	// Where it does not come, as a taint is in its way, nobody finds out what it would list: no variant is rendered that only such clusters have.
	if !Placed(o.module.Placement, c, d) || o.foreign && !there || o.late && d.GetSync() != nil {
		return claim, false, nil
	}
	unknown := behind || o.unknownIn(c)
	claim = assemble.Claimant{Module: o.ref, Unknown: unknown}
	switch {
	case unknown && o.revision == d.GetSync().GetRevision() && o.lostIn(c):
		return claim, false, nil // it is there, and its agent knows what it lists
	case unknown:
		return claim, true, nil
	}
	if claim.Lists, _, err = o.lists(ctx, &x.treats, c, dropped); err != nil || !meets(dropped, claim.Lists) {
		return claim, false, err
	}
	claim.Has, err = x.has(ctx, r, c.Name, o.ref, dropped)
	return claim, true, err
}

// itself is the module as a claimant of what it lets go itself: where it is on its way to a later revision, or back to an older
// one, that lists it again. Nothing of that is waited for, so no rollout stands still for it. What is left of a deleted module
// goes before another one of its name comes.
func (x *Succession) itself(ctx context.Context, r store.Reader, c fleet.Cluster, next *storev1.DesiredRecord) ([]assemble.Claimant, error) {
	x.own.drafts = x.Drafts
	to, err := x.own.of(ctx, r, x.ref)
	if err != nil || next.GetFinal() || to.Deleting || to.Everywhere {
		return nil, err
	}
	by := max(next.GetRollout(), x.Rollout)
	if to.Rollout < by || to.Rollout == by && !to.Back || to.Leads != 0 && to.Leads == next.GetSync().GetRevision() {
		return nil, nil
	}
	course, err := x.own.in(ctx, r, x.ref, c)
	if err != nil || course.Stays {
		return nil, err
	}
	return []assemble.Claimant{{Module: x.ref, Unknown: course.Unknown, Lists: course.Lists}}, nil
}

// Assign is the record of an assignment that follows old in a cluster (see Assign), with who is to have what it lets go.
func (x *Succession) Assign(ctx context.Context, r store.Reader, c fleet.Cluster, old, next *storev1.DesiredRecord) (*storev1.DesiredRecord, error) {
	next.LetGoAt = x.since(ctx, r, old, next)
	heirs, err := x.Of(ctx, r, c, old, next)
	if err != nil {
		return nil, err
	}
	next.Sync.Heirs = wire.HeirsToProto(heirs)
	Remember(r, c.Name, x.ref, old, next)
	return Assign(old, next), nil
}

// Leave is the record of the module when it is to leave a cluster (see Leave), with who is to have what it takes away.
func (x *Succession) Leave(ctx context.Context, r store.Reader, c fleet.ClusterName, old *storev1.DesiredRecord, tombstone *agentv1.Tombstone, final bool) (*storev1.DesiredRecord, error) {
	next := Leave(old, tombstone, final)
	if next != nil && old.GetTombstone() == nil {
		next.LetGoAt = x.since(ctx, r, old, next)
	}
	Remember(r, c, x.ref, old, next)
	if rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c)); ok && next != nil && old.GetTombstone() == nil {
		heirs, err := x.Of(ctx, r, Cluster(rec), old, next)
		if err != nil {
			return nil, err
		}
		next.Tombstone.Heirs = wire.HeirsToProto(heirs)
	}
	if next != nil && old.GetTombstone() == nil {
		next.Tombstone.Policies = x.keeping(ctx, old.GetSync())
	}
	return next, nil
}

// keeping is what the policies of a sync say of what stays when it is removed. Of policies that cannot be read, or of a sync that could not be
// and says nothing, it may be anything, so that what an agent without its records finds of the module stays.
func (x *Succession) keeping(ctx context.Context, s *agentv1.Sync) []byte {
	digest := Digest(s.GetPolicies())
	if digest.IsZero() && len(s.GetBundle()) > 0 {
		return nil
	}
	if set, err := x.policies(ctx, digest); err == nil {
		if out, err := wire.Keeping(set); err == nil {
			return out
		}
	}
	out, _ := wire.Keeping(fleet.PolicySet{Policies: []fleet.Policy{{Prune: fleet.PruneNever}}}) // which always can be written
	return out
}

// policies reads a set once for all clusters that have it.
func (x *Succession) policies(ctx context.Context, digest fleet.Digest) (fleet.PolicySet, error) {
	if set, known := x.sets[digest]; known {
		return set, nil
	}
	content, err := x.bundles.Content(ctx, digest)
	if err != nil {
		return fleet.PolicySet{}, err
	}
	set, err := wire.PolicySetFromContent(content)
	if err == nil {
		x.sets[digest] = set
	}
	return set, err
}

func meets(a, b map[uint64]bool) bool {
	for k := range a {
		if b[k] {
			return true
		}
	}
	return false
}

// HeirsOf are those that a desired record names.
func HeirsOf(d *storev1.DesiredRecord) []*agentv1.Heir {
	if t := d.GetTombstone(); t != nil {
		return t.GetHeirs()
	}
	return d.GetSync().GetHeirs()
}

// dropAll adds all that others are about to list in a cluster: of what is dropped nobody knows what it is, so it may be any of
// that.
func (x *Succession) dropAll(ctx context.Context, c fleet.Cluster, next *storev1.DesiredRecord, dropped map[uint64]bool) error {
	for i := range x.others {
		o := &x.others[i]
		if o.unknownIn(c) || !assemble.Selects(o.module.Placement, c) {
			continue
		}
		lists, _, err := o.lists(ctx, &x.treats, c, nil)
		if err != nil {
			return err
		}
		maps.Copy(dropped, lists)
	}
	lists, err := x.listed(ctx, next.GetSync())
	for k := range lists {
		delete(dropped, k)
	}
	return err
}

// dropped are the keys of what the cluster may have of the module and next does not list. unknown says that there may be more.
func (x *Succession) dropped(ctx context.Context, r store.Reader, c fleet.ClusterName, old, next *storev1.DesiredRecord) (out map[uint64]bool, unknown bool, err error) {
	out = map[uint64]bool{}
	had, unknown := mayHave(r, c, x.ref, old)
	for _, g := range had {
		keys, known, err := x.between(ctx, &agentv1.Sync{Bundle: g.GetBundle(), Values: g.GetValues()}, next.GetSync())
		if err != nil {
			return nil, false, err
		}
		unknown = unknown || !known
		for _, k := range keys {
			out[k] = true
		}
	}
	for _, h := range HeirsOf(old) {
		for _, k := range h.GetKeys() {
			out[k] = true
		}
	}
	extras, _ := wire.ExtrasFromProto(observed(r, c, x.ref).GetStatus()) // checked when it came
	for _, extra := range extras {
		out[assemble.HeirKey(extra.ID)] = true
	}
	if len(out) == 0 {
		return out, unknown, nil
	}
	lists, err := x.listed(ctx, next.GetSync())
	for k := range lists {
		delete(out, k)
	}
	return out, unknown, err
}

// between are the keys of what one sync lists and the next does not, the same in every cluster without placeholders. What an
// agent named need not be there, nor be a bundle; then nothing is known.
func (x *Succession) between(ctx context.Context, old, next *agentv1.Sync) (keys []uint64, known bool, err error) {
	move := [2]fleet.Digest{Digest(old.GetBundle()), Digest(next.GetBundle())}
	if move[0] == move[1] && maps.Equal(old.GetValues(), next.GetValues()) {
		return nil, true, nil
	}
	if keys, known := x.moves[move]; known {
		return keys, true, nil
	}
	from, err := x.bundles.Get(ctx, move[0])
	if errors.Is(err, fleet.ErrUnavailable) {
		return nil, false, err
	}
	if err != nil {
		return nil, false, nil
	}
	var to fleet.Bundle
	if next != nil {
		if to, err = readable(ctx, x.bundles, move[1]); err != nil {
			return nil, false, err
		}
	}
	keys = assemble.Dropped(assemble.Resolved(from.Entries, old.GetValues()), assemble.Resolved(to.Entries, next.GetValues()))
	if !assemble.HasPlaceholders(from.Entries) && !assemble.HasPlaceholders(to.Entries) {
		x.moves[move] = keys
	}
	return keys, true, nil
}

// listed are the keys of what a sync lists.
func (x *Succession) listed(ctx context.Context, s *agentv1.Sync) (map[uint64]bool, error) {
	if s == nil {
		return nil, nil
	}
	b, err := readable(ctx, x.bundles, Digest(s.GetBundle()))
	return assemble.HeirKeys(b.Entries, s.GetValues()), err
}

// has are the keys of what another module is assigned in the cluster, at least of what it is about. What it only reads it does not have: its agent
// does not wait for that to be let go.
func (x *Succession) has(ctx context.Context, r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, about map[uint64]bool) (map[uint64]bool, error) {
	s := assigned(r, c, ref)
	if s == nil {
		return nil, nil
	}
	b, err := readable(ctx, x.bundles, Digest(s.GetBundle()))
	if err != nil {
		return nil, err
	}
	set, err := x.treats.set(ctx, Digest(s.GetPolicies()))
	if err != nil {
		return nil, err
	}
	entries, err := x.treats.withoutRead(ctx, assemble.Resolved(b.Entries, s.GetValues()), set, s.GetValues(), about)
	return assemble.HeirKeys(entries, s.GetValues()), err
}

// Taken reports that another module, which was found to be about to have something, is assigned an object in a cluster: it is an heir no more.
func (x *Succession) Taken(ctx context.Context, r store.Reader, c fleet.ClusterName, id fleet.ObjectID) bool {
	return slices.ContainsFunc(x.others, func(o successor) bool {
		key := assemble.HeirKey(id)
		keys, err := x.has(ctx, r, c, o.ref, map[uint64]bool{key: true})
		return err == nil && keys[key]
	})
}

// assigned is what a module is assigned in a cluster; nil: nothing.
func assigned(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) *agentv1.Sync {
	d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(c, ref))
	return d.GetSync()
}

// load reads what all other modules are about to list. Where another program is going to assign a module that it has not
// assigned yet is not known.
func (x *Succession) load(ctx context.Context, r store.Reader) error {
	if x.read {
		return nil
	}
	var failed error
	store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if !ok || ref == x.ref || rec.GetDeleting() != "" {
			return true
		}
		var of []successor
		of, failed = x.successors(ctx, r, ref, rec)
		x.others = append(x.others, of...)
		return failed == nil
	})
	for _, d := range r.Damaged(store.ModulePrefix) {
		if ref, ok := store.SplitModule(d.Key); ok && ref != x.ref && failed == nil {
			var of []successor
			of, failed = x.ofRevisions(ctx, r, ref)
			x.others = append(x.others, of...)
		}
	}
	x.read = failed == nil
	return failed
}

// Dropping reports that something may be left of the module in the cluster that it does not list there.
func (t Tracked) Dropping() bool {
	if len(HeirsOf(t.Desired)) > 0 || t.Tracker.Counts.Extra > 0 || t.unanswered() {
		return true
	}
	o := t.Input.Observed // below a problem nothing of it is counted
	return o != nil && (o.Extra() > 0 || o.MoreExtras || !t.Tracker.Current && o.Bundle != Digest(t.Desired.GetSync().GetBundle()))
}
