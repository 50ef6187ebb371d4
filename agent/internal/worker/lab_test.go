package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// labConfig reaches a real API server, or skips the test.
func labConfig(t *testing.T) *rest.Config { return labtest.Config(t) }

// counter counts requests by method, watches apart.
type counter struct {
	next   http.RoundTripper
	mu     sync.Mutex
	counts map[string]int
	paths  []string
	// trouble, if set, is asked before each request; an error is what becomes of it, and an inPlace the answer.
	trouble func(*http.Request) error
}

// upset has requests fail or hang; nil: no more.
func (c *counter) upset(trouble func(*http.Request) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = trouble
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := r.Method
	if r.URL.Query().Get("watch") != "" {
		verb = "WATCH"
	}
	c.mu.Lock()
	c.counts[verb]++
	c.paths = append(c.paths, verb+" "+r.URL.Path)
	trouble := c.trouble
	c.mu.Unlock()
	if trouble != nil {
		err := trouble(r)
		if x := (inPlace{}); errors.As(err, &x) {
			return answer(r, x.code, x.body), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return c.next.RoundTrip(r)
}

// inPlace is an answer in place of the API server's.
type inPlace struct {
	code int
	body string
}

func (inPlace) Error() string { return "is an answer" }

// take is what was counted since the last take.
func (c *counter) take() (map[string]int, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, paths := c.counts, c.paths
	c.counts, c.paths = map[string]int{}, nil
	return counts, paths
}

// memory is Contents and State.
type memory struct {
	mu       sync.Mutex
	objects  map[fleet.Digest][]byte
	bundles  map[fleet.Digest]fleet.Bundle
	policies map[fleet.Digest][]fleet.Policy
	how      *fleet.Substitution // of all
	rules    map[fleet.Digest][]fleet.HealthRule
	watch    map[fleet.Digest][]fleet.WatchedObject
	late     map[fleet.Digest][]fleet.LateBinding
	order    map[fleet.Digest]fleet.PolicySet // waves, and what does not count
	files    map[string][]byte
	writes   atomic.Int64
	fail     atomic.Bool
}

func newMemory() *memory {
	return &memory{objects: map[fleet.Digest][]byte{}, bundles: map[fleet.Digest]fleet.Bundle{},
		policies: map[fleet.Digest][]fleet.Policy{}, rules: map[fleet.Digest][]fleet.HealthRule{}, watch: map[fleet.Digest][]fleet.WatchedObject{}, late: map[fleet.Digest][]fleet.LateBinding{}, order: map[fleet.Digest]fleet.PolicySet{}, files: map[string][]byte{}}
}

func (s *memory) Bundle(d fleet.Digest) (fleet.Bundle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.bundles[d]
	if !ok {
		return b, fleet.ErrNotFound
	}
	return b, nil
}

func (s *memory) Object(d fleet.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.objects[d]
	if !ok {
		return nil, fleet.ErrNotFound
	}
	return b, nil
}

func (s *memory) Policies(d fleet.Digest) (fleet.PolicySet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fleet.PolicySet{Policies: s.policies[d], HealthRules: s.rules[d], Watch: s.watch[d], Substitution: s.how, Bindings: s.late[d],
		Waves: s.order[d].Waves, Uncounted: s.order[d].Uncounted}, nil
}

func (s *memory) Read(_ context.Context, name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.files[name]
	if !ok {
		return nil, fleet.ErrNotFound
	}
	return b, nil
}

func (s *memory) Write(_ context.Context, name string, data []byte) error {
	if s.fail.Load() {
		return fmt.Errorf("disk full")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes.Add(1)
	s.files[name] = data
	return nil
}

func (s *memory) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	return nil
}

func (s *memory) List(_ context.Context, prefix string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for n := range s.files {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out, nil
}

// newestName is where the newest part of the inventory is noted: beside the state, and a crash takes back neither.
const newestName = "newest"

func (s *memory) noteNewest(part string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[newestName] = []byte(part)
}

// rig is a manager on the lab's cluster, in a namespace of its own, with the statuses that it reports.
type rig struct {
	t      *testing.T
	ns     string
	store  *memory
	client dynamic.Interface
	config *rest.Config
	count  *counter
	hub    string
	home   string   // the agent's own namespace
	hubs   []string // of the lineages, the last one of now
	m      *Manager
	stop   func()

	mu       sync.Mutex
	statuses map[fleet.ModuleRef]fleet.SyncStatus
	news     chan struct{}
	gen      uint64
	refused  []fleet.ModuleRef
	current  fleet.Assemblage
	starts   uint64
	loud     bool // log everything
	recheck  time.Duration
	landing  time.Duration
	heard    transcript
	options  []func(*Options)
	conns    connections
	judges   atomic.Bool // what is reported is compared with what there is, see truthful
}

// connections are those to the API server.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

func (c *connections) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[net.Conn]bool{}
	}
	c.open[conn] = true
	return conn, nil
}

// cut ends all that are open.
func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
	clear(c.open)
}

