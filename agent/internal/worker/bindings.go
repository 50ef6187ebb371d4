package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// Bindings that read objects of the cluster are evaluated here, all of them before anything is applied by them. An object that refers to
// one without a value is not applied, nor is it changed; those that refer to none go on. Each object that is read has a watch of its own,
// and when it changes, what refers to the value is applied anew, and nothing else is.

const (
	// bindAgain is how soon a source is read again that no watch tells of yet.
	bindAgain = 3 * time.Second
	// bindBlind is the same of one that cannot be watched.
	bindBlind = 30 * time.Second
	// bindTime bounds the reading of all sources together: a server that does not answer holds the module up once, not for each.
	bindTime = 10 * time.Second
)

// reasonSourceGone is of a module that is applied with a value whose source is not there any more.
const reasonSourceGone = "BindingSourceGone"

// binder is what a worker knows of the bindings of its sync that only it can evaluate.
type binder struct {
	late    []fleet.LateBinding
	sources map[fleet.ObjectField]*source
	again   bool                     // evaluate in the next pass
	due     time.Time                // when to, without an event; zero: not
	secrets map[fleet.SecretKey]bool // of the hub, that the last evaluation used
	forget  bool                     // what bindings read that the sync does not have is forgotten once it is applied
	// told is what is in force though its source is gone, as people are told.
	told []string
}

// lateUse is what an item has of bindings that the agent evaluates. It is not changed once it is made.
type lateUse struct {
	names   []string // that it refers to
	escaped []string // that it has as text only
	values  map[string]string
	hidden  []string       // those of the values that nobody may be shown
	fail    *apply.Failure // why there are not all
	guessed *apply.Failure // why one may be another than was applied before; nil: none is
}

// unvalued is wanted of an object whose bindings have no values: nothing that was written is that.
var unvalued = fleet.DigestOf([]byte("its bindings have no values"))

func (l *lateUse) failed() bool { return l != nil && l.fail != nil }

// secrets are values in the object of an item that nobody may be shown.
func (l *lateUse) secrets() []string {
	if l == nil {
		return nil
	}
	return l.hidden
}

// bound are the values that an item is read with.
func (w *worker) bound(it *item) map[string]string {
	if it.late == nil {
		return w.cur.sync.Values
	}
	return it.late.values
}

// bindsBy takes the bindings of a sync.
func (w *worker) bindsBy(late []fleet.LateBinding) {
	w.binder.late, w.binder.again, w.binder.told, w.binder.due, w.binder.forget = late, len(late) > 0, nil, time.Time{}, len(late) == 0
	if len(late) == 0 {
		w.binder.secrets = nil
		w.releaseSources(func(*source) bool { return false })
	}
}

// unbind forgets what the bindings of a module read, which is gone, or has none any more.
func (w *worker) unbind(ctx context.Context) error {
	return w.retainLasts(ctx, func(string) bool { return false })
}

func (w *worker) retainLasts(ctx context.Context, keeps func(key string) bool) error {
	w.m.lasts.retain(w.ref, keeps)
	return w.m.lasts.save(ctx)
}

// unbound forgets what bindings read that the sync does not have any more, once it is applied: one that comes later begins anew. Until
// then the sync before may come back.
func (w *worker) unbound(ctx context.Context, now time.Time) {
	if !w.binder.forget || !w.m.lasts.has(w.ref) && w.binder.due.IsZero() {
		return
	}
	if applied, _ := w.applied(); !applied {
		return
	}
	if len(w.binder.late) == 0 {
		w.binder.due = time.Time{} // it is of a write that failed here
	}
	if err := w.retainLasts(ctx, w.keysRead()); err != nil {
		w.log.Warn(notForgotten, "error", err)
		w.binder.due = earliest(w.binder.due, now.Add(bindAgain))
		return
	}
	w.binder.forget = len(w.binder.late) == 0 // what an evaluation reads anew says so again
}

const notForgotten = "the values of bindings are not taken out of the state yet"

