package control

import (
	"context"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// between is a backend in which something happens before every commit.
type between struct {
	backend.Backend
	happens func()
}

func (b *between) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if b.happens != nil {
		b.happens()
	}
	return b.Backend.Commit(ctx, parts)
}

// A deleted module with a history that is larger than a transaction is forgotten in several. A module that takes its name in between,
// as when the hub is killed there, begins behind the numbers of which anything is left: it must not be aborted by what a person said
// of another module's rollout 1, nor be given what a step of that one says.
func TestHistoryThatIsHalfForgottenIsNoOneElses(t *testing.T) {
	b := &between{Backend: memory.New()}
	l := newLeaderOn(t, b)
	const newest = 150
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Deleting = fleet.DeleteDelete
		w.Put(store.ModuleKey(shop), m)
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.VerbKey(shop, 1, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbAbort}})
		w.Put(store.StepKey(shop, newest, 1), &storev1.StepRecord{Generation: 9, Revision: 1, Clusters: []string{"a"}})
	})
	for n := int64(1); n <= newest; n++ {
		l.put(func(w store.Writer) {
			w.Put(store.RolloutKey(shop, n), rolloutRecord(n, string(rollout.Succeeded)))
			w.Put(store.ChunkKey(shop, n, 0), &storev1.RolloutChunk{})
		})
	}
	looks := 0
	b.happens = func() {
		looks++
		if err := l.all.View(t.Context(), 0, func(r store.Reader) error {
			next := rollouts.Newest(r, shop) + 1
			for _, prefix := range []string{store.RolloutPrefix, store.VerbPrefix, store.StepPrefix, store.ChunkPrefix} {
				r.Scan(prefix+shop.String()+"/", func(e store.Entry) bool {
					if n, _ := store.SplitNumber(e.Key); n >= next {
						t.Errorf("the next rollout would be %d, and %s is left", next, e.Key)
						return false
					}
					return true
				})
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	l.must(l.forgetModule(t.Context(), shop, ""))
	if looks < 3 {
		t.Errorf("%d commits, want several", looks)
	}
}

// Between the look at what is left of a deleted module and its end, another one is put under the name and deleted, too. What was put
// of that is not left behind without a module, as a rollout that waits for ever, and that the next module of the name begins with.
func TestForgettingIsOfOneModule(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	deleted := func(uid string) *storev1.ModuleRecord {
		m := moduleRecord()
		m.Deleting, m.Module.Metadata.Uid = fleet.DeleteDelete, uid
		return m
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), deleted("one"))
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded)))
	})
	b.happens = func() {
		if _, err := l.all.Update(t.Context(), func(w store.Writer) error {
			m := deleted("two")
			m.FirstRollout, m.FirstRevision = 2, 1
			w.Put(store.ModuleKey(shop), m)
			w.Put(store.StartKey(shop, 2), rolloutRecord(2, string(rollout.Pending)))
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	l.must(l.reconcileDeleting(t.Context(), shop, deleted("one")))
	l.read(func(r store.Reader) {
		_, module := r.Get(store.ModuleKey(shop))
		if _, waits := r.Get(store.StartKey(shop, 2)); waits && !module {
			t.Error("a rollout waits of which there is no module")
		}
	})
	l.must(l.reconcileDeleting(t.Context(), shop, deleted("two")))
	l.read(func(r store.Reader) {
		for _, prefix := range []string{store.ModulePrefix, store.StartPrefix, store.RolloutPrefix} {
			r.Scan(prefix, func(e store.Entry) bool { t.Error("left: " + e.Key); return true })
		}
	})
}

// What an agent left is in the audit once, also where the hub cannot forget at once that it said so.
func TestWhatWasLeftIsNotedOnce(t *testing.T) {
	l := newLeaderOn(t, memory.New())
	deleted := moduleRecord()
	deleted.Deleting = fleet.DeleteDelete
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), deleted)
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: tomb(3)})
		w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(fleet.SyncStatus{Module: shop, Generation: 3,
			Phase: fleet.PhaseRemoved, Message: "kept: Namespace shop"})})
	})
	var notes []string
	ctx, cancel := context.WithCancel(t.Context())
	l.o.Audit = func(_ context.Context, e *towlinev1.AuditEntry) {
		notes = append(notes, e.GetDetail())
		cancel() // so that nothing is forgotten
	}
	if err := l.reconcileDeleting(ctx, shop, deleted); err == nil {
		t.Fatal("all is forgotten already")
	}
	l.must(l.reconcileDeleting(t.Context(), shop, deleted))
	if len(notes) != 1 || notes[0] != "in a; kept: Namespace shop" {
		t.Errorf("noted %q", notes)
	}
	l.read(func(r store.Reader) {
		if _, found := r.Get(store.ModuleKey(shop)); found {
			t.Error("the module is there still")
		}
	})
}
