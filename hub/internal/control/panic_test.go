package control

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// brokenSource and brokenSessions have bugs.
type brokenSource struct{}

func (brokenSource) Fetch(context.Context, string, *towlinev1.Source) (source.Artifact, error) {
	panic("of the source")
}

type brokenSessions struct{ noSessions }

func (brokenSessions) Connected(fleet.ClusterName) bool { panic("of the sessions") }

// A bug that a module runs into is an error of that module: what sets it off is stored, so that a hub which ended with it
// would end at each start.
func TestPanicIsAnErrorOfOneKey(t *testing.T) {
	key := store.ModuleKey(shop)
	for name, tc := range map[string]struct {
		begin func(*leader)
		run   func(*leader) (again bool)
		where string
	}{
		"source": {
			begin: func(l *leader) {
				l.o.Source = brokenSource{}
				pending := rolloutRecord(1, string(rollout.Pending))
				pending.Rollout.Revision = 0
				l.put(func(w store.Writer) {
					w.Put(store.ModuleKey(shop), moduleRecord())
					w.Put(rolloutKey(shop, pending), pending)
				})
			},
			run:   func(l *leader) bool { return l.runResolve(l.t.Context(), key) > 0 },
			where: "brokenSource.Fetch",
		},
		"rollout": {
			begin: func(l *leader) {
				l.fleetOf("a")
				l.state(shop).reset()
				l.o.Sessions = brokenSessions{}
			},
			run:   func(l *leader) bool { return l.runModule(l.t.Context(), key) > 0 },
			where: "brokenSessions.Connected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			var log bytes.Buffer
			l.o.Log = slog.New(slog.NewTextHandler(&log, nil))
			tc.begin(l)
			for range 2 {
				if !tc.run(l) {
					t.Error("it is not tried again")
				}
			}
			if !strings.Contains(log.String(), tc.where) {
				t.Errorf("the log does not say where it was:\n%s", log.String())
			}
			l.o.Source, l.o.Sessions = oneFile{}, noSessions{}
			if tc.run(l) || l.runModule(t.Context(), key) > 0 || l.Trouble(shop) != nil {
				t.Errorf("without the bug it does not go on: %v", l.Trouble(shop))
			}
		})
	}
}

// brokenStore has a bug while it is set off, which is told.
type brokenStore struct {
	store.Store
	off  atomic.Bool
	fell chan struct{}
}

func (s *brokenStore) fall() {
	if s.off.Load() {
		select {
		case s.fell <- struct{}{}:
		default:
		}
		panic("of the store")
	}
}

func (s *brokenStore) View(ctx context.Context, rev int64, fn func(store.Reader) error) error {
	s.fall()
	return s.Store.View(ctx, rev, fn)
}

func (s *brokenStore) Subscribe(fn func(store.Reader), prefixes ...string) store.Subscription {
	return s.Store.Subscribe(func(r store.Reader) {
		if fn != nil {
			fn(brokenReader{r, s})
		}
	}, prefixes...)
}

// brokenReader has the bug where the record of a cluster's hold is read.
type brokenReader struct {
	store.Reader
	s *brokenStore
}

func (r brokenReader) Get(key string) (store.Entry, bool) {
	if strings.HasPrefix(key, store.FloorPrefix) {
		r.s.fall()
	}
	return r.Reader.Get(key)
}

// The loops that wait for changes and for time outlive a bug, too, and nothing is missed by it.
func TestPanicEndsNoLoop(t *testing.T) {
	ack := func(epoch uint64) *storev1.AckRecord {
		return &storev1.AckRecord{Epoch: epoch, Refused: []*agentv1.Refusal{{Module: shop.String(), Generation: epoch}}}
	}
	freeze := func(until time.Duration) *storev1.HoldRecord {
		return &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: "freeze-1", Kind: record.HoldFreeze, Cluster: "a", Until: timestamppb.New(time.Now().Add(until))}}
	}
	for name, run := range map[string]func(l *leader, s *brokenStore, looked func(key string)){
		"changes": func(l *leader, s *brokenStore, looked func(string)) {
			go l.watch(l.t.Context())
			looked(store.ModuleKey(shop))
			s.off.Store(true)
			l.put(func(w store.Writer) { w.Put(store.AckKey("a"), ack(1)) })
			<-s.fell
			looked(store.ModuleKey(shop)) // nobody knows what the change was about
			s.off.Store(false)
			l.put(func(w store.Writer) { w.Put(store.AckKey("a"), ack(2)) })
			looked(store.ModuleKey(shop))
		},
		"what there is": func(l *leader, s *brokenStore, looked func(string)) {
			s.off.Store(true)
			go l.watch(l.t.Context())
			<-s.fell
			looked(store.ClusterKey("a"))
			s.off.Store(false)
			l.put(func(w store.Writer) { w.Put(store.AckKey("a"), ack(1)) })
			looked(store.ModuleKey(shop))
		},
		"garbage": func(l *leader, s *brokenStore, _ func(string)) {
			l.o.CollectEvery = 60 * time.Millisecond
			s.off.Store(true)
			go l.collectLoop(l.t.Context())
			for range 3 {
				<-s.fell
			}
		},
		"freezes": func(l *leader, s *brokenStore, _ func(string)) {
			s.off.Store(true)
			l.put(func(w store.Writer) { w.Put(store.HoldPrefix+"freeze-1", freeze(-time.Second)) })
			go l.freezeLoop(l.t.Context())
			<-s.fell
			ended := l.all.Subscribe(nil, store.HoldPrefix)
			defer ended.Stop()
			s.off.Store(false)
			<-ended.C()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.fleetOf("a")
			s := &brokenStore{Store: l.o.Store, fell: make(chan struct{}, 1)}
			l.o.Store = s
			keys := make(chan string, 100)
			l.modules = newRunner(1, func(_ context.Context, key string) time.Duration {
				keys <- key
				return 0
			})
			go l.modules.loop(t.Context())
			run(l, s, func(key string) {
				for got := range keys {
					if got == key {
						return
					}
				}
			})
		})
	}
}