// refersTo notes which late bindings an item refers to.
func refersTo(it *item, late []fleet.LateBinding, contents Contents, how *fleet.Substitution) error {
	if len(late) == 0 {
		return nil
	}
	names := make(map[string]bool, len(late))
	for _, b := range late {
		names[b.Name] = true
	}
	content, err := contents.Object(it.entry.Digest)
	if err != nil {
		return fleet.Errorf(fleet.ErrNotFound, "%s: content %s is not here: %v", it.entry.ID, it.entry.Digest.Short(), err)
	}
	used, escaped, err := manifest.NamesIn(content, names, how)
	if err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "%s: %v", it.entry.ID, err)
	}
	if len(used)+len(escaped) > 0 {
		it.want = unvalued
		it.late = &lateUse{names: used, escaped: escaped, fail: &apply.Failure{Reason: apply.ReasonBinding, Transient: true, Kind: fleet.ErrNotFound,
			Message: it.entry.ID.String() + ": its bindings are not evaluated yet"}}
	}
	return nil
}

// bind evaluates the bindings if it is time to, and has those items looked at that get other values by it.
func (w *worker) bind(ctx context.Context, now time.Time) {
	b := &w.binder
	if len(b.late) == 0 || !b.again && !w.overtaken() && (b.due.IsZero() || now.Before(b.due)) {
		return
	}
	b.again, b.due, b.told, b.secrets = false, time.Time{}, nil, nil
	for _, s := range b.sources {
		s.used = false
	}
	values, known := w.evaluate(ctx, now)
	values, known = nameless(values), nameless(known)
	w.releaseSources(func(s *source) bool { return s.used })
	b.forget = haveValues(values)
	if err := w.m.lasts.save(ctx); err != nil {
		w.log.Warn("the values of bindings are not kept; should what they read be gone after a restart, they have none", "error", err)
		b.due = earliest(b.due, now.Add(bindAgain))
	}
	circle := assemble.ObjectCircle(b.late, usersOf(w.items), w.cur.sync.Values)
	for _, it := range w.items {
		if it.late == nil {
			continue
		}
		before := it.late
		it.late = supply(it, w.cur.sync.Values, values, circle)
		it.late.guessed = w.guessed(it, known)
		if !sameUse(before, it.late) {
			w.supplied(it)
		}
		w.noteHeld(it)
	}
}

// haveValues reports that all late bindings have values. While one has none, which fields others read is not known.
func haveValues(values map[string]assemble.LateValue) bool {
	for _, v := range values {
		if v.Err != nil {
			return false
		}
	}
	return true
}

// keysRead reports of which keys the last evaluation read.
func (w *worker) keysRead() func(key string) bool {
	keys := make(map[string]bool, len(w.binder.sources))
	for f := range w.binder.sources {
		keys[keyOf(f)] = true
	}
	for k := range w.binder.secrets {
		keys[keyOfSecret(k)] = true
	}
	return func(key string) bool { return keys[key] }
}

func sameUse(a, b *lateUse) bool {
	sameFail := a.fail == b.fail || a.fail != nil && b.fail != nil && a.fail.Reason == b.fail.Reason && a.fail.Message == b.fail.Message
	return sameFail && (a.guessed == nil) == (b.guessed == nil) && maps.Equal(a.values, b.values) && slices.Equal(a.hidden, b.hidden)
}

// supplied has an item looked at whose values are others.
func (w *worker) supplied(it *item) {
	it.look, it.opinion, it.reading, it.use = true, nil, nil, nil
	if it.late.fail != nil {
		it.want = unvalued
		return
	}
	it.want = w.wantOf(it, it.late)
	w.rereads(it)
	it.clear()
	w.log.Info("bindings have values", "object", it.entry.ID.String(), "bindings", strings.Join(it.late.names, ","))
}

// rereads has the bindings evaluated again that read the object of an item, which is as the sync says now, or is known to be.
func (w *worker) rereads(it *item) {
	if w.binds(it.liveID()) {
		w.binder.again = true
		dirty.Poke(w.signal)
	}
}

func usersOf(items []*item) assemble.Users {
	out := make(assemble.Users, len(items))
	for _, it := range items {
		out[it.entry.ID] = nil
		if it.late != nil {
			out[it.entry.ID] = it.late.names
		}
	}
	return out
}

