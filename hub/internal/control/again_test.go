package control

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// puts has a module with the source wait for its second revision.
func (l *leader) puts(s *towlinev1.Source) {
	l.t.Helper()
	m, pending := moduleRecord(), rolloutRecord(2, string(rollout.Pending))
	m.Module.Spec.Source, pending.Rollout.Revision = s, 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), m)
		w.Put(rolloutKey(shop, pending), pending)
	})
}

func overHTTP() *towlinev1.Source {
	return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://files.example/shop.tar.gz"}}
}

// A source that is to be fetched later, because the hub has a trouble or other puts are to come, is not fetched before, whatever
// happens to its module meanwhile; and by whoever fetches such sources.
func TestSourceIsFetchedAgainInTime(t *testing.T) {
	inline := moduleSpec().Source
	tests := map[string]struct {
		source *towlinev1.Source
		why    func(*leader)
	}{
		"the store takes nothing":                {inline, func(l *leader) { l.o.Store, l.o.Source = fullStore{l.o.Store}, oneFile{} }},
		"the store takes nothing, from a server": {overHTTP(), func(l *leader) { l.o.Store, l.o.Source = fullStore{l.o.Store}, oneFile{} }},
		"other puts are to come":                 {inline, (*leader).gathers},
		"other puts are to come, from a server":  {overHTTP(), (*leader).gathers},
	}
	key := store.ModuleKey(shop)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.puts(tc.source)
			mine, other := l.resolver, l.fetcher
			if tc.source.GetHttp() != nil {
				mine, other = other, mine
			}
			l.runModule(t.Context(), key)
			if mine.entries[key] == nil || other.entries[key] != nil {
				t.Fatal("it is not asked for where such sources are fetched")
			}
			tc.why(l)
			delete(mine.entries, key)
			mine.due = nil
			mine.one(t.Context(), key)
			later := mine.entries[key]
			if later == nil || !later.at.After(time.Now()) || other.entries[key] != nil {
				t.Fatalf("to be fetched again: %v", later)
			}
			at := later.at
			for range 3 {
				l.runModule(t.Context(), key)
			}
			if l.modules.entries[key] != nil || mine.entries[key].at != at {
				t.Errorf("the module runs again: %v; fetched %v earlier", l.modules.entries[key] != nil, at.Sub(mine.entries[key].at))
			}
		})
	}
}

// A put that waits for the end of a rollout sets off no run of its module: that rollout does when it ends.
func TestQueuedPutWaitsInPeace(t *testing.T) {
	l := newLeader(t)
	l.puts(moduleSpec().Source)
	first := rolloutRecord(1, string(rollout.Progressing))
	first.Rollout.Strategy = &towlinev1.RolloutStrategy{OnSupersede: rollout.SupersedeQueue}
	l.put(func(w store.Writer) { w.Put(rolloutKey(shop, first), first) })
	key := store.ModuleKey(shop)
	l.resolver.one(t.Context(), key)
	if l.modules.entries[key] != nil || l.resolver.entries[key] != nil {
		t.Error("it is looked at again, though nothing has changed")
	}
}

// Another put is not kept waiting by the trouble that the one before it had.
func TestAnotherPutIsFetchedAtOnce(t *testing.T) {
	l := newLeader(t)
	l.puts(moduleSpec().Source)
	key := store.ModuleKey(shop)
	l.runModule(t.Context(), key)
	l.resolver.entries[key].at = time.Now().Add(time.Minute)
	next := rolloutRecord(3, string(rollout.Pending))
	next.Rollout.Revision = 0
	l.put(func(w store.Writer) { w.Put(rolloutKey(shop, next), next) })
	l.runModule(t.Context(), key)
	if at := l.resolver.entries[key].at; at.After(time.Now()) {
		t.Errorf("fetched in %v", time.Until(at))
	}
}

// gathers has the module's rollout be one of a batch of which not all puts are in.
func (l *leader) gathers() {
	l.t.Helper()
	l.put(func(w store.Writer) {
		ro := rollouts.Get(w, shop, 2)
		ro.Batch = "b"
		w.Put(store.StartKey(shop, 2), ro)
		w.Put(store.BatchKey("b"), &storev1.BatchRecord{Last: timestamppb.Now()})
	})
}

