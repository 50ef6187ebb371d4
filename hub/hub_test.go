package hub_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
	"towline.dev/towline/pkg/testkit/simagent"
)

// world is a hub on loopback with simulated agents.
type world struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	agents map[string]*simagent.Agent
	stops  map[string]func()
	ids    map[string]*simagent.Identity
	*client.Client
	stopHub func()
	listen  string
	apiAddr string
	grace   time.Duration
	options func(*hub.Options)
	ended   chan error // of the hub's run
	mortal  *mortal    // kills the hub; nil: nobody does
}

func newWorld(t *testing.T, memory bool) *world {
	return newWorldWith(t, func(o *hub.Options) { o.Memory = memory })
}

func newWorldWith(t *testing.T, options func(*hub.Options), m ...*mortal) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, dir: t.TempDir(), agents: map[string]*simagent.Agent{}, stops: map[string]func(){},
		ids: map[string]*simagent.Identity{}, listen: "127.0.0.1:0", apiAddr: "127.0.0.1:0", options: options, grace: time.Millisecond}
	if len(m) > 0 {
		w.mortal = m[0]
	}
	w.start()
	t.Cleanup(func() { w.stopHub() })
	return w
}

func (w *world) start() {
	w.t.Helper()
	agents, err := net.Listen("tcp", w.listen)
	must(w.t, err)
	people, err := net.Listen("tcp", w.apiAddr)
	must(w.t, err)
	w.listen, w.apiAddr = agents.Addr().String(), people.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	self, err := os.Executable()
	must(w.t, err)
	o := hub.Options{DataDir: w.dir, Listen: agents, API: people, NoFsync: true, Grace: w.grace, RenderCommand: []string{self, hub.RenderWorker}}
	w.options(&o)
	h, err := hub.New(ctx, o)
	must(w.t, err)
	done := make(chan error, 1)
	w.ended = done
	go func() { done <- h.Run(ctx) }()
	w.stopHub = func() {
		cancel()
		if err := <-done; err != nil && w.mortal == nil {
			w.t.Errorf("hub: %v", err)
		}
		w.stopHub = func() {}
	}
	if w.mortal != nil && w.Client != nil {
		return // calls are under way
	}
	w.Client, err = client.Dial(ctx, client.Options{Config: filepath.Join(w.dir, hub.AdminFile), DialOptions: w.mortal.dial()})
	must(w.t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// join registers a cluster and starts its agent.
func (w *world) join(name string, report func(fleet.Sync) fleet.SyncStatus, labels map[string]string) {
	w.t.Helper()
	w.enroll(name, labels)
	w.connect(name, report)
}

// enroll gives a cluster its identity.
func (w *world) enroll(name string, labels map[string]string) {
	w.t.Helper()
	got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: name, Labels: labels})
	if w.mortal != nil && status.Code(err) == codes.AlreadyExists { // the kill came after it
		got, err = w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: name, Labels: labels, Reissue: true})
	}
	must(w.t, err)
	w.redeems(name, got.GetToken(), "uid-"+name)
}

// redeems has the agent of a cluster join with its token.
func (w *world) redeems(name, token, uid string) {
	w.t.Helper()
	id, err := simagent.Join(w.ctx, w.listen, token, uid)
	for err != nil && w.mortal != nil && w.ctx.Err() == nil { // a kill cut it, perhaps after the token was used
		again, unasked := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: name, Reissue: true})
		must(w.t, unasked)
		id, err = simagent.Join(w.ctx, w.listen, again.GetToken(), uid)
	}
	must(w.t, err)
	w.ids[name] = id
}

func (w *world) connect(name string, report func(fleet.Sync) fleet.SyncStatus) {
	w.connectWith(name, simagent.Options{Report: report})
}

func (w *world) connectWith(name string, o simagent.Options) {
	w.newAgent(name, o)
	w.reconnect(name)
}