// supply is what an item has of the values.
func supply(it *item, hub map[string]string, values map[string]assemble.LateValue, circle []string) *lateUse {
	out := &lateUse{names: it.late.names, escaped: it.late.escaped, values: make(map[string]string, len(hub)+len(it.late.names))}
	maps.Copy(out.values, hub)
	for _, name := range it.late.escaped {
		out.values[name] = "" // nobody asks for it
	}
	if slices.Contains(circle, it.entry.ID.Short()) {
		out.fail = &apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid,
			Message: it.entry.ID.String() + ": " + strings.Join(circle, " → ") + ": what has to be applied first cannot be told; read the field of another object"}
		return out
	}
	for _, name := range it.late.names {
		v := values[name]
		if v.Err != nil {
			out.fail = unbindable(it.entry.ID, name, v.Err)
			return out
		}
		out.values[name] = v.Value
		if v.Secret && v.Value != "" {
			out.hidden = append(out.hidden, v.Value)
		}
	}
	return out
}

// unbindable says why a binding has no value, as a failure of an object that refers to it.
func unbindable(id fleet.ObjectID, name string, err error) *apply.Failure {
	f := failureOf(err)
	f.Message = fmt.Sprintf("%s: ${%s}: %v", id, name, err)
	return &f
}

// failureOf is a copy of the failure that a binding came to. An error that is none is of what the binding says.
func failureOf(err error) apply.Failure {
	var known *apply.Failure
	if errors.As(err, &known) {
		return *known
	}
	return apply.Failure{Reason: apply.ReasonInvalid, Kind: fleet.ErrInvalid, Message: err.Error()}
}

// nameless are values whose errors do not tell a secret that the name of what they read is made of.
func nameless(values map[string]assemble.LateValue) map[string]assemble.LateValue {
	var secrets []string
	for _, v := range values {
		if v.Secret && v.Value != "" {
			secrets = append(secrets, v.Value)
		}
	}
	h := hides{}.with(secrets)
	for name, v := range values {
		if v.Err == nil || !v.Secret {
			continue
		}
		f := failureOf(v.Err)
		f.Message, f.Detail = h.scrub(f.Message), h.scrub(f.Detail)
		v.Err = &f
		values[name] = v
	}
	return values
}

// verdictAt is when it counts as a failure that the bindings of an item have no values; zero: it does, or not by time alone.
func (it *item) verdictAt() time.Time {
	if !it.late.failed() || it.fail == nil || !it.fail.Awaited() {
		return time.Time{}
	}
	return it.fail.Since.Add(awaited)
}

// withValues keeps back the jobs whose objects refer to bindings without a value.
func (w *worker) withValues(jobs []*item) []*item {
	now := time.Now()
	return slices.DeleteFunc(jobs, func(it *item) bool {
		if !it.late.failed() {
			return false
		}
		it.fails(it.late.fail, now)
		return true
	})
}

// bindingReader reads for a worker.
type bindingReader struct {
	ctx context.Context
	w   *worker
	now time.Time
}

// ReadField is what the cluster says of a field.
func (r bindingReader) ReadField(name string, f fleet.ObjectField) assemble.Read {
	return r.w.readField(r.ctx, name, f, r.now)
}

// ReadSecret is what the hub has sent.
func (r bindingReader) ReadSecret(name string, k fleet.SecretKey) assemble.Read {
	b := &r.w.binder
	if b.secrets == nil {
		b.secrets = map[fleet.SecretKey]bool{}
	}
	b.secrets[k] = true
	value, err := r.w.m.secrets.value(r.w.ref.Project, k)
	if err != nil {
		return r.w.unread(name, keyOfSecret(k), err)
	}
	r.w.m.lasts.put(r.w.ref, keyOfSecret(k), lastValue{Value: value, Secret: true})
	return assemble.Read{Value: value, Secret: true}
}

