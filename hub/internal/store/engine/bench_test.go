package engine_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/hub/internal/store/storetest"
)

// benchStore is an etcd that syncs to disk, and the store on it.
func benchStore(b *testing.B) (store.Store, backend.Backend) {
	keys, err := etcd.Open(b.Context(), etcd.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	return storetest.On(b, keys, engine.Options{}), keys
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkUpdate alternates an Update with a bare put of as many bytes and reports the ratio of the medians.
func BenchmarkUpdate(b *testing.B) {
	s, keys := benchStore(b)
	ctx := context.Background()
	value := make([]byte, 256)
	var ours, bare []time.Duration
	n := 0
	for b.Loop() {
		n++
		start := time.Now()
		if _, _, err := keys.Commit(ctx, []backend.Part{{Then: []backend.Op{{Key: "x/bare", Value: value}}}}); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, time.Since(start))
		start = time.Now()
		if _, err := s.Update(ctx, func(w store.Writer) error {
			w.Get("revisions/p/m/1")
			w.Put("revisions/p/m/1", &storev1.RevisionRecord{Artifact: fmt.Appendf(nil, "%256d", n)})
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		ours = append(ours, time.Since(start))
	}
	b.ReportMetric(float64(median(ours).Microseconds()), "update-p50-us")
	b.ReportMetric(float64(median(bare).Microseconds()), "bare-p50-us")
	b.ReportMetric(float64(median(ours))/float64(median(bare)), "ratio")
}

// BenchmarkUpdate120 alternates an Update of 120 keys with a bare transaction of as many.
func BenchmarkUpdate120(b *testing.B) {
	s, keys := benchStore(b)
	var ours, bare []time.Duration
	n := 0
	for b.Loop() {
		n++
		part := backend.Part{}
		for i := range store.MaxOps {
			part.Then = append(part.Then, backend.Op{Key: fmt.Sprintf("x/p/m/%03d", i), Value: fmt.Appendf(nil, "%256d", n)})
		}
		start := time.Now()
		if _, _, err := keys.Commit(context.Background(), []backend.Part{part}); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, time.Since(start))
		start = time.Now()
		if _, err := s.Update(context.Background(), func(w store.Writer) error {
			for i := range store.MaxOps {
				w.Put(fmt.Sprintf("revisions/p/m/%03d", i), &storev1.RevisionRecord{Artifact: fmt.Appendf(nil, "%256d", n)})
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		ours = append(ours, time.Since(start))
	}
	b.ReportMetric(store.MaxOps/median(ours).Seconds(), "keys/s")
	b.ReportMetric(store.MaxOps/median(bare).Seconds(), "bare-keys/s")
	b.ReportMetric(float64(median(ours))/float64(median(bare)), "ratio")
}

// BenchmarkBatch has 1,000 sessions that report one key each.
func BenchmarkBatch(b *testing.B) {
	s, _ := benchStore(b)
	rev, err := s.Update(context.Background(), func(w store.Writer) error {
		w.Put("sessions/c", &storev1.SessionRecord{Epoch: 1})
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	fence := store.Fence{Key: "sessions/c", ModRevision: rev}
	const sessions = 1000
	names := make([]string, sessions)
	for i := range names {
		names[i] = fmt.Sprintf("revisions/p/m/%04d", i)
	}
	round := 0
	cpu := cpuTime()
	for b.Loop() {
		round++
		var wg sync.WaitGroup
		for i := range sessions {
			wg.Go(func() {
				value := make([]byte, 256)
				value[0], value[1] = byte(round), byte(round>>8)
				op := store.Op{Key: names[i], Value: &storev1.RevisionRecord{Artifact: value}}
				if _, err := s.Batch(context.Background(), fence, []store.Op{op}); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(sessions*float64(b.N)/b.Elapsed().Seconds(), "reports/s")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(sessions*b.N), "cpu-us/report")
}

// BenchmarkView reads one record.
func BenchmarkView(b *testing.B) {
	s := storetest.New(b)
	if _, err := s.Update(b.Context(), func(w store.Writer) error { w.Put("meta/uid/n", &storev1.Counter{Value: 1}); return nil }); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.View(context.Background(), 0, func(r store.Reader) error {
			r.Get("meta/uid/n")
			return nil
		})
	}
}

// BenchmarkOpen starts an empty store.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		dir, err := os.MkdirTemp("", "store")
		if err != nil {
			b.Fatal(err)
		}
		keys, err := etcd.Open(b.Context(), etcd.Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		s, err := engine.Open(b.Context(), keys, engine.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Close()
		_ = os.RemoveAll(dir)
		b.StartTimer()
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFeed changes one record that none, one or a hundred follow, each until it has the change. What counts is
// cpu-us/change: go test -run - -bench Feed -benchtime 2000x ./hub/internal/store/engine
func BenchmarkFeed(b *testing.B) {
	for _, followers := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("followers=%d", followers), func(b *testing.B) {
			keys, err := etcd.Open(b.Context(), etcd.Options{Dir: b.TempDir(), UnsafeNoFsync: true})
			if err != nil {
				b.Fatal(err)
			}
			s := storetest.On(b, keys, engine.Options{})
			changes := s.Feed(store.ClusterPrefix)
			got, start := make(chan int64, followers), int64(0)
			if start, err = s.Barrier(b.Context()); err != nil {
				b.Fatal(err)
			}
			for range followers {
				go func() {
					_ = changes.Follow(b.Context(), start, func(p feed.Page[store.Change]) error {
						p.Each(func(revision int64, c store.Change) bool { got <- revision; return true })
						return nil
					})
				}()
			}
			n, cpu := 0, cpuTime()
			for b.Loop() {
				n++
				if _, err := s.Update(b.Context(), func(w store.Writer) error {
					w.Put(store.ClusterKey("c"), &storev1.ClusterRecord{Uid: fmt.Sprint(n)})
					return nil
				}); err != nil {
					b.Fatal(err)
				}
				for range followers {
					<-got
				}
			}
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n), "cpu-us/change")
			cpu, quiet := cpuTime(), time.After(time.Second)
			<-quiet
			b.ReportMetric(100*(cpuTime()-cpu).Seconds(), "idle-cpu-%")
		})
	}
}
