package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Where what bindings read last could not be read at a start, as without the key that it was encrypted with or with all of the state gone, a
// source that is gone may be one that had a value. A default then changes no object: it is taken where it is what the objects have, or where
// there are none yet.

// evaluate gives all late bindings their values.
func (w *worker) evaluate(ctx context.Context, now time.Time) map[string]assemble.LateValue {
	reading, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	reads := readings{bindingReader{reading, w, now}, map[string]assemble.Read{}}
	values := assemble.LateValues(w.binder.late, w.cur.sync.Values, reads)
	if !w.m.lasts.doubts(w.ref) {
		return values
	}
	lost := certain{reads.got, lostValue}
	known := assemble.LateValues(w.binder.late, w.cur.sync.Values, lost)
	guessed := slices.DeleteFunc(slices.Clone(w.items), func(it *item) bool { return it.late == nil || !w.guesses(it, known, values) })
	changed, unwritten := w.notAsWritten(guessed, values)
	if changed {
		return known
	}
	there, err := w.anyThere(reading, unwritten)
	switch {
	case err != nil:
		w.binder.due = earliest(w.binder.due, now.Add(bindAgain))
		lost.without = func(why error) *apply.Failure { return untoldYet(why, err) }
		return assemble.LateValues(w.binder.late, w.cur.sync.Values, lost)
	case there:
		w.m.lasts.put(w.ref, lostKey, lastValue{})
		w.binder.due = earliest(w.binder.due, now.Add(bindBlind)) // somebody may delete it
		return known
	}
	return values
}

// guesses reports that an object would be written with a value that is not known to be that of its binding.
func (w *worker) guesses(it *item, known, values map[string]assemble.LateValue) bool {
	return supply(it, w.cur.sync.Values, values, nil).fail == nil && supply(it, w.cur.sync.Values, known, nil).fail != nil
}

// notAsWritten reports that one of the items would come to something else than it was written as, and says which of them have no record of that.
func (w *worker) notAsWritten(items []*item, values map[string]assemble.LateValue) (changed bool, unwritten []*item) {
	for _, it := range items {
		switch rec := w.written(it.entry.ID); {
		case rec == nil:
			unwritten = append(unwritten, it)
		case w.m.lasts.lacks(w.ref) && rec.Want != w.wantOf(it, supply(it, w.cur.sync.Values, values, nil)):
			return true, nil
		}
	}
	return false, unwritten
}

// anyThere reports that the cluster has one of the objects, with marks of a hub. The search may not have come to it yet, or may not list its kind.
func (w *worker) anyThere(ctx context.Context, items []*item) (bool, error) {
	var there atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(kindsAtOnce)
	for _, it := range items {
		group.Go(func() error {
			is, err := w.isThere(ctx, it.entry)
			if is {
				there.Store(true)
			}
			return err
		})
	}
	err := group.Wait()
	return there.Load(), err
}

func (w *worker) isThere(ctx context.Context, e fleet.BundleEntry) (bool, error) {
	res, gone, err := w.m.mapper.Served(ctx, e.ID, e.Version)
	if gone || err != nil {
		return false, err
	}
	namespace := e.ID.Namespace
	if !res.Namespaced {
		namespace = ""
	}
	live, err := w.m.client.GetMeta(ctx, res, namespace, e.ID.Name)
	switch {
	case kube.IsGone(err):
		return false, nil
	case err != nil:
		return false, apply.Explain(e.ID, err)
	}
	return live.Labels[fleet.HubLabel] != "", nil
}

// wantOf names what an item comes to with the values.
func (w *worker) wantOf(it *item, late *lateUse) fleet.Digest {
	return apply.WantDigest(it.entry.Digest, readingDigest(late.values, w.how), it.exempt.Name())
}

// readings remembers what was read for each binding.
type readings struct {
	from assemble.Reader
	got  map[string]assemble.Read
}

// ReadField is what the cluster says of a field.
func (r readings) ReadField(name string, f fleet.ObjectField) assemble.Read {
	r.got[name] = r.from.ReadField(name, f)
	return r.got[name]
}

// ReadSecret is what the hub has sent.
func (r readings) ReadSecret(name string, k fleet.SecretKey) assemble.Read {
	r.got[name] = r.from.ReadSecret(name, k)
	return r.got[name]
}

// certain is what was read for each binding, without what is not there now.
type certain struct {
	got     map[string]assemble.Read
	without func(why error) *apply.Failure // what is said of that
}

// ReadField is what was read.
func (c certain) ReadField(name string, _ fleet.ObjectField) assemble.Read { return c.read(name) }

// ReadSecret is what was read.
func (c certain) ReadSecret(name string, _ fleet.SecretKey) assemble.Read { return c.read(name) }

func (c certain) read(name string) assemble.Read {
	got, asked := c.got[name]
	switch {
	case !asked:
		return assemble.Read{Failed: untold("what it reads is not known")}
	case got.Absent != nil:
		return assemble.Read{Failed: c.without(got.Absent)}
	}
	return got
}

// lostValue is of what is not there, and may have had a value.
func lostValue(why error) *apply.Failure {
	return untold("%v; whether it had a value cannot be told, for the agent lost those that it had kept: it is not put back to its default; set it anew", why)
}

// untoldYet is of what is not there while the cluster does not say whether there is an object that may have been applied with a value of it.
func untoldYet(why, unseen error) *apply.Failure {
	return untold("%v; whether it had a value cannot be told yet, for the agent lost those that it had kept: %v", why, unseen)
}