// newAgent makes the agent of a cluster, which does not run yet.
func (w *world) newAgent(name string, o simagent.Options) *simagent.Agent {
	o.Hub, o.Identity, o.Fetch = w.listen, w.ids[name], true
	w.agents[name] = simagent.New(o)
	return w.agents[name]
}

// run starts an agent; stop returns when it has ended.
func (w *world) run(a *simagent.Agent) (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// awaitCluster waits until a cluster is in one of some states.
func (w *world) awaitCluster(name string, states ...string) {
	w.t.Helper()
	for {
		err := w.watchCluster(name, states)
		if err == nil {
			return
		}
		if w.mortal == nil || w.ctx.Err() != nil {
			must(w.t, err)
		}
	}
}

func (w *world) watchCluster(name string, states []string) error {
	st, err := w.Clusters.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{Name: name})
	for err == nil {
		var m *towlinev1.WatchClustersResponse
		if m, err = st.Recv(); slices.Contains(states, m.GetCluster().GetStatus().GetState()) {
			return nil
		}
	}
	return err
}

func configMap(value string) map[string]string {
	return map[string]string{"a.yaml": fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: default}\ndata: {a: %q}\n", value)}
}

func module(name string, files map[string]string) *towlinev1.Module {
	return &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: files}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
}

func (w *world) put(m *towlinev1.Module) *towlinev1.PutModuleResponse {
	w.t.Helper()
	resp, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m})
	must(w.t, err)
	return resp
}

// await watches the newest rollout of a module until it ends.
func (w *world) await(name string, min int64) *towlinev1.Rollout {
	w.t.Helper()
	st, err := w.Rollouts.WatchRollout(w.ctx, &towlinev1.WatchRolloutRequest{Module: name, MinRevision: min})
	must(w.t, err)
	for {
		m, err := st.Recv()
		must(w.t, err)
		if m.GetEnded() {
			return m.GetRollout()
		}
	}
}

func (w *world) module(name string) *towlinev1.Module {
	w.t.Helper()
	m, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: name})
	must(w.t, err)
	return m.GetModule()
}

func TestModuleReachesEveryClusterAndIsCountedExactly(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, nil)
	}
	put := w.put(module("shop", configMap("1")))
	if put.GetSelected() != 3 || put.GetResult() != "created" {
		t.Fatalf("put: %v", put)
	}
	ro := w.await("shop", put.GetRevision())
	if ro.GetStatus().GetState() != "Succeeded" || ro.GetStatus().GetSucceeded() != 3 {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	s := w.module("shop").GetStatus()
	if s.GetHealthy() != 3 || s.GetClusters() != 3 || s.GetUpdated() != 3 || s.GetObjects() != 3 {
		t.Fatalf("status: %v", s)
	}
	objects, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{Total: true, Filter: &towlinev1.ObjectFilter{Module: "shop"}})
	must(t, err)
	if objects.GetTotal() != 3 || objects.GetObjects()[0].GetObject().GetName() != "web" {
		t.Fatalf("objects: %v", objects)
	}
}

func TestSameModuleAgainDoesNothing(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	before, err := w.Identity.GetServerInfo(w.ctx, &towlinev1.GetServerInfoRequest{})
	must(t, err)
	indexes := w.agents["a"].Indexes.Load()
	again := w.put(module("shop", configMap("1")))
	if again.GetResult() != "unchanged" || again.GetRollout() != "" {
		t.Fatalf("put again: %v", again)
	}
	after, err := w.Identity.GetServerInfo(w.ctx, &towlinev1.GetServerInfoRequest{})
	must(t, err)
	if after.GetRevision() != before.GetRevision() {
		t.Errorf("store went from %d to %d", before.GetRevision(), after.GetRevision())
	}
	if n := w.agents["a"].Indexes.Load(); n != indexes {
		t.Errorf("%d indexes sent, had %d", n, indexes)
	}
}

