package watch

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// That a controller has said nothing of an object for as long as it may take is no event, so that it rests on a watch that tells of all. One of an
// API server whose own watch of the store stands still is open, has its bookmarks, and tells of nothing. An object is therefore read once more
// before it is called healthy for want of a word: a read of one object is answered from the store itself.

const (
	// confirmTime bounds such a read, and confirmAgain is when one that came to nothing is tried again.
	confirmTime  = 10 * time.Second
	confirmAgain = 5 * time.Second
	// maxConfirming is how many are under way at once, of each kind.
	maxConfirming = 4
)

// stands is what a read says of an object as it was seen.
type stands int

const (
	unheard stands = iota // the read came to nothing
	asSeen
	changed // something happened that the watch has not told; it is known now
)

// confirm reads an object once more. Who may watch it and not read it has nothing better than the watch.
func (k *kind) confirm(f *Fingerprint) stands {
	ctx, cancel := k.w.during(confirmTime)
	defer cancel()
	select {
	case k.confirming <- struct{}{}:
		defer func() { <-k.confirming }()
	case <-ctx.Done():
		return unheard
	}
	if !k.has(f) {
		return changed
	}
	live, err := k.live(ctx, f.Key())
	lacks, _ := k.unreadable.Note(err, time.Now())
	switch {
	case lacks, kube.Is(err, kube.Unsupported):
		return asSeen
	case err != nil:
		return unheard
	case string(live.GetUID()) == f.UID && apply.ParseVersion(live.GetResourceVersion()) <= f.Version:
		return asSeen
	}
	if err := k.guarded(func() error { k.take(live); return nil }); err != nil {
		return unheard
	}
	if k.has(f) { // a list is to say first that the store of the API server was put back
		return unheard
	}
	k.w.o.Changed(k.id(f.Key()), f.Owner)
	return changed
}

func (k *kind) has(f *Fingerprint) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.prints[f.Key()] == f && !k.ended
}

// take takes an object as a read answered it.
func (k *kind) take(live *unstructured.Unstructured) {
	if k.only != nil {
		k.w.ObserveOne(Single{k.resource, *k.only}, live.Object)
		return
	}
	k.w.Observe(k.resource, live.Object, k.w.o.Record(k.id(Key{live.GetNamespace(), live.GetName()})))
}

// get reads an object from the store of the API server.
func (k *kind) get(ctx context.Context, at Key) (*unstructured.Unstructured, error) {
	return k.w.client.Resource(k.resource.GroupVersionResource).Namespace(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
}

// endsWell reports that the grace of an object may end with it healthy. Else it is looked at again when more is known.
func (k *kind) endsWell(f *Fingerprint) bool {
	if f.grace.after.Health != fleet.HealthHealthy {
		return true
	}
	switch k.confirm(f) {
	case asSeen:
		return true
	case unheard:
		time.AfterFunc(confirmAgain, func() { k.endGrace(f) })
	}
	return false
}

// unsure is what the one object of the kind was judged to be when it was last known to be as it was seen, if it has become healthy by time alone
// since; nil: it has not.
func (k *kind) unsure(f *Fingerprint, rules *health.Rules) *Fingerprint {
	k.mu.Lock()
	at, current := k.confirmed, k.prints[f.Key()] == f
	k.mu.Unlock()
	if !current {
		return nil
	}
	then := f.judgedAt(at, rules)
	if then.grace == nil || then.Health == fleet.HealthHealthy {
		return nil
	}
	return then
}

// confirmSoon has the one object of the kind be read once more, unless that is under way. Its readers are told.
func (k *kind) confirmSoon(f *Fingerprint) {
	k.mu.Lock()
	busy := k.asking
	k.asking = true
	k.mu.Unlock()
	if busy {
		return
	}
	go func() {
		at := k.w.now()
		is := k.confirm(f)
		k.mu.Lock()
		k.asking = false
		if is == asSeen && k.prints[f.Key()] == f {
			k.confirmed = at
		}
		k.mu.Unlock()
		if is == asSeen {
			k.w.o.Changed(k.id(f.Key()), f.Owner)
		}
	}()
}
