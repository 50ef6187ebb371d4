package watch

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// kind is the watch of one resource and the store that the reflector fills.
type kind struct {
	w        *Watcher
	resource apply.Resource
	only     *Key // of a Single; nil: all objects that carry our label are watched
	users    int
	leave    *time.Timer // ends the watch; nil: it is in use. w.mu guards it, as users
	stop     context.CancelFunc

	mu     sync.Mutex
	prints map[Key]*Fingerprint
	// answers are prints of answers whose events did not come yet, by version.
	answers map[uint64]*Fingerprint
	// flying are the objects of which a write is under way.
	flying map[Key]*flight
	// absent are the objects of which a live GET said that they are not there, until they are seen again.
	absent map[Key]bool
	// buried are the objects, by UID, of which an event said lately that they are gone, with its version: what the API server
	// answered before that may be heard later.
	buried map[string]uint64
	synced bool
	// asOf is the version of the last complete list, and since the newest of each object that was heard after the next one began, by an answer or an
	// event that had waited for one; nil: none is being read.
	asOf  uint64
	since map[Key]*Fingerprint
	// elsewhere are the objects of which a write in another version of the kind was answered since the list began that is being read.
	elsewhere map[Key]bool
	sight     sight
	// listed is when the last complete list came, begun when the last one began, and took how long the one took that came.
	listed, begun time.Time
	took          time.Duration
	// due is when the watch ends that was opened last, unless something cuts it short; zero: none since the last list began.
	due   time.Time
	ended bool
	// bugTold is when a stack of a bug was logged last.
	bugTold time.Time
	turn    context.CancelFunc // ends the reflector that fills it now
	// live reads an object, confirming bounds how many are read to be confirmed, and asking and confirmed are of the one object of a Single: it is
	// being read, and when it was last known to be as it was seen, by the API server's time.
	live       func(context.Context, Key) (*unstructured.Unstructured, error)
	confirming chan struct{}
	unreadable apply.Refusals
	asking     bool
	confirmed  time.Time
}

func emptyKind(w *Watcher, r apply.Resource) *kind {
	k := &kind{w: w, resource: r, prints: map[Key]*Fingerprint{}, answers: map[uint64]*Fingerprint{}, flying: map[Key]*flight{}, absent: map[Key]bool{},
		confirming: make(chan struct{}, maxConfirming)}
	k.live = k.get
	return k
}

const listPage = 500

func (k *kind) run(ctx context.Context) {
	defer k.end()
	stream, err := k.stream(k.w.config)
	if err != nil { // the configuration was good enough for New
		_ = k.failed(err)
		k.w.o.Log.Error("kind is not watched", "kind", k.resource.String(), "error", err)
		return
	}
	lw := k.observed(source(k.resource.Kind, k.objects(), stream, k.ask, k.reduce))
	for ctx.Err() == nil {
		k.reflect(ctx, lw)
	}
}

// reflect fills the kind until the context ends or the reading is to begin anew.
func (k *kind) reflect(ctx context.Context, lw *cache.ListWatch) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	k.turn = cancel
	k.mu.Unlock()
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, k.w.client), nil, k, cache.ReflectorOptions{
		Name: "towline " + k.resource.String(), TypeDescription: k.resource.Kind, Backoff: retries(),
	})
	r.WatchListPageSize = listPage
	r.RunWithContext(ctx)
}

// everything reports that objects arrive that have nothing to do with us, and are dropped then. A watch asks for objects that carry
// our label; Namespaces that are used and not ours do not.
func (k *kind) everything() bool {
	return k.only == nil && k.resource.Group == "" && k.resource.Kind == "Namespace"
}

// reduce makes the fingerprint of an object that arrived; nil: it is nothing to us.
func (k *kind) reduce(obj map[string]any) (f *Fingerprint) {
	err := k.guarded(func() error {
		f = k.read(obj)
		return nil
	})
	if err != nil {
		return unread(obj, err)
	}
	return f
}

func (k *kind) read(obj map[string]any) *Fingerprint {
	if k.only != nil {
		return k.w.readWhole(k.resource, obj)
	}
	meta, _ := obj["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	at := Key{namespace, name}
	record := k.w.o.Record(k.id(at))
	if record == nil && k.everything() && !k.concerns(at, meta) {
		return nil
	}
	return k.w.reduce(k.resource, obj, record)
}

// concerns reports that an object carries our label, or was ours when it was seen last.
func (k *kind) concerns(at Key, meta map[string]any) bool {
	labels, _ := meta["labels"].(map[string]any)
	k.mu.Lock()
	defer k.mu.Unlock()
	return labels[fleet.HubLabel] == k.w.o.HubID || k.prints[at] != nil
}

func (k *kind) id(at Key) fleet.ObjectID {
	return fleet.ObjectID{Group: k.resource.Group, Kind: k.resource.Kind, Namespace: at.Namespace, Name: at.Name}
}

// keep stores a fingerprint unless a newer one of the object is there. It reports whether it did.
func (k *kind) keep(f *Fingerprint) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store(f)
}

