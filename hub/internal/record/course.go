package record

import (
	"context"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
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
	// Unknown says that a put of it has no revision yet, so that what it is going to list cannot be said.
	Unknown bool
	// Revision is the one that its clusters get, if they do not have it yet; 0: each keeps what it has.
	Revision int64
	// Everywhere says that another program assigns the revision, whatever the placement says now.
	Everywhere bool
	// pinned are the clusters that keep what they have, with a comma behind each.
	pinned string
}

// HeadingOf reads where a module is going. A rollout that waits, or is paused, is on its way: somebody may let it go on, and
// whoever waits for it has a deadline. One that failed or was aborted moves nothing any more, and one that is rolled back goes
// where it came from.
func HeadingOf(r store.Reader, ref fleet.ModuleRef) Heading {
	r = store.Untracked(r)
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok || rec.GetDeleting() != "" {
		return Heading{Deleting: ok}
	}
	if made, queued := comes(r, ref, rec); made || queued {
		return Heading{Unknown: true}
	}
	if rec.GetModule().GetSpec().GetRollout().GetExternal() != nil {
		return Heading{Revision: NewestRevision(r, ref).GetRevision().GetNumber(), Everywhere: true}
	}
	ro := Driven(r, ref)
	h := Heading{Revision: ro.GetRollout().GetRevision()}
	if back := rollout.BackIn(ro.GetHead()); back != 0 {
		h.Revision = back
	}
	if s := state(ro); s == rollout.Failed || s == rollout.Aborted {
		h.Revision = 0
	}
	for _, p := range Pins(r, ref, ro.GetRollout().GetNumber()+1) {
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
	bundles Bundles
	known   map[fleet.ModuleRef]*course
}

// course is the heading of a module, and the module as the revision has it to which that leads.
type course struct {
	Heading
	next *successor
}

// in is where a module is going in a cluster.
func (x *courses) in(ctx context.Context, r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) (assemble.Course, error) {
	at := x.known[ref]
	if at == nil {
		at = &course{Heading: HeadingOf(r, ref)}
		if rev := Revision(store.Untracked(r), ref, at.Revision); rev != nil {
			next, err := asOf(ctx, x.bundles, ref, rev)
			if err != nil {
				return assemble.Course{}, err
			}
			at.next = next
		}
		x.known[ref] = at
	}
	switch {
	case at.Deleting:
		return assemble.Course{}, nil
	case at.Unknown:
		return assemble.Course{Unknown: true}, nil
	case at.next == nil, at.pins(c.Name):
		return assemble.Course{Stays: true}, nil
	case !at.Everywhere && !assemble.Selects(at.next.module.Placement, c):
		return assemble.Course{}, nil
	}
	lists, possible := at.next.lists(c)
	return assemble.Course{Stays: !possible, Lists: lists}, nil
}
