package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestCostOfLists is the measuring half of bench/lists, which looks at the store beside the lists and so lives here. Without
// TOWLINE_BENCH_LISTS=CLUSTERSxMODULESxOBJECTS it runs once, small, and judges nothing that the machine has a part in.
func TestCostOfLists(t *testing.T) {
	size, rounds, judged := fleetSize{20, 10, 70}, 1, false // states of more than 64 objects are compressed
	if s := os.Getenv("TOWLINE_BENCH_LISTS"); s != "" {
		if _, err := fmt.Sscanf(s, "%dx%dx%d", &size.clusters, &size.modules, &size.objects); err != nil {
			t.Fatalf("TOWLINE_BENCH_LISTS=%q: %v", s, err)
		}
		rounds, judged = 9, true
	}
	c := &costs{T: t, world: newWorld(t, size), rounds: rounds, judged: judged}
	c.pages()
	c.filtered()
	c.byName()
	c.idle()
	c.reach()
	c.heap()
}

type costs struct {
	*testing.T
	*world
	rounds int
	judged bool
}

// judge prints a figure beside its goal.
func (c *costs) judge(what string, got, limit float64, unit string) {
	c.Helper()
	c.Logf("%-58s %10.2f %-8s goal %g", what, got, unit, limit)
	if c.judged && got > limit {
		c.Errorf("%s: %.2f %s, goal %g", what, got, unit, limit)
	}
}

// cpu is what this process has used: hub, store, and the measuring itself.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// best is the least CPU of some rounds: what the others took more is the work of others.
func (c *costs) best(fns ...func()) []time.Duration {
	out := make([]time.Duration, len(fns))
	for _, fn := range fns {
		fn() // warm
	}
	for range c.rounds {
		for i, fn := range fns {
			runtime.GC()
			before := cpu()
			fn()
			if took := cpu() - before; out[i] == 0 || took < out[i] {
				out[i] = took
			}
		}
	}
	return out
}

const pageOf = 500

// pages measures a page of each kind against a range read of as many records out of the store.
func (c *costs) pages() {
	ctx := c.Context()
	for _, k := range []struct {
		what, prefix string
		list         func() (proto.Message, int, error)
	}{
		{"modules", store.ModulePrefix, func() (proto.Message, int, error) {
			r, err := c.api.ListModules(ctx, &towlinev1.ListModulesRequest{PageSize: pageOf})
			return r, len(r.GetModules()), err
		}},
		{"clusters", store.ClusterPrefix, func() (proto.Message, int, error) {
			r, err := c.api.ListClusters(ctx, &towlinev1.ListClustersRequest{PageSize: pageOf})
			return r, len(r.GetClusters()), err
		}},
		{"trackers", store.ObservedPrefix, func() (proto.Message, int, error) {
			r, err := c.api.ListTrackers(ctx, &towlinev1.ListTrackersRequest{PageSize: pageOf})
			return r, len(r.GetTrackers()), err
		}},
		{"objects", store.ObservedPrefix, func() (proto.Message, int, error) {
			r, err := c.api.ListObjects(ctx, &towlinev1.ListObjectsRequest{PageSize: pageOf})
			return r, len(r.GetObjects()), err
		}},
	} {
		rows := 0
		const times = 5
		took := c.best(func() {
			for range times {
				m, n, err := k.list()
				if err != nil {
					c.Fatal(err)
				}
				rows = n
				c.marshal(m)
			}
		}, func() {
			for range times {
				c.rangeRead(k.prefix, pageOf)
			}
		})
		c.Logf("a page of %d %s: %v CPU; range read: %v", rows, k.what, took[0]/times, took[1]/times)
		c.judge("a page of "+k.what+" over a range read", float64(took[0])/float64(took[1]), 3, "×")
	}
}

func (c *costs) marshal(m proto.Message) {
	c.Helper()
	if _, err := proto.Marshal(m); err != nil {
		c.Fatal(err)
	}
}

// rangeRead reads and decodes records of the store under a prefix.
func (c *costs) rangeRead(prefix string, n int) {
	c.Helper()
	page, err := c.backend.Range(c.Context(), backend.RangeQuery{Prefix: "r/" + prefix, Limit: n})
	if err != nil {
		c.Fatal(err)
	}
	for _, kv := range page.KVs[:min(n, len(page.KVs))] {
		key := kv.Key[len("r/"):]
		env, err := envelope.Unseal(key, kv.Value)
		if err != nil {
			c.Fatal(err)
		}
		payload := env.GetPayload()
		if envelope.Schema(env.GetSchema()) == envelope.Short {
			payload, err = store.ClassOf(key).Lengthen(key, payload)
		}
		if err = errors.Join(err, proto.Unmarshal(payload, store.NewRecord(key))); err != nil {
			c.Fatal(err)
		}
	}
}

