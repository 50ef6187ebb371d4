package control

import (
	"context"
	"sync"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// looks is when the sources of modules are looked at again, and who waits for that. Losing it costs looks that are early or late.
type looks struct {
	mu  sync.Mutex
	led time.Time // since when this hub leads; zero: it does not
	of  map[fleet.ModuleRef]*looking
}

// looking is of one module.
type looking struct {
	generation int64
	uid        string
	memory     *storev1.FollowRecord // what came of the last look, newer than what is stored; nil: there was none
	next       time.Time
	after      time.Time // it is not looked at before that by itself
	called     time.Time // when it is looked at because of a call; zero: none came
	hook       bool      // somebody outside called
	awaited    bool      // another module did, of the same source, which waits for what comes of it
	asks       []ask
}

// ask is a person who waits for a look.
type ask struct {
	record.Ask
	with   []fleet.ModuleRef // whose sources are looked at, too
	answer chan<- answer     // has room for it
}

type answer struct {
	record.Resynced
	err error
}

// errNotLeading is what those get who wait when another hub leads. That is known in a moment.
var errNotLeading = fleet.With(fleet.Errorf(fleet.ErrUnavailable, "this hub does not lead now; try again"), fleet.Hint{RetryAfter: time.Second})

// begin forgets what is known, and has looks begin.
func (x *looks) begin(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.led, x.of = now, map[fleet.ModuleRef]*looking{}
}

// end answers all who wait.
func (x *looks) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.of {
		for _, a := range l.asks {
			a.answer <- answer{err: errNotLeading}
		}
	}
	x.led, x.of = time.Time{}, nil
}

// entry is of a module, made if there is none.
func (x *looks) entry(ref fleet.ModuleRef) *looking {
	if x.of[ref] == nil {
		x.of[ref] = &looking{}
	}
	return x.of[ref]
}

// at is what is known of a module; of another spec than that of the record nothing is, but who waits.
func (x *looks) at(ref fleet.ModuleRef, m *storev1.ModuleRecord) *looking {
	meta := m.GetModule().GetMetadata()
	l := x.entry(ref)
	if l.uid != meta.GetUid() || l.generation != meta.GetGeneration() {
		*l = looking{uid: meta.GetUid(), generation: meta.GetGeneration(), asks: l.asks, called: l.called, hook: l.hook, awaited: l.awaited}
	}
	return l
}

// schedule is when the source is looked at next. memory is what is stored of the last look; nil: nothing is. put is when the
// source was fetched for a put.
func (x *looks) schedule(ref fleet.ModuleRef, m *storev1.ModuleRecord, p follow.Plan, memory *storev1.FollowRecord, put, now time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		return now.Add(p.Interval) // it does not lead any more
	}
	l := x.at(ref, m)
	if l.memory == nil {
		l.memory = memory
	}
	led := asOf(x.led, now)
	known := follow.Memory{Looked: lookedAt(now, led, put, l.memory.GetLooked().AsTime())}
	if l.memory.GetSince() != nil && l.memory.GetReason() != follow.ReasonGoesBack { // which looks are counted for
		known.Failing = l.memory.GetSince().AsTime()
	}
	l.next = p.Next(known, l.uid, led)
	if after := asOf(l.after, now); l.next.Before(after) {
		l.next = after
	}
	if called := asOf(l.called, now); !called.IsZero() && called.Before(l.next) {
		l.next = called
	}
	return l.next
}

// asOf is a time that this hub noted, by its clock as it stands now: that may have been set since, and times that are stored are by it alone.
func asOf(noted, now time.Time) time.Time {
	if noted.IsZero() {
		return noted
	}
	return now.Add(noted.Sub(now)).Round(0)
}

// lookedAt is the newest of the times at which a source was looked at, and led if those say nothing: a time that is still to come is by a clock
// that was ahead, this hub's or another one's, and to go by it would be to look at nothing until it has come.
func lookedAt(now, led time.Time, times ...time.Time) (at time.Time) {
	for _, t := range times {
		if t.After(now) {
			t = led
		}
		if t.After(at) {
			at = t
		}
	}
	return at
}

// postpone has no look before a time, unless somebody asks.
func (x *looks) postpone(ref fleet.ModuleRef, m *storev1.ModuleRecord, until time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of != nil {
		x.at(ref, m).after = until
	}
}

// scheduled reports that it is known when the source is looked at next.
func (x *looks) scheduled(ref fleet.ModuleRef, m *storev1.ModuleRecord) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.of[ref]
	return l != nil && !l.next.IsZero() && l.uid == uidOf(m) && l.generation == m.GetModule().GetMetadata().GetGeneration()
}

