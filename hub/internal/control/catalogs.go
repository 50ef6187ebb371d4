package control

import (
	"context"
	"slices"
	"sync"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// catalogs is when catalogs are looked at again, and who waits for that. Losing it costs looks that are early or late.
type catalogs struct {
	mu  sync.Mutex
	led time.Time // since when this hub leads; zero: it does not
	of  map[fleet.ModuleRef]*cataloguing
}

// cataloguing is of one catalog.
type cataloguing struct {
	state  *storev1.CatalogState // what came of the last look, newer than what is stored; nil: there was none
	next   time.Time             // zero: it is not looked at by itself
	called time.Time             // when it is looked at because of a call; zero: none came
	asks   []catalogAsk
	// awaits are the modules whose changes may end what it waits for.
	awaits map[fleet.ModuleRef]bool
}

// catalogAsk is a person who waits for a look.
type catalogAsk struct {
	record.Ask
	take   bool
	answer chan<- catalogAnswer // has room for it
}

type catalogAnswer struct {
	record.CatalogDone
	err error
}

func (x *catalogs) begin(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.led, x.of = now, map[fleet.ModuleRef]*cataloguing{}
}

// end answers all who wait.
func (x *catalogs) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.of {
		for _, a := range l.asks {
			a.answer <- catalogAnswer{err: errNotLeading}
		}
	}
	x.led, x.of = time.Time{}, nil
}

// with calls fn with what is known of a catalog; false: this hub does not lead.
func (x *catalogs) with(ref fleet.ModuleRef, fn func(*cataloguing)) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		return false
	}
	if x.of[ref] == nil {
		x.of[ref] = &cataloguing{}
	}
	fn(x.of[ref])
	return true
}

// drop forgets a catalog that is gone, and answers who waits for it.
func (x *catalogs) drop(ref fleet.ModuleRef) {
	x.with(ref, func(l *cataloguing) {
		for _, a := range l.asks {
			a.answer <- catalogAnswer{err: fleet.NotFound(fleet.Object{Kind: "Catalog", Name: ref.String()}, "catalog %s not found", ref.Display())}
		}
		delete(x.of, ref)
	})
}

// asked reports that somebody waits.
func (x *catalogs) asked(ref fleet.ModuleRef) (waits bool) {
	x.with(ref, func(l *cataloguing) { waits = len(l.asks) > 0 })
	return waits
}

// take returns who waits, to be answered by the caller, and whether a call came.
func (x *catalogs) take(ref fleet.ModuleRef) (asks []catalogAsk, called bool) {
	x.with(ref, func(l *cataloguing) {
		asks, called = l.asks, !l.called.IsZero()
		l.asks, l.called = nil, time.Time{}
	})
	return asks, called
}

// callAgain has a look be made again of which nothing came, for the hub's own trouble, so that who called was told that it is, or since it is to be made sure of.
func (x *catalogs) callAgain(ref fleet.ModuleRef, at time.Time) {
	x.with(ref, func(l *cataloguing) {
		if l.called.IsZero() {
			l.called = at
		}
	})
}

// remember keeps what came of a look.
func (x *catalogs) remember(ref fleet.ModuleRef, s *storev1.CatalogState) {
	x.with(ref, func(l *cataloguing) { l.state = s })
}

// catalogMemory is what is known of a catalog beside its record.
type catalogMemory struct {
	uid        string
	generation int64
	plan       *follow.Plan // nil: it is not followed
	state      *storev1.CatalogState
	confirmed  bool // a person has confirmed what it waits with
	over       bool // something is over that it waits for
	called     time.Time
}

// mayPass are why a look came to nothing that may come to something later, though the source is not followed.
var mayPass = []string{follow.ReasonUnavailable, follow.ReasonGoesBack, catalog.ReasonRefused, catalog.ReasonNeeded}

// next is when a catalog is looked at; zero: when somebody asks.
func (m catalogMemory) next(now, led time.Time) time.Time {
	s := m.state.GetStatus()
	confirmed := m.confirmed && s.GetReason() != follow.ReasonGoesBack // which looks are counted for, one at a time
	failing := m.state.GetFailing() != nil
	over := m.over && !failing && s.GetHold() == "" // else something else is in the way, too
	if s.GetObservedGeneration() != m.generation || confirmed || over {
		return now
	}
	led = asOf(led, now)
	known := follow.Memory{Looked: lookedAt(now, led, s.GetLooked().AsTime())}
	if failing && (s.GetReason() != follow.ReasonGoesBack || m.plan == nil) { // else looks are counted for that
		known.Failing = m.state.GetFailing().AsTime()
	}
	var at time.Time
	switch {
	case m.plan != nil:
		at = m.plan.Next(known, m.uid, led)
	case slices.Contains(mayPass, s.GetReason()):
		at = follow.Plan{Interval: follow.MinInterval}.Next(known, m.uid, led)
	}
	if called := asOf(m.called, now); !called.IsZero() && (at.IsZero() || called.Before(at)) {
		at = called
	}
	return at
}

