package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

func TestLinger(t *testing.T) {
	type step struct {
		after time.Duration // since the step before
		do    string        // again or ended
		span  time.Duration // then
	}
	const longest = 512 * time.Second
	for name, steps := range map[string][]step{
		"grows each time that what ended is wanted soon after": {
			{0, "again", 2 * time.Second}, {time.Minute, "ended", 2 * time.Second}, {time.Second, "again", 4 * time.Second},
			{time.Second, "ended", 4 * time.Second}, {longest - 2*time.Second, "again", 8 * time.Second}},
		"stays for what comes back late": {
			{0, "again", 2 * time.Second}, {0, "ended", 2 * time.Second}, {longest, "again", 2 * time.Second}},
		"shrinks again in calm": {
			{0, "again", 2 * time.Second}, {0, "ended", 2 * time.Second}, {0, "again", 4 * time.Second}, {0, "ended", 4 * time.Second},
			{0, "again", 8 * time.Second}, {longest, "", 4 * time.Second}, {longest - 1, "", 4 * time.Second}, {1, "", 2 * time.Second}, {longest, "", 2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := &linger{first: firstLinger}, time.Unix(0, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				switch s.do {
				case "again":
					l.again(now)
				case "ended":
					l.ended = now
				}
				if got := l.span(now); got != s.span {
					t.Errorf("step %d: %s, want %s", i, got, s.span)
				}
			}
		})
	}
	l, now := &linger{first: firstLinger}, time.Unix(0, 0)
	for range 20 {
		l.again(now)
		l.ended = now
	}
	if got := l.span(now); got != longest {
		t.Errorf("grows to %s, want %s", got, longest)
	}
	if l.forgettable(now) || !l.forgettable(now.Add(maxDoublings*longest)) {
		t.Error("what is remembered is not forgotten when it has nothing to say any more")
	}
}

// cluster is an API server in memory: it serves watches of objects, of which it never has an event.
type cluster struct {
	mu      sync.Mutex
	open    map[string]int
	opened  map[string]int
	objects map[string]string // by path and query: the initial event
	refuse  error
}

func newCluster() *cluster {
	return &cluster{open: map[string]int{}, opened: map[string]int{}, objects: map[string]string{}}
}

func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	q := r.URL.Query()
	what := r.URL.Path + "?" + q.Get("labelSelector") + q.Get("fieldSelector")
	c.opened[what]++
	c.open[what]++
	body, stream := io.Pipe()
	first := c.objects[what] + `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
	go func() { _, _ = stream.Write([]byte(first)) }()
	end := sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open[what]--; c.open[what] == 0 {
			delete(c.open, what)
		}
		_ = body.CloseWithError(io.ErrUnexpectedEOF)
	})
	context.AfterFunc(r.Context(), end)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: &streamBody{body, end}, Request: r}, nil
}

type streamBody struct {
	io.Reader
	end func()
}

func (b *streamBody) Close() error {
	b.end()
	return nil
}

// watched are what is watched now, once each.
func (c *cluster) watched(t *testing.T) string {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, n := range c.open {
		if n > 1 {
			t.Errorf("%s: %d watches", what, n)
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(c.open)), " ")
}

// watching runs a watcher of the cluster.
func (c *cluster) watching(t *testing.T, o Options) *Watcher {
	t.Helper()
	o.Config, o.HubID = &rest.Config{Host: "http://cluster", Transport: c}, "h"
	o.Record = func(fleet.ObjectID) *apply.Record { return nil }
	if o.Changed == nil {
		o.Changed = func(fleet.ObjectID, string) {}
	}
	o.Gone = func(fleet.ObjectID, string, plan.Outcome) {}
	o.Synced = func(apply.Resource) {}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return w
}

var (
	configMaps = apply.Resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}
	oneOfThem  = Single{configMaps, Key{"n", "a"}}
)

const (
	allOfThem = "/api/v1/configmaps?towline.dev/hub=h"
	justOne   = "/api/v1/namespaces/n/configmaps?metadata.name=a"
)

// TestScenario09WatchesEndWithTheirLastUser: a watch begins though there is no object, stays while anybody uses it, and ends within
// 5 s of its last user; who comes back before that finds it as it was.
func TestScenario09WatchesEndWithTheirLastUser(t *testing.T) {
	for name, tt := range map[string]struct {
		use, leave func(*Watcher)
		what       string
	}{
		"a kind":        {func(w *Watcher) { w.Acquire(configMaps) }, func(w *Watcher) { w.Release(configMaps) }, allOfThem},
		"single object": {func(w *Watcher) { w.AcquireOne(oneOfThem) }, func(w *Watcher) { w.ReleaseOne(oneOfThem) }, justOne},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				w := c.watching(t, Options{})
				tt.use(w)
				tt.use(w)
				tt.leave(w)
				pass(time.Minute)
				if got := c.watched(t); got != tt.what {
					t.Errorf("with a user left %q is watched, want %q", got, tt.what)
				}
				opened := c.opened[tt.what]
				tt.leave(w)
				pass(time.Second)
				tt.use(w)
				pass(time.Second)
				if got := c.watched(t); got != tt.what || c.opened[tt.what] != opened {
					t.Errorf("who is back at once finds %q watched, begun %d times more", got, c.opened[tt.what]-opened)
				}
				tt.leave(w)
				pass(5 * time.Second)
				if got := c.watched(t); got != "" {
					t.Errorf("%q is watched without a user", got)
				}
				tt.use(w)
				synctest.Wait() // until it is open: what is not is ended at once
				tt.leave(w)
				pass(3 * time.Second)
				if got := c.watched(t); got != tt.what {
					t.Errorf("%q is watched; what came back right after its end stays longer", got)
				}
				pass(2 * time.Second)
				if got := c.watched(t); got != "" {
					t.Errorf("%q is watched without a user", got)
				}
			})
		})
	}
}

// A kind that cannot be watched has nothing to keep, and nobody to tell that it is not watched.
func TestNobodyWaitsForAKindThatIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.refuse = errors.New("connection refused")
		w := c.watching(t, Options{})
		w.Acquire(configMaps)
		synctest.Wait()
		w.Release(configMaps)
		if n := len(w.all()); n != 0 || w.Behind() || len(w.Settling()) > 0 {
			t.Errorf("%d kinds are left, behind %t, settling %v", n, w.Behind(), w.Settling())
		}
		c.mu.Lock()
		c.refuse = nil
		c.mu.Unlock()
		w.Acquire(configMaps)
		pass(time.Second)
		if got := c.watched(t); got != allOfThem || !w.Synced(configMaps) {
			t.Errorf("%q is watched", got)
		}
		w.Release(configMaps)
		if len(w.Kinds()) != 0 {
			t.Error("a kind without a user counts as watched, and may not be when it is looked at")
		}
	})
}

// Each reader of a single object judges it by its own rules, on one watch.
func TestSingleObjectIsJudgedByEachReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.objects[justOne] = fmt.Sprintf(`{"type":"ADDED","object":%s}`+"\n", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u1","resourceVersion":"7","managedFields":[{"manager":"m"}]},"data":{"state":"bad"}}`)
		w := c.watching(t, Options{})
		w.AcquireOne(oneOfThem)
		synctest.Wait()
		rules, err := health.Compile([]health.Rule{{Kind: "ConfigMap", Degraded: "object.data.state == 'bad'"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			rules *health.Rules
			want  fleet.Health
		}{{nil, fleet.HealthHealthy}, {rules, fleet.HealthDegraded}} {
			if f, known := w.JudgeOne(oneOfThem, tt.rules); !known || f == nil || f.Health != tt.want || f.UID != "u1" {
				t.Errorf("%+v, %t; want %s", f, known, tt.want)
			}
		}
		if got := c.watched(t); got != justOne {
			t.Errorf("%q is watched", got)
		}
	})
}

