package record

import (
	"context"
	"errors"
	"fmt"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Bundles reads bundles, and other contents, by digest.
type Bundles interface {
	Get(ctx context.Context, d fleet.Digest) (fleet.Bundle, error)
	Content(ctx context.Context, d fleet.Digest) ([]byte, error)
}

// Contest finds, cluster by cluster, which objects of a module's bundle other modules own. It serves one goroutine.
type Contest struct {
	bundles Bundles
	ref     fleet.ModuleRef
	bundle  fleet.Bundle
	treats  treatments
	owners  courses
	narrow  narrowing
	// Policies are those of the assignments that are made: what they have only read is in conflict with nobody.
	Policies fleet.Digest
	// Shared is what is known already of what bundles have in common. Contests that follow one another may have it from one another.
	Shared *Shared
	// Listings says which modules are assigned what in the fleet; nil: each cluster is searched.
	Listings *Listings
	// Drafts is as that of a Succession.
	Drafts Drafts
}

// Shared is what contests find out that is the same in every cluster. It serves one goroutine.
type Shared struct {
	pairs  map[[2]fleet.Digest][]assemble.Pair // the objects that two bundles have in common, by their digests
	chosen map[assignment]choice
}

// choice are the modules that may share an object with a bundle of a module, of those of a list that is never changed.
type choice struct {
	of     []assignment
	likely []fleet.ModuleRef
}

// NewShared is when nothing is known yet.
func NewShared() *Shared {
	return &Shared{pairs: map[[2]fleet.Digest][]assemble.Pair{}, chosen: map[assignment]choice{}}
}

// narrowing is what is known of the fleet under the view of a revision.
type narrowing struct {
	revision int64
	all      []assignment
	known    bool // all are
	chosen   bool // likely is
	likely   []fleet.ModuleRef
}

// NewContest is for one bundle of a module.
func NewContest(bundles Bundles, ref fleet.ModuleRef, b fleet.Bundle) *Contest {
	return &Contest{bundles: bundles, ref: ref, bundle: b, Shared: NewShared(),
		treats: treatments{bundles: bundles}, owners: newCourses(bundles, true)}
}

// Rivals is what the contest in a cluster is about.
type Rivals struct {
	// Yields are the objects that other modules own.
	Yields []fleet.Yield
	// Modules are the others that list any object of the bundle.
	Modules []fleet.ModuleRef
}

// In looks at a cluster. generation and values are those of the assignment that is being made.
func (x *Contest) In(ctx context.Context, r store.Reader, c fleet.ClusterName, generation uint64, values map[string]string) (Rivals, error) {
	var out Rivals
	var rivals []assemble.Rival
	var failed error
	entries := assemble.Resolved(x.bundle.Entries, values)
	x.each(ctx, r, c, func(key string, s *agentv1.Sync) bool {
		rival, shares, err := x.rival(ctx, side{entries, x.Policies, values}, s, key)
		if err != nil {
			failed = fmt.Errorf("%s: %w", key, err)
			return false
		}
		if shares {
			rivals, out.Modules = append(rivals, rival), append(out.Modules, rival.Module)
		}
		return true
	})
	if failed != nil || len(rivals) == 0 {
		return out, failed
	}
	before, err := x.listing(ctx, assigned(r, c, x.ref))
	if err != nil {
		return out, err
	}
	out.Yields = assemble.Yields(assemble.Listing{Module: x.ref, Generation: generation, Entries: entries, Before: before}, rivals)
	return out, x.end(ctx, r, c, entries, out.Yields)
}

// end notes in the yields what their owners are about to let go.
func (x *Contest) end(ctx context.Context, r store.Reader, c fleet.ClusterName, entries []fleet.BundleEntry, yields []fleet.Yield) error {
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c))
	if len(yields) == 0 || !ok {
		return nil
	}
	going := map[fleet.ModuleRef]assemble.Course{}
	unsettled := Unsettled(r, x.ref) != ""
	for _, y := range yields {
		if unsettled {
			going[y.Owner] = assemble.Course{Unknown: true}
			continue
		}
		x.owners.drafts = x.Drafts
		course, err := x.owners.in(ctx, r, y.Owner, Cluster(rec))
		if err != nil {
			return err
		}
		going[y.Owner] = course
	}
	assemble.End(yields, entries, going)
	return nil
}

// maxAsked bounds how many records of a cluster are read one by one; above that the cluster is scanned.
const maxAsked = 16

// each calls fn for what other modules are assigned in a cluster, as far as they may list any object of the bundle, in the order
// of their names, until it returns false.
func (x *Contest) each(ctx context.Context, r store.Reader, c fleet.ClusterName, fn func(key string, s *agentv1.Sync) bool) {
	if likely, known := x.few(ctx, r, c); known {
		for _, ref := range likely {
			if s := assigned(r, c, ref); s != nil && !fn(store.DesiredKey(c, ref), s) {
				return
			}
		}
		return
	}
	own := store.DesiredKey(c, x.ref)
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		return d.GetSync() == nil || e.Key == own || fn(e.Key, d.GetSync())
	})
}