// observe is keep for what the API server answered to a write. Its event brings the same again, unless it came first.
func (k *kind) observe(f *Fingerprint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.prints[f.Key()]
	if k.isBuried(f) {
		return
	}
	k.note(f)
	if k.isMissed(f) {
		return
	}
	if k.store(f) && (old == nil || old.Version < f.Version) {
		k.answer(f)
	}
}

func (k *kind) store(f *Fingerprint) bool {
	if k.isBuried(f) {
		return false
	}
	if k.prints[f.Key()].outdoes(f) {
		return false
	}
	k.place(f)
	return true
}

// maxBuried is how many objects that are gone are remembered: those of which an answer may still be on its way.
const maxBuried = 1024

// bury remembers that an object was gone in a version.
func (k *kind) bury(f *Fingerprint) {
	if k.buried == nil || len(k.buried) >= maxBuried {
		k.buried = map[string]uint64{}
	}
	k.buried[f.UID] = f.Version
}

// isBuried reports that the object was gone after what a fingerprint shows. One that only lost our label is there still, in
// the version of the event itself.
func (k *kind) isBuried(f *Fingerprint) bool {
	gone, known := k.buried[f.UID]
	return known && f.Version < gone
}

// isMissed reports that a list which is not older than the fingerprint does not have the object: it was deleted before that list,
// and no event will tell. Should the store have been restored instead, the next list tells. Objects without our label are in no list, and of Namespaces only those are kept that concern us.
func (k *kind) isMissed(f *Fingerprint) bool {
	return k.prints[f.Key()] == nil && f.Version != 0 && f.Version <= k.asOf && !f.Unwatched && !k.everything()
}

// place makes a fingerprint that of its object.
func (k *kind) place(f *Fingerprint) {
	if !f.placed {
		f.stillSays(k.prints[f.Key()])
		f.placed = true
	}
	k.prints[f.Key()] = f
	if k.only != nil {
		k.confirmed = k.w.now()
	}
	delete(k.absent, f.Key())
	if f.grace != nil {
		time.AfterFunc(f.grace.ends.Sub(k.w.now()), func() { k.endGrace(f) })
	}
}

// endGrace changes the health of an object whose grace is over: no event tells of that. While no watch is open none tells of anything, so that
// nobody knows yet that its controller has said nothing.
func (k *kind) endGrace(f *Fingerprint) {
	if k.defers(f) || !k.has(f) || !k.endsWell(f) {
		return
	}
	after := *f
	after.grace = nil
	after.setHealth(f.grace.after)
	k.mu.Lock()
	newest := k.prints[f.Key()] == f
	if newest {
		k.prints[f.Key()] = &after
	}
	k.mu.Unlock()
	if newest && k.w.running() {
		k.w.o.Changed(k.id(f.Key()), f.Owner)
	}
}

// Add takes an event of the reflector.
func (k *kind) Add(obj any) error { return k.Update(obj) }

// Update takes an event of the reflector.
func (k *kind) Update(obj any) error {
	i, ok := obj.(*item)
	if !ok || i.print == nil {
		return nil
	}
	if k.keep(i.print) {
		k.w.o.Changed(k.id(i.print.Key()), i.print.Owner)
	}
	return nil
}

// gone tells that an object is deleted, and how it had ended by then.
func (k *kind) gone(f *Fingerprint) {
	if k.only == nil { // else whoever has it is told by the watch of the kind
		k.w.o.Gone(k.id(f.Key()), f.UID, f.Outcome)
	}
}

// Delete takes an event of the reflector: the object is gone, or has lost the label.
func (k *kind) Delete(obj any) error {
	i, ok := obj.(*item)
	if !ok || i.print == nil {
		return nil
	}
	at := i.print.Key()
	k.mu.Lock()
	old := k.prints[at]
	stale := old != nil && old.Version > i.print.Version && i.print.Version != 0
	if !stale {
		delete(k.prints, at)
		if i.print.Version != 0 {
			k.bury(i.print)
		}
	}
	k.mu.Unlock()
	if !stale {
		k.gone(i.print)
		k.w.o.Changed(k.id(at), i.print.Owner)
	}
	return nil
}

// Resync does nothing: there is nothing to repeat.
func (k *kind) Resync() error { return nil }
