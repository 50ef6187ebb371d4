package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Looking for kinds: how many groups at once, how long a round may hold up the module, and when the next one comes.
const (
	kindsAtOnce    = 8
	kindsTime      = 10 * time.Second
	firstKindRetry = 200 * time.Millisecond
	maxKindRetry   = 15 * time.Second
)

// kindSearch is the search for the kinds of what we own. A kind that is not found is not watched, so nothing is known of
// its objects until it is.
type kindSearch struct {
	retry time.Time // zero: every kind is found
	tries int
}

// useKinds starts the watches of what we own already, notes their policies, and ends those that nobody needs.
func (w *worker) useKinds(ctx context.Context, now time.Time) {
	for _, it := range w.items {
		r := w.m.inventory.Get(it.entry.ID)
		if r == nil || r.Module != w.ref {
			continue
		}
		if named := plan.Named(w.policies, r.ID); r.Prune != it.policy.Prune || r.Delete != it.policy.Delete || r.Named != named ||
			r.Legacy != it.policy.KeepsLegacy() || r.Shared != it.policy.Shares() || r.Goes() {
			w.m.inventory.Amend(w.ref, r.ID, func(next *apply.Record) bool {
				w.remember(next, it)
				next.Deleting = fleet.Age{}
				return true
			})
			if r.Shared != it.policy.Shares() {
				w.m.touchWaiting(r.ID)
			}
		}
	}
	w.search = kindSearch{}
	w.findScopes(ctx)
	w.findKinds(ctx, now)
	w.noteUnsure()
}

// findKinds looks for the kinds of what we own that are not found yet, and says why of those that are not found now
// either: they are looked for again.
func (w *worker) findKinds(ctx context.Context, now time.Time) {
	var owned []*item
	used, wanted := map[apply.Resource]bool{}, map[kindKey]fleet.BundleEntry{}
	for _, it := range w.items {
		if (it.use != nil || it.action.Verb == plan.Share) && it.resource.Resource != "" {
			used[it.resource] = true
		}
		r := w.m.inventory.Get(it.entry.ID)
		if r == nil || r.Module != w.ref || !r.Written() {
			continue
		}
		owned = append(owned, it)
		if it.resource.Resource == "" {
			wanted[kindOfEntry(it.entry)] = it.entry
		}
	}
	found, failed := w.resolveKinds(ctx, wanted)
	for _, it := range owned {
		if it.resource.Resource == "" {
			if res, ok := found[kindOfEntry(it.entry)]; ok {
				w.situate(it, res)
			}
			it.notFound(failed[kindOfEntry(it.entry)], now)
		}
		if it.resource.Resource != "" {
			used[it.resource] = true
			w.acquire(it.resource)
		}
	}
	if len(failed) > 0 {
		w.search.retry = now.Add(min(firstKindRetry<<min(w.search.tries, 10), maxKindRetry))
		w.search.tries++
		return
	}
	w.search = kindSearch{}
	w.releaseKinds(used)
}

// releaseUnused ends the watches of kinds of which the module lists nothing and has nothing any more.
func (w *worker) releaseUnused() {
	used, kinds := map[apply.Resource]bool{}, map[schema.GroupKind]bool{}
	for _, it := range w.items {
		if it.resource.Resource != "" {
			used[it.resource] = true
		} else {
			kinds[schema.GroupKind{Group: it.entry.ID.Group, Kind: it.entry.ID.Kind}] = true
		}
	}
	for _, r := range w.records() {
		if !w.desires(r.ID) || w.reads(r.ID) {
			kinds[schema.GroupKind{Group: r.ID.Group, Kind: r.ID.Kind}] = true
		}
	}
	w.mu.Lock()
	for r := range w.kinds {
		used[r] = used[r] || kinds[schema.GroupKind{Group: r.Group, Kind: r.Kind}]
	}
	w.mu.Unlock()
	w.releaseKinds(used)
}

// watchOwned has the kind watched of an object that is the module's, however it came to be: another module may have handed
// it over.
func (w *worker) watchOwned(it *item, now time.Time) {
	rec := w.m.inventory.Get(it.entry.ID)
	switch {
	case rec == nil || rec.Module != w.ref || !rec.Written():
	case it.resource.Resource != "":
		w.acquire(it.resource)
	case w.search.retry.IsZero():
		w.search.retry = now
	}
}

// notFound notes why the item's kind is not found, or that it is.
func (it *item) notFound(err error, now time.Time) {
	if err != nil {
		it.fails(apply.Explain(it.entry.ID, err), now)
		it.look = false
		return
	}
	it.clear()
	it.look = true
}

// resolveKinds asks for many kinds at once. A server that does not answer holds it up for one limit, not for one a kind.
func (w *worker) resolveKinds(ctx context.Context, wanted map[kindKey]fleet.BundleEntry) (map[kindKey]apply.Resource, map[kindKey]error) {
	ctx, cancel := context.WithTimeout(ctx, kindsTime)
	defer cancel()
	found, failed := map[kindKey]apply.Resource{}, map[kindKey]error{}
	for k, s := range askKinds(wanted, func(e fleet.BundleEntry) (s served) {
		s.err = w.about(e.ID, func() (err error) {
			s.Resource, err = w.m.mapper.Resource(ctx, e.ID, e.Version)
			return err
		})
		return s
	}) {
		if s.err != nil {
			failed[k] = s.err
			continue
		}
		found[k] = s.Resource
	}
	return found, failed
}