// filtered measures a list of what drifts.
func (c *costs) filtered() {
	took := c.best(func() {
		r, err := c.api.ListObjects(c.Context(), &towlinev1.ListObjectsRequest{Filter: &towlinev1.ObjectFilter{Drift: "*"}, PageSize: pageOf, Total: true})
		if err != nil || len(r.GetObjects()) != c.drifting || int(r.GetTotal()) != c.drifting {
			c.Fatalf("%d of %d rows, want %d: %v", len(r.GetObjects()), r.GetTotal(), c.drifting, err)
		}
		c.marshal(r)
	})
	c.judge(fmt.Sprintf("get objects --drift: %d of %d rows", c.drifting, c.size.rows()), took[0].Seconds()*1000, 10, "ms CPU")
}

// byName measures a list of one object of one module in every tenth cluster.
func (c *costs) byName() {
	f := &towlinev1.ObjectFilter{Kind: "ConfigMap", Name: c.entries(3)[0].ID.Name, ClusterSelector: "region=r3"}
	want := c.size.clusters / 10
	took := c.best(func() {
		r, err := c.api.ListObjects(c.Context(), &towlinev1.ListObjectsRequest{Filter: f, PageSize: pageOf})
		if err != nil || len(r.GetObjects()) != want {
			c.Fatalf("%d rows, want %d: %v", len(r.GetObjects()), want, err)
		}
		c.marshal(r)
	})
	c.judge(fmt.Sprintf("get objects by name: %d of %d rows", want, c.size.rows()), took[0].Seconds()*1000, 10, "ms CPU")
}

// clusterStream is a watch of clusters whose client takes everything at once.
type clusterStream struct {
	grpc.ServerStream
	ctx    context.Context
	synced chan struct{}
	sent   chan<- struct{} // one for each row after the first list
	past   bool
}

func (s *clusterStream) Context() context.Context     { return s.ctx }
func (s *clusterStream) SetHeader(metadata.MD) error  { return nil }
func (s *clusterStream) SendHeader(metadata.MD) error { return nil }

func (s *clusterStream) Send(m *towlinev1.WatchClustersResponse) error {
	if m.GetType() == eventSynced {
		s.past = true
		close(s.synced)
		return nil
	}
	if s.past {
		s.sent <- struct{}{}
	}
	return nil
}

// watch begins n watches of all clusters, and returns what tells of each change that one was sent, and what ends them.
func (c *costs) watch(n int) (<-chan struct{}, func()) {
	ctx, cancel := context.WithCancel(c.Context())
	sent, done := make(chan struct{}, 10*n), make(chan error, n)
	for range n {
		s := &clusterStream{ctx: ctx, synced: make(chan struct{}), sent: sent}
		go func() { done <- c.api.WatchClusters(&towlinev1.WatchClustersRequest{}, s) }()
		<-s.synced
	}
	return sent, func() {
		cancel()
		for range n {
			<-done
		}
	}
}

func (c *costs) watches() int {
	if c.judged {
		return 100
	}
	return 3
}

// idle measures watches to which nothing happens.
func (c *costs) idle() {
	rest := 10 * time.Millisecond
	if c.judged {
		rest = 5 * time.Second
	}
	quiet := func() time.Duration {
		runtime.GC()
		before := cpu()
		<-time.After(rest)
		return cpu() - before
	}
	alone := quiet()
	_, stop := c.watch(c.watches())
	defer stop()
	watched := quiet()
	c.judge(fmt.Sprintf("%d idle watches", c.watches()), 100*float64(max(0, watched-alone))/float64(rest), 1, "% core")
}

// reach measures how a change of one cluster reaches one watch, and many.
func (c *costs) reach() {
	changes := 3
	if c.judged {
		changes = 10
	}
	cost := func(n int) time.Duration {
		sent, stop := c.watch(n)
		defer stop()
		runtime.GC()
		before := cpu()
		for range changes {
			c.change("c0005", "default/m003")
			for range n {
				c.await(sent)
			}
		}
		return (cpu() - before) / time.Duration(changes)
	}
	one, many := cost(1), cost(c.watches())
	for range c.rounds / 3 {
		one, many = min(one, cost(1)), min(many, cost(c.watches()))
	}
	c.Logf("one cluster changes: %v CPU with 1 watch, %v with %d", one, many, c.watches())
	c.judge("one changed cluster reaches all, over one watch", float64(many)/float64(one), 3, "×")
}

