package watch

import (
	"bytes"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/agent/internal/apply"
)

// flight is a write under way. Events of its object wait for it, undecoded: the write's own event is often faster than
// the answer, which says the same. Of an object that is being made, what a controller writes can be faster, too, and cannot be
// compared to what we wrote before the answer told that.
type flight struct {
	writes  int
	uid     string // of the event's object
	version uint64
	event   []byte // the newest that came meanwhile; nil: none
	// listing says that the event came since the list began that is being read.
	listing bool
}

// Writing says that a write of an object is under way, which need not be there yet. The result must be called when it is
// answered, and after the answer was observed.
func (w *Watcher) Writing(r apply.Resource, namespace, name string) (done func()) {
	k, at := w.kind(r), Key{namespace, name}
	if k == nil {
		return func() {}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.flying[at]
	if f == nil {
		f = &flight{}
		k.flying[at] = f
	}
	f.writes++
	return func() { k.land(at, f) }
}

// inFlightRest is how long the stream rests between looks while writes are under way: what comes then are mostly their
// own events, which say nothing new.
const inFlightRest = 2 * time.Millisecond

// rest lets events of writes under way come together, so that each does not wake the stream.
func (k *kind) rest() {
	k.mu.Lock()
	busy := len(k.flying) > 0
	k.mu.Unlock()
	if busy {
		time.Sleep(inFlightRest)
	}
}

// put keeps an event for later if a write of its object is under way.
func (k *kind) put(object []byte, id named) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.flying[Key{string(id.namespace), string(id.name)}]
	if f == nil {
		return false
	}
	f.uid, f.version, f.event, f.listing = string(id.uid), id.version, bytes.Clone(object), k.since != nil
	return true
}

// dropGone forgets the events that wait of objects which a list of this version does not have: taken after it, they would
// bring back what is gone.
func (k *kind) dropGone(asOf uint64) {
	for at, f := range k.flying {
		if p := k.prints[at]; f.version <= asOf && (p == nil || p.UID != f.uid) {
			f.event = nil
		}
	}
}

// land ends a write, and takes the event that waited for it unless the answer was as new.
func (k *kind) land(at Key, f *flight) {
	k.mu.Lock()
	if f.writes--; f.writes > 0 {
		k.mu.Unlock()
		return
	}
	delete(k.flying, at)
	event, listing := f.event, f.listing
	if a := k.answers[f.version]; a != nil && a.UID == f.uid {
		delete(k.answers, f.version)
		event = nil
	}
	k.mu.Unlock()
	if event == nil {
		return
	}
	var object map[string]any
	if err := utiljson.Unmarshal(event, &object); err != nil {
		k.w.o.Log.Error("event is not read", "kind", k.resource.String(), "error", err) // it is JSON: the stream was framed
		return
	}
	if print := k.reduce(object); print != nil && k.landed(print, listing) {
		k.w.o.Changed(k.id(print.Key()), print.Owner)
	}
}

// landed keeps what an event showed that had waited. The first events of a watch make up a list, which lacks the one that waited: if that came since
// the list began, it is noted as an answer is.
func (k *kind) landed(f *Fingerprint, listing bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if listing && !k.isBuried(f) {
		k.note(f)
	}
	return k.store(f)
}
