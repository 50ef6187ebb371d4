package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

const (
	findTime     = 30 * time.Second // for one request
	findParallel = 8
	// findName is in the state while objects are searched for, so that a restart searches again.
	findName = "search"
)

// finder searches the cluster for objects that carry our marks, when the inventory may lack some: it is empty, could not
// be read, or was put back from a copy, or the cluster was. Objects are applied meanwhile, but nothing is said to be gone,
// and nothing is deleted, before the search has seen all that can be seen.
type finder struct {
	m    *Manager
	wake chan struct{} // a search is to begin, or to begin anew

	mu      sync.Mutex
	waiting string // why no verdict may be given; empty: it may
	unseen  string // what was not searched though verdicts may be given; empty: nothing
	found   int
	others  others
	refused apply.Refusals // of looks at a registration
}

// mayLack says why the inventory may lack objects of ours; empty: it does not.
func (m *Manager) mayLack(ctx context.Context) string {
	_, err := m.o.State.Read(ctx, findName)
	switch {
	case m.inventory.Lost():
		return "the inventory could not be read"
	case m.inventory.Partial():
		return "a part of the inventory is missing"
	case m.o.Incomplete:
		return "the state is older than the cluster"
	case m.inventory.Empty():
		return "the inventory is empty"
	case !errors.Is(err, fleet.ErrNotFound):
		return "the last search was not finished"
	}
	return ""
}

// searching says why it cannot be told yet what is left of a module; empty: it can.
func (m *Manager) searching() string {
	m.finder.mu.Lock()
	defer m.finder.mu.Unlock()
	return m.finder.waiting
}

// unsearched says what is not searched yet for objects that were lost, though verdicts do not wait for it; empty: nothing.
func (m *Manager) unsearched() string {
	m.finder.mu.Lock()
	defer m.finder.mu.Unlock()
	return m.finder.unseen
}

// begin has all verdicts wait for a search. That one is under way is noted before the inventory gets its first record.
func (f *finder) begin(ctx context.Context, why string) {
	f.open(true, why)
	if err := f.m.o.State.Write(ctx, findName, []byte(why)); err != nil {
		f.m.o.Log.Warn("that objects are searched for is not saved", "error", err)
	}
	dirty.Poke(f.wake)
}

// run searches whenever a search is begun.
func (f *finder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		if f.search(ctx) {
			f.end(ctx)
		}
	}
}

// search looks until every kind was seen. It reports false if a new search is to begin.
func (f *finder) search(ctx context.Context) bool {
	tries := backoff.New(backoff.Policy{Min: time.Second, Max: time.Minute}, rand.Float64)
	done, refused, said := map[schema.GroupResource]bool{}, refusals{}, ""
	f.others.begin()
	for {
		left := f.pass(ctx, done, refused)
		if len(left.missed) == 0 {
			return ctx.Err() == nil
		}
		text := "not seen yet: " + plan.Names(left.missed)
		f.open(left.wait, text)
		if text != said && ctx.Err() == nil {
			f.m.o.Log.Warn("objects that carry our marks cannot all be found yet; trying again", "missed", strings.Join(left.missed, "; "), "verdicts_wait", left.wait)
			said = text
		}
		f.tellOthers(ctx, left)
		t := time.NewTimer(left.pause(tries.Next()))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		case <-f.wake:
			t.Stop()
			dirty.Poke(f.wake)
			return false
		}
	}
}

// open lets verdicts be given, or says why they wait. Modules that turned up get their workers.
func (f *finder) open(wait bool, text string) {
	f.mu.Lock()
	was := f.waiting + f.unseen
	if f.waiting, f.unseen = "", text; wait {
		f.waiting, f.unseen = "objects that carry the agent's marks are searched for: "+text, ""
	}
	now := f.waiting + f.unseen
	f.mu.Unlock()
	dirty.Poke(f.m.signal)
	if was != now {
		f.m.each((*worker).touchAll)
	}
}

