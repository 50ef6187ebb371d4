package control

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

const (
	reasonInvalidFiles = catalog.ReasonInvalidFiles
	reasonNoModules    = catalog.ReasonNoModules
	// maxCatalogs is how many catalogs are looked at at a time.
	maxCatalogs = 4
	// maxProblems is how many problems a catalog shows.
	maxProblems = 20
	// maxCatalogTries is how often a look begins anew because a module, or the catalog, was put meanwhile.
	maxCatalogTries = 3
)

// catalogue is what a look at a catalog begins with, and what comes of it.
type catalogue struct {
	ref  fleet.ModuleRef
	rec  *storev1.CatalogRecord
	c    *wire.Catalog // nil: it is not valid, for bad
	bad  error
	was  *storev1.CatalogState // nil: nothing is known
	asks []catalogAsk
	// called says that a call from outside asks for the look.
	called bool
	next   *storev1.CatalogState
	done   record.CatalogDone
	// held is the hold that it waits with, confirmed or not.
	held      *towlinev1.Hold
	confirmed bool
	// through says that what was asked is not any more, but for the rest of it; nil: nothing is left. The hold ends with the change that keeps what
	// came of the look: a hub that stops in between would ask again, or go by a word that is not on these files.
	through bool
	rest    *towlinev1.Hold
}

// runCatalog looks at a catalog, if that is due or somebody waits for it.
func (c *Controller) runCatalog(ctx context.Context, key string) time.Duration {
	ref, ok := store.SplitCatalog(key)
	if !ok {
		return 0
	}
	defer func() { c.cataloguer.addAll(c.catalogHosts.unused(key)) }()
	var again time.Duration
	err := guarded(func() (err error) {
		again, err = c.lookAtCatalog(ctx, ref)
		return err
	})
	if err != nil {
		asks, called := c.catalogs.take(ref)
		for _, a := range asks {
			a.answer <- catalogAnswer{err: err}
		}
		if called {
			c.catalogs.callAgain(ref, time.Now())
		}
	}
	return max(c.outcome(ctx, "look at "+key, err), again)
}

// readCatalogue reads what a look begins with; nil: there is no such catalog.
func (c *Controller) readCatalogue(ctx context.Context, ref fleet.ModuleRef) (x *catalogue, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		rec, _, ok := store.Get[*storev1.CatalogRecord](r, store.CatalogKey(ref))
		if !ok {
			return nil
		}
		x = &catalogue{ref: ref, rec: rec}
		x.c, x.bad = wire.CatalogFromProto(rec.GetCatalog())
		seen, _ := c.CatalogSeen(ref)
		x.was = record.CatalogState(r, ref, rec, seen)
		x.held = catalogHold(r, ref)
		x.confirmed = x.held != nil && record.Confirmed(r, x.held)
		return nil
	})
	return x, err
}

// lookAtCatalog says in how long the next look is due; 0: it is not by itself. An error is the hub's own trouble.
func (c *Controller) lookAtCatalog(ctx context.Context, ref fleet.ModuleRef) (time.Duration, error) {
	x, err := c.readCatalogue(ctx, ref)
	switch {
	case err != nil:
		return 0, err
	case x == nil:
		return 0, c.forgetCatalog(ctx, ref)
	case c.catalogStands(ctx, x):
		return againStands, nil
	case x.rec.GetDeleting():
		return 0, c.dropCatalog(ctx, x)
	}
	if wait, due, err := c.untilCatalog(ctx, x); err != nil || !due {
		return wait, err
	}
	if host := source.Origin(x.rec.GetCatalog().GetSpec().GetSource()); host != "" {
		if !c.catalogHosts.enter(host, store.CatalogKey(ref)) {
			return 0, nil // the one that leaves wakes it
		}
		defer func() { c.cataloguer.addAll(c.catalogHosts.leave(host)) }()
	}
	asks, called := c.catalogs.take(ref)
	for tries := 1; ; tries++ {
		x.asks, x.called = asks, called
		if err = guarded(func() error { return c.catalogueNow(ctx, x) }); !errors.Is(err, fleet.ErrConflict) || tries == maxCatalogTries {
			break
		}
		again, unread := c.readCatalogue(ctx, ref)
		if unread != nil || again == nil {
			break
		}
		if again.rec.GetDeleting() {
			refuseAsks(ref, asks)
			return 0, c.dropCatalog(ctx, again)
		}
		if x = again; x.c != nil && x.c.Suspend && len(asks) == 0 {
			return c.sinceCatalog(ctx, x)
		}
	}
	told := cmp.Or(err, x.failure())
	for _, a := range asks {
		a.answer <- catalogAnswer{x.done, told}
	}
	if err != nil {
		if called || len(asks) > 0 { // who asked is told, and what was put of a batch is not left without the rest
			c.catalogs.callAgain(ref, time.Now())
		}
		return 0, err
	}
	if called && x.next.GetFailing() != nil && follow.MayPass(x.next.GetStatus().GetReason()) {
		c.catalogs.callAgain(ref, follow.CalledAgain(follow.Memory{Failing: record.Instant(x.next.GetFailing())}, time.Now()))
	}
	return c.sinceCatalog(ctx, &catalogue{ref: ref, rec: x.rec, c: x.c, was: x.next})
}

