package worker

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// foreign is an object of somebody else that the module watches, because it is not ready without it. Nothing here writes: it is no item,
// and no record of it is made.
type foreign struct {
	listed   fleet.BundleEntry // as the sync has it
	entry    fleet.BundleEntry // under the identity that it has in the cluster
	resource apply.Resource    // zero until its kind is found
	fail     error             // of the last search for the kind
	next     time.Time         // of it
	kindGone bool              // the cluster does not have its kind any more, where its watch is of a path that is not known
	until    time.Time         // when its health changes with time alone; zero: it does not
	single   watch.Single      // that is watched; zero: none
	state    fleet.ObjectState
	why      detail
	since    time.Time
}

// foreignRetry is how often a kind is looked for that the cluster does not have. It does not grow: people who install an operator
// are to see soon what it brings.
const foreignRetry = 3 * time.Second

// foreignOf are the objects that a sync watches. The hub has checked what the values make of them.
func foreignOf(list []fleet.WatchedObject, values map[string]string) []*foreign {
	out := make([]*foreign, len(list))
	for i, o := range list {
		e := o.Entry()
		e.ID = manifest.ExpandID(e.ID, values)
		out[i] = &foreign{listed: e, entry: e, state: fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthProgressing, Drift: fleet.DriftInSync}}
	}
	return out
}

// setForeign watches these from now on. What was watched before goes on without a gap.
func (w *worker) setForeign(list []*foreign) {
	old := w.foreign
	w.foreign = list
	for _, f := range list {
		for _, before := range old {
			if before.listed == f.listed {
				f.state, f.why, f.since = before.state, before.why, before.since
				w.watchForeign(f, before.resource)
			}
		}
	}
	for _, f := range old {
		w.unwatchForeign(f)
	}
}

// watchForeign has an object watched whose kind is found.
func (w *worker) watchForeign(f *foreign, r apply.Resource) {
	if r.Resource == "" {
		return
	}
	f.resource, f.fail, f.entry.ID.Namespace = r, nil, f.listed.ID.Namespace
	if !r.Namespaced {
		f.entry.ID.Namespace = ""
	} else if f.entry.ID.Namespace == "" {
		f.resource = apply.Resource{} // it is looked for again: the kind may be defined anew
		f.fail = &apply.Failure{Reason: apply.ReasonInvalid, Message: f.entry.ID.String() + ": the kind has namespaces; name one in the module's watch", Kind: fleet.ErrInvalid}
		return
	}
	f.single = watch.Single{Resource: r, Key: watch.Key{Namespace: f.entry.ID.Namespace, Name: f.entry.ID.Name}}
	w.m.readers.add(f.entry.ID, w)
	w.m.watcher.AcquireOne(f.single)
}

func (w *worker) unwatchForeign(f *foreign) {
	if f.single == (watch.Single{}) {
		return
	}
	kept := false
	for _, other := range w.foreign {
		kept = kept || other.single == f.single
	}
	if !kept {
		w.unreadBy(f.entry.ID)
	}
	w.m.watcher.ReleaseOne(f.single)
}

// findForeign looks for the kinds that are not found yet, if it is time to.
func (w *worker) findForeign(ctx context.Context, now time.Time) {
	wanted := map[kindKey]fleet.BundleEntry{}
	for _, f := range w.foreign {
		w.findGone(ctx, f, now)
		if f.resource.Resource == "" && !now.Before(f.next) {
			if failure := (*apply.Failure)(nil); errors.As(f.fail, &failure) && failure.Reason == apply.ReasonInvalid {
				w.m.mapper.Reset(f.entry.ID.Group) // by what is known of the kind there is no such object
			}
			wanted[kindOfEntry(f.entry)] = f.entry
		}
	}
	if len(wanted) == 0 {
		return
	}
	found, failed := w.resolveKinds(ctx, wanted)
	w.orServed(ctx, wanted, found, failed)
	for _, f := range w.foreign {
		if f.resource.Resource != "" || now.Before(f.next) {
			continue
		}
		f.fail, f.next = failed[kindOfEntry(f.entry)], time.Now().Add(foreignRetry)
		w.watchForeign(f, found[kindOfEntry(f.entry)])
	}
}

// orServed finds the kinds that were not found where they are served in another version: which one the module names is no part of what an object is.
func (w *worker) orServed(ctx context.Context, wanted map[kindKey]fleet.BundleEntry, found map[kindKey]apply.Resource, failed map[kindKey]error) {
	ctx, cancel := context.WithTimeout(ctx, kindsTime)
	defer cancel()
	for kind, err := range failed {
		id := wanted[kind].ID
		if apply.Explain(id, err).Reason != apply.ReasonNoKind {
			continue
		}
		served, gone, err := w.m.mapper.Served(ctx, id, kind.version)
		switch {
		case err == nil && !gone:
			found[kind] = served
		case err != nil && apply.Explain(id, err).Reason == apply.ReasonNoKind: // which says more
			failed[kind] = err
		}
	}
}