// await takes what a watch was sent.
func (c *costs) await(sent <-chan struct{}) {
	c.Helper()
	select {
	case <-sent:
	case <-time.After(time.Minute):
		c.Fatal("a watch is not told of the change")
	}
}

// change has a cluster report something of a module, so that its row in a list of clusters changes.
func (c *costs) change(name fleet.ClusterName, module string) {
	c.Helper()
	c.drift = !c.drift
	if _, err := c.store.Update(c.Context(), func(w store.Writer) error {
		key := store.ObservedPrefix + string(name) + "/" + module
		o, _, _ := store.Get[*storev1.ObservedRecord](w, key)
		st, err := wire.SyncStatusFromProto(o.GetStatus())
		if err != nil {
			return err
		}
		st.States[0] = fleet.UnpackState(packed(c.drift))
		next := proto.CloneOf(o)
		next.Status = wire.SyncStatusToProto(st)
		w.Put(key, next)
		return nil
	}); err != nil {
		c.Fatal(err)
	}
}

// heap lists everything, page by page, and measures what lives meanwhile: with a page in hand, and at most what making it took.
// It collects between pages only. A collection counts what is allocated while it marks, dead or alive, and over a heap of a
// gigabyte it marks for a second: one that runs beside the lists measures how fast they are.
func (c *costs) heap() {
	before := liveHeap()
	began, started := cpu(), time.Now()
	trackers, objects, held, page := c.everyPage()
	took, wall := cpu()-began, time.Since(started)
	held = max(held, before) - before
	c.Logf("%d trackers and %d objects page by page: %v CPU, %v; hub heap %d MB before; with a page in hand %d KB more, to make one at most %d KB",
		trackers, objects, took, wall, before>>20, held>>10, page>>10)
	if want := c.size.clusters * c.size.modules; trackers != want || objects < min(c.size.rows(), maxListed) {
		c.Errorf("%d trackers, %d objects; want %d and %d", trackers, objects, want, c.size.rows())
	}
	c.judge("heap over the idle hub's, while it is listed whole", float64(held+page)/(1<<20), 64, "MB")
}

// maxListed ends the listing of objects: what comes after costs as much as what came before.
const maxListed = 2_000_000

// everyPage counts the rows of all pages, and measures the live heap with some of the pages in hand, and the most that any of them
// allocated.
func (c *costs) everyPage() (trackers, objects int, held, page uint64) {
	const measured = 40 // one of so many pages is in hand during a collection
	pages := 0
	list := func(next func() (proto.Message, error)) {
		before := allocated()
		r, err := next()
		if err != nil {
			c.Fatal(err)
		}
		page = max(page, allocated()-before)
		if pages++; pages%measured == 1 {
			held = max(held, liveHeap())
			runtime.KeepAlive(r)
		}
	}
	for token, more := "", true; more; more = token != "" {
		list(func() (proto.Message, error) {
			r, err := c.api.ListTrackers(c.Context(), &towlinev1.ListTrackersRequest{PageSize: maxPage, PageToken: token})
			trackers, token = trackers+len(r.GetTrackers()), r.GetNextPageToken()
			return r, err
		})
	}
	for token, more := "", true; more && objects < maxListed; more = token != "" {
		list(func() (proto.Message, error) {
			r, err := c.api.ListObjects(c.Context(), &towlinev1.ListObjectsRequest{PageSize: maxPage, PageToken: token})
			objects, token = objects+len(r.GetObjects()), r.GetNextPageToken()
			return r, err
		})
	}
	return trackers, objects, held, page
}

// liveHeap is what two collections leave: the first may have been under way, or have left finalizers to run.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	return metric("/gc/heap/live:bytes")
}

// allocated is what was ever allocated.
func allocated() uint64 { return metric("/gc/heap/allocs:bytes") }

func metric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// everybody is connected.
type everybody struct{ away }

func (everybody) Connected(fleet.ClusterName) bool { return true }
func (everybody) Lost(fleet.ClusterName) time.Time { return time.Time{} }

func (everybody) LastSeen(fleet.ClusterName) (time.Time, bool) { return time.Now(), true }

func packed(drifts bool) byte {
	s := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	if drifts {
		s.Sync, s.Drift = fleet.SyncOutOfSync, fleet.DriftDrifted
	}
	return s.Pack()
}

var began = timestamppb.New(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))

func clusterName(i int) fleet.ClusterName { return fleet.ClusterName(fmt.Sprintf("c%04d", i)) }

func moduleName(i int) fleet.ModuleRef {
	return fleet.ModuleRef{Project: fleet.DefaultProject, Name: fmt.Sprintf("m%03d", i)}
}
