package worker

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Where what bindings read last could not be read at a start, as without the key that it was encrypted with or with all of the state gone, a
// source that is gone may be one that had a value. Where the inventory was read, it says what each object was written with: a default is taken that
// is in all of them. Where objects may be there that were written under a state before, a default goes into no object of ours that a write of this
// state has not made, unless it is what that has.

// evaluate gives all late bindings their values, and says which are known though what was read last was lost; nil: all are.
func (w *worker) evaluate(ctx context.Context, now time.Time) (values, known map[string]assemble.LateValue) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	reads := readings{bindingReader{ctx, w, now}, map[string]assemble.Read{}}
	values = assemble.LateValues(w.binder.late, w.cur.sync.Values, reads)
	lacks, rebuilt := w.m.lasts.lacks(w.ref), w.m.lasts.rebuilds(w.ref)
	if lacks || rebuilt {
		known = assemble.LateValues(w.binder.late, w.cur.sync.Values, certain{reads.got})
	}
	switch {
	case lacks && w.wroteOtherwise(values, known):
		return known, nil
	case lacks && haveValues(values):
		w.m.lasts.retain(w.ref, func(key string) bool { return key != lostKey })
	}
	if !rebuilt {
		known = nil
	}
	return values, known
}

// wroteOtherwise reports that an object would come to something else than it was written as, with a value that is not known to be that of its binding.
func (w *worker) wroteOtherwise(values, known map[string]assemble.LateValue) bool {
	return slices.ContainsFunc(w.items, func(it *item) bool {
		if it.late == nil {
			return false
		}
		rec, late := w.written(it.entry.ID), supply(it, w.cur.sync.Values, values, nil)
		return rec != nil && rec.From == (fleet.ModuleRef{}) && !late.failed() && rec.Want != w.wantOf(it, late) && w.guessed(it, known) != nil
	})
}

// guessed says that an item has a value which is not known to be that of its binding, and why; nil: it has none.
func (w *worker) guessed(it *item, known map[string]assemble.LateValue) *apply.Failure {
	if known == nil {
		return nil
	}
	return supply(it, w.cur.sync.Values, known, nil).fail
}

// unlessGuessed keeps a default out of an object of the module that no write of this state is known to have made: it may have been applied with a value. What
// an apply would not change has the default already, and what another module handed over was none of this one's.
func (a *writer) unlessGuessed(ctx context.Context, live map[string]any) error {
	if r := a.record; a.guessed == nil || r != nil && (r.Written() || r.From != (fleet.ModuleRef{})) {
		return nil
	}
	d, _, err := a.overwrites(ctx, live, apply.Guard{UID: string((&unstructured.Unstructured{Object: live}).GetUID())})
	if err != nil && !kube.Is(err, kube.BadRequest) { // a webhook that takes no dry run
		return err
	}
	if err == nil && d == nil {
		return nil
	}
	a.w.m.lasts.put(a.w.ref, foundKey, lastValue{})
	a.w.touchBindings() // which keeps that
	return a.guessed
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
type certain struct{ got map[string]assemble.Read }

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
		return assemble.Read{Failed: lostValue(got.Absent)}
	}
	return got
}

// lostValue is of what is not there, and may have had a value.
func lostValue(why error) *apply.Failure {
	return untold("%v; whether it had a value cannot be told, for the agent lost those that it had kept: it is not put back to its default; set it anew", why)
}