// sinceCatalog is how long there is until the look after one that is over.
func (c *Controller) sinceCatalog(ctx context.Context, x *catalogue) (time.Duration, error) {
	wait, due, err := c.untilCatalog(ctx, x)
	if due {
		return time.Second, err // it was called meanwhile, or what it waits for is over
	}
	return wait, err
}

// refuseAsks answers who waits for a look at a catalog that goes.
func refuseAsks(ref fleet.ModuleRef, asks []catalogAsk) {
	for _, a := range asks {
		a.answer <- catalogAnswer{err: fleet.Errorf(fleet.ErrPrecondition, "catalog %s is being deleted", ref.Display())}
	}
}

// untilCatalog is how long there is until a catalog is to be looked at, and whether that is now.
func (c *Controller) untilCatalog(ctx context.Context, x *catalogue) (wait time.Duration, due bool, err error) {
	over, err := c.waitsOver(ctx, x.ref, x.was.GetStatus().GetWaits())
	if err != nil {
		return 0, false, err
	}
	now := time.Now()
	c.catalogs.with(x.ref, func(l *cataloguing) {
		if due = len(l.asks) > 0; due {
			return
		}
		if x.c != nil && x.c.Suspend {
			l.next, l.called = time.Time{}, time.Time{}
			return
		}
		meta := x.rec.GetCatalog().GetMetadata()
		m := catalogMemory{uid: meta.GetUid(), generation: meta.GetGeneration(), state: x.was, confirmed: x.confirmed, over: over, called: l.called}
		if x.c != nil {
			m.plan = x.c.Follow
		}
		l.next = m.next(now, c.catalogs.led)
		due = !l.next.IsZero() && !l.next.After(now)
		if !l.next.IsZero() && !due {
			wait = l.next.Sub(now)
		}
	})
	return wait, due, nil
}

// catalogueNow looks at the source, does what its files say, and remembers what came of it.
func (c *Controller) catalogueNow(ctx context.Context, x *catalogue) error {
	meta, old := x.rec.GetCatalog().GetMetadata(), x.was.GetStatus()
	x.next = &storev1.CatalogState{CatalogUid: meta.GetUid(), Applied: x.was.GetApplied(), Puts: x.was.GetPuts(), Confirmed: x.was.GetConfirmed(), ReadGeneration: x.was.GetReadGeneration(), Lists: x.was.GetLists(), Took: x.was.GetTook(), Back: x.was.GetBack(), BackSeen: x.was.GetBackSeen(), Found: x.was.GetFound(), Status: &towlinev1.CatalogStatus{
		ObservedGeneration: meta.GetGeneration(), Looked: timestamppb.Now(), ResolvedRef: old.GetResolvedRef(), AppliedRef: old.GetAppliedRef(),
		Applied: old.GetApplied(), Conflicts: old.GetConflicts(), Leftover: old.GetLeftover(), Hold: old.GetHold(), Waits: old.GetWaits()}}
	err := c.catalogueFiles(ctx, x)
	var failed *lookError
	s := x.next.GetStatus()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &failed):
		x.endListed()
		s.State, s.Reason = catalog.Failed, failed.reason
		if s.Problems, _ = problemsOf(failed.error); s.Problems == nil {
			s.Problems = []string{failed.Error()}
		}
		s.Problems = fitProblems(s.Problems)
		if x.next.Failing = x.was.GetFailing(); x.next.Failing == nil {
			x.next.Failing = s.Looked
		}
	case err != nil:
		return err
	}
	if s.Since = s.Looked; old.GetState() == s.GetState() && old.GetReason() == s.GetReason() && old.GetSince() != nil {
		s.Since = old.GetSince()
	}
	return c.rememberCatalog(ctx, x)
}

