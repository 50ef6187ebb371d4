package worker

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// scaling is what is known of the replicas of one object that a program scaled.
type scaling struct {
	plan.Scaling
	asked time.Time
	held  bool   // an autoscaler existed when one was looked for last
	ours  bool   // the replicas are the module's, for no autoscaler holds them
	by    string // who set them
	note  string // why they are left as they are, though no autoscaler is known to hold them
}

// reasonAutoscaled is of an object whose replicas are left to a program of which it is not known whether it means to hold
// them.
const reasonAutoscaled = "Autoscaled"

// lookTime bounds what a module waits for an answer about its autoscalers.
const lookTime = 3 * time.Second

// autoscaled reports that the replicas of the live object are left as they are.
func (it *item) autoscaled(f *watch.Fingerprint) bool {
	return f != nil && f.Scaled && !it.takesReplicas()
}

// takesReplicas reports that replicas which a program scaled are the module's again.
func (it *item) takesReplicas() bool {
	return it.rare != nil && it.rare.scaling != nil && it.rare.scaling.ours
}

// noteScaled takes note of whether the object has other replicas than the module says because a program scaled it. The next
// pass looks whether an autoscaler exists.
func (w *worker) noteScaled(it *item, f *watch.Fingerprint, rec *apply.Record) {
	scaled := f != nil && f.Scaled && rec.ReplicasDiffer(f.Values)
	if scaled && !it.scaled {
		dirty.Poke(w.signal)
	}
	it.scaled = scaled
}

// rescale looks whether autoscalers exist for the objects that a program scaled, and says when to look again.
func (w *worker) rescale(ctx context.Context, now time.Time) time.Time {
	var again time.Time
	found := map[string]autoscalers{}
	for _, it := range w.items {
		if !it.scaled {
			continue
		}
		s := it.makeScaling()
		if at := s.asked.Add(w.m.o.Recheck); now.Before(at) {
			again = earliest(again, at)
			continue
		}
		namespace := it.liveNamespace()
		list, known := found[namespace]
		if !known {
			list = w.autoscalersOf(ctx, namespace)
			found[namespace] = list
		}
		s.asked = now
		w.judgeScaling(it, list, now)
		again = earliest(again, now.Add(w.m.o.Recheck))
	}
	return again
}

// judgeScaling decides whose the replicas of a scaled object are.
func (w *worker) judgeScaling(it *item, list autoscalers, now time.Time) {
	s, before := it.rare.scaling, it.rare.scaling.ours
	if f, _ := w.print(it); f != nil && f.Change != nil {
		s.by = f.Change.Scaler
	}
	if list.err == nil {
		s.held, s.note = list.target(it.entry.ID), ""
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
		s.Took(s.by, now)
		s.ours, s.asked = false, time.Time{}
	}
}

// scaledText is what is said of replicas that are left as they are for want of knowledge; empty: nothing.
func (it *item) scaledText(f *watch.Fingerprint) string {
	if !it.scaled || it.rare == nil || it.rare.scaling == nil || it.rare.scaling.note == "" {
		return ""
	}
	s := it.rare.scaling
	return fmt.Sprintf("%s: /spec/replicas is left at %d, set by %q: %s", it.entry.ID, f.Values.Replicas, cmp.Or(s.by, "somebody"), s.note)
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
	list := a.w.autoscalersOf(ctx, a.namespace)
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

func (w *worker) autoscalersOf(ctx context.Context, namespace string) autoscalers {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	targets, err := w.m.client.ScaleTargets(ctx, namespace)
	return autoscalers{targets, err}
}

func (a autoscalers) target(id fleet.ObjectID) bool {
	for _, t := range a.targets {
		if t.Group == id.Group && t.Kind == id.Kind && t.Name == id.Name {
			return true
		}
	}
	return false
}