// end lets verdicts be given, and notes that there is nothing to search for any more.
func (f *finder) end(ctx context.Context) {
	select {
	case <-f.wake: // a new search has begun
		dirty.Poke(f.wake)
		return
	default:
	}
	f.open(false, "")
	f.mu.Lock()
	found := f.found
	f.found = 0
	f.mu.Unlock()
	if found > 0 {
		f.m.o.Log.Warn("objects of this agent were found that its inventory did not have; what their modules omit waits for a confirm", "objects", found)
	}
	f.tellOthers(ctx, unseen{})
	if err := f.m.inventory.Sync(ctx); err != nil {
		return // the next start searches again
	}
	if err := f.m.lasts.searched(ctx); err != nil {
		f.m.o.Log.Warn("that the search has ended is not saved; the next start searches again", "error", err)
		return
	}
	if err := f.m.o.State.Remove(ctx, findName); err != nil {
		f.m.o.Log.Warn("that the search has ended is not saved; the next start searches again", "error", err)
	}
}

// unseen is what a pass did not see.
type unseen struct {
	missed []string
	wait   bool // verdicts have to wait for it
	denied int  // how many are kinds that the agent has no right to list, or that the API server lists as served and does not know
	// unsure is until it can be known of all kinds that were refused whether that is for good; zero: it is.
	unsure time.Duration
}

// findDenied is how often kinds are asked for again that the agent has no right to list.
const findDenied = 5 * time.Minute

// unknownFor is for how long an API server has to say nothing but that it does not know the path of a kind which it lists as served until nobody
// waits for that any more. One of several does so in an upgrade until its turn comes, and so does a proxy that has lost its way.
const unknownFor = 10 * time.Minute

// refusals are since when each list of kinds has come to nothing but one kind of refusal.
type refusals map[schema.GroupResource]refusal

type refusal struct {
	since   time.Time
	unknown bool // no want of a right: the path is not known, or something else answers
}

// note takes why a list failed, and reports whether it was refused, and for how much longer it has to be until that counts as for good
// (apply.RefusedFor, unknownFor). Whatever else fails begins the row anew, so that no API server which starts again and again counts as one that refuses.
func (r refusals) note(res schema.GroupResource, err error, now time.Time) (refused bool, more time.Duration) {
	unknown, lasts := false, apply.RefusedFor
	switch kube.Judge(err) {
	case kube.Forbidden:
	case kube.Unserved, kube.Gone, kube.Stranger:
		unknown, lasts = true, unknownFor
	default:
		delete(r, res)
		return false, 0
	}
	if row, before := r[res]; !before || row.unknown != unknown {
		r[res] = refusal{now, unknown}
	}
	return true, lasts - now.Sub(r[res].since)
}

// pause is until the next pass. Nothing tells of a right that is given, and each request that is forbidden stands in the API
// server's audit log.
func (u unseen) pause(next time.Duration) time.Duration {
	switch {
	case u.denied == len(u.missed):
		return findDenied
	case u.unsure > 0:
		return min(next, u.unsure)
	}
	return next
}

// take notes a kind whose objects could not be listed. others reports that they are with an API server of its own.
func (u *unseen) take(kind schema.GroupResource, err error, others bool, refused refusals, now time.Time) {
	u.missed = append(u.missed, fmt.Sprintf("%s (%v)", kind, apply.Cause(err)))
	switch is, more := refused.note(kind, err, now); {
	case is && more <= 0:
		u.denied++
	case is:
		u.wait, u.unsure = true, max(u.unsure, more)
	case !others || !kube.Unavailable(err):
		u.wait = true
	}
}

