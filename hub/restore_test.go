package hub_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// A copy of the data directory is put back after the hub went on: its counters pass what the agents hold before they come
// back, so that numbers alone would not tell. Nothing older is sent to an agent that has seen the newer store.
func TestStoreOfACopyIsFoundOut(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.stopAll()
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, os.CopyFS(backup, os.DirFS(w.dir)))
	w.start()
	a := w.reconnect("a")
	w.reconnect("b")
	for _, v := range []string{"2", "3"} {
		w.await("shop", w.put(module("shop", configMap(v))).GetRevision())
	}
	held := a.Held()
	w.stopAll()
	must(t, os.RemoveAll(w.dir))
	must(t, os.CopyFS(w.dir, os.DirFS(backup)))
	w.start()

	// The hub goes on with its work for a cluster that joins only now.
	w.join("late", nil, map[string]string{"late": "yes"})
	for _, name := range []string{"u", "v", "w"} {
		m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"})
		m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"late"}}
		w.await(name, w.put(m).GetRevision())
	}
	w.reconnect("a")
	for range 3 {
		w.eventually(func() bool {
			said := w.cluster("a").GetStatus().GetAttention()
			return said.GetCode() == fleet.AttentionRegressed && said.GetFacts().GetDetail() != ""
		})
		if now := a.Held(); now.Generation != held.Generation || now.Digest != held.Digest || len(now.Tombstones) > 0 {
			t.Errorf("the agent was sent generation %d over %d", now.Generation, held.Generation)
		}
		w.stops["a"]()
		w.awaitCluster("a", "Disconnected")
		w.reconnect("a") // it stays so, however often the agent comes
	}

	// A person's word ends it.
	again, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "a", Reissue: true})
	must(t, err)
	w.stops["a"]()
	w.ids["a"], err = simagent.Join(w.ctx, w.listen, again.GetToken(), "uid-a")
	must(t, err)
	w.connect("a", nil)
	if got := w.cluster("a").GetStatus(); got.GetAttention() != nil {
		t.Errorf("after the new join: %v", got.GetAttention())
	}
}

// A hub with an empty store and the CA of before shows the agents that it does not know, and selects none of them.
func TestAgentsOfAnEmptiedStoreAreShown(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	held := w.agents["a"].Held()
	w.stopHub()
	must(t, os.RemoveAll(filepath.Join(w.dir, "etcd")))
	w.start()
	w.eventually(func() bool {
		list, err := w.Clusters.ListClusters(w.ctx, &towlinev1.ListClustersRequest{})
		must(t, err)
		return len(list.GetClusters()) == 1 && list.GetClusters()[0].GetStatus().GetState() == "Unregistered" &&
			list.GetClusters()[0].GetStatus().GetAttention().GetCode() == fleet.AttentionUnregistered
	})
	if got := w.put(module("web", configMap("2"))); got.GetSelected() != 0 {
		t.Errorf("a module selects %d clusters of none", got.GetSelected())
	}
	if now := w.agents["a"].Held(); now.Digest != held.Digest {
		t.Errorf("the agent was sent something by a hub that does not know it")
	}
	if _, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "b"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a cluster that nobody speaks for: %v", err)
	}
}

func (w *world) stopAll() {
	w.t.Helper()
	for _, stop := range w.stops {
		stop()
	}
	w.stopHub()
}

// reconnect lets an agent that was stopped come back with what it held.
func (w *world) reconnect(name string) *simagent.Agent {
	w.t.Helper()
	a := w.agents[name]
	w.stops[name] = w.run(a)
	w.awaitCluster(name, "Ready", "Cordoned")
	return a
}

func (w *world) cluster(name string) *towlinev1.Cluster {
	w.t.Helper()
	got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: name})
	must(w.t, err)
	return got.GetCluster()
}

// eventually looks until it is so, or the test's time is over.
func (w *world) eventually(is func() bool) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("it did not come; there is:\n%s", w.seen())
		}
	}
}

// seen is what people and agents see now, for whoever reads why a test failed.
func (w *world) seen() string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 10*time.Second)
	defer cancel()
	var out strings.Builder
	say := func(what any, err error) { fmt.Fprintf(&out, "%v %v\n", what, err) }
	clusters, err := w.Clusters.ListClusters(ctx, &towlinev1.ListClustersRequest{})
	say(clusters, err)
	modules, err := w.Modules.ListModules(ctx, &towlinev1.ListModulesRequest{})
	say(modules, err)
	rollouts, err := w.Rollouts.ListRollouts(ctx, &towlinev1.ListRolloutsRequest{})
	say(rollouts, err)
	trackers, err := w.Trackers.ListTrackers(ctx, &towlinev1.ListTrackersRequest{})
	say(trackers, err)
	holds, err := w.Modules.ListHolds(ctx, &towlinev1.ListHoldsRequest{})
	say(holds, err)
	restore, err := w.Store.GetRestore(ctx, &towlinev1.GetRestoreRequest{})
	say(restore, err)
	for name, a := range w.agents {
		fmt.Fprintf(&out, "%s has %+v\n", name, a.Held())
	}
	return out.String()
}