// readField is what the cluster says of a field. What it said before stays in force while there is no such field.
func (w *worker) readField(ctx context.Context, name string, f fleet.ObjectField, now time.Time) assemble.Read {
	s := w.binder.sources[f]
	if s == nil {
		path, err := wire.ParseFieldPath(f, f.Path)
		if err != nil {
			return assemble.Read{Failed: fleet.Invalidf("", "%s: %v", f.ID().Short(), err)}
		}
		s = &source{id: f.ID(), version: f.Version, path: path}
		if w.binder.sources == nil {
			w.binder.sources = map[fleet.ObjectField]*source{}
		}
		w.binder.sources[f] = s
	}
	s.used, s.first = true, w.appliesFirst(s.id)
	if err := w.m.mayBind(w.ref, s.id); err != nil {
		return assemble.Read{Failed: err}
	}
	if err := w.findSource(ctx, s, now); err != nil {
		return w.unread(name, keyOf(f), err)
	}
	object, err := w.objectOf(ctx, s, now)
	if err != nil {
		return w.unread(name, keyOf(f), err)
	}
	if object == nil && w.makes(s.id) || w.changes(s.id) {
		return assemble.Read{Failed: madeFirst(s.id)}
	}
	return w.valueIn(name, f, s, object)
}

// valueIn reads the value and keeps it.
func (w *worker) valueIn(name string, f fleet.ObjectField, s *source, object map[string]any) assemble.Read {
	value, err := s.value(object)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return w.unread(name, keyOf(f), err)
	case err != nil:
		return assemble.Read{Failed: err}
	}
	hides := s.hides(w.m, object, value)
	w.m.lasts.put(w.ref, keyOf(f), lastValue{Value: value, Secret: hides})
	return assemble.Read{Value: value, Secret: hides}
}

// unread is the answer where there is no value now: the last one that was read, if there was one.
func (w *worker) unread(name, key string, why error) assemble.Read {
	if last, known := w.m.lasts.get(w.ref, key); known {
		told := fmt.Sprintf("${%s} keeps the value that was read last: %v", name, why)
		w.binder.told = append(w.binder.told, hides{}.with(w.m.lasts.secrets(w.ref)).scrub(told))
		return assemble.Read{Value: last.Value, Secret: last.Secret}
	}
	if errors.Is(why, fleet.ErrNotFound) {
		return assemble.Read{Absent: why}
	}
	return assemble.Read{Failed: why}
}

// missing is of what a binding reads and is not there.
func missing(format string, args ...any) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonBinding, Transient: true, Kind: fleet.ErrNotFound, Message: fmt.Sprintf(format, args...)}
}

// errMadeFirst is of a binding that reads what the module itself is about to apply.
var errMadeFirst = errors.New("is applied first")

func madeFirst(id fleet.ObjectID) *apply.Failure {
	f := missing("%s %v", id.Short(), errMadeFirst)
	f.Kind = errMadeFirst
	return f
}

// makes reports that the module lists an object itself, and has not applied it yet.
func (w *worker) makes(id fleet.ObjectID) bool {
	it := w.byID[id]
	if it == nil || it.policy.Reads() {
		return false
	}
	rec := w.m.inventory.Get(id)
	return rec == nil || !rec.Written()
}

// changes reports that the module itself has the object, and is about to write it as the sync says.
func (w *worker) changes(id fleet.ObjectID) bool {
	it, rec := w.byID[id], w.written(id)
	return it != nil && rec != nil && w.started && !it.policy.Reads() && rec.Want != it.want && w.held() == "" && !w.holds(id)
}

// appliesFirst reports that a binding gets what an object holds only once the module has applied that.
func (w *worker) appliesFirst(id fleet.ObjectID) bool { return w.makes(id) || w.changes(id) }

// overtaken reports that whether the module applies a source first is not as the last evaluation found it: a hold came or ended, its turn
// came, or the source was applied.
func (w *worker) overtaken() bool {
	for _, s := range w.binder.sources {
		if s.first != w.appliesFirst(s.id) {
			return true
		}
	}
	return false
}

// written is the record of an object that the module has written; nil: there is none.
func (w *worker) written(id fleet.ObjectID) *apply.Record {
	if rec := w.m.inventory.Get(id); rec != nil && rec.Module == w.ref && rec.Written() {
		return rec
	}
	return nil
}

// outdated reports that an object, as a watch has shown it last, is older than the module's own last write to it.
func (w *worker) outdated(id fleet.ObjectID, object map[string]any) bool {
	rec := w.written(id)
	if rec == nil || w.byID[id] == nil {
		return false
	}
	u := &unstructured.Unstructured{Object: object}
	return string(u.GetUID()) != rec.UID || apply.ParseVersion(u.GetResourceVersion()) < rec.ResourceVersion
}
