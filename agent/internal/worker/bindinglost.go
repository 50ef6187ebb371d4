package worker

import (
	"context"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Where what bindings read last could not be read at a start, as without the key that it was encrypted with, a source that is gone may be one
// that had a value. A default then changes no object: it is taken where it is what the objects have, or where there are none yet.

// evaluate gives all late bindings their values.
func (w *worker) evaluate(ctx context.Context, now time.Time) map[string]assemble.LateValue {
	reading, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	reads := readings{bindingReader{reading, w, now}, map[string]assemble.Read{}}
	values := assemble.LateValues(w.binder.late, w.cur.sync.Values, reads)
	if !w.m.lasts.lacks(w.ref) {
		return values
	}
	known := assemble.LateValues(w.binder.late, w.cur.sync.Values, certain(reads.got))
	for _, it := range w.items {
		if it.late != nil && w.guesses(it, known, values) {
			return known
		}
	}
	return values
}

// guesses reports that an object would be written with a value that is not known to be that of its binding.
func (w *worker) guesses(it *item, known, values map[string]assemble.LateValue) bool {
	next, rec := supply(it, w.cur.sync.Values, values, nil), w.written(it.entry.ID)
	if rec == nil || next.fail != nil || supply(it, w.cur.sync.Values, known, nil).fail == nil {
		return false
	}
	return rec.Want != w.wantOf(it, next)
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
type certain map[string]assemble.Read

// ReadField is what was read.
func (c certain) ReadField(name string, _ fleet.ObjectField) assemble.Read { return c.read(name) }

// ReadSecret is what was read.
func (c certain) ReadSecret(name string, _ fleet.SecretKey) assemble.Read { return c.read(name) }

func (c certain) read(name string) assemble.Read {
	got, asked := c[name]
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
