package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// Accepts is what the cluster accepts, as its own policy says.
type Accepts struct {
	// Policy is in force; nil: there is none, and everything is accepted.
	Policy *localpolicy.Policy
	// Broken says why there is a policy that cannot be gone by, so that nothing is changed; empty: there is none such.
	Broken string
}

// acceptance judges every write by what the cluster accepts.
type acceptance struct {
	wake chan struct{}

	mu     sync.Mutex
	is     Accepts
	closed string                  // why nothing may be written; counts from at to edge
	at     time.Time               // when that was found out: a clock that is put back has it found out anew
	edge   time.Time               // when that may change by itself; zero: never
	making map[fleet.ObjectID]bool // may be made, and do not count as ours yet

	spent spending
}

// Accept says what the cluster accepts from now on. What was denied by what it accepted before is tried at once.
func (m *Manager) Accept(is Accepts) {
	m.accepts.set(is, time.Now())
	m.mu.Lock()
	m.reopen()
	for _, w := range m.workers {
		w.touchDenied()
	}
	m.mu.Unlock()
	dirty.Poke(m.accepts.wake)
}

func (a *acceptance) set(is Accepts, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.is = is
	a.look(now)
}

// look finds out whether anything may be written. a.mu is held.
func (a *acceptance) look(now time.Time) {
	a.at = now.Round(0) // of the wall clock, as windows are
	if a.closed, a.edge = "", (time.Time{}); a.is.Broken != "" {
		a.closed = "Denied by the cluster's policy: nothing is changed while it cannot be gone by: " + a.is.Broken
		return
	}
	d, edge := a.is.Policy.Closed(now)
	if a.edge = edge; d != nil {
		a.closed = d.String()
	}
}

// shut says why nothing may be written at all; empty: it may.
func (a *acceptance) shut(now time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now = now.Round(0); !a.edge.IsZero() && (!now.Before(a.edge) || now.Before(a.at)) {
		a.look(now)
	}
	return a.closed
}

func (a *acceptance) policy() *localpolicy.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.is.Policy
}

// clockStep is how long it may stay unknown that the clock was put forward, or the machine slept, past the edge of a window or the end of a
// hold: timers do not follow it.
const clockStep = time.Minute

// follow has everything looked at again whenever a window for changes opens or closes.
func (m *Manager) follow(ctx context.Context) {
	was := m.accepts.shut(time.Now())
	for {
		m.accepts.mu.Lock()
		edge := m.accepts.edge
		m.accepts.mu.Unlock()
		timer := time.NewTimer(min(time.Until(edge), clockStep))
		if edge.IsZero() {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.accepts.wake:
		case <-timer.C:
		}
		timer.Stop()
		now := m.accepts.shut(time.Now())
		if (now == "") != (was == "") {
			m.mu.Lock()
			m.reopen()
			m.mu.Unlock()
			m.each((*worker).touchAll)
		}
		was = now
	}
}

// act is one write, in the words of the cluster's policy.
type act struct {
	verb localpolicy.Verb
	id   fleet.ObjectID // in the cluster
	// desired is what is to be written; nil: no content is.
	desired *apply.Desired
}

func (m *Manager) request(ref fleet.ModuleRef, x act, p *localpolicy.Policy) (r localpolicy.Request, err error) {
	r = localpolicy.Request{Verb: x.verb, Module: ref, ID: x.id}
	if x.desired != nil && p.ReadsContent(x.id) {
		r.Bytes = x.desired.Size()
		r.Object, err = x.desired.Object()
	}
	return r, err
}

// denied says why the cluster does not accept a write; nil: it does. It counts nothing.
func (m *Manager) denied(ref fleet.ModuleRef, x act) error {
	if err := m.unlessDenied(ref, x); err != nil {
		return err
	}
	if x.verb == localpolicy.Delete || x.verb == localpolicy.Recreate {
		return m.accepts.overBudget(x.id, time.Now())
	}
	return nil
}

// unlessDenied is denied for a write that counts already.
func (m *Manager) unlessDenied(ref fleet.ModuleRef, x act) error {
	p := m.accepts.policy()
	if p == nil {
		return nil
	}
	r, err := m.request(ref, x, p)
	if err != nil {
		return err
	}
	if d := p.Judge(r); d != nil {
		return denial(x.id, d)
	}
	return nil
}

// permit is asked right before a write is sent: what it counts, it has noted durably. done takes what became of the write.
func (m *Manager) permit(ctx context.Context, ref fleet.ModuleRef, x act) (done func(error), err error) {
	p := m.accepts.policy()
	deletes := x.verb == localpolicy.Delete || x.verb == localpolicy.Recreate
	if p == nil && !deletes {
		return func(error) {}, nil
	}
	r, err := m.request(ref, x, p)
	if err != nil {
		return nil, err
	}
	if x.verb == localpolicy.Create && p.LimitsObjects() {
		return m.make(p, r)
	}
	if d := p.Judge(r); d != nil {
		return nil, denial(x.id, d)
	}
	if !deletes {
		return func(error) {}, nil
	}
	if err := m.accepts.spent.take(ctx, m.o.State, x.id, p, time.Now()); err != nil {
		return nil, err
	}
	return func(err error) {
		if !mayBeDone(err) {
			m.accepts.spent.giveBack(time.Now())
		}
	}, nil
}