// awaiting are the catalogs that wait for something of a module.
func (x *catalogs) awaiting(ref fleet.ModuleRef) (list []fleet.ModuleRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for of, l := range x.of {
		if l.awaits[ref] {
			list = append(list, of)
		}
	}
	return list
}

// touchCatalogsAwaiting has the catalogs looked at that wait for something of a module.
func (c *Controller) touchCatalogsAwaiting(ref fleet.ModuleRef) {
	for _, of := range c.catalogs.awaiting(ref) {
		c.cataloguer.add(store.CatalogKey(of))
	}
}

// waitsOver reports that something is over that a catalog waits for. What is not yet will touch the catalog.
func (c *Controller) waitsOver(ctx context.Context, ref fleet.ModuleRef, waits []*towlinev1.CatalogWait) (over bool, err error) {
	of := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: ref.Project, Name: name} }
	awaits := map[fleet.ModuleRef]bool{}
	for _, w := range waits {
		if w.GetReason() == catalog.Running {
			awaits[of(w.GetModule())] = true
		}
		for _, name := range w.GetBy() {
			awaits[of(name)] = true
		}
	}
	c.catalogs.with(ref, func(l *cataloguing) { l.awaits = awaits })
	if len(waits) == 0 {
		return false, nil
	}
	err = c.view(ctx, func(r store.Reader) error {
		over = slices.ContainsFunc(waits, func(w *towlinev1.CatalogWait) bool {
			if w.GetReason() == catalog.Running {
				return rollouts.Rejecting(r, of(w.GetModule())) != w.GetRollout()
			}
			return !slices.ContainsFunc(w.GetBy(), func(name string) bool { return record.Needs(r, of(name), of(w.GetModule())) })
		})
		return nil
	})
	return over, err
}

// CatalogSeen is what came of the last look at a catalog, newer than what is stored, and when the next one is; nil and zero: nothing is
// known.
func (c *Controller) CatalogSeen(ref fleet.ModuleRef) (state *storev1.CatalogState, next time.Time) {
	c.catalogs.mu.Lock()
	defer c.catalogs.mu.Unlock()
	if l := c.catalogs.of[ref]; l != nil {
		return l.state, l.next
	}
	return nil, time.Time{}
}

// ResyncCatalog has the source of a catalog be looked at now, and waits for what comes of it.
func (c *Controller) ResyncCatalog(ctx context.Context, ref fleet.ModuleRef, by record.Ask, take bool) (record.CatalogDone, error) {
	answers := make(chan catalogAnswer, 1)
	if !c.catalogs.with(ref, func(l *cataloguing) { l.asks = append(l.asks, catalogAsk{by, take, answers}) }) {
		return record.CatalogDone{}, errNotLeading
	}
	c.cataloguer.add(store.CatalogKey(ref))
	select {
	case a := <-answers:
		return a.CatalogDone, a.err
	case <-ctx.Done():
		return record.CatalogDone{}, ctx.Err()
	}
}

// CatalogCalled has the source of a catalog be looked at soon, because a call asks for that.
func (c *Controller) CatalogCalled(ref fleet.ModuleRef) error {
	var at time.Time
	if !c.catalogs.with(ref, func(l *cataloguing) {
		if l.called.IsZero() {
			var m follow.Memory
			if looked := l.state.GetStatus().GetLooked(); looked != nil {
				m.Looked = looked.AsTime()
			}
			l.called = follow.Called(m, time.Now())
		}
		at = l.called
	}) {
		return errNotLeading
	}
	c.cataloguer.addAt(store.CatalogKey(ref), at)
	return nil
}

// touchCatalogsWith looks at the catalogs whose sources use a secret that has changed.
func (c *Controller) touchCatalogsWith(secret fleet.ModuleRef) {
	var users []string
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		users = record.CatalogSecretUsers(r, secret.Project)[secret]
		return nil
	})
	for _, name := range users {
		ref := fleet.ModuleRef{Project: secret.Project, Name: name}
		if known, _ := c.CatalogSeen(ref); known.GetStatus().GetReason() == follow.ReasonNeedsSecret || known.GetStatus().GetReason() == follow.ReasonDenied {
			_ = c.CatalogCalled(ref) // where this hub does not lead, the one that does sees the secret, too
		}
	}
}