func TestBadSourceFailsTheRolloutAndKeepsTheOldOne(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("kind: ConfigMap\n")) }))
	t.Cleanup(srv.Close)
	bad := module("shop", nil)
	bad.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.yaml"}}
	ro := w.await("shop", w.put(bad).GetRevision())
	if ro.GetStatus().GetState() != "Failed" || ro.GetStatus().GetReason() != "SourceFailed" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	tr, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Module: "shop"}})
	must(t, err)
	if tr.GetTrackers()[0].GetRevision() != 1 || !tr.GetTrackers()[0].GetReady() {
		t.Fatalf("tracker: %v", tr.GetTrackers()[0])
	}
}

// A source that is all in the module is looked at before anything is stored: a put that could only fail says so itself.
func TestBrokenInlineSourceIsRefused(t *testing.T) {
	w := newWorld(t, true)
	bad := module("shop", map[string]string{"a.yaml": "kind: ConfigMap\n"})
	for _, dry := range []bool{true, false} {
		_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: bad, DryRun: dry})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "module shop: a.yaml:1: apiVersion is missing") {
			t.Errorf("put, dry run %v: %v", dry, err)
		}
	}
	if _, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "shop"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
	w.put(module("shop", configMap("1")))
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: bad}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("over one that is there: %v", err)
	}
	if m := w.module("shop"); m.GetMetadata().GetGeneration() != 1 {
		t.Errorf("the module is at generation %d", m.GetMetadata().GetGeneration())
	}
}

// A source elsewhere is fetched after the put. A dry run says already what would come of it, so that nothing is put beside a module
// that would fail.
func TestDryRunFetchesTheSource(t *testing.T) {
	w := newWorld(t, true)
	url, answer := silentSource(t)
	answer()
	bad := module("shop", nil)
	bad.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: url}}
	dry := &towlinev1.PutModuleRequest{Module: bad, DryRun: true}
	if _, err := w.Modules.PutModule(w.ctx, dry); err == nil || !strings.Contains(err.Error(), "module shop: ") || !strings.Contains(err.Error(), "404") {
		t.Errorf("of what is not there a dry run says %v", err)
	}
	w.await("shop", w.put(bad).GetRevision())
	if _, err := w.Modules.PutModule(w.ctx, dry); err != nil {
		t.Errorf("one that failed before, and that does not change, keeps others from being put: %v", err)
	}
}

func TestFailedSourceIsTriedAgainOnTheSamePutAndOnRetry(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	var broken atomic.Bool
	broken.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = rw.Write([]byte(configMap("1")["a.yaml"]))
	}))
	t.Cleanup(srv.Close)
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.yaml"}}
	if ro := w.await("shop", w.put(m).GetRevision()); ro.GetStatus().GetState() != "Failed" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	if again := w.put(m); again.GetRollout() != "shop/2" {
		t.Fatalf("put again: %v", again)
	}
	w.await("shop", 0)
	broken.Store(false)
	w.act(client.Word{Module: "shop", Verb: "retry"})
	if ro := w.await("shop", 0); ro.GetId() != "shop/3" || ro.GetStatus().GetState() != "Succeeded" {
		t.Fatalf("rollout: %v", ro)
	}
}

func TestDeletedModuleIsForgottenWhenEveryAgentConfirmed(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	_, err = st.Recv() // the watch has begun: what is deleted before that is not told
	must(t, err)
	_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	for {
		m, err := st.Recv()
		must(t, err)
		if m.GetType() == "DELETED" {
			break
		}
	}
	gen := w.agents["a"].Held().Generation
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if next := w.agents["a"].Held(); next.Generation <= gen || len(next.Syncs) != 1 {
		t.Errorf("generation %d after %d", next.Generation, gen)
	}
}