// make judges the making of an object where their number counts. Of many at a time, each counts until it is known whether it was
// made.
func (m *Manager) make(p *localpolicy.Policy, r localpolicy.Request) (done func(error), err error) {
	a := &m.accepts
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Owned = m.inventory.OwnedBeside(r.ID)
	for id := range a.making {
		if rec := m.inventory.Get(id); rec == nil || rec.State == plan.Owned {
			delete(a.making, id)
		} else if id != r.ID {
			r.Owned++
		}
	}
	if d := p.Judge(r); d != nil {
		return nil, denial(r.ID, d)
	}
	if a.making == nil {
		a.making = map[fleet.ObjectID]bool{}
	}
	a.making[r.ID] = true
	return func(err error) {
		if !mayBeDone(err) {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.making, r.ID)
		}
	}, nil
}

// mayBeDone reports that a write with this outcome may have been carried out: it was not stopped before it was sent, and the API
// server did not refuse it.
func mayBeDone(err error) bool {
	var stopped *apply.Failure
	var anew later
	switch {
	case err == nil:
		return true
	case errors.As(err, &stopped), errors.As(err, &anew), errors.Is(err, errSuperseded), errors.Is(err, errFreed):
		return false
	}
	return apply.Unanswered(err)
}

func denial(id fleet.ObjectID, d *localpolicy.Denial) *apply.Failure {
	return &apply.Failure{Reason: plan.ReasonDenied, Kind: fleet.ErrDenied, Message: id.String() + ": " + d.String()}
}

// opinion is what the policy says of the content of an item, so that it is read once for a policy.
type opinion struct {
	by     *localpolicy.Policy
	denial *localpolicy.Denial
}

// accepted is what is to be done about an item, after what the cluster accepts. An object that is there and would not be made any
// more stays as it is, and says so.
func (w *worker) accepted(it *item, a plan.Action) plan.Action {
	d := w.denialOf(it, a.Verb)
	if d == nil {
		if it.denied {
			it.denied = false
			it.clear()
		}
		return a
	}
	it.denied, it.fail = true, denial(it.liveID(), d)
	return plan.Action{Verb: plan.Wait, Drift: a.Drift}
}

func (w *worker) denialOf(it *item, verb plan.Verb) *localpolicy.Denial {
	p := w.m.accepts.policy()
	if p == nil || verb == plan.Look || verb == plan.Use || verb == plan.Conflict || verb == plan.Share {
		it.opinion = nil
		return nil
	}
	r := localpolicy.Request{Verb: localpolicy.Keep, Module: w.ref, ID: it.liveID()}
	switch {
	case verb == plan.Create || verb == plan.Restore:
		if r.Verb = localpolicy.Create; p.LimitsObjects() {
			r.Owned = w.m.inventory.OwnedBeside(r.ID)
		}
	case verb.Writes():
		r.Verb = localpolicy.Update
	}
	if d := p.Judge(r); d != nil {
		return d
	}
	if it.opinion == nil || it.opinion.by != p {
		x := act{verb: r.Verb, id: r.ID, desired: w.contentOf(it, p)}
		r, err := w.m.request(w.ref, x, p)
		if err != nil {
			return nil // whoever applies it says so
		}
		it.opinion = &opinion{p, p.JudgeContent(r)}
	}
	return it.opinion.denial
}

// contentOf is the object of an item, where the policy asks for it; nil: it does not, or it cannot be read, which who applies it
// says.
func (w *worker) contentOf(it *item, p *localpolicy.Policy) *apply.Desired {
	if !p.ReadsContent(it.liveID()) || it.late.failed() {
		return nil
	}
	content, err := w.m.o.Contents.Object(it.entry.Digest)
	if err != nil {
		return nil
	}
	desired, err := apply.NewDesired(it.entry.ID, content, it.entry.Digest, w.bound(it), w.how)
	if err != nil {
		return nil
	}
	return desired
}

// touchDenied has all tried again at once that the cluster's policy denied.
func (w *worker) touchDenied() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all, w.rejudge = true, true
	dirty.Poke(w.signal)
}

// retryDenied ends the back-off of what the cluster's policy denied.
func (w *worker) retryDenied(now time.Time) {
	for _, it := range w.items {
		if it.fail != nil && isDenied(it.fail.Reason) {
			it.denied = false
			it.clear()
			it.look = true
		}
	}
	w.pruning.retry, w.pruning.touched, w.pruning.refused = now, true, nil
}

func isDenied(reason string) bool {
	return reason == plan.ReasonDenied || reason == plan.ReasonDeleteBudget
}

// keepDenied takes from a plan what the cluster does not let go. It stays with its module, and says why.
func (w *worker) keepDenied(in plan.PruneInput, todo *plan.PrunePlan) {
	var stay []plan.Record
	for i, stage := range todo.Delete {
		var rest []plan.Record
		for _, r := range stage {
			if k := w.keptByPolicy(r); k != nil {
				todo.Kept, stay = append(todo.Kept, *k), append(stay, r)
				continue
			}
			rest = append(rest, r)
		}
		todo.Delete[i] = rest
	}
	in.InOrder(todo, stay)
}

// keptByPolicy is why an object may not be deleted; nil: it may.
func (w *worker) keptByPolicy(r plan.Record) *plan.Kept {
	err := w.m.denied(w.ref, act{verb: localpolicy.Delete, id: r.ID})
	if err == nil {
		return nil
	}
	f := apply.Explain(r.ID, err)
	return &plan.Kept{Record: r, Rule: plan.RuleProtection, Reason: f.Reason, Message: "kept: " + f.Message}
}

// overBudgetText is said of a delete that waits.
func overBudgetText(id fleet.ObjectID, perHour int, until time.Time) string {
	d := localpolicy.Denial{Rule: "deleteBudget", Message: fmt.Sprintf("%d objects may be deleted in an hour, and were", perHour), Until: until}
	if !until.IsZero() {
		d.Message += "; goes on at " + until.UTC().Format(time.RFC3339)
	}
	return id.String() + ": " + d.String()
}
