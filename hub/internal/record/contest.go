package record

import (
	"context"
	"errors"
	"fmt"

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
	shared  map[fleet.Digest][]assemble.Pair // by bundle of another module, where it is the same in every cluster
	owners  courses
	// Gathering says that the module was put with others of which not all are in: what they are going to list is not known.
	Gathering bool
	// Drafts is as that of a Succession.
	Drafts Drafts
}

// NewContest is for one bundle of a module.
func NewContest(bundles Bundles, ref fleet.ModuleRef, b fleet.Bundle) *Contest {
	return &Contest{bundles: bundles, ref: ref, bundle: b, shared: map[fleet.Digest][]assemble.Pair{},
		owners: newCourses(bundles, true)}
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
	var own *agentv1.Sync
	var failed error
	key := store.DesiredKey(c, x.ref)
	entries := assemble.Resolved(x.bundle.Entries, values)
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		switch {
		case d.GetSync() == nil:
			return true
		case e.Key == key:
			own = d.GetSync()
			return true
		}
		rival, shares, err := x.rival(ctx, entries, d.GetSync(), e.Key)
		if err != nil {
			failed = fmt.Errorf("%s: %w", e.Key, err)
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
	before, err := x.listing(ctx, own)
	if err != nil {
		return out, err
	}
	out.Yields = assemble.Yields(assemble.Listing{Module: x.ref, Generation: generation, Entries: entries, Before: before}, rivals)
	return out, x.end(ctx, r, c, entries, out.Yields)
}

// end notes in the yields what their owners are about to let go.
func (x *Contest) end(ctx context.Context, r store.Reader, c fleet.ClusterName, entries []fleet.BundleEntry, yields []fleet.Yield) error {
	e, ok := scanned(r, store.ClusterKey(c))
	rec, is := e.Value.(*storev1.ClusterRecord)
	if len(yields) == 0 || !ok || !is {
		return nil
	}
	going := map[fleet.ModuleRef]assemble.Course{}
	for _, y := range yields {
		if x.Gathering {
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

// rival is the module of a desired record, if it lists any of the entries.
func (x *Contest) rival(ctx context.Context, entries []fleet.BundleEntry, s *agentv1.Sync, key string) (out assemble.Rival, shares bool, err error) {
	d := Digest(s.GetBundle())
	shared, known := x.shared[d]
	if !known {
		b, err := readable(ctx, x.bundles, d)
		if err != nil {
			return out, false, err
		}
		shared = assemble.Shared(entries, assemble.Resolved(b.Entries, s.GetValues()))
		if !assemble.HasPlaceholders(x.bundle.Entries) && !assemble.HasPlaceholders(b.Entries) {
			x.shared[d] = shared
		}
	}
	if len(shared) == 0 {
		return out, false, nil
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
	yields, err := wire.YieldsFromProto(s)
	return &assemble.Listing{Module: x.ref, Generation: s.GetGeneration(),
		Entries: assemble.Resolved(b.Entries, s.GetValues()), Yields: yields}, err
}

// WaitFor are the modules of a cluster that wait for objects of a module.
func WaitFor(r store.Reader, c fleet.ClusterName, owner fleet.ModuleRef) []fleet.ModuleRef {
	var out []fleet.ModuleRef
	store.Scan(r, store.DesiredPrefix+string(c)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		for _, y := range d.GetSync().GetYields() {
			if _, ref, ok := store.SplitClusterModule(e.Key); ok && y.GetOwner() == owner.String() {
				out = append(out, ref)
				break
			}
		}
		return true
	})
	return out
}
