package api

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// objectBytes is what an object of a module takes, rendered: a Deployment as charts write them has more.
const objectBytes = 2048

// trackerCosts is a fleet whose clusters and modules are there before the trackers are.
type trackerCosts struct {
	*costs
	dir string
}

// TestCostOfTrackers is the measuring half of bench/trackers, which looks at the store and so lives here. Without
// TOWLINE_BENCH_TRACKERS=CLUSTERSxMODULESxOBJECTS it runs once, small, and judges nothing.
func TestCostOfTrackers(t *testing.T) {
	size, rounds, judged := fleetSize{20, 10, 10}, 1, false
	if s := os.Getenv("TOWLINE_BENCH_TRACKERS"); s != "" {
		if _, err := fmt.Sscanf(s, "%dx%dx%d", &size.clusters, &size.modules, &size.objects); err != nil {
			t.Fatalf("TOWLINE_BENCH_TRACKERS=%q: %v", s, err)
		}
		rounds, judged = 5, true
	}
	c := &trackerCosts{&costs{T: t, world: &world{size: size}, rounds: rounds, judged: judged}, t.TempDir()}
	c.open()
	without := c.onDisk()
	c.open() // as a hub that has just started: what it takes to write them is not of them
	idle := c.held()
	c.add(func(ops []store.Op) []store.Op { return ops[clusterOps:] })
	with := c.onDisk()
	c.open()
	live := c.held()
	c.profile()
	c.start()
	if err := c.store.Close(); err != nil {
		t.Fatal(err)
	}
	disk := float64(with-without) / float64(c.trackers())
	heap := float64(live-min(live, idle)) / float64(c.trackers())
	rendered := float64(size.objects * objectBytes)
	c.judge(fmt.Sprintf("on the disk, for each of %d trackers", c.trackers()), disk, 300, "B")
	c.judge(fmt.Sprintf("on the disk over %d objects of %d B", size.objects, objectBytes), 100*disk/rendered, 2, "%")
	c.judge("in the hub's heap, for each", heap, 1024, "B")
}

func (c *trackerCosts) trackers() int { return c.size.clusters * c.size.modules }

// clusterOps are the records of a cluster that clusterRecords has before those of its modules.
const clusterOps = 3

// open opens the store, and fills it with all but the trackers if it is new.
func (c *trackerCosts) open() {
	c.Helper()
	b, err := etcd.Open(c.Context(), etcd.Options{Dir: c.dir, UnsafeNoFsync: true})
	if err != nil {
		c.Fatal(err)
	}
	first := c.bundles == nil
	e, err := engine.Open(c.Context(), b, engine.Options{})
	if err != nil {
		c.Fatal(err)
	}
	c.backend, c.store = b, &storetest.Store{Engine: e}
	if c.api, err = New(Options{Store: c.store.As(store.API), Bundles: bundle.New(c.store.Blobs()), Sessions: everybody{}, Registry: newRegistry(c.T, c.store),
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		c.Fatal(err)
	}
	if first {
		if err := c.fillModules(c.T); err != nil {
			c.Fatal(err)
		}
		c.add(func(ops []store.Op) []store.Op { return ops[:clusterOps] })
	}
}

// settle makes writes enough that etcd keeps none of those before them in memory to send to other members.
func (c *trackerCosts) settle() {
	c.Helper()
	for i := range 2500 {
		if _, err := c.store.Update(c.Context(), func(w store.Writer) error {
			w.Put(store.GuardKey("settle"), &storev1.Counter{Value: uint64(i)})
			return nil
		}); err != nil {
			c.Fatal(err)
		}
	}
}

// add writes a part of the records of each cluster.
func (c *trackerCosts) add(part func([]store.Op) []store.Op) {
	c.Helper()
	if err := c.fillClusters(c.T, part); err != nil {
		c.Fatal(err)
	}
	if _, err := c.store.Barrier(c.Context()); err != nil {
		c.Fatal(err)
	}
}

// held is the live heap once everything is read that a hub keeps of trackers.
func (c *trackerCosts) held() uint64 {
	c.Helper()
	c.readAll(c.api.counts, c.store)
	return liveHeap()
}

// readAll brings the sums, and which module is assigned where, to the present.
func (c *trackerCosts) readAll(sums *counts.Index, s store.Store) {
	c.Helper()
	if err := sums.Read(c.Context(), func(*counts.View) error { return nil }); err != nil {
		c.Fatal(err)
	}
	listings := record.NewListings(s)
	if err := s.View(c.Context(), 0, func(r store.Reader) error {
		listings.Waiting(r, clusterName(0), moduleName(0))
		return nil
	}); err != nil {
		c.Fatal(err)
	}
	runtime.KeepAlive(listings)
}

// start measures what a hub reads at its start against a range of the same keys.
func (c *trackerCosts) start() {
	c.Helper()
	var hub, bare time.Duration
	for range c.rounds {
		began := cpu()
		kvs, _, err := backend.RangeAll(c.Context(), c.backend, backend.RangeQuery{Prefix: "r/", Limit: backend.ListPage})
		if err != nil {
			c.Fatal(err)
		}
		if took := cpu() - began; bare == 0 || took < bare {
			bare = took
		}
		if len(kvs) < 2*c.trackers() {
			c.Fatalf("%d keys of %d trackers", len(kvs), c.trackers())
		}
		kvs = nil
		runtime.GC()
		began = cpu()
		e, err := engine.Open(c.Context(), unclosed{c.backend}, engine.Options{})
		if err != nil {
			c.Fatal(err)
		}
		s := e.As(store.API)
		c.readAll(counts.New(s, func(fleet.ClusterName) bool { return false }), s)
		if took := cpu() - began; hub == 0 || took < hub {
			hub = took
		}
		if err := e.Close(); err != nil {
			c.Fatal(err)
		}
		runtime.GC()
	}
	c.Logf("a start reads all in %v CPU; a range of the same keys takes %v", hub, bare)
	c.judge("a start over a bare range of the same keys", float64(hub)/float64(bare), 4, "×")
}

// unclosed is a backend that a store of the measuring does not close.
type unclosed struct{ backend.Backend }

func (unclosed) Close() error { return nil }

// onDisk closes the store and returns what its database has in it, without what is free.
func (c *trackerCosts) onDisk() int64 {
	c.Helper()
	c.settle()
	if err := c.store.Close(); err != nil {
		c.Fatal(err)
	}
	c.store, c.backend, c.api = nil, nil, nil
	from, err := bbolt.Open(filepath.Join(c.dir, "etcd", "member", "snap", "db"), 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	path := filepath.Join(c.TempDir(), "compact")
	to, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		c.Fatal(err)
	}
	if err := bbolt.Compact(to, from, 1<<24); err != nil {
		c.Fatal(err)
	}
	size := int64(0)
	if err := to.View(func(tx *bbolt.Tx) error {
		size = tx.Size() // not that of the file, which grows by many pages at a time
		return nil
	}); err != nil {
		c.Fatal(err)
	}
	free := int64(to.Stats().FreePageN) * int64(to.Info().PageSize)
	if err := to.Close(); err != nil {
		c.Fatal(err)
	}
	return size - free
}

func (c *trackerCosts) profile() {
	path := os.Getenv("TOWLINE_BENCH_PROFILE")
	if path == "" {
		return
	}
	f, err := os.Create(path)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	runtime.GC()
	if err := pprof.Lookup("heap").WriteTo(f, 0); err != nil {
		c.Fatal(err)
	}
}