// pass looks at every kind that was not seen yet. It names what it missed, and says whether verdicts have to wait for it:
// not for an API that its own server does not answer for, nor for a kind that the agent has no right to list, for these may
// never change and are named all the same; but for what the API server itself has, and for a kind that sets off a bug, until an
// agent without that bug has looked.
func (f *finder) pass(ctx context.Context, done map[schema.GroupResource]bool, refused refusals) (out unseen) {
	bounded, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	var all apply.Survey
	err := guarded(f.m.o.Log, func() (err error) {
		all, err = f.m.mapper.Everything(bounded)
		return err
	})
	if err != nil {
		clear(refused)
		return unseen{missed: []string{err.Error()}, wait: true}
	}
	for _, x := range all.Failed {
		out.missed = append(out.missed, fmt.Sprintf("%s (%v)", x.GroupVersion, apply.Cause(x.Err)))
		out.wait = out.wait || x.Unlisted() || !f.ofOthers(ctx, x.GroupVersion) // that passes by itself
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(findParallel)
	left := slices.DeleteFunc(all.Resources, func(res apply.Resource) bool { return done[res.GroupResource()] })
	for _, res := range left {
		group.Go(func() error {
			err := guarded(f.m.o.Log, func() error { return f.list(ctx, res) })
			others := kube.Unavailable(err) && f.ofOthers(ctx, res.GroupVersion())
			mu.Lock()
			defer mu.Unlock()
			if err == nil || f.never(res, err) {
				done[res.GroupResource()] = true
				return nil
			}
			out.take(res.GroupResource(), err, others, refused, time.Now())
			return nil
		})
	}
	_ = group.Wait()
	slices.Sort(out.missed)
	return out
}

// ofOthers reports that a version of a group is with an API server of its own, as far as the agent may know that. One refusal is no want of a right:
// an API server that has just started refuses everybody, and does not answer for its own kinds either.
func (f *finder) ofOthers(ctx context.Context, gv schema.GroupVersion) bool {
	s, err := f.m.client.Registration(ctx, gv)
	lacks, _ := f.refused.Note(err, time.Now())
	return s.Service != "" || lacks
}

// never reports that objects of a kind will not be seen by asking again. Of one that has gone the next pass hears no more.
func (f *finder) never(res apply.Resource, err error) bool {
	if !kube.Is(err, kube.Unsupported) {
		return false
	}
	f.m.o.Log.Warn("objects of a kind cannot be searched for", "kind", res.GroupResource().String(), "error", err)
	return true
}

func (f *finder) list(ctx context.Context, res apply.Resource) error {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	var failed error
	err := f.m.client.EachMeta(ctx, res, "", fleet.HubLabel, func(o *metav1.PartialObjectMetadata) bool {
		failed = f.find(ctx, res, o)
		return failed == nil
	})
	return errors.Join(err, failed)
}

// find notes one object, if it proves that we wrote it: a copy has the marks, too. Whether it is with an API server of its own
// is found out while that answers.
func (f *finder) find(ctx context.Context, res apply.Resource, o *metav1.PartialObjectMetadata) error {
	id := fleet.ObjectID{Group: res.Group, Kind: res.Kind, Namespace: o.Namespace, Name: o.Name}
	ref, _, _ := fleet.ParseOwnerMark(o.Annotations[fleet.OwnerAnnotation])
	claimant, err := f.m.claimantOf(ctx, ref, o.Labels)
	if err != nil {
		return err
	}
	if !claimant.Marked(o.Labels) {
		f.foreign(id, ref, o)
		return nil
	}
	if !claimant.Proven(id, o.Labels, o.Annotations, apply.ProofOf(o.ManagedFields)) {
		return nil
	}
	if _, err := f.m.mapper.Resource(ctx, id, res.Version); err != nil {
		return err
	}
	r := &apply.Record{Record: plan.Record{ID: id, Version: res.Version, Module: ref, State: plan.Intent, Found: true, Revision: plan.RevisionUnknown, Aggregated: f.m.mapper.Aggregated(res)}}
	waits, found := f.m.inventory.Find(r)
	if rec := f.m.inventory.Get(id); rec != nil && rec.Module == ref && !rec.Written() {
		f.m.lasts.found(ref)
	}
	if !found {
		return nil
	}
	f.mu.Lock()
	f.found++
	f.mu.Unlock()
	f.m.touch(ref, id)
	if waits != (fleet.ModuleRef{}) {
		f.m.retry(waits, id)
	}
	return nil
}
