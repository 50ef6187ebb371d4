package record

import (
	"context"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// Heading is where a module is going in all of its clusters. It is comparable: who waits for the module looks again when it
// changes.
type Heading struct {
	// Deleting says that the module leaves every cluster.
	Deleting bool
	// Unknown says that a put of it has no revision yet.
	Unknown bool
	// Queued says that the put waits for the end of a rollout.
	Queued bool
	// Outlook is that of the rollout that decides.
	rollout.Outlook
	// Rollout is the number of the one that leads to a revision; 0: none does.
	Rollout int64
	// Everywhere says that another program assigns the revision, whatever the placement says now.
	Everywhere bool
	// pinned are the clusters that keep what they have, with a comma behind each.
	pinned string
}

// HeadingOf reads where a module is going. A rollout that waits, or is paused, is on its way: somebody may let it go on, and
// whoever waits for it has a deadline. One that failed or was aborted moves nothing any more, and one that is rolled back goes
// where it came from.
func HeadingOf(r store.Reader, ref fleet.ModuleRef) Heading { return heading(r, ref, true) }

// heading leaves out a put that is queued behind a rollout, unless it counts.
func heading(r store.Reader, ref fleet.ModuleRef, queueCounts bool) Heading {
	r = store.Untracked(r)
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok || rec.GetDeleting() != "" {
		return Heading{Deleting: ok}
	}
	if ro, queued := comes(r, ref); ro != nil && (!queued || queueCounts) {
		return Heading{Unknown: true, Queued: queued, Rollout: ro.GetRollout().GetNumber()}
	}
	if rollouts.External(r, ref, rec) {
		return Heading{Outlook: rollout.Outlook{Leads: NewestNumber(r, ref)}, Everywhere: true}
	}
	ro := rollouts.Driven(r, ref)
	h := Heading{Outlook: rollouts.OutlookOf(ro)}
	if h.Leads != 0 {
		h.Rollout = ro.GetRollout().GetNumber()
	}
	for _, p := range rollouts.Pins(r, ref, ro.GetRollout().GetNumber()+1) {
		h.pinned += string(p.Cluster) + ","
	}
	return h
}

// pins reports that a cluster keeps what it has.
func (h Heading) pins(c fleet.ClusterName) bool {
	return slices.Contains(strings.Split(h.pinned, ","), string(c))
}

// courses finds where modules that own objects are going. It serves one goroutine, under one view of the store, and makes no
// commit depend on what it reads.
type courses struct {
	bundles     Bundles
	treats      treatments
	known       map[fleet.ModuleRef]*course
	drafts      Drafts
	queueCounts bool // whether a put that is queued behind a rollout, and not known, leaves open what comes
}

// newCourses has what is queued behind a rollout count, or not.
func newCourses(bundles Bundles, queueCounts bool) courses {
	return courses{bundles: bundles, treats: treatments{bundles: bundles}, known: map[fleet.ModuleRef]*course{}, queueCounts: queueCounts}
}

// course is the heading of a module, with the module as the revision has it to which that leads, and as the one has it at which
// clusters are kept.
type course struct {
	Heading
	next, kept *successor
}

// of is where a module is going.
func (x *courses) of(ctx context.Context, r store.Reader, ref fleet.ModuleRef) (at *course, err error) {
	if at := x.known[ref]; at != nil {
		return at, nil
	}
	at = &course{Heading: HeadingOf(r, ref)}
	if at.Queued {
		rec, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(r), store.ModuleKey(ref))
		if _, at.next = x.drafts.of(ctx, r, ref, rec, at.Rollout, nil, nil); at.next != nil {
			at.Unknown = false
		} else if !x.queueCounts {
			at.Heading = heading(r, ref, false)
		}
	}
	if rev := Revision(store.Untracked(r), ref, at.Leads); rev != nil {
		if at.next, err = asOf(ctx, r, x.bundles, ref, rev); err != nil {
			return nil, err
		}
	}
	if rev := Revision(store.Untracked(r), ref, at.Kept); rev != nil {
		if at.kept, err = asOf(ctx, r, x.bundles, ref, rev); err != nil {
			return nil, err
		}
	}
	x.known[ref] = at
	return at, nil
}

// keeps reports that a cluster stays at what it has for good, though the module goes to an older revision: it is newer, the rollout
// has not taken it along, and the rollout's own revision has the cluster (see rollout.Outlook.Kept).
func (at *course) keeps(r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) bool {
	return at.kept != nil && assigned(r, c.Name, ref).GetRevision() > at.Leads && assemble.Places(at.kept.module.Placement, c, true)
}

// in is where a module is going in a cluster.
func (x *courses) in(ctx context.Context, r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) (assemble.Course, error) {
	at, err := x.of(ctx, r, ref)
	if err != nil {
		return assemble.Course{}, err
	}
	switch {
	case at.Deleting:
		return assemble.Course{}, nil
	case at.Unknown:
		return assemble.Course{Unknown: true}, nil
	case at.next == nil, at.pins(c.Name), at.keeps(r, ref, c):
		return assemble.Course{Stays: true}, nil
	case !at.Everywhere && !assemble.Selects(at.next.module.Placement, c):
		return assemble.Course{}, nil
	case at.next.refusedIn(c):
		return assemble.Course{Stays: true}, nil
	case at.next.unknownIn(c):
		return assemble.Course{Unknown: true}, nil
	}
	lists, possible, err := at.next.lists(ctx, &x.treats, c, nil)
	return assemble.Course{Stays: !possible, Lists: lists}, err
}
