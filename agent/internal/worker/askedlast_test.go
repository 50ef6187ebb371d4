package worker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// notingState has something happen before the state is written.
type notingState struct {
	State
	before func(name string)
}

func (s notingState) Write(ctx context.Context, name string, data []byte) error {
	s.before(name)
	return s.State.Write(ctx, name, data)
}

// pause is a point at which something waits, the first time it is there, until the test has done something.
type pause struct {
	once       sync.Once
	there, end chan struct{}
}

func newPause() *pause { return &pause{there: make(chan struct{}), end: make(chan struct{})} }

func (p *pause) wait() {
	p.once.Do(func() {
		close(p.there)
		<-p.end
	})
}

// at does something while who is at the point waits there.
func (p *pause) at(r *rig, do func()) {
	r.t.Helper()
	defer close(p.end)
	select {
	case <-p.there:
		do()
	case <-time.After(r.patience()):
		r.t.Fatal("nobody came there")
	}
}

// frozenMap is a ConfigMap that is made again to be changed.
func frozenMap(name, data string) string { return configMap(name, data) + "immutable: true\n" }

// TestEachDeleteIsAskedLast: what may be deleted is asked again right before each request, whoever sends it: the count for a budget was noted
// since, or a busy API server has asked to come again. A policy of the cluster, or a hold, that came by then stops it.
func TestEachDeleteIsAskedLast(t *testing.T) {
	const budget = "deleteBudget: {perHour: 100}\nallow: {recreate: true}\n"
	stays, both := configMap("a", "k: v"), []string{configMap("a", "k: v"), frozenMap("b", "k: v")}
	words := map[string]func(*rig){
		plan.ReasonDenied: func(r *rig) { r.m.Accept(r.accepts(budget + "kinds: [{kinds: [Secret]}]")) },
		plan.ReasonHeld: func(r *rig) {
			r.holdCluster(true)
			r.eventually("the hold is known", func() bool {
				r.m.mu.Lock()
				defer r.m.mu.Unlock()
				return r.m.workers[fleet.ModuleRef{Project: "default", Name: "shop"}].onHold.Load()
			})
		},
	}
	orders := map[string]func(*rig){
		"a drop":       func(r *rig) { r.set([]fleet.Sync{r.bundle("shop", recreate, stays)}) },
		"a removal":    func(r *rig) { r.set(nil, r.tombstone("shop", fleet.DeleteDelete)) },
		"a recreation": func(r *rig) { r.set([]fleet.Sync{r.bundle("shop", recreate, stays, frozenMap("b", "k: w"))}) },
	}
	for reason, comes := range words {
		for of, order := range orders {
			for when, sent := range map[string]int64{"while it is counted": 0, "while the API server is busy": 1} {
				t.Run(of+" "+reason+" "+when, func(t *testing.T) {
					r, p := newRig(t), newPause()
					var requests atomic.Int64
					var armed atomic.Bool
					r.answers(func(q *http.Request) *http.Response {
						if q.Method != http.MethodDelete || !strings.HasSuffix(q.URL.Path, "/configmaps/b") {
							return nil
						}
						if requests.Add(1); sent == 0 {
							return nil
						}
						p.wait()
						busy := answer(q, http.StatusTooManyRequests, "")
						busy.Header.Set("Retry-After", "1")
						return busy
					})
					r.restart(func(o *Options) {
						o.State = notingState{o.State, func(name string) {
							if name == spentName && sent == 0 && armed.Load() {
								p.wait()
							}
						}}
					})
					r.m.Accept(r.accepts(budget))
					s := r.bundle("shop", recreate, both...)
					r.set([]fleet.Sync{s})
					r.ready(s)
					uid := r.uidOf("v1", "configmaps", "b")
					armed.Store(true)
					order(r)
					p.at(r, func() { comes(r) })
					r.wait("shop", "told why b stays", func(x fleet.SyncStatus) bool {
						return x.Phase == fleet.PhaseHeld || strings.Contains(fmt.Sprintf("%+v", x), reason)
					})
					if got := r.get("v1", "configmaps", "b"); got == nil || got.GetUID() != uid || got.GetDeletionTimestamp() != nil {
						t.Errorf("it was deleted")
					}
					if n := requests.Load(); n != sent {
						t.Errorf("%d requests were sent, not %d", n, sent)
					}
				})
			}
		}
	}
}