// What an agent has from the time that the hub's store lost may be what another module has come to list since. Who is to have it is
// known as soon as the hub knows that its store is older, or the agent joins anew, so before that lets anything go.
func TestHeirsOfALostTime(t *testing.T) {
	for name, tc := range map[string]struct{ said, met bool }{
		"it met the hub":                        {said: true, met: true},
		"it joins anew at once":                 {said: true},
		"the copy has no report of it":          {met: true},
		"it has none, and the agent joins anew": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false)
			w.enroll("c", nil)
			w.connectWith("c", simagent.Options{Mute: !tc.said})
			rev := w.put(listing("one", "a")).GetRevision()
			if tc.said {
				w.await("one", rev)
			}
			w.eventually(func() bool { return w.held("c", "one").Revision == 1 })
			w.stopAll()
			backup := filepath.Join(t.TempDir(), "backup")
			must(t, os.CopyFS(backup, os.DirFS(w.dir)))
			w.start()
			w.connect("c", nil)
			w.await("one", w.put(listing("one", "a", "m")).GetRevision())
			w.stopAll()
			must(t, os.RemoveAll(w.dir))
			must(t, os.CopyFS(w.dir, os.DirFS(backup)))
			w.start()
			if tc.met {
				w.reconnect("c")
				w.eventually(func() bool { return w.cluster("c").GetStatus().GetAttention().GetCode() == fleet.AttentionRegressed })
			}
			w.put(waiting(listing("two", "b", "m")))
			w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })

			again, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "c", Reissue: true})
			must(t, err)
			if tc.met {
				w.stops["c"]()
			}
			w.ids["c"], err = simagent.Join(w.ctx, w.listen, again.GetToken(), "uid-c")
			must(t, err)
			w.connectWith("c", simagent.Options{Mute: true})
			w.awaitHeir("c", "one", "m", "two")
			w.delete("two", false)
			w.awaitHeir("c", "one", "m", "")
		})
	}
}

// After a copy is put back, generations are given a second time. What an agent from the lost time says of its own is not said of
// what the hub means by the number, though the content is the same: the values are not.
func TestGenerationOfALostTimeIsAnother(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, map[string]string{"zone": "x"})
	bound := func() *towlinev1.Module {
		m := module("shop", configMap("${ZONE}"))
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
		return m
	}
	w.await("shop", w.put(bound()).GetRevision())
	w.stopAll()
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, os.CopyFS(backup, os.DirFS(w.dir)))
	label := func(zone string) {
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Spec: &towlinev1.ClusterSpec{},
			Metadata: &towlinev1.Metadata{Name: "a", Labels: map[string]string{"zone": zone}}}})
		must(t, err)
	}
	w.start()
	w.reconnect("a")
	before := w.agents["a"].Held().Generation
	label("y")
	w.eventually(func() bool { return w.agents["a"].Held().Generation > before })
	lost := w.held("a", "shop")
	w.stopAll()
	must(t, os.RemoveAll(w.dir))
	must(t, os.CopyFS(w.dir, os.DirFS(backup)))
	w.start()
	w.reconnect("a")
	w.eventually(func() bool { return w.cluster("a").GetStatus().GetAttention().GetCode() == fleet.AttentionRegressed })
	w.eventually(func() bool { return w.trackers(nil)[0].GetReason() == fleet.TrackerRegressed })
	if x := w.trackers(nil)[0]; x.GetLastHeard() == nil {
		t.Errorf("nothing is known of it now, and its counts are said as of now: %v", x)
	}
	label("z")
	w.eventually(func() bool { return w.trackers(nil)[0].GetGeneration() == lost.Generation })
	if x := w.trackers(nil)[0]; x.GetReady() || x.GetHealth() != "Unknown" {
		t.Errorf("it was told of zone y by a hub that is not there any more, and is to have z: %v", x)
	}
}

// etcdBackup saves an etcd of one's own by its own means.
func (w *world) etcdBackup(etcd string) (file string) {
	w.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix:" + etcd}, Context: w.ctx})
	must(w.t, err)
	from, err := c.Snapshot(w.ctx)
	must(w.t, err)
	data, err := io.ReadAll(from)
	must(w.t, errors.Join(err, from.Close(), c.Close()))
	file = filepath.Join(w.t.TempDir(), "etcd.db")
	must(w.t, os.WriteFile(file, data, 0o600))
	return file
}

// etcdFrom is an etcd that was restored by its own means.
func (w *world) etcdFrom(backup, token string) (socket string) {
	w.t.Helper()
	cfg, dir := embed.NewConfig(), filepath.Join(w.t.TempDir(), "etcd")
	if token == "" {
		token = cfg.InitialClusterToken
	}
	must(w.t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{SnapshotPath: backup, Name: cfg.Name, OutputDataDir: dir,
		PeerURLs: []string{cfg.AdvertisePeerUrls[0].String()}, InitialCluster: cfg.InitialClusterFromName(cfg.Name), InitialClusterToken: token}))
	return ownEtcdIn(w.t, dir)
}

