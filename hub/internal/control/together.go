package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// beginTogether has the rollout of a module begin whose source has something else, and with it those of all that follow the same source or
// are asked for with it, so that none lets anything go before it is known what the others list. Of those that cannot begin that is stored
// before: what the others let go may be theirs (see record.Succession). If one that is asked for cannot, nothing begins.
func (c *Controller) beginTogether(ctx context.Context, v *verdict, came *record.Resynced) error {
	leave, err := c.upstream.enter(ctx, wire.Upstream(v.s.rec.GetModule().GetSpec().GetSource()))
	if err != nil {
		return err
	}
	defer leave()
	others, err := c.judgeOthers(ctx, v)
	if err != nil {
		return err
	}
	begin, err := c.sortOut(ctx, v, others)
	if err != nil {
		return err
	}
	for _, o := range others { // before anything begins: what is let go need not wait for them
		if o.failed == nil && !o.begins && !o.moved {
			if err := c.noteOther(ctx, o); err != nil {
				return err
			}
		}
	}
	numbers, late := c.tell(ctx, v, begin)
	if numbers == nil {
		return late
	}
	came.Number = numbers[v.s.ref]
	delete(numbers, v.s.ref)
	came.Others = numbers
	for _, o := range others {
		if o.failed != nil || !o.begins || o.moved {
			continue
		}
		if err := c.noteOther(ctx, o); err != nil {
			return err
		}
	}
	if v.failed != nil {
		return v.failed
	}
	return late
}

// noteOther keeps what was seen at another one.
func (c *Controller) noteOther(ctx context.Context, o *other) error {
	o.note()
	return c.remember(ctx, o.s, o.next)
}

// other is what came of the look at another module.
type other struct {
	verdict
	asked bool // for by name
	moved bool // its branch moved meanwhile: what it lists is not known, nor noted, before it is looked at
}

// awayApart is how far those are called apart that are left out because their server went away.
const awayApart = time.Second

// judging is what the looks at others share.
type judging struct {
	mu   sync.Mutex
	away map[string]error // why servers are not asked any more
	kept int              // of those that begin, whose files are there still
}

// gone is why a server is not asked any more; nil: it is.
func (x *judging) gone(host string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.away[host]
}

// came takes note of what came of one: of a server that is away, which the rest need not find out, and of files that are not wanted. Only of
// few that begin they are taken as they are (see preparations), and there may be hundreds.
func (x *judging) came(host string, o *other) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var away *source.AwayError
	if host != "" && o.failed != nil && errors.As(o.failed, &away) && away.Host == host { // what a chart depends on may be elsewhere
		x.away[host] = o.failed.error
	}
	if o.begins && !o.s.queues && x.kept < maxPreparations {
		x.kept++
		return
	}
	o.artifact.Files, o.artifact.Archive, o.variants = nil, nil, nil
}

// judgeOthers looks at the others. Whoever waits for its source already is known to have something else.
func (c *Controller) judgeOthers(ctx context.Context, v *verdict) ([]*other, error) {
	asked, refs, err := c.othersOf(ctx, v)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var out []*other
	x := &judging{away: map[string]error{}}
	looks, ctx := errgroup.WithContext(ctx)
	looks.SetLimit(maxFromOrigin)
	for _, ref := range refs {
		looks.Go(func() error {
			return guarded(func() error {
				o, err := c.judgeOther(ctx, x, v, ref, asked[ref])
				if o != nil {
					mu.Lock()
					defer mu.Unlock()
					out = append(out, o)
				}
				return err
			})
		})
	}
	if err := looks.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b *other) int { return slices.Index(refs, a.s.ref) - slices.Index(refs, b.s.ref) })
	return out, nil
}

