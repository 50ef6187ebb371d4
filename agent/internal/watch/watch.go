// Package watch owns what the agent knows of live objects: one label-filtered watch for each kind in use, reduced on
// arrival to fingerprints. It must not decide what they mean, nor write to the cluster.
package watch

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// Options are what a Watcher needs; those with a default may be left out, and so HasStatus and Rules.
type Options struct {
	Config *rest.Config
	// HubID is the value of the label that the watches filter by.
	HubID string
	// UseManager is the field manager of what is applied to used objects; fleet.FieldManager by default.
	UseManager string
	// Record is what the inventory has for an object, or nil.
	Record func(fleet.ObjectID) *apply.Record
	// HasStatus reports that a kind has a status subresource; nil: none has.
	HasStatus func(apply.Resource) bool
	// Rules are the health rules for the object of a record, which may be nil; nil: none.
	Rules func(*apply.Record) *health.Rules
	// Changed is told which object changed, or that its health did with time; owner is the live owner mark, if any. It must return at once.
	Changed func(id fleet.ObjectID, owner string)
	// Gone is told that an object was deleted, and how it had ended by then. It must return at once.
	Gone func(id fleet.ObjectID, uid string, o plan.Outcome)
	// Synced is told that a kind is known in full, or that it is not any more. It must return at once.
	Synced func(apply.Resource)
	// WentBack is told that the API server does not have any more what it had answered: its store was restored from an
	// older copy, at least of this kind. It must return at once.
	WentBack func(r apply.Resource, lost []Lost)
	// Reachable reports whether the API server as a whole is reached; always by default.
	Reachable func() bool
	// Now is the API server's time; the machine's by default.
	Now func() time.Time
	// BlindAfter is for how long a kind may go without a watch before nothing is known of it; 30 s by default.
	BlindAfter time.Duration
	// Linger is for how long a watch that nobody uses any more stays at first; 2 s by default.
	Linger time.Duration
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
}

// Watcher keeps the fingerprints of all kinds in use.
type Watcher struct {
	o      Options
	config *rest.Config
	http   *http.Client
	client dynamic.Interface

	held atomic.Bool // an object was seen that its annotation held: until then nobody looks for one

	mu      sync.Mutex
	kinds   map[apply.Resource]*kind
	singles map[Single]*kind
	lingers map[Single]*linger
	ctx     context.Context // of Run; nil before and after
	closed  sync.WaitGroup
}

// New makes a Watcher; watches begin when Run does.
func New(o Options) (*Watcher, error) {
	config := apply.Tuned(o.Config)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "client of the cluster: %v", err)
	}
	client, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "client of the cluster: %v", err)
	}
	if o.UseManager == "" {
		o.UseManager = fleet.FieldManager
	}
	if o.WentBack == nil {
		o.WentBack = func(apply.Resource, []Lost) {}
	}
	if o.BlindAfter <= 0 {
		o.BlindAfter = BlindAfter
	}
	if o.Linger <= 0 {
		o.Linger = firstLinger
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{o: o, config: config, http: httpClient, client: client, kinds: map[apply.Resource]*kind{}, singles: map[Single]*kind{}, lingers: map[Single]*linger{}}
	if _, err := (&kind{w: w}).stream(config); err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "client of the cluster: %v", err)
	}
	return w, nil
}

// Run watches until the context ends.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	for _, k := range w.every() {
		w.start(k)
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.ctx = nil
	for _, k := range w.every() {
		if k.users == 0 {
			w.drop(k)
		}
	}
	w.mu.Unlock()
	w.closed.Wait()
	return nil
}

// Acquire says that a kind is in use. Each call needs a Release.
func (w *Watcher) Acquire(r apply.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.kinds[r]
	if k == nil {
		k = emptyKind(w, r)
		w.kinds[r] = k
	}
	w.used(k)
}

// Restart has every kind read anew. A watch that goes on from a version which a restored store does not have yet shows
// nothing until the store has come so far.
func (w *Watcher) Restart() {
	for _, k := range w.all() {
		k.attempt()
		k.mu.Lock()
		turn := k.turn
		k.mu.Unlock()
		if turn != nil {
			turn()
		}
	}
}

// Release says that one user of a kind is gone. The watch of a kind without users ends after a while.
func (w *Watcher) Release(r apply.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unused(w.kinds[r])
}

// start runs a kind's watch, if Run is on.
func (w *Watcher) start(k *kind) {
	if w.ctx == nil || k.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(w.ctx)
	k.stop = stop
	w.closed.Go(func() { k.run(ctx) })
}

// now is the API server's time: what objects say of times is by its clock.
func (w *Watcher) now() time.Time {
	if w.o.Now == nil {
		return time.Now()
	}
	return w.o.Now()
}

func (w *Watcher) running() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ctx != nil
}

// during is a context of Run that ends after a time; it is over where Run is not on.
func (w *Watcher) during(d time.Duration) (context.Context, context.CancelFunc) {
	w.mu.Lock()
	ctx := w.ctx
	w.mu.Unlock()
	if ctx == nil {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		return over, cancel
	}
	return context.WithTimeout(ctx, d)
}

