package watch

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// Single is one object that is watched by itself, whatever labels it carries: somebody else's, which a module only reads.
type Single struct {
	apply.Resource
	Key
}

// AcquireOne says that an object is read. Each call needs a ReleaseOne.
func (w *Watcher) AcquireOne(s Single) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.singles[s]
	if k == nil {
		k = emptyKind(w, s.Resource)
		k.only = &s.Key
		w.singles[s] = k
	}
	w.used(k)
}

// ReleaseOne says that one reader of an object is gone. The watch of one without readers ends after a while.
func (w *Watcher) ReleaseOne(s Single) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unused(w.singles[s])
}

func (w *Watcher) single(s Single) *kind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.singles[s]
}

// SeeOne is See of an object that is watched by itself.
func (w *Watcher) SeeOne(s Single) (f *Fingerprint, known bool) { return w.single(s).see(s.Key) }

// ReadOne is an object that is watched by itself, as it was seen last, without its managed fields; nil and known: it is not there. It must
// not be changed.
func (w *Watcher) ReadOne(s Single) (object map[string]any, known bool) {
	f, known := w.SeeOne(s)
	if f == nil || f.whole == nil {
		return nil, known
	}
	return f.whole.object, true
}

// JudgeOne is SeeOne by these health rules. Each reader of an object has its own, so that what such an object says is kept whole. Time in which
// nobody may have heard what it says does not count.
func (w *Watcher) JudgeOne(s Single, rules *health.Rules) (f *Fingerprint, known bool) {
	k := w.single(s)
	f, known = k.see(s.Key)
	if f == nil || f.whole == nil {
		return f, known
	}
	lag, now := k.lag(), w.now()
	out := f.judgedAt(now.Add(-lag), rules)
	if lag > 0 && out.grace != nil {
		out.grace.ends = now.Add(max(out.grace.ends.Add(lag).Sub(now), catchUp))
	}
	if out.grace != nil || out.Health != fleet.HealthHealthy {
		return out, known
	}
	if then := k.unsure(f, rules); then != nil {
		then.grace.ends = now.Add(confirmAgain)
		k.confirmSoon(f)
		return then, known
	}
	return out, known
}

// judgedAt is an object that is watched by itself as it was at a time by these rules.
func (f *Fingerprint) judgedAt(at time.Time, rules *health.Rules) *Fingerprint {
	out := *f
	out.grace = nil
	out.judge(f.whole.judged, f.whole.facts(at), rules)
	return &out
}

// whole is an object of which more than a fingerprint is kept, because not all who read it judge it alike. What is judged has its managed
// fields without the fields themselves: they tell who wrote its status, and when.
type whole struct {
	object  map[string]any
	judged  map[string]any
	changed time.Time
	status  bool // its kind has one
}

func (o *whole) facts(now time.Time) health.Facts {
	return health.Facts{Now: now, Changed: o.changed, HasStatus: o.status}
}

// readWhole is the fingerprint of an object that is watched by itself.
func (w *Watcher) readWhole(r apply.Resource, obj map[string]any) *Fingerprint {
	f := w.judged(r, obj, nil)
	f.whole = &whole{object: withWriters(obj, nil), judged: withWriters(obj, writersOf(obj)), changed: apply.ChangedAt(obj),
		status: w.Facts(r, obj, time.Time{}).HasStatus}
	return f
}

// withWriters is an object with these managed fields in place of its own, which are the largest part of many.
func withWriters(obj map[string]any, writers []any) map[string]any {
	meta, ok := obj["metadata"].(map[string]any)
	if !ok {
		return obj
	}
	obj, meta = maps.Clone(obj), maps.Clone(meta)
	delete(meta, "managedFields")
	if len(writers) > 0 {
		meta["managedFields"] = writers
	}
	obj["metadata"] = meta
	return obj
}

// writersOf are the managed fields without the fields.
func writersOf(obj map[string]any) (out []any) {
	meta, _ := obj["metadata"].(map[string]any)
	list, _ := meta["managedFields"].([]any)
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			m = maps.Clone(m)
			delete(m, "fieldsV1")
			out = append(out, m)
		}
	}
	return out
}

// Until is when the health changes that it was judged to have, though nothing happens; zero: never.
func (f *Fingerprint) Until() time.Time {
	if f.grace == nil {
		return time.Time{}
	}
	return f.grace.ends
}

// BlindOne is Blind of an object that is watched by itself.
func (w *Watcher) BlindOne(s Single) error { return w.single(s).blindness() }

// ObserveOne takes an object that is watched by itself, as the API server just answered it. It tells nobody.
func (w *Watcher) ObserveOne(s Single, obj map[string]any) *Fingerprint {
	f := w.readWhole(s.Resource, obj)
	if k := w.single(s); k != nil {
		k.observe(f)
	}
	return f
}

// ForgetOne takes note that a live GET did not find an object that is watched by itself, and that was seen as before when the GET began. What
// the watch has shown since is there.
func (w *Watcher) ForgetOne(s Single, before *Fingerprint) {
	k := w.single(s)
	if k == nil || before == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.prints[s.Key]; f != nil && f.UID == before.UID {
		delete(k.prints, s.Key)
	}
}

// ask has the server answer what the kind is about.
func (k *kind) ask(o *metav1.ListOptions) {
	switch {
	case k.only != nil:
		o.FieldSelector = "metadata.name=" + k.only.Name
	case !k.everything():
		o.LabelSelector = fleet.HubLabel + "=" + k.w.o.HubID
	}
}

// objects are where the kind looks for its own.
func (k *kind) objects() dynamic.ResourceInterface {
	all := k.w.client.Resource(k.resource.GroupVersionResource)
	if k.only != nil && k.only.Namespace != "" {
		return all.Namespace(k.only.Namespace)
	}
	return all
}

// path is where the kind streams from.
func (k *kind) path() []string {
	path := []string{"/api", k.resource.Version}
	if k.resource.Group != "" {
		path = []string{"/apis", k.resource.Group, k.resource.Version}
	}
	if k.only != nil && k.only.Namespace != "" {
		path = append(path, "namespaces", k.only.Namespace)
	}
	return append(path, k.resource.Resource)
}