// When the last put of a batch is in, its modules are resolved at once, by those who resolve such sources: a server that hangs holds up no
// module that needs none.
func TestEndOfABatchAsksAtOnce(t *testing.T) {
	l := newLeader(t)
	l.puts(overHTTP())
	l.gathers()
	key := store.ModuleKey(shop)
	l.runModule(t.Context(), key)
	delete(l.fetcher.entries, key)
	l.fetcher.due = nil
	l.fetcher.one(t.Context(), key)
	if at := l.fetcher.entries[key].at; time.Until(at) < record.BatchPatience/2 {
		t.Fatalf("it is asked for in %s, though others are to be put", time.Until(at))
	}
	l.put(func(w store.Writer) { w.Delete(store.BatchKey("b")) })
	l.follow(store.BatchKey("b"))
	l.runModule(t.Context(), store.BatchKey("b"))
	if l.modules.entries[key] == nil {
		t.Fatal("the module is not looked at")
	}
	l.runModule(t.Context(), key)
	if l.fetcher.entries[key].at.After(time.Now()) || l.resolver.entries[key] != nil {
		t.Error("it is not asked for at once where sources of servers are fetched")
	}
}

// A batch for which no put comes any more ends by itself, as long after the newest put as is waited for it, by
// the clock of the hub that leads: that of the hub which took the put counts for nothing. A hub that begins to lead waits for it anew.
func TestBatchThatIsBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader(t)
		key := store.BatchKey("b")
		last := func(at time.Time) {
			l.put(func(w store.Writer) { w.Put(key, &storev1.BatchRecord{Last: timestamppb.New(at)}) })
		}
		open := func() (open bool) {
			l.read(func(r store.Reader) { open = record.Gathers(r, "b") })
			return open
		}
		last(time.Now())
		if again := l.runModule(t.Context(), key); again != record.BatchPatience {
			t.Errorf("looked at again in %s", again)
		}
		<-time.After(20 * time.Second)
		last(time.Now().Add(time.Hour)) // by a clock that is ahead
		if again := l.runModule(t.Context(), key); again != record.BatchPatience {
			t.Errorf("after another put: looked at again in %s", again)
		}
		<-time.After(20 * time.Second)
		if again := l.runModule(t.Context(), key); again != 10*time.Second || !open() {
			t.Errorf("in between: looked at again in %s", again)
		}
		l.gathered.reset()
		if again := l.runModule(t.Context(), key); again != record.BatchPatience || !open() {
			t.Errorf("a hub that leads anew: looked at again in %s", again)
		}
		<-time.After(record.BatchPatience)
		if again := l.runModule(t.Context(), key); again != 0 || open() {
			t.Errorf("nobody puts anything: looked at again in %s", again)
		}
		last(time.Now().Add(-time.Hour)) // of a backup, or by the clock of a hub that is behind: which of them nobody knows
		if again := l.runModule(t.Context(), key); again != record.BatchPatience || !open() {
			t.Errorf("put long ago: looked at again in %s", again)
		}
		<-time.After(record.BatchPatience)
		if again := l.runModule(t.Context(), key); again != 0 || open() {
			t.Errorf("put long ago, and nobody puts anything: looked at again in %s", again)
		}
	})
}

// A batch whose puts are all in has nobody wait to begin, and ends by itself where the deletions never come: who waits for what others have
// looks again then, and nothing that was put is broken off.
func TestBatchWhoseDeletionsNeverCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeader(t)
		key := store.BatchKey("b")
		l.waitIn(3)
		l.put(func(w store.Writer) { w.Put(key, &storev1.BatchRecord{Last: timestamppb.Now()}) })
		m := func(i int) fleet.ModuleRef {
			return fleet.ModuleRef{Project: shop.Project, Name: fmt.Sprintf("m%d", i)}
		}
		waits := func(ref fleet.ModuleRef) bool {
			waits, err := l.awaitsPuts(t.Context(), ref, 2)
			if err != nil {
				t.Fatal(err)
			}
			return waits
		}
		if !waits(m(2)) {
			t.Fatal("it does not wait for the puts")
		}
		l.put(func(w store.Writer) { w.Put(key, &storev1.BatchRecord{Last: timestamppb.Now(), Put: true}) })
		clear(l.modules.entries)
		if again := l.runModule(t.Context(), key); again != record.BatchPatience || len(l.modules.entries) != 1 || waits(m(2)) {
			t.Errorf("all puts are in: again in %s, %d are looked at", again, len(l.modules.entries))
		}
		l.waitForBatch("b", m(0), "c") // for the deletions
		<-time.After(record.BatchPatience)
		clear(l.modules.entries)
		if again := l.runModule(t.Context(), key); again != 0 {
			t.Errorf("no deletion comes: again in %s", again)
		}
		l.runModule(t.Context(), key)
		l.read(func(r store.Reader) {
			if record.Open(r, "b") || record.BrokenOff(r, "b") || len(l.modules.entries) != 1 {
				t.Errorf("open %t, broken off %t, %d are looked at again", record.Open(r, "b"), record.BrokenOff(r, "b"), len(l.modules.entries))
			}
		})
	})
}

