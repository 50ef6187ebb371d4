package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// scaling is what is known of the replicas of one object that somebody else scaled.
type scaling struct {
	plan.Scaling
	asked time.Time
	held  bool // an autoscaler existed when one was looked for last
	ours  bool // the replicas are the module's, for no autoscaler holds them
	// person says that it was judged of replicas that somebody set by hand: a program that sets others since is judged by itself.
	person bool
	by     string // who set them
	note   string // why they are left as they are, though no autoscaler is known to hold them
}

// reasonAutoscaled is of an object whose replicas are left to a program of which it is not known whether it means to hold
// them.
const reasonAutoscaled = "Autoscaled"

// lookTime bounds what a module waits for an answer about its autoscalers.
const lookTime = 3 * time.Second

// autoscaled reports that the replicas of the live object are left as they are: a program set them, or somebody else did, and it is not known that
// no autoscaler has them.
func (it *item) autoscaled(f *watch.Fingerprint, rec *apply.Record) bool {
	return f != nil && (f.Scaled || scaledByOthers(f, rec)) && !it.takesReplicas()
}

// scaledByOthers reports that others set other replicas in the live object than the module says.
func scaledByOthers(f *watch.Fingerprint, rec *apply.Record) bool {
	return f.Paths != nil && f.Paths == rec.Paths && rec.ReplicasTaken(f.Values)
}

// takesReplicas reports that replicas which a program scaled are the module's again.
func (it *item) takesReplicas() bool {
	return it.rare != nil && it.rare.scaling != nil && it.rare.scaling.ours
}

// noteScaled takes note of whether the object has other replicas than the module says because somebody else scaled it. The pass
// looks whether an autoscaler exists.
func (w *worker) noteScaled(it *item, f *watch.Fingerprint, rec *apply.Record) {
	scaled := f != nil && f.UID == rec.UID && (f.Scaled && rec.ReplicasDiffer(f.Values) || scaledByOthers(f, rec))
	if scaled && (!it.scaled || f.Scaled && it.takesReplicas() && it.rare.scaling.person) {
		it.leavesReplicas() // what was found out of other replicas says nothing of these
		dirty.Poke(w.signal)
	}
	it.scaled = scaled
}

// rescale looks whether autoscalers exist for the objects that somebody else scaled, and says when to look again.
func (w *worker) rescale(ctx context.Context, now time.Time) time.Time {
	var again time.Time
	for _, it := range w.items {
		if !it.scaled {
			continue
		}
		s := it.makeScaling()
		if at := s.asked.Add(w.m.o.Recheck); now.Before(at) {
			again = earliest(again, at)
			continue
		}
		s.asked = now
		w.judgeScaling(it, w.m.scalers.of(ctx, w.m, it.liveNamespace(), time.Time{}), now)
		again = earliest(again, now.Add(w.m.o.Recheck))
	}
	return again
}

// judgeScaling decides whose the replicas of a scaled object are.
func (w *worker) judgeScaling(it *item, list autoscalers, now time.Time) {
	s, before := it.rare.scaling, it.rare.scaling.ours
	f, _ := w.print(it)
	if f != nil && f.Change != nil {
		s.by = f.Change.Scaler
	}
	if list.err == nil {
		s.held, s.note = list.target(it.entry.ID), ""
	}
	s.person = f != nil && !f.Scaled
	if list.err == nil && !s.held && s.person { // by somebody who has no reason to come back
		s.ours = true
	} else if list.err == nil {
		if rec := w.m.inventory.Get(it.entry.ID); rec != nil {
			s.Kept = rec.Scaler
		}
		s.ours = s.Judge(s.held, s.by, now, w.m.o.Recheck)
		w.noteScaler(it, s.Kept)
	} else {
		s.ours = false
	}
	switch {
	case s.held:
	case list.err != nil:
		s.note = fmt.Sprintf("whether an autoscaler still exists cannot be found out: %v", list.err)
	case s.Kept != "":
		s.note = "no autoscaler targets it, but it is scaled again each time"
	}
	if s.ours != before {
		it.look = true
		dirty.Poke(w.signal)
	}
}

// noteScaler has the record say who has the replicas, so that a revision or a restart does not take them back once more.
func (w *worker) noteScaler(it *item, by string) {
	w.m.inventory.Amend(w.ref, it.entry.ID, func(r *apply.Record) bool {
		was := r.Scaler
		r.Scaler = by
		return was != by
	})
}

// tookReplicas takes note of a write that set the replicas.
func (it *item) tookReplicas(now time.Time) {
	if it.takesReplicas() {
		s := it.rare.scaling
		if s.by != "" {
			s.Took(s.by, now)
		}
		s.ours, s.asked = false, time.Time{}
	}
}

// scaledText is what is said of replicas that are left as they are for want of knowledge; empty: nothing.
func (it *item) scaledText(f *watch.Fingerprint) string {
	if !it.scaled || it.rare == nil || it.rare.scaling == nil || it.rare.scaling.note == "" {
		return ""
	}
	s, by := it.rare.scaling, ""
	if f.Change != nil {
		by = f.Change.By
	}
	return fmt.Sprintf("%s: /spec/replicas is left at %d, set by %q: %s", it.entry.ID, f.Values.Replicas, cmp.Or(s.by, by, "somebody"), s.note)
}

// leaveScaled leaves the field to an autoscaler that one has set, by what the watch saw, where a custom kind has its replicas.
func (a *writer) leaveScaled(ctx context.Context) error {
	if a.print == nil || a.print.Change == nil {
		return nil
	}
	return a.leaveAt(ctx, a.print.Change.ScaledAt)
}