// Who wrote its status is known when it is judged later, and is no part of what is read.
func TestSingleObjectIsJudgedByWhoWroteIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for manager, want := range map[string]fleet.Health{
			`{"manager":"nginx","subresource":"status","fieldsV1":{"f:status":{}}}`: fleet.HealthProgressing,
			`{"manager":"kubectl","fieldsV1":{"f:spec":{}}}`:                        fleet.HealthHealthy,
		} {
			c := newCluster()
			c.objects[justOne] = fmt.Sprintf(`{"type":"ADDED","object":{"kind":"Ingress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"a","namespace":"n","uid":"u1",
				"resourceVersion":"7","creationTimestamp":%q,"managedFields":[%s]},"status":{"loadBalancer":{}}}}`, time.Now().UTC().Format(time.RFC3339), manager) + "\n"
			w := c.watching(t, Options{})
			w.AcquireOne(oneOfThem)
			pass(time.Hour)
			if f, known := w.JudgeOne(oneOfThem, nil); !known || f == nil || f.Health != want {
				t.Errorf("%s: %+v, %t; want %s", manager, f, known, want)
			}
			read, _ := w.ReadOne(oneOfThem)
			if meta, _ := read["metadata"].(map[string]any); meta["managedFields"] != nil || meta["uid"] != "u1" {
				t.Errorf("%s: read with %v", manager, meta)
			}
		}
	})
}

// What a list does not have any more stays readable until all of the list is read, and is gone then at one stroke.
func TestListTakesTheOldOnesPlaceAtOneStroke(t *testing.T) {
	l := newListing()
	l.begin()
	l.list(t, "10", object("a", 5), object("b", 6))
	stop, torn := make(chan struct{}), make(chan int, 1)
	go func() {
		for {
			select {
			case <-stop:
				torn <- 0
				return
			default:
			}
			l.mu.Lock()
			n := len(l.prints)
			l.mu.Unlock()
			if n != 2 {
				torn <- n
				return
			}
		}
	}()
	for i := range uint64(100) {
		l.begin()
		l.list(t, fmt.Sprint(20+i), object("b", 6), object(fmt.Sprint("c", i), 20+i))
	}
	close(stop)
	if n := <-torn; n != 0 {
		t.Errorf("%d objects were seen in the middle of a list, want 2 always", n)
	}
}
