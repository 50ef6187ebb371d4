package worker

import (
	"slices"
	"sync"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// slowContents has whoever reads one bundle wait.
type slowContents struct {
	Contents
	bundle fleet.Digest
	free   chan struct{}
}

func (c slowContents) Bundle(d fleet.Digest) (fleet.Bundle, error) {
	if d == c.bundle {
		<-c.free
	}
	return c.Contents.Bundle(d)
}

// What waits for a confirm waits for it also in the moment in which the cluster is given something of another module: were the question
// gone then, and back after it, the word of a person that comes in between would be lost.
func TestQuestionStandsWhileAnotherModuleIsTaken(t *testing.T) {
	r := newRig(t)
	other := r.bundle("other", nil, configMap("other", "k: v"))
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	t.Cleanup(release)
	var mu sync.Mutex
	var said []fleet.SyncStatus
	r.options = append(r.options, func(o *Options) {
		o.Contents = slowContents{o.Contents, other.Bundle, free}
		report := o.Report
		o.Report = func(s fleet.SyncStatus) {
			mu.Lock()
			said = append(said, s)
			mu.Unlock()
			report(s)
		}
	})
	r.stop()
	r.start()
	objects := maps30(0)
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", nil, objects[:8]...)
	r.set([]fleet.Sync{s})
	r.asks(s, 22)
	mu.Lock()
	said = nil
	mu.Unlock()

	r.set([]fleet.Sync{s, other})
	r.eventually("the module waits for what the other one lists", func() bool {
		c := &r.m.claims
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.handing == 0 && c.owed[s.Module] == 0 && len(c.waiting) > 0
	})
	release()
	r.ready(other)
	r.asks(s, 22)
	mu.Lock()
	defer mu.Unlock()
	if i := slices.IndexFunc(said, func(x fleet.SyncStatus) bool { return x.Module == s.Module && x.Waiting() != 22 }); i >= 0 {
		t.Errorf("in between %d waited for a confirm: %+v", said[i].Waiting(), said[i])
	}
}