// askKinds asks where kinds are, each by one that is of it, several at once.
func askKinds[V any](wanted map[kindKey]V, ask func(V) served) map[kindKey]served {
	answers := make(map[kindKey]served, len(wanted))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(kindsAtOnce)
	for k, v := range wanted {
		group.Go(func() error {
			s := ask(v)
			mu.Lock()
			defer mu.Unlock()
			answers[k] = s
			return nil
		})
	}
	_ = group.Wait() // nobody returns an error
	return answers
}

type kindKey struct{ group, version, kind string }

func kindOf(r plan.Record) kindKey { return kindKey{r.ID.Group, r.Version, r.ID.Kind} }

func kindOfEntry(e fleet.BundleEntry) kindKey { return kindKey{e.ID.Group, e.Version, e.ID.Kind} }

// located is where the objects of a kind are, or why that cannot be said.
type located struct {
	apply.Resource
	gone bool          // the cluster has no such kind, and nothing that defines it
	away time.Duration // for how long it has not been served; of kinds that are Kubernetes' own
	why  string        // nothing can be said now; empty: it can
}

// kindsOf finds the kinds of records that are not desired, in whichever version they are served. Each has its own time, and several are asked for at
// once: a server that is behind with one definition waits before it says so.
func (w *worker) kindsOf(ctx context.Context, records []plan.Record) map[kindKey]located {
	wanted := map[kindKey]plan.Record{}
	for _, r := range records {
		if !w.desires(r.ID) || w.reads(r.ID) {
			wanted[kindOf(r)] = r
		}
	}
	kinds := map[kindKey]located{}
	for k, s := range askKinds(wanted, func(r plan.Record) (s served) {
		ctx, cancel := context.WithTimeout(ctx, kindsTime)
		defer cancel()
		s.err = w.about(r.ID, func() (err error) {
			s.Resource, s.gone, err = w.m.mapper.Sure(ctx, r.ID, r.Version)
			return err
		})
		return s
	}) {
		kinds[k] = w.located(wanted[k], s)
	}
	return kinds
}

// served is what the API server says of where the objects of a kind are.
type served struct {
	apply.Resource
	gone bool
	err  error
}

// locate is where the objects of a kind are by what whoever answers knows of it. That they are there is for watches to tell.
func (w *worker) locate(ctx context.Context, r plan.Record) located {
	res, gone, err := w.m.mapper.Served(ctx, r.ID, r.Version)
	return w.located(r, served{res, gone, err})
}

// locateNow is locate by what is so now: what is to be deleted, let go or forgotten may not be looked for by a definition that was.
func (w *worker) locateNow(ctx context.Context, r plan.Record) located {
	res, gone, err := w.m.mapper.Sure(ctx, r.ID, r.Version)
	return w.located(r, served{res, gone, err})
}

func (w *worker) located(r plan.Record, s served) located {
	if s.err != nil {
		return located{why: s.err.Error()}
	}
	if !s.gone {
		w.acquire(s.Resource)
	}
	return located{Resource: s.Resource, gone: s.gone, away: w.m.unserved.note(schema.GroupKind{Group: r.ID.Group, Kind: r.ID.Kind}, s.gone)}
}

// unservedFor is how long a kind that is Kubernetes' own may be missing before its objects count as gone. In the middle of
// an upgrade some of a cluster's API servers know kinds that others do not, and may be asked by turns.
const unservedFor = time.Hour

// unserved knows since when kinds have not been served.
type unserved struct {
	mu    sync.Mutex
	since map[schema.GroupKind]time.Time
}

// note takes whether a kind is gone now, and says for how long it has been.
func (u *unserved) note(kind schema.GroupKind, gone bool) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !gone {
		delete(u.since, kind)
		return 0
	}
	if u.since == nil {
		u.since = map[schema.GroupKind]time.Time{}
	}
	if u.since[kind].IsZero() {
		u.since[kind] = time.Now()
	}
	return time.Since(u.since[kind])
}

// stateOfKind says whether a record's object can be looked at. Records of one kind differ: what is known of the one that was
// written proves nothing about the other.
func (w *worker) stateOfKind(k located, r plan.Record) (plan.KindState, string) {
	switch {
	case k.why != "":
		return plan.KindUnknown, k.why
	case !k.gone && k.Namespaced && r.ID.Namespace == "":
		return plan.KindGone, "" // it was defined anew, with namespaces, and lost its objects with that
	case !k.gone:
		return plan.KindServed, ""
	case w.cur.kind == targetTombstone && w.cur.tombstone.Policy == fleet.DeleteOrphan:
		return plan.KindGone, ""
	}
	if why := outlivesItsKind(k, r); why != "" {
		return plan.KindUnknown, why
	}
	return plan.KindGone, ""
}

// outlivesItsKind says why an object may be there though the cluster does not have its kind: only a definition that is
// deleted takes its objects along. Empty: there is no object, or nobody can reach it.
func outlivesItsKind(k located, r plan.Record) string {
	switch {
	case r.Aggregated:
		return fmt.Sprintf("API group %s had an API server of its own; register that again (APIService %s.%s), or delete the module with --orphan",
			r.ID.Group, r.Version, r.ID.Group)
	case plan.IsCustom(r.ID), !r.Written() && !r.Found, k.away >= unservedFor:
		return ""
	}
	return fmt.Sprintf("the API server does not serve %s now, in no version, and deletes no object for that; after %s without it, "+
		"the object is given up", r.ID.Kind, unservedFor)
}