// transcript is what was said: every status and every line of the log.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (x *transcript) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.Write(b)
}

func (x *transcript) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

var rigs atomic.Int64

// openFence lets every write through; it is the epoch.
type openFence uint64

func (f openFence) Open(context.Context) error { return nil }

func (f openFence) Check() error { return nil }

func (f openFence) Covered() context.Context { return context.Background() }

func (f openFence) Prove(context.Context) error { return nil }

func (f openFence) Ahead(context.Context) {}

func (f openFence) Epoch() uint64 { return uint64(f) }

// newRig is for a test that runs beside others: it has a namespace, a hub and kinds of its own.
func newRig(t *testing.T) *rig {
	t.Helper()
	config := labConfig(t)
	t.Parallel()
	return newRigOn(t, config)
}

// aloneRig is for a test that others would disturb, because it counts requests that come with any change of the kinds in
// the cluster or looks at times, or that disturbs others, because it breaks discovery.
func aloneRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, labConfig(t))
}

func newRigOn(t *testing.T, config *rest.Config) *rig {
	t.Helper()
	plain, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	n := fmt.Sprintf("t%d-%d", time.Now().UnixNano()%1e10, rigs.Add(1))
	r := &rig{t: t, ns: n, landing: time.Nanosecond, store: newMemory(), client: plain, hub: "hub-" + n, count: &counter{counts: map[string]int{}},
		statuses: map[fleet.ModuleRef]fleet.SyncStatus{}, news: make(chan struct{}, 1), config: config}
	r.config.Dial = r.conns.dial
	r.hubs = []string{r.hub}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		r.count.next = next
		return r.count
	})
	r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": n}})
	r.start()
	r.eventually("a new cluster was searched", func() bool { return r.m.searching() == "" })
	r.count.take()
	t.Cleanup(func() {
		r.stop()
		_ = plain.Resource(gvr("v1", "namespaces")).Delete(context.Background(), n, metav1.DeleteOptions{})
	})
	return r
}

// start runs a manager on the rig's state, as after a restart.
func (r *rig) start() {
	r.t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	if r.loud {
		level = slog.LevelDebug
	}
	r.starts++
	newest, _ := r.store.Read(context.Background(), newestName)
	o := Options{Newest: string(newest), NoteNewest: r.store.noteNewest, landing: r.landing, Recheck: r.recheck, Fence: openFence(r.starts), Config: r.config, Contents: r.store, State: r.store, HubID: r.hub, Hubs: r.hubs, ClusterUID: "uid-1", Namespace: r.home,
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(r.t.Output(), &r.heard), &slog.HandlerOptions{Level: level})),
		Report: func(s fleet.SyncStatus) {
			_, _ = fmt.Fprintf(&r.heard, "%+v\n", s)
			r.mu.Lock()
			r.statuses[s.Module] = s
			r.mu.Unlock()
			dirty.Poke(r.news)
		}}
	for _, fn := range r.options {
		fn(&o)
	}
	m, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	r.m = m
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
	}
}

func gvr(apiVersion, resource string) schema.GroupVersionResource {
	gv, _ := schema.ParseGroupVersion(apiVersion)
	return gv.WithResource(resource)
}

func (r *rig) res(apiVersion, resource, ns string) dynamic.ResourceInterface {
	if ns == "" {
		return r.client.Resource(gvr(apiVersion, resource))
	}
	return r.client.Resource(gvr(apiVersion, resource)).Namespace(ns)
}

func (r *rig) create(apiVersion, resource, ns string, obj map[string]any) {
	r.t.Helper()
	_, err := r.res(apiVersion, resource, ns).Create(context.Background(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{FieldManager: "somebody"})
	if err != nil {
		r.t.Fatal(err)
	}
}

// clusterScoped makes an object outside of the rig's namespace, for as long as the test runs.
func (r *rig) clusterScoped(resource, text string) {
	r.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "$NS", r.ns)), &u.Object); err != nil {
		r.t.Fatal(err)
	}
	r.create(u.GetAPIVersion(), resource, "", u.Object)
	r.t.Cleanup(func() {
		_ = r.res(u.GetAPIVersion(), resource, "").Delete(context.Background(), u.GetName(), metav1.DeleteOptions{})
	})
}

