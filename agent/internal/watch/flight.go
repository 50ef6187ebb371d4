package watch

import (
	"bytes"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/agent/internal/apply"
)

// flight is a write under way. Events of its object wait for it, undecoded: the write's own event is often faster than
// the answer, which says the same.
type flight struct {
	writes  int
	version uint64
	event   []byte // the newest that came meanwhile; nil: none
}

// Writing says that a write of a live object is under way. The result must be called when it is answered, and after the
// answer was observed.
func (w *Watcher) Writing(r apply.Resource, uid string) (done func()) {
	k := w.kind(r)
	if k == nil || uid == "" {
		return func() {}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.flying[uid]
	if f == nil {
		f = &flight{}
		k.flying[uid] = f
	}
	f.writes++
	return func() { k.land(uid, f) }
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
func (k *kind) put(object, uid []byte, version uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.flying[string(uid)]
	if f == nil {
		return false
	}
	f.version, f.event = version, bytes.Clone(object)
	return true
}

// dropGone forgets the events that wait of objects which a list of this version does not have: taken after it, they would
// bring back what is gone.
func (k *kind) dropGone(asOf uint64) {
	waits := map[string]*flight{}
	for uid, f := range k.flying {
		if f.event != nil && f.version <= asOf {
			waits[uid] = f
		}
	}
	if len(waits) == 0 {
		return
	}
	for _, f := range k.prints {
		delete(waits, f.UID)
	}
	for _, f := range waits {
		f.event = nil
	}
}

// land ends a write, and takes the event that waited for it unless the answer was as new.
func (k *kind) land(uid string, f *flight) {
	k.mu.Lock()
	if f.writes--; f.writes > 0 {
		k.mu.Unlock()
		return
	}
	delete(k.flying, uid)
	event := f.event
	if a := k.answers[f.version]; a != nil && a.UID == uid {
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
	if print := k.reduce(object); print != nil && k.keep(print) {
		k.w.o.Changed(k.id(print.Key()), print.Owner)
	}
}