// remember keeps what came of a look.
func (x *looks) remember(ref fleet.ModuleRef, m *storev1.ModuleRecord, memory *storev1.FollowRecord) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of != nil {
		x.at(ref, m).memory = memory
	}
}

// ask has somebody wait for a look; false: nobody looks.
func (x *looks) ask(ref fleet.ModuleRef, a ask) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		return false
	}
	l := x.entry(ref)
	l.asks = append(l.asks, a)
	return true
}

// asked reports that somebody waits.
func (x *looks) asked(ref fleet.ModuleRef) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.of[ref]
	return l != nil && len(l.asks) > 0
}

// taken is for whom a look is made.
type taken struct {
	asks          []ask // to be answered by who takes them
	hook, awaited bool  // a call came from outside, or of another module
}

// take hands over who waits.
func (x *looks) take(ref fleet.ModuleRef) (t taken) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.of[ref]; l != nil {
		t = taken{l.asks, l.hook, l.awaited}
		l.asks, l.called, l.hook, l.awaited = nil, time.Time{}, false, false
	}
	return t
}

// callAgain has the look be made of which nothing came for the hub's own trouble: who called was told that it is.
func (x *looks) callAgain(ref fleet.ModuleRef, t taken, now time.Time) {
	if t.hook {
		x.call(ref, now, true)
	}
	if t.awaited {
		x.call(ref, now, false)
	}
}

// call has a look be made because of a call, of somebody outside or of another module, and returns when; of several calls the one counts
// that asks for the earliest look. Zero: nobody looks.
func (x *looks) call(ref fleet.ModuleRef, now time.Time, hook bool) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		return time.Time{}
	}
	l := x.entry(ref)
	l.hook, l.awaited = l.hook || hook, l.awaited || !hook
	var m follow.Memory
	if at := l.memory.GetLooked(); at != nil {
		m.Looked = at.AsTime()
	}
	if at := follow.Called(m, now); l.called.IsZero() || at.Before(l.called) {
		l.called = at
	}
	return l.called
}

// drop forgets a module that is not followed, unless somebody waits.
func (x *looks) drop(ref fleet.ModuleRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.of[ref]; l != nil && len(l.asks) == 0 {
		delete(x.of, ref)
	}
}

// Followed is what is known of the looks at the source of a module, newer than what is stored, and when the next one is; nil and zero:
// nothing is.
func (c *Controller) Followed(ref fleet.ModuleRef) (memory *storev1.FollowRecord, next time.Time) {
	c.looks.mu.Lock()
	defer c.looks.mu.Unlock()
	if l := c.looks.of[ref]; l != nil {
		return l.memory, l.next
	}
	return nil, time.Time{}
}

// Resync has the source of a module be looked at now, and waits for what comes of it. With it begins what the sources of others have.
func (c *Controller) Resync(ctx context.Context, ref fleet.ModuleRef, by record.Ask, with []fleet.ModuleRef) (record.Resynced, error) {
	answers := make(chan answer, 1)
	if !c.looks.ask(ref, ask{by, with, answers}) {
		return record.Resynced{}, errNotLeading
	}
	c.looker.add(store.ModuleKey(ref))
	select {
	case a := <-answers:
		return a.Resynced, a.err
	case <-ctx.Done():
		return record.Resynced{}, ctx.Err()
	}
}

// Called has the source of a module that follows it be looked at soon, because a call asks for that.
func (c *Controller) Called(ref fleet.ModuleRef) error {
	if !c.call(ref, true) {
		return errNotLeading
	}
	return nil
}

func (c *Controller) call(ref fleet.ModuleRef, hook bool) bool {
	return c.callAt(ref, time.Now(), hook)
}

// callAt is a call that comes then; false: nobody looks.
func (c *Controller) callAt(ref fleet.ModuleRef, then time.Time, hook bool) bool {
	at := c.looks.call(ref, then, hook)
	if at.IsZero() {
		return false
	}
	c.looker.addAt(store.ModuleKey(ref), at)
	return true
}

// queueLook has the source of a module that follows it be looked at in time.
func (c *Controller) queueLook(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord) error {
	if rec.GetModule().GetSpec().GetSource().GetFollow() == nil {
		c.looks.drop(ref)
		return nil
	}
	if c.looks.scheduled(ref, rec) {
		return nil
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil || m.Follow == nil {
		return nil // its rollout says so
	}
	next, err := c.nextLook(ctx, ref, rec, *m.Follow)
	if err == nil {
		c.looker.addAt(store.ModuleKey(ref), next)
	}
	return err
}

// nextLook is when the source of a module is looked at next.
func (c *Controller) nextLook(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord, p follow.Plan) (next time.Time, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		next = c.looks.schedule(ref, rec, p, record.Followed(r, ref, rec), record.FetchedAt(r, ref), time.Now())
		return nil
	})
	return next, err
}