func (r *rig) get(apiVersion, resource, name string) *unstructured.Unstructured {
	r.t.Helper()
	u, err := r.res(apiVersion, resource, r.ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return u
}

func (r *rig) patch(apiVersion, resource, name, manager, body string, sub ...string) {
	r.t.Helper()
	_, err := r.res(apiVersion, resource, r.ns).Patch(context.Background(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}, sub...)
	if err != nil {
		r.t.Fatal(err)
	}
}

// bundle stores objects and returns a sync of a module that lists them.
func (r *rig) bundle(module string, policies []fleet.Policy, objects ...string) fleet.Sync {
	r.t.Helper()
	var b fleet.Bundle
	text := ""
	for _, o := range objects {
		o = strings.ReplaceAll(o, "$NS", r.ns)
		raw, err := yaml.YAMLToJSON([]byte(o))
		if err != nil {
			r.t.Fatalf("%v in %s", err, o)
		}
		obj, err := manifest.Decode(raw)
		if err != nil {
			r.t.Fatal(err)
		}
		raw = manifest.Canonical(obj) // as a hub sends it
		u := unstructured.Unstructured{Object: obj}
		gvk := u.GroupVersionKind()
		e := fleet.BundleEntry{Digest: fleet.DigestOf(raw), Version: gvk.Version,
			ID: fleet.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName()}}
		if wave := u.GetAnnotations()[fleet.WaveAnnotation]; wave != "" {
			_, _ = fmt.Sscan(wave, &e.Wave)
		}
		r.store.mu.Lock()
		r.store.objects[e.Digest] = raw
		r.store.mu.Unlock()
		b.Entries = append(b.Entries, e)
		text += e.Digest.String()
	}
	slices.SortFunc(b.Entries, func(a, b fleet.BundleEntry) int { return a.ID.Compare(b.ID) })
	b.Digest = fleet.DigestOf([]byte(text))
	encoded, _ := json.Marshal(policies)
	r.gen++
	s := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: module}, Generation: r.gen, Bundle: b.Digest,
		Policies: fleet.DigestOf(encoded), Objects: len(b.Entries), Lineage: r.lineage()}
	r.store.mu.Lock()
	r.store.bundles[b.Digest], r.store.policies[s.Policies] = b, policies
	r.store.mu.Unlock()
	return s
}

// set makes syncs and tombstones the whole of what is desired.
func (r *rig) set(syncs []fleet.Sync, tombstones ...fleet.Tombstone) {
	r.current = fleet.Assemblage{Generation: r.gen, Syncs: slices.Clone(syncs), Tombstones: slices.Clone(tombstones), Lineage: r.lineage(), Refused: r.refused}
	r.m.Set(r.current, nil)
}

// tombstone takes a module away.
func (r *rig) tombstone(module, policy string) fleet.Tombstone {
	r.gen++
	return fleet.Tombstone{Module: fleet.ModuleRef{Project: "default", Name: module}, Generation: r.gen, Policy: policy, Lineage: r.lineage()}
}

func (r *rig) lineage() uint64 { return uint64(len(r.hubs)) }

// rejoin runs the manager on for a hub that was joined anew, and that counts from one.
func (r *rig) rejoin(hub string) {
	r.t.Helper()
	r.stop()
	r.hub, r.hubs, r.gen = hub, append(r.hubs, hub), 0
	r.start()
}

// wait returns the module's status once it is as asked for.
func (r *rig) wait(module, what string, ok func(fleet.SyncStatus) bool) fleet.SyncStatus {
	r.t.Helper()
	deadline := time.After(r.patience())
	ref := fleet.ModuleRef{Project: "default", Name: module}
	for {
		r.mu.Lock()
		s := r.statuses[ref]
		r.mu.Unlock()
		if s.Module == ref && ok(s) {
			return s
		}
		select {
		case <-r.news:
		case <-deadline:
			r.t.Fatalf("module %s: not %s in time; status %+v", module, what, s)
		}
	}
}

// ready waits until the sync is applied and healthy.
func (r *rig) ready(s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(s.Module.Name, "ready", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation })
}

// decided waits until a sync is ready or has failed.
func (r *rig) decided(s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(s.Module.Name, "decided", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (x.Ready || x.Phase == fleet.PhaseFailed)
	})
}

// neverFails gives the agent a sync, which is to be ready without having failed before.
func (r *rig) neverFails(what string, s fleet.Sync) {
	r.t.Helper()
	r.set([]fleet.Sync{s})
	if x := r.decided(s); x.Phase == fleet.PhaseFailed {
		r.t.Errorf("%s: %s: %s", what, x.Reason, x.Message)
		r.ready(s)
	}
}

// eventually waits for a condition in the cluster.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("not after %s: %s; statuses %+v", patience, what, r.statuses)
		}
	}
}

func configMap(name, data string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: $NS}\ndata: {" + data + "}\n"
}

func deployment(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: $NS, labels: {app: %[1]s}}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: main, image: "nginx:1"}]}
`, name, replicas)
}

// patience is how long anything may take that is expected to happen, also on a machine that has much to do: a namespace
// with objects in it goes after some tens of seconds, and where kinds come and go meanwhile its controller tries again after up to a minute.
const patience = 3 * time.Minute

func (r *rig) patience() time.Duration {
	if os.Getenv("KUBELAB_SCALE") != "" {
		return 10 * time.Minute
	}
	return patience
}