// An etcd of one's own is restored under a hub that runs, and the hub is started again at once, as whatever watches over it does. It does not
// go on with what was under way in the backup and was aborted since, before a person has marked the store as restored; then it does what a
// restored hub does.
func TestEtcdRestoredUnderAHubIsNotDrivenBeforeItIsMarked(t *testing.T) {
	for name, token := range map[string]string{"the same cluster of etcd": "", "another cluster of etcd": "restored"} {
		t.Run(name, func(t *testing.T) {
			etcd := ownEtcd(t)
			way := newLine(t, etcd)
			w := sharing(t, way.socket)
			var ready atomic.Bool
			w.join("canary", func(s fleet.Sync) fleet.SyncStatus {
				if s.Revision == 2 && !ready.Load() {
					return applying(s)
				}
				return simagent.Ready(s)
			}, labels("canary"))
			w.join("late", nil, nil)
			w.join("gone", nil, nil)
			w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
			w.put(staged("shop", "2", canaryThenRest()))
			w.eventually(func() bool { return w.held("canary", "shop").Revision == 2 })
			backup := w.etcdBackup(etcd)
			_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop"})
			must(t, err)
			w.eventually(func() bool { return w.rolloutOf("shop").GetState() == "Aborted" })
			for _, stop := range w.stops {
				stop()
			}
			restored := w.etcdFrom(backup, token)
			way.lead(restored)
			w.goneBack()

			again := func() error {
				h, err := second(w.ctx, t, restored, func(o *hub.Options) { o.DataDir = w.dir })
				if err == nil {
					must(t, h.Close())
				}
				return err
			}
			for range 2 {
				if err := again(); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "towline-hub restore --etcd-endpoints") || !strings.Contains(err.Error(), w.dir) {
					t.Fatalf("the hub that is started again: %v", err)
				}
			}
			out, err := w.marks(restored)
			if must(t, err); !strings.Contains(out, "marked as restored") {
				t.Errorf("restore says: %s", out)
			}
			ready.Store(true)
			w.start()
			w.reconnect("canary")
			w.reconnect("late")
			w.standing("shop")
			w.eventually(func() bool { return w.rolloutOf("shop").GetSucceeded() == 1 })
			if got := w.held("late", "shop").Revision; got != 1 {
				t.Errorf("what was aborted goes on: it has revision %d", got)
			}
			w.stopAll()
			w.start() // the file is gone
		})
	}
}

// goneBack waits until the hub has ended, for its etcd went back.
func (w *world) goneBack() {
	w.t.Helper()
	select {
	case err := <-w.ended:
		if err == nil {
			w.t.Error("it ends without a word")
		}
		w.stopHub = func() {}
	case <-w.ctx.Done():
		w.t.Fatal("it goes on")
	}
}

// marks marks the store of an etcd that was restored, when whoever had the seat at the time of the backup has lost it.
func (w *world) marks(etcd string) (out string, err error) {
	w.t.Helper()
	w.eventually(func() bool {
		out, err = command(w.ctx, "restore", "--data-dir", w.t.TempDir(), "--etcd-endpoints", "unix:"+etcd)
		return err == nil || !strings.Contains(err.Error(), "until some seconds ago")
	})
	return out, err
}

// Hubs that share an etcd are told of its restore once, and all of them: one mark lets all go on. A mark of a restore before this one does not, and
// who wants no mark, for the etcd has lost its last writes only, takes the file away.
func TestOneMarkIsForAllHubsOfAnEtcd(t *testing.T) {
	etcd := ownEtcd(t)
	way := newLine(t, etcd)
	w := sharing(t, way.socket)
	w.put(module("shop", configMap("1")))
	w.stopHub()
	_, err := w.marks(etcd)
	must(t, err)
	backup := w.etcdBackup(etcd) // which says that it was restored
	w.options = func(o *hub.Options) {
		o.Memory, o.EtcdEndpoints, o.SeatTTL, o.ShareEtcd = false, []string{"unix:" + way.socket}, time.Second, true
	}
	w.start()
	w.put(module("shop", configMap("2")))
	beside := w.beside(way.socket, shared)
	restored := w.etcdFrom(backup, "")
	way.lead(restored)
	w.goneBack()
	beside.goneBack()
	start := func(dir string) error {
		h, err := second(w.ctx, t, restored, shared, caOf(w.dir), func(o *hub.Options) { o.DataDir = dir })
		if err == nil {
			must(t, h.Close())
		}
		return err
	}
	for _, dir := range []string{w.dir, beside.dir} {
		if err := start(dir); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("by a mark of before: %v", err)
		}
	}
	must(t, os.Remove(filepath.Join(w.dir, "etcd-went-back.json")))
	must(t, start(w.dir))
	_, err = w.marks(restored)
	must(t, err)
	must(t, start(beside.dir))
	must(t, start(beside.dir))
}