// pathUnknown reports that what is watched cannot be, for the path of its kind is not known to whoever answers.
func (w *worker) pathUnknown(f *foreign) bool {
	return f.single != (watch.Single{}) && kube.Is(w.m.watcher.BlindOne(f.single), kube.Unserved)
}

// findGone finds out whether the kind of an object has gone whose path is not known, or where it is now. One that has gone may come again elsewhere, where
// its old path tells of others: what is in all namespaces.
func (w *worker) findGone(ctx context.Context, f *foreign, now time.Time) {
	if now.Before(f.next) || !f.kindGone && !w.pathUnknown(f) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, kindsTime)
	defer cancel()
	w.m.mapper.Reset(f.resource.Group)
	served, gone, err := w.m.mapper.Served(ctx, f.entry.ID, f.entry.Version)
	f.kindGone, f.next = err == nil && gone, now.Add(foreignRetry)
	if err != nil || gone || served == f.resource {
		return
	}
	before := *f
	f.single = watch.Single{}
	w.watchForeign(f, served)
	w.unwatchForeign(&before)
}

// foreignDue is when to look again without an event.
func (w *worker) foreignDue() (at time.Time) {
	for _, f := range w.foreign {
		if f.resource.Resource == "" || f.kindGone || w.pathUnknown(f) {
			at = earliest(at, f.next)
		}
		at = earliest(at, f.until)
	}
	return at
}

// refreshForeign brings the states up to date, and returns the one that is worst; nil: all are healthy.
func (w *worker) refreshForeign(now time.Time) (worst *foreign) {
	for _, f := range w.foreign {
		state, why := w.stateOfForeign(f)
		if state != f.state || why.reason != f.why.reason || f.since.IsZero() {
			f.since = now
		}
		f.state, f.why = state, why
		if state.Health == fleet.HealthHealthy || state.Health == fleet.HealthSuspended {
			continue
		}
		if worst == nil || state.Health.Worse(worst.state.Health) {
			worst = f
		}
	}
	return worst
}

// stateOfForeign is what is known of an object that is watched only. It is Synced if it is there: more is not asked of it.
func (w *worker) stateOfForeign(f *foreign) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthProgressing, Drift: fleet.DriftInSync}
	if f.fail != nil {
		failure := apply.Explain(f.entry.ID, f.fail)
		state.Health = fleet.HealthUnknown
		if failure.Reason == apply.ReasonNoKind {
			state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
		}
		return state, detail{reason: failure.Reason, message: failure.Message}
	}
	if f.single == (watch.Single{}) {
		return state, detail{}
	}
	if blind := w.m.watcher.BlindOne(f.single); blind != nil {
		return w.stateOfBlind(f, blind)
	}
	seen, known := w.m.watcher.JudgeOne(f.single, w.m.rules.forModule(w.ref))
	f.until = time.Time{}
	switch {
	case seen == nil && !known:
		return state, detail{}
	case seen == nil:
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
		return state, detail{reason: "Missing", message: f.entry.ID.String() + ": does not exist; the module watches it, and is not ready without it"}
	}
	if until := seen.Until(); !until.IsZero() {
		f.until = time.Now().Add(max(until.Sub(w.m.clock.Now()), time.Millisecond))
	}
	state.Sync, state.Health = fleet.SyncSynced, seen.Health
	policy := fleet.Resolve(w.policies, f.entry.ID, nil)
	judged(&policy, seen.Reason, &state)
	return state, w.heard(f.entry.ID, seen.Reason, seen.Message)
}

// stateOfBlind is what is known of an object that cannot be watched.
func (w *worker) stateOfBlind(f *foreign, why error) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}
	if f.kindGone && w.pathUnknown(f) {
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
		return state, detail{reason: apply.ReasonNoKind, message: f.entry.ID.String() + ": the cluster does not have its kind any more"}
	}
	return state, detail{reason: "NotWatched", message: f.entry.ID.String() + ": cannot be watched: " + why.Error()}
}

// text says why the module is not ready for the object.
func (f *foreign) text() string {
	id := f.entry.ID.String()
	if strings.HasPrefix(f.why.message, id) {
		return f.why.message
	}
	return id + ": " + cmp.Or(f.why.message, string(f.state.Health))
}