func TestHubRestartResumesTheRolloutAndSendsNothingTwice(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("b", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, nil)
	put := w.put(module("shop", configMap("1")))
	w.stopHub()
	w.stops["b"]()
	w.grace = 20 * time.Second
	indexes := w.agents["a"].Indexes.Load()
	w.start()
	w.connect("b", nil)
	ro := w.await("shop", put.GetRevision())
	if ro.GetStatus().GetState() != "Succeeded" || ro.GetStatus().GetSucceeded() != 2 {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	if n := w.agents["a"].Indexes.Load(); n > indexes+1 || w.agents["a"].Contents.Load() > 1 {
		t.Errorf("agent a got %d indexes (had %d), %d contents", n, indexes, w.agents["a"].Contents.Load())
	}
}

func TestClusterAwayIsDeferredAndCatchesUp(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.stops["b"]()
	w.awaitCluster("b", "Disconnected")
	ro := w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Fatalf("rollout: %v", s)
	}
	w.connect("b", nil)
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	for {
		m, err := st.Recv()
		must(t, err)
		if m.GetModule().GetStatus().GetHealthy() == 2 {
			return
		}
	}
}

// as is a client with another identity.
func (w *world) as(token string) *client.Client {
	w.t.Helper()
	config, err := clientconfig.Load(filepath.Join(w.dir, hub.AdminFile))
	must(w.t, err)
	c, err := config.Context("")
	must(w.t, err)
	out, err := client.Dial(w.ctx, client.Options{Server: w.apiAddr, CA: []byte(c.CAData), Token: token, DialOptions: w.mortal.dial()})
	must(w.t, err)
	return out
}

func TestLiveObjectIsAskedOfTheAgent(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	rows, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{})
	must(t, err)
	row := rows.GetObjects()[0]
	ask := func(change func(*towlinev1.GetLiveObjectRequest)) (string, error) {
		req := &towlinev1.GetLiveObjectRequest{Cluster: "a", Project: row.GetProject(), Module: "shop", Object: proto.CloneOf(row.GetObject())}
		if change != nil {
			change(req)
		}
		got, err := w.Trackers.GetLiveObject(w.ctx, req)
		return got.GetJson(), err
	}
	got, err := ask(nil)
	must(t, err)
	if want := fmt.Sprintf(`{"kind":"ConfigMap","metadata":{"name":%q}}`, row.GetObject().GetName()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for name, change := range map[string]func(*towlinev1.GetLiveObjectRequest){
		"another object":  func(r *towlinev1.GetLiveObjectRequest) { r.Object.Name = "kube-root-ca.crt" },
		"another version": func(r *towlinev1.GetLiveObjectRequest) { r.Object.ApiVersion = "v2" },
		"another cluster": func(r *towlinev1.GetLiveObjectRequest) { r.Cluster = "b" },
		"no name":         func(r *towlinev1.GetLiveObjectRequest) { r.Object = nil },
	} {
		if _, err := ask(change); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v, want not found", name, err)
		}
	}
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	if _, err := ask(nil); status.Code(err) != codes.Unavailable {
		t.Errorf("agent away: %v", err)
	}
}

// An agent masks what it answers; one of a version that masks less, or a broken one, shows nobody a Secret.
func TestLiveObjectOfAnAgentThatMasksNothing(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.connectWith("a", simagent.Options{Answer: func(*agentv1.Query) *agentv1.QueryResult {
		return &agentv1.QueryResult{Data: []byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"town":"Delft"},"maximum":18446744073709552000,"objects":[{"apiVersion":"v1","kind":"Secret","data":{"key":"aHVudGVyMg=="}}]}`)}
	}})
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	rows, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{})
	must(t, err)
	row := rows.GetObjects()[0]
	got, err := w.Trackers.GetLiveObject(w.ctx, &towlinev1.GetLiveObjectRequest{Cluster: "a", Project: row.GetProject(), Module: "shop", Object: row.GetObject()})
	must(t, err)
	if text := got.GetJson(); strings.Contains(text, "aHVudGVyMg") || !strings.Contains(text, "Delft") || !strings.Contains(text, "18446744073709552000") {
		t.Errorf("shown: %s", text)
	}
}