// leaveLive is leaveOf, and leaves a field to an autoscaler that one has set in the live object.
func (a *writer) leaveLive(ctx context.Context, live map[string]any, verb plan.Verb) error {
	if err := a.leaveOf(live, verb); err != nil {
		return err
	}
	return a.leaveAt(ctx, apply.ScaledAt(live))
}

func (a *writer) leaveAt(ctx context.Context, field []string) error {
	if field == nil {
		return nil
	}
	_, err := a.leave(ctx, field)
	return err
}

// unscaled settles a conflict over a field that an autoscaler has set: it is left to it or, in an object that the module has
// written, taken back from one that does not exist any more.
func (a *writer) unscaled(ctx context.Context, field string) (settled bool, err error) {
	left, err := a.leave(ctx, strings.Split(strings.TrimPrefix(field, "."), "."))
	return left || a.record != nil && a.record.State == plan.Owned, err
}

// leave leaves a field to the autoscalers of the object, if there is one, or if that cannot be found out. The record does not
// have the field then, so that it is no drift; it is the module's again by the next revision after the autoscaler has gone.
func (a *writer) leave(ctx context.Context, field []string) (bool, error) {
	list := listScalers(ctx, a.w.m, a.namespace)
	if list.err == nil && !list.target(a.id) {
		return false, nil
	}
	without, err := a.left.Desired.Without(field)
	if err != nil {
		return false, err
	}
	a.left.Desired = without
	return true, nil
}

// targeted reports that an autoscaler targets the object, or that this cannot be found out.
func (a *writer) targeted(ctx context.Context) bool { return a.targetedSince(ctx, time.Time{}) }

// targetedSince is targeted by an answer to what was asked at a time or later.
func (a *writer) targetedSince(ctx context.Context, since time.Time) bool {
	list := a.w.m.scalers.of(ctx, a.w.m, a.namespace, since)
	return list.err != nil || list.target(a.id)
}

// leaveReplicas leaves the replicas of the live object to who set them, if that was a program, or if an autoscaler has them, whoever set them
// last.
func (a *writer) leaveReplicas(ctx context.Context, live map[string]any) error {
	if a.drop || a.takes {
		return nil
	}
	if a.drop = apply.ScaledBy(live) != ""; a.drop {
		return nil
	}
	replicas, _ := apply.ReplicasOfOthers(live)
	desired, err := a.desired.Object()
	if want := apply.ReplicasOf(desired); err == nil && replicas >= 0 && want >= 0 && want != replicas {
		a.drop = a.targeted(ctx)
	}
	return err
}

// errAutoscaled is of replicas that were to be taken back, and that an autoscaler has: what it was judged by is out of date.
var errAutoscaled = errors.New("an autoscaler has its replicas")

// findScaler finds out whose replicas are that somebody else set since it was looked last. Those that are to be taken back are asked of once more
// right before that: a hold, a lock or other objects may have kept the write waiting, and an autoscaler that was made meanwhile changes nothing, and is
// seen in nothing, where what is there suits it.
func (a *writer) findScaler(ctx context.Context) error {
	switch {
	case a.retakes && a.targetedSince(ctx, a.asOf):
		return errAutoscaled
	case a.scaled && a.unasked:
		a.drop = a.targeted(ctx)
	}
	return nil
}

// leavesReplicas takes note that an autoscaler has the replicas after all. The pass asks whether it still has them.
func (it *item) leavesReplicas() {
	if s := it.rare; s != nil && s.scaling != nil {
		s.scaling.ours, s.scaling.asked = false, time.Time{}
	}
}

func (it *item) makeScaling() *scaling {
	t := it.makeRare()
	if t.scaling == nil {
		t.scaling = &scaling{}
	}
	return t.scaling
}

// autoscalers are what the HorizontalPodAutoscalers of a namespace target, or why that is not known.
type autoscalers struct {
	targets []apply.ScaleTarget
	err     error
}

// scalers are the autoscalers of namespaces, as they were listed last. An answer is used for a moment, so that many objects of a namespace that
// somebody scales are one question.
type scalers struct {
	mu   sync.Mutex
	last map[string]*scalersOf
}

type scalersOf struct {
	mu              sync.Mutex
	asked, answered time.Time
	autoscalers
}

// scalersFor is how long an answer is used.
const scalersFor = time.Second

// of are the autoscalers of a namespace, by an answer to what was asked since. Nothing scales what is in none.
func (s *scalers) of(ctx context.Context, m *Manager, namespace string, since time.Time) autoscalers {
	if namespace == "" {
		return autoscalers{}
	}
	s.mu.Lock()
	x := s.last[namespace]
	if x == nil {
		if s.last == nil || len(s.last) >= maxScalers {
			s.last = map[string]*scalersOf{}
		}
		x = &scalersOf{}
		s.last[namespace] = x
	}
	s.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.answered.IsZero() && !x.asked.Before(since) && time.Since(x.answered) < min(scalersFor, m.o.Recheck) {
		return x.autoscalers
	}
	asked := time.Now()
	got := listScalers(ctx, m, namespace)
	if ctx.Err() != nil { // that is of who asks, and says nothing to others
		return got
	}
	x.asked, x.answered, x.autoscalers = asked, time.Now(), got // from when it is there: of a slow API server who waits for it is told by it, too
	return got
}

func listScalers(ctx context.Context, m *Manager, namespace string) autoscalers {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	targets, err := m.client.ScaleTargets(ctx, namespace)
	return autoscalers{targets, err}
}

// maxScalers bounds the namespaces that are remembered.
const maxScalers = 1000

func (a autoscalers) target(id fleet.ObjectID) bool {
	for _, t := range a.targets {
		if t.Group == id.Group && t.Kind == id.Kind && t.Name == id.Name {
			return true
		}
	}
	return false
}