// few are the modules that may list any object of the bundle in a cluster; false: it is cheaper to look at all that it has. A
// transaction writes the desired records of one module only, so what it has not committed yet is none of theirs.
func (x *Contest) few(ctx context.Context, r store.Reader, c fleet.ClusterName) ([]fleet.ModuleRef, bool) {
	if x.Listings == nil {
		return nil, false
	}
	n := &x.narrow
	if n.revision != r.Revision() {
		all, known := x.Listings.assignments(r)
		*n = narrowing{revision: r.Revision(), all: all, known: known}
	}
	// Where the clusters of a fleet have little in common, one of them has few of all assignments.
	if !n.known || len(n.all) > 2*x.Listings.size(c)+maxAsked {
		return nil, false
	}
	if !n.chosen {
		n.likely, n.chosen = x.chosen(ctx, n.all), true
	}
	return n.likely, len(n.likely) <= maxAsked
}

// chosen is choose, or what that came to for the same list.
func (x *Contest) chosen(ctx context.Context, all []assignment) []fleet.ModuleRef {
	by := assignment{x.ref, x.bundle.Digest}
	if known := x.Shared.chosen[by]; len(all) > 0 && len(known.of) == len(all) && &known.of[0] == &all[0] {
		return known.likely
	}
	out, sure := x.choose(ctx, all)
	if sure {
		x.Shared.chosen[by] = choice{of: all, likely: out}
	}
	return out
}

// choose are the other modules of assignments that may share an object with the bundle in some cluster; sure: they are
// no more at another time.
func (x *Contest) choose(ctx context.Context, all []assignment) (out []fleet.ModuleRef, sure bool) {
	sure = true
	for _, a := range all {
		if a.module == x.ref {
			continue
		}
		shared, same, err := x.common(ctx, a.bundle)
		if err != nil || !same || len(shared) > 0 {
			out = append(out, a.module)
			continue
		}
		_, read := x.Shared.pairs[x.pair(a.bundle)]
		sure = sure && read
	}
	slices.SortFunc(out, compareNames)
	return slices.Compact(out), sure
}

func (x *Contest) pair(d fleet.Digest) [2]fleet.Digest { return [2]fleet.Digest{x.bundle.Digest, d} }

// common is what a bundle of another module shares with this one; false: that differs from cluster to cluster.
func (x *Contest) common(ctx context.Context, d fleet.Digest) (shared []assemble.Pair, same bool, err error) {
	if shared, same = x.Shared.pairs[x.pair(d)]; same {
		return shared, true, nil
	}
	b, err := readable(ctx, x.bundles, d)
	if err != nil || assemble.HasPlaceholders(x.bundle.Entries) || assemble.HasPlaceholders(b.Entries) {
		return nil, false, err
	}
	shared = assemble.Shared(x.bundle.Entries, b.Entries)
	if b.Digest == d { // one that cannot be read now may be read another time
		x.Shared.pairs[x.pair(d)] = shared
	}
	return shared, true, nil
}

// rival is another module of a cluster, if what it is assigned there lists any of the entries of this one.
func (x *Contest) rival(ctx context.Context, mine side, s *agentv1.Sync, key string) (out assemble.Rival, shares bool, err error) {
	d := Digest(s.GetBundle())
	shared, same, err := x.common(ctx, d)
	if err != nil || same && len(shared) == 0 {
		return out, false, err
	}
	b, err := readable(ctx, x.bundles, d)
	if err != nil || b.Digest != d {
		return out, false, err
	}
	theirs := side{assemble.Resolved(b.Entries, s.GetValues()), Digest(s.GetPolicies()), s.GetValues()}
	if !same {
		shared = assemble.Shared(mine.entries, theirs.entries)
	}
	shared, err = x.treats.contested(ctx, shared, mine, theirs)
	if err != nil || len(shared) == 0 {
		return out, false, err
	}
	_, ref, ok := store.SplitClusterModule(key)
	if !ok {
		return out, false, nil
	}
	yields, err := wire.YieldsFromProto(s)
	return assemble.Rival{Module: ref, Generation: s.GetGeneration(), Shared: shared, Yields: yields}, true, err
}

// readable reads a bundle. One that is damaged or gone lists nothing here, so that it stops no other module: the agents'
// inventories still keep each object with its owner.
func readable(ctx context.Context, bundles Bundles, d fleet.Digest) (fleet.Bundle, error) {
	b, err := bundles.Get(ctx, d)
	if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) {
		return fleet.Bundle{}, nil
	}
	return b, err
}

// listing is what the module is assigned now; nil: nothing.
func (x *Contest) listing(ctx context.Context, s *agentv1.Sync) (*assemble.Listing, error) {
	if s == nil {
		return nil, nil
	}
	b, err := readable(ctx, x.bundles, Digest(s.GetBundle()))
	if err != nil {
		return nil, err
	}
	entries, err := x.treats.owned(ctx, side{assemble.Resolved(b.Entries, s.GetValues()), Digest(s.GetPolicies()), s.GetValues()})
	if err != nil {
		return nil, err
	}
	yields, err := wire.YieldsFromProto(s)
	return &assemble.Listing{Module: x.ref, Generation: s.GetGeneration(), Entries: entries, Yields: yields}, err
}

// waitFor are the modules of a cluster that wait for objects of a module.
func waitFor(r store.Reader, c fleet.ClusterName, owner fleet.ModuleRef) []fleet.ModuleRef {
	var out []fleet.ModuleRef
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok && waits(d, owner) {
			out = append(out, ref)
		}
		return true
	})
	return out
}

// waits reports that what is assigned waits for objects of a module.
func waits(d *storev1.DesiredRecord, owner fleet.ModuleRef) bool {
	return slices.ContainsFunc(d.GetSync().GetYields(), func(y *agentv1.Yield) bool { return y.GetOwner() == owner.String() })
}