func fitProblems(list []string) []string {
	out := make([]string, 0, min(len(list), maxProblems+1))
	for _, p := range list[:min(len(list), maxProblems)] {
		out = append(out, fleet.Clip(p, maxLookMessage))
	}
	return fleet.AndMore(out, len(list))
}

// failure is what those are told who wait for a look that came to nothing.
func (x *catalogue) failure() error {
	s := x.next.GetStatus()
	if s.GetState() != catalog.Failed {
		return nil
	}
	said := strings.Join(s.GetProblems(), "\n")
	switch s.GetReason() {
	case follow.ReasonUnavailable:
		return fleet.Errorf(fleet.ErrUnavailable, "%s", said)
	case follow.ReasonNotFound:
		return fleet.Errorf(fleet.ErrNotFound, "%s", said)
	case follow.ReasonDenied, follow.ReasonNeedsSecret, follow.ReasonUnverified:
		return fleet.Errorf(fleet.ErrPrecondition, "%s", said)
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s", said)
}

// catalogueFiles fetches the files and has them applied. A *lookError is remembered, and has changed nothing, or nothing more than what it
// says.
func (c *Controller) catalogueFiles(ctx context.Context, x *catalogue) error {
	if x.bad != nil {
		return &lookError{x.bad, follow.ReasonInvalid}
	}
	artifact, err := c.o.Source.Fetch(ctx, x.ref.Project, x.c.Source)
	if err != nil {
		return &lookError{err, lookReason(err)}
	}
	x.next.Status.ResolvedRef = artifact.Ref
	if err := c.steadyCatalog(x, artifact); err != nil {
		return err
	}
	x.next.ReadGeneration = x.rec.GetCatalog().GetMetadata().GetGeneration()
	files, below, unread, err := readCatalog(ctx, x.c, artifact.Files)
	if err != nil {
		_, reason := problemsOf(err)
		return cmp.Or(ctx.Err(), c.namesOthers(ctx, x, artifact.Files, reason), error(&lookError{err, reason}))
	}
	c.lists(x, files)
	elsewhere, broken, unknown, err := c.elsewhere(ctx, x, files, artifact.Files)
	if err != nil {
		return err
	}
	maps.Copy(unread, broken)
	meta := x.rec.GetCatalog().GetMetadata()
	look := record.CatalogLook{Ref: x.ref, UID: meta.GetUid(), Generation: meta.GetGeneration(), Files: files, Below: below, Elsewhere: elsewhere, Unread: unread, Unknown: unknown, Prune: x.c.Prune, ResolvedRef: artifact.Ref,
		Person: len(x.asks) > 0, Reason: x.why(artifact.Ref), Puts: x.was.GetPuts(), Fence: c.fence(),
		Take: slices.ContainsFunc(x.asks, func(a catalogAsk) bool { return a.take })}
	return c.applyCatalog(ctx, x, look, artifact)
}

// why is what is recorded as the reason of what a catalog puts.
func (x *catalogue) why(ref string) string {
	if len(x.asks) == 0 {
		return cmp.Or(ref, "as its files say")
	}
	said := "asked for by " + x.asks[0].By
	if why := x.asks[0].Reason; why != "" {
		said += ": " + why
	}
	return strings.TrimPrefix(ref+", "+said, ", ")
}

// applyCatalog has done what the files say, unless a person must confirm it first.
func (c *Controller) applyCatalog(ctx context.Context, x *catalogue, look record.CatalogLook, artifact source.Artifact) error {
	plan, err := c.o.Catalogs.PlanCatalog(ctx, look)
	if list, reason := problemsOf(err); list != nil {
		return cmp.Or(c.namesOthers(ctx, x, artifact.Files, reason), error(&lookError{err, reason}))
	}
	if err != nil {
		return err
	}
	s := x.next.GetStatus()
	s.Conflicts, s.Waits, s.Leftover, s.Hold = nil, nil, plan.Kept, ""
	for _, f := range plan.Conflicts {
		s.Conflicts = append(s.Conflicts, conflictOf(f))
	}
	for _, l := range plan.Later {
		if l.At != "" {
			s.Waits = append(s.Waits, waitOf(l))
		}
	}
	if len(plan.Refused) > 0 {
		x.stays(plan)
		return &lookError{&record.CatalogProblems{List: plan.Refused}, catalog.ReasonNeeded}
	}
	if why := x.whyAsked(plan, artifact); why != "" && !x.released(plan) {
		x.stays(plan)
		return c.waitForPerson(ctx, x, plan, why)
	}
	x.takes(artifact)
	x.later(plan)
	if err := c.begins(ctx, x, plan); err != nil {
		return err
	}
	x.done, err = c.o.Catalogs.ApplyCatalog(ctx, look, plan)
	if list, _ := problemsOf(err); list != nil {
		x.stays(plan)
		return &lookError{err, catalog.ReasonRefused}
	}
	if err != nil {
		return err
	}
	switch waits := s.GetWaits(); {
	case len(s.GetConflicts()) > 0:
		s.State = catalog.Conflicted
	case len(waits) > 0:
		s.State, s.Reason = catalog.Waiting, waits[0].GetReason()
	default:
		s.State = catalog.Applied
	}
	if len(s.GetWaits()) == 0 {
		x.applied(artifact)
	}
	x.through = true
	return nil
}

// applied notes that all was applied.
func (x *catalogue) applied(artifact source.Artifact) {
	s := x.next.GetStatus()
	if x.next.Applied = artifact.Digest.Bytes(); s.Applied == nil || s.AppliedRef != artifact.Ref || len(x.done.Created)+len(x.done.Configured)+len(x.done.Pruned) > 0 {
		s.Applied = s.Looked
	}
	s.AppliedRef = artifact.Ref
}

// later notes what goes by a later look, and what of that a person has confirmed.
func (x *catalogue) later(plan catalog.Plan) {
	s := x.next.GetStatus()
	x.next.Confirmed = nil
	for _, l := range plan.Later {
		if l.At == "" {
			s.Waits, s.Leftover = append(s.Waits, waitOf(l)), append(s.Leftover, l.Name)
		}
	}
	for _, g := range plan.Goes {
		if slices.Contains(s.Leftover, g.Name) && x.isConfirmed(g) {
			x.next.Confirmed = append(x.next.Confirmed, catalogItem(g))
		}
	}
}

func waitOf(l catalog.Later) *towlinev1.CatalogWait {
	return &towlinev1.CatalogWait{Module: l.Name, File: l.At, Reason: l.Reason, Rollout: l.Rollout, By: l.By}
}

// rememberCatalog keeps what came of a look. It is stored when it says something new.
func (c *Controller) rememberCatalog(ctx context.Context, x *catalogue) error {
	c.logCatalog(x)
	c.catalogs.remember(x.ref, x.next)
	return c.update(ctx, func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.CatalogRecord](w, store.CatalogKey(x.ref))
		old, _, _ := store.Get[*storev1.CatalogState](w, store.CatalogStateKey(x.ref))
		if rec.GetCatalog().GetMetadata().GetUid() != x.next.GetCatalogUid() {
			return nil
		}
		if h := catalogHold(store.Untracked(w), x.ref); x.through && h != nil {
			w.Delete(store.HoldPrefix + h.GetId())
			w.Delete(store.ConfirmPrefix + h.GetId())
			if x.rest != nil {
				w.Delete(store.ConfirmPrefix + x.rest.GetId())
				w.Put(store.HoldPrefix+x.rest.GetId(), &storev1.HoldRecord{Hold: x.rest})
			}
		}
		if !catalogSaysMore(old, x.next) {
			return nil
		}
		w.Put(store.CatalogStateKey(x.ref), x.next)
		return nil
	})
}