func (w *Watcher) kind(r apply.Resource) *kind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kinds[r]
}

func (w *Watcher) all() []*kind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.every()
}

// every is all, with w.mu held.
func (w *Watcher) every() []*kind {
	return slices.AppendSeq(slices.Collect(maps.Values(w.kinds)), maps.Values(w.singles))
}

// Look is the fingerprint of an object, or nil, and whether the kind is known in full.
func (w *Watcher) Look(r apply.Resource, namespace, name string) (f *Fingerprint, synced bool) {
	k := w.kind(r)
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.prints[Key{namespace, name}], k.synced
}

// Shown is the fingerprint of an object in whichever version its kind is watched, or nil.
func (w *Watcher) Shown(id fleet.ObjectID) (r apply.Resource, f *Fingerprint) {
	for _, k := range w.all() {
		if k.only != nil || k.resource.Group != id.Group || k.resource.Kind != id.Kind {
			continue
		}
		k.mu.Lock()
		f = k.prints[Key{id.Namespace, id.Name}]
		k.mu.Unlock()
		if f != nil {
			return k.resource, f
		}
	}
	return r, nil
}

// Owned lists the objects that name others as their owners, and those.
func (w *Watcher) Owned() map[fleet.ObjectID][]Owner {
	out := map[fleet.ObjectID][]Owner{}
	for _, k := range w.all() {
		if k.only != nil {
			continue // it is nobody's of ours to keep
		}
		k.mu.Lock()
		for at, f := range k.prints {
			if len(f.Owners) > 0 {
				out[k.id(at)] = f.Owners
			}
		}
		k.mu.Unlock()
	}
	return out
}

// Kinds are those in use, whichever versions of them.
func (w *Watcher) Kinds() map[schema.GroupKind]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[schema.GroupKind]bool, len(w.kinds))
	for r, k := range w.kinds {
		if k.users > 0 { // else it may not be watched any more when it is looked at
			out[schema.GroupKind{Group: r.Group, Kind: r.Kind}] = true
		}
	}
	return out
}

// Sees reports that a kind is in use, in some version, and that its watch is no longer broken than it may be.
func (w *Watcher) Sees(of schema.GroupKind) bool {
	return slices.ContainsFunc(w.inUse(), func(k *kind) bool {
		return k.only == nil && k.resource.Group == of.Group && k.resource.Kind == of.Kind && k.blindness() == nil
	})
}

// Settling names the kinds in use that are not known as they are now, and that may soon be.
func (w *Watcher) Settling() (kinds []string) {
	for _, k := range w.inUse() {
		if k.settling() {
			kinds = append(kinds, k.resource.Kind)
		}
	}
	return kinds
}

// Synced reports whether a kind is known in full.
func (w *Watcher) Synced(r apply.Resource) bool {
	_, synced := w.Look(r, "", "")
	return synced
}

// Answered takes the object that the API server answered to our write, from which the record was made. It tells nobody.
func (w *Watcher) Answered(r apply.Resource, obj map[string]any, record *apply.Record) {
	f := w.judged(r, obj, record)
	f.Paths, f.Values = record.Paths, record.Base
	f.Values.Replicas = apply.ReplicasOf(obj)
	if k := w.kind(r); k != nil {
		k.observe(f)
	}
	for _, k := range w.versions(record.ID) {
		if k.resource != r {
			k.wroteElsewhere(f.Key())
		}
	}
}

// Observe takes an object that the API server just answered, as if the watch had brought it. It tells nobody.
func (w *Watcher) Observe(r apply.Resource, obj map[string]any, record *apply.Record) *Fingerprint {
	f := w.reduce(r, obj, record)
	labels, _, _ := unstructured.NestedMap(obj, "metadata", "labels")
	f.Unwatched = labels[fleet.HubLabel] != w.o.HubID
	if k := w.kind(r); k != nil {
		k.observe(f)
	}
	return f
}

// Forget takes note that a live GET did not find an object of this version or an older one.
func (w *Watcher) Forget(r apply.Resource, namespace, name, uid string) {
	k := w.kind(r)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.prints[Key{namespace, name}]; f != nil && f.UID == uid {
		delete(k.prints, Key{namespace, name})
	}
}

// ConfirmGone takes note that a live GET did not find the object. A watch alone does not tell: it shows objects with our
// label only.
func (w *Watcher) ConfirmGone(r apply.Resource, namespace, name, uid string) {
	w.Forget(r, namespace, name, uid)
	k := w.kind(r)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	at := Key{namespace, name}
	if f := k.prints[at]; f != nil && f.Unwatched {
		delete(k.prints, at) // no event tells that another one is gone
	}
	if k.prints[at] == nil {
		k.absent[at] = true
	}
}

// Gone reports that an object which no watch shows is known not to be there.
func (w *Watcher) Gone(r apply.Resource, namespace, name string) bool {
	k := w.kind(r)
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.absent[Key{namespace, name}]
}
