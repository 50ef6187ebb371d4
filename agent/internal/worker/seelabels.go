package worker

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// seenLabels are the labels of one version of an object, and when they were read.
type seenLabels struct {
	uid     string
	version uint64
	at      time.Time
	labels  map[string]string
}

// before is what counts of a look for another target: labels, which are held against the version that the watch has. Where the watch of a
// kind does not work they may be older than what a person says with them, so those of a module that goes are read anew. What the look said
// is said until the next one, if nothing else is wanted: a person who is asked about it may answer in just that moment.
func (p pruneState) before(kind targetKind, repeated bool) pruneState {
	switch {
	case kind == targetTombstone:
		return pruneState{}
	case repeated:
		return pruneState{labels: p.labels, kept: p.kept, held: p.held}
	}
	return pruneState{labels: p.labels}
}

// seeLabels reads the labels of what goes or stays by them, so that the plan knows. It reports whether there is anything new to plan
// with. Those of an object that a module which goes is to keep are noted, for whoever asks what becomes of it.
func (e *eraser) seeLabels(ctx context.Context) bool {
	seen, all := e.w.labelsOf(ctx, e.in, e.kinds)
	e.w.pruning.labels, e.unseen = seen, e.unseen || !all
	if len(seen) == 0 {
		return false
	}
	if e.in.Tombstone {
		noted := false
		for _, r := range e.in.Records {
			if x, known := seen[r.ID]; known {
				noted = e.noteLabels(r, x.labels) || noted
			}
		}
		e.in.Records = e.w.records()
		return noted
	}
	e.in.Labels = labelsIn(seen)
	return true
}

// labelsIn are what the plan asks for.
func labelsIn(seen map[fleet.ObjectID]seenLabels) func(plan.Record) map[string]string {
	return func(r plan.Record) map[string]string {
		if x, known := seen[r.ID]; known && x.uid == r.UID {
			return x.labels
		}
		return nil
	}
}

// noteKept notes what the labels of objects that stay come to, for the time when their module goes, and ends what was decided of those that
// are to stay after all: should a later revision let them go, that is another decision. What is on its way out already goes by the one
// that there was. It reports whether there is anything new to plan with.
func (e *eraser) noteKept(ctx context.Context, kept []plan.Kept) (noted bool) {
	for _, k := range kept {
		next := k.Record
		if x, known := e.w.pruning.labels[next.ID]; known && k.ByPolicy() && !e.in.Tombstone {
			next = plan.RememberSeen(e.in.Policies, next, x.labels)
		}
		if k.Rescued() && !e.w.erased(types.UID(next.UID)) && !e.w.seenLeaving(e.kinds[kindOf(next)].Resource, next) && e.outrunKept(ctx, next) {
			next.Deleting, next.Taking = fleet.Age{}, false
		}
		if next == k.Record {
			continue
		}
		e.w.m.inventory.Amend(e.w.ref, next.ID, func(r *apply.Record) bool {
			same := r.Record == k.Record
			if same {
				r.Record = next
			}
			noted = noted || same
			return same
		})
	}
	if noted {
		e.in.Records = e.w.records()
	}
	return noted
}

// noteLabels notes of an object of a module that goes that its labels keep it. It reports whether they do, and that was not noted.
func (e *eraser) noteLabels(r plan.Record, labels map[string]string) bool {
	if plan.RememberLabels(e.in.Policies, r, labels) == r {
		return false
	}
	e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
		was := next.Record
		next.Record = plan.RememberLabels(e.in.Policies, was, labels)
		return next.Record != was
	})
	return true
}

// labelsOf are the labels of what the plan asks them of. It reports whether all could be read. Where the watch has the version that was read
// last, that is not read again, and where there is no watch, not each time.
func (w *worker) labelsOf(ctx context.Context, in plan.PruneInput, kinds map[kindKey]located) (_ map[fleet.ObjectID]seenLabels, all bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	var mu sync.Mutex
	out, all := map[fleet.ObjectID]seenLabels{}, true
	var g errgroup.Group
	g.SetLimit(kindsAtOnce)
	for _, r := range in.Records {
		kind, known := kinds[kindOf(r)]
		if !known || kind.gone || kind.why != "" || !in.AsksLabels(r) {
			continue
		}
		if x, known := w.pruning.labels[r.ID]; known && x.hold(w, kind.Resource, r) {
			mu.Lock()
			out[r.ID] = x
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			x, err := w.readLabels(ctx, kind.Resource, r)
			mu.Lock()
			defer mu.Unlock()
			if all = all && err == nil; x.labels != nil {
				out[r.ID] = x
			}
			return nil
		})
	}
	_ = g.Wait() // nobody returns an error
	return out, all
}

// hold reports that labels that were read are those of a record's object still.
func (x seenLabels) hold(w *worker, res apply.Resource, r plan.Record) bool {
	f, synced := w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
	switch {
	case x.uid != r.UID:
		return false
	case !synced:
		return time.Since(x.at) < keptPrune
	}
	return f != nil && f.UID == r.UID && f.Version == x.version && x.version != 0
}

// readLabels reads the labels of a record's object; nil: it is not there, or is another one.
func (w *worker) readLabels(ctx context.Context, res apply.Resource, r plan.Record) (out seenLabels, err error) {
	err = w.about(r.ID, func() error {
		if w.superseded() || ctx.Err() != nil {
			return errSuperseded
		}
		live, err := w.m.client.GetMeta(ctx, res, namespaceOf(res, r.ID), r.ID.Name)
		switch {
		case kube.IsGone(err), err == nil && string(live.UID) != r.UID:
			return nil
		case err != nil:
			return err
		}
		out = seenLabels{uid: r.UID, at: time.Now(), labels: live.Labels}
		if out.labels == nil {
			out.labels = map[string]string{}
		}
		out.version = apply.ParseVersion(live.ResourceVersion)
		return nil
	})
	return out, err
}