// othersOf are the modules that follow the same source, and those that are asked for with it. A rollout of the module that has begun
// meanwhile is a conflict: another look had it begin.
func (c *Controller) othersOf(ctx context.Context, v *verdict) (asked map[fleet.ModuleRef]bool, refs []fleet.ModuleRef, err error) {
	asked = map[fleet.ModuleRef]bool{}
	for _, a := range v.asks {
		for _, ref := range a.with {
			asked[ref] = true
		}
	}
	upstream := wire.Upstream(v.s.rec.GetModule().GetSpec().GetSource())
	err = c.view(ctx, func(r store.Reader) error {
		if rollouts.Newest(r, v.s.ref) != v.s.number {
			return fleet.Errorf(fleet.ErrConflict, "module %s has begun meanwhile", v.s.ref.Display())
		}
		store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
			ref, ok := store.SplitModule(e.Key)
			src := rec.GetModule().GetSpec().GetSource()
			if ok && ref != v.s.ref && rec.GetDeleting() == "" && (asked[ref] || src.GetFollow() != nil && wire.Upstream(src) == upstream) {
				refs = append(refs, ref)
			}
			return true
		})
		return nil
	})
	return asked, refs, err
}

// judgeOther looks at one; nil: there is nothing to look at.
func (c *Controller) judgeOther(ctx context.Context, x *judging, v *verdict, ref fleet.ModuleRef, asked bool) (*other, error) {
	s, err := c.sight(ctx, ref)
	if errors.As(err, new(*lookError)) {
		return nil, nil // nobody can look at what cannot be read
	}
	if err != nil || s == nil {
		return nil, err
	}
	if s.waits && !(s.stuck && asked) {
		if s.behind { // what it is going to list is known again when that is fetched, and before anything is let go
			c.draftAgain(s, true)
		}
		return nil, nil
	}
	if !asked && s.knows(v.artifact.Ref) && !(v.backs && s.memory.GetReason() == follow.ReasonGoesBack) {
		return nil, nil
	}
	o := &other{verdict: verdict{s: s, next: s.recall(), backs: v.backs}, asked: asked}
	if asked {
		o.asks = v.asks[:1]
	}
	host := origin(s.rec)
	leave, err := c.judged.enter(ctx, host)
	if err != nil {
		return nil, err
	}
	defer leave()
	if gone := x.gone(host); gone != nil {
		o.failed = &lookError{gone, lookReason(gone)}
		return o, nil
	}
	err = c.judge(ctx, &o.verdict)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && !errors.As(err, &o.failed) {
		return nil, err
	}
	x.came(host, o)
	return o, nil
}

// sortOut returns what begins, the module itself first, and stores of what cannot why.
func (c *Controller) sortOut(ctx context.Context, v *verdict, others []*other) (begin []*verdict, err error) {
	begin = []*verdict{v}
	var away time.Duration
	upstream := wire.Upstream(v.s.rec.GetModule().GetSpec().GetSource())
	for _, o := range others {
		switch {
		case o.failed != nil && o.asked:
			return nil, notWithout(v, o.s.ref, o.failed)
		case o.failed != nil:
			if err := c.rememberFailed(ctx, &o.verdict); err != nil {
				return nil, err
			}
			if isAway(o.failed.error) { // its server was there a moment ago
				c.callAt(o.s.ref, time.Now().Add(calledAgain+away), false)
				away += awayApart
			}
		case o.artifact.Ref != v.artifact.Ref && wire.Upstream(o.s.rec.GetModule().GetSpec().GetSource()) == upstream:
			if o.moved = v.s.persists && !o.asked; !o.moved { // what is let go stays until it is looked at (see record.Succession)
				return nil, fleet.Errorf(fleet.ErrConflict, "module %s: its source moved while it was looked at", v.s.ref.Display())
			}
		case o.begins:
			begin = append(begin, &o.verdict)
		}
	}
	return begin, nil
}

func (c *Controller) rememberFailed(ctx context.Context, v *verdict) error {
	v.s.blame(v.next, v.failed)
	return c.remember(ctx, v.s, v.next)
}

// knows reports that it was looked at what the source has there, since the module was put: what came of it is noted. So the modules of
// one source that cannot begin do not have each other looked at again and again.
func (s *sight) knows(ref string) bool {
	return ref != "" && s.memory.GetResolvedRef() == ref && record.SpeaksOf(s.memory, s.rec)
}