// catalogSaysMore reports that a state is worth a write.
func catalogSaysMore(old, next *storev1.CatalogState) bool {
	if old.GetStatus() == nil || next.GetStatus().GetLooked().AsTime().Sub(old.GetStatus().GetLooked().AsTime()) >= looksStored {
		return true
	}
	same := proto.CloneOf(old)
	same.Status.Looked = next.GetStatus().GetLooked()
	return !proto.Equal(same, next)
}

// logCatalog logs when a catalog cannot be applied any more, and when it can be again.
func (c *Controller) logCatalog(x *catalogue) {
	was, s := x.was.GetStatus(), x.next.GetStatus()
	if was.GetState() == s.GetState() && was.GetReason() == s.GetReason() {
		return
	}
	switch s.GetState() {
	case catalog.Failed:
		c.o.Log.Warn("a catalog cannot be applied; its modules stay as they are", "catalog", x.ref.Display(), "reason", s.GetReason(), "error", s.GetProblems()[0])
	case catalog.Waiting:
		if s.GetHold() == "" {
			c.o.Log.Info("a catalog leaves a part for later", "catalog", x.ref.Display(), "reason", s.GetReason(), "module", s.GetWaits()[0].GetModule())
			return
		}
		c.o.Log.Warn("a catalog waits for a confirm", "catalog", x.ref.Display(), "hold", s.GetHold())
	default:
		c.o.Log.Info("a catalog is applied", "catalog", x.ref.Display(), "state", s.GetState(), "ref", s.GetAppliedRef())
	}
}