// waitIn has so many modules wait in the batch b: m0 for its first rollout, and of the others the one before runs. Of m1 a look began it.
func (l *leader) waitIn(modules int) {
	l.t.Helper()
	for i := range modules {
		ref := fleet.ModuleRef{Project: shop.Project, Name: fmt.Sprintf("m%d", i)}
		l.put(func(w store.Writer) {
			m := moduleRecord()
			m.Module.Metadata.Name = ref.Name
			w.Put(store.ModuleKey(ref), m)
			n := int64(1)
			if i > 0 {
				runs := rolloutRecord(1, string(rollout.Progressing))
				runs.Rollout.Module = ref.Name
				w.Put(store.RolloutKey(ref, 1), runs)
				n = 2
			}
			ro := rolloutRecord(n, string(rollout.Pending))
			ro.Rollout.Module, ro.Rollout.Revision, ro.Batch = ref.Name, 0, "b"
			ro.Rollout.Metadata = &towlinev1.Metadata{Project: ref.Project}
			if i == 1 {
				ro.Fetched = l.bundle.Bytes()
			}
			w.Put(store.StartKey(ref, n), ro)
		})
	}
}

// What waits for the rest of a batch that never comes does not begin, however much that is, and what runs stays; but for the first rollout of
// a module, which lets nothing go. What a look began is looked at again. While a put comes all the same, what has not ended goes on to wait.
func TestBrokenOffBatchBeginsNothing(t *testing.T) {
	const modules = store.MaxOps/4 + 5
	l := newLeader(t)
	key := store.BatchKey("b")
	l.waitIn(modules)
	l.put(func(w store.Writer) {
		w.Put(key, &storev1.BatchRecord{Last: timestamppb.Now()})
	})
	l.runModule(t.Context(), key) // which sees it first
	ended := func() (ended int, broken bool) {
		l.read(func(r store.Reader) {
			for i := range modules {
				ref := fleet.ModuleRef{Project: shop.Project, Name: fmt.Sprintf("m%d", i)}
				last := rollouts.Last(r, ref)
				if i > 0 && rollouts.StateOf(rollouts.Get(r, ref, 1)) != rollout.Progressing {
					t.Errorf("%s: what runs has ended", ref.Name)
				}
				if said := last.GetRollout().GetStatus().GetFacts().GetDetail(); rollouts.PutsMissing(last) {
					if ended++; !strings.Contains(said, "towline rollout retry "+ref.Name) && i != 1 {
						t.Errorf("%s says %q", ref.Name, said)
					}
				}
			}
			broken = record.BrokenOff(r, "b")
		})
		return ended, broken
	}
	if err := l.breakOff(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if n, broken := ended(); n > 0 || broken {
		t.Fatalf("another put has come, and %d have ended", n)
	}
	l.gathered.of[key].seen = time.Now().Add(-record.BatchPatience)
	l.runModule(t.Context(), key)
	if n, broken := ended(); n != modules-1 || !broken {
		t.Errorf("%d of %d have ended; broken off: %v", n, modules, broken)
	}
	l.read(func(r store.Reader) {
		if record.Gathers(r, "b") || rollouts.Unresolved(r, fleet.ModuleRef{Project: shop.Project, Name: "m0"}) == nil {
			t.Error("the batch is open, or the first rollout of a module has ended")
		}
	})
	if len(l.looker.entries) != 1 {
		t.Errorf("%d modules are looked at again", len(l.looker.entries))
	}
}