// notWithout is that a module does not begin because another one cannot that is asked for with it.
func notWithout(v *verdict, ref fleet.ModuleRef, failed *lookError) error {
	return fmt.Errorf("module %s does not begin without module %s, which is asked for with it: %w", v.s.ref.Display(), ref.Display(), failed.error)
}

// tell has rollouts begin, of all that may, and notes in the others why they may not. With numbers, an error is that one which was asked for
// did not begin with the others.
func (c *Controller) tell(ctx context.Context, v *verdict, begin []*verdict) (map[fleet.ModuleRef]int64, error) {
	for _, b := range begin {
		if b.variants != nil && !b.s.queues { // what waits for its turn takes what is there then
			c.ahead(b.s.m, record.Digest(b.s.rec.GetSpecDigest()), made{source: b.artifact, variants: b.variants})
		}
	}
	for len(begin) > 0 {
		news := make([]record.News, len(begin))
		for i, b := range begin {
			news[i] = b.news()
		}
		numbers, err := c.o.News(ctx, news)
		if err == nil {
			return c.began(ctx, v, begin, numbers)
		}
		if !errors.Is(err, fleet.ErrPrecondition) {
			return nil, err
		}
		if begin, err = c.without(ctx, v, begin, err); err != nil {
			return nil, err
		}
	}
	return map[fleet.ModuleRef]int64{}, nil
}

// began says what has begun, and notes in those that were left out why they have not.
func (c *Controller) began(ctx context.Context, v *verdict, begin []*verdict, numbers []int64) (map[fleet.ModuleRef]int64, error) {
	out := map[fleet.ModuleRef]int64{}
	var late error
	for i, b := range begin {
		if numbers[i] != 0 {
			out[b.s.ref] = numbers[i]
			continue
		}
		b.failed = &lookError{fleet.Errorf(fleet.ErrConflict, "module %s: it was put, paused or begun while others of its source began; it is looked at again", b.s.ref.Display()), follow.ReasonRefused}
		if err := c.rememberFailed(ctx, b); err != nil {
			return nil, err
		}
		if len(b.asks) > 0 {
			late = fleet.Errorf(fleet.ErrPrecondition, "module %s has begun without module %s, which was put, paused or begun meanwhile: towline resync %s", v.s.ref.Display(), b.s.ref.Display(), b.s.ref.Display())
		}
	}
	return out, late
}

// without leaves out whose start was refused. It is an error if nothing is to begin without it.
func (c *Controller) without(ctx context.Context, v *verdict, begin []*verdict, err error) ([]*verdict, error) {
	refused := &lookError{err, follow.ReasonRefused}
	if errors.As(err, new(*record.PausedError)) {
		refused.reason = follow.ReasonPaused
	}
	var which *record.StartError
	if !errors.As(err, &which) {
		return nil, refused
	}
	i := slices.IndexFunc(begin, func(b *verdict) bool { return b.s.ref == which.Module })
	switch {
	case i < 0, begin[i] == v && len(v.asks) > 0:
		return nil, refused
	case len(begin[i].asks) > 0:
		return nil, notWithout(v, which.Module, refused)
	}
	begin[i].failed = refused
	if begin[i] != v { // whose look notes it
		if err := c.rememberFailed(ctx, begin[i]); err != nil {
			return nil, err
		}
	}
	return slices.Delete(slices.Clone(begin), i, i+1), nil
}

// turns are whose turn it is, by what they share.
type turns struct {
	room int // how many have it at a time; 0: one
	mu   sync.Mutex
	of   map[string]*turn
}

type turn struct {
	free  chan struct{} // has one for each that may have the turn yet
	users int
}

// enter waits for the turn, which leave ends. Of what has no name everyone has the turn.
func (x *turns) enter(ctx context.Context, name string) (leave func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	x.mu.Lock()
	if x.of == nil {
		x.of = map[string]*turn{}
	}
	t := x.of[name]
	if t == nil {
		t = &turn{free: make(chan struct{}, max(x.room, 1))}
		for range cap(t.free) {
			t.free <- struct{}{}
		}
		x.of[name] = t
	}
	t.users++
	x.mu.Unlock()
	done := func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(x.of, name)
		}
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; done() }, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}