// forgetCatalog forgets what is left of a catalog that is gone.
func (c *Controller) forgetCatalog(ctx context.Context, ref fleet.ModuleRef) error {
	c.catalogs.drop(ref)
	if err := c.holdCatalog(ctx, ref, nil); err != nil {
		return err
	}
	return c.update(ctx, func(w store.Writer) error {
		_, there := w.Get(store.CatalogKey(ref))
		if _, left := w.Get(store.CatalogStateKey(ref)); left && !there {
			w.Delete(store.CatalogStateKey(ref))
		}
		return nil
	})
}

// dropCatalog deletes the modules of a catalog that goes with them, and then the catalog.
func (c *Controller) dropCatalog(ctx context.Context, x *catalogue) error {
	asks, _ := c.catalogs.take(x.ref)
	refuseAsks(x.ref, asks)
	meta := x.rec.GetCatalog().GetMetadata()
	why := "catalog " + x.ref.Name + " is deleted with its modules by " + meta.GetChangedBy()
	if r := meta.GetChangeReason(); r != "" {
		why += ": " + r
	}
	look := record.CatalogLook{Ref: x.ref, UID: meta.GetUid(), Generation: meta.GetGeneration(), Reason: why, Fence: c.fence()}
	if err := c.o.Catalogs.DropCatalog(ctx, look); err != nil {
		next := proto.CloneOf(x.was)
		if next == nil {
			next = &storev1.CatalogState{CatalogUid: meta.GetUid(), Status: &towlinev1.CatalogStatus{}}
		}
		x.next, next.Status.Problems = next, fitProblems(said(err))
		c.catalogs.remember(x.ref, next)
		return errors.Join(err, c.rememberCatalog(ctx, x))
	}
	if err := c.holdCatalog(ctx, x.ref, nil); err != nil {
		return err
	}
	c.catalogs.drop(x.ref)
	return c.update(ctx, func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.CatalogRecord](w, store.CatalogKey(x.ref))
		if rec.GetDeleting() && rec.GetCatalog().GetMetadata().GetUid() == meta.GetUid() {
			w.Delete(store.CatalogKey(x.ref))
			w.Delete(store.CatalogStateKey(x.ref))
		}
		return nil
	})
}
