package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// behind stands before an API server, and makes it one of several that is behind the others: of what the store has taken since lag, it shows nothing
// to a watch, nor to whoever asks for what is no older than some version. Writes, and what is asked for as of now, are of the store, as with a
// real one whose watch cache lags.
type behind struct {
	next http.RoundTripper
	// old: it knows of no watch that begins with a list, as one before Kubernetes 1.34.
	old bool

	mu      sync.Mutex
	asOf    uint64                    // the newest version that it shows; 0: it is not behind
	caught  chan struct{}             // closed when it is not behind any more
	streams map[*laggingStream]string // and where each is of
}

// behind puts such a server before the agent, which starts anew.
func (r *rig) behind(old bool) *behind {
	r.t.Helper()
	r.stop()
	b := &behind{old: old, caught: make(chan struct{}), streams: map[*laggingStream]string{}}
	close(b.caught)
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		b.next = next
		return b
	})
	r.start()
	return b
}

// lag has the server fall behind from now on.
func (b *behind) lag(r *rig) {
	r.t.Helper()
	list, err := r.res("v1", "configmaps", r.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asOf, b.caught = apply.ParseVersion(list.GetResourceVersion()), make(chan struct{})
}

// catchUp has it show everything.
func (b *behind) catchUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asOf != 0 {
		close(b.caught)
	}
	b.asOf = 0
}

// cut ends all watches, as when an API server ends and another one of the same address is asked from then on.
func (b *behind) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.streams {
		s.end()
	}
	clear(b.streams)
}

// watched reports that a resource is.
func (b *behind) watched(resource string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(b.streams)), resource)
}

func (b *behind) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	b.mu.Lock()
	asOf, version := b.asOf, q.Get("resourceVersion")
	b.mu.Unlock()
	initial := q.Get("sendInitialEvents") == "true"
	switch {
	case r.Method != http.MethodGet:
		return b.next.RoundTrip(r)
	case initial && b.old:
		return answer(r, 422, statusBody(422, metav1.StatusReasonInvalid, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")), nil
	case initial && asOf != 0 && version != "":
		return b.listed(r, q, asOf)
	case q.Get("watch") != "":
		return b.lagging(b.next.RoundTrip(r))
	case asOf != 0 && (version == "0" || version != "" && q.Get("limit") == ""):
		q.Set("resourceVersion", fmt.Sprint(asOf))
		q.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
		return b.next.RoundTrip(with(r, q))
	}
	return b.next.RoundTrip(r)
}

func with(r *http.Request, q url.Values) *http.Request {
	r = r.Clone(r.Context())
	r.URL.RawQuery = q.Encode()
	return r
}

// listed is a watch that begins with a list as of a version.
func (b *behind) listed(r *http.Request, q url.Values, asOf uint64) (*http.Response, error) {
	list, watch := url.Values{"labelSelector": q["labelSelector"], "fieldSelector": q["fieldSelector"]}, url.Values{}
	for name, value := range q {
		if name != "sendInitialEvents" && name != "resourceVersionMatch" {
			watch[name] = value
		}
	}
	list.Set("resourceVersion", fmt.Sprint(asOf))
	list.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	watch.Set("resourceVersion", fmt.Sprint(asOf))
	is, err := b.next.RoundTrip(with(r, list))
	if err != nil || is.StatusCode != http.StatusOK {
		return is, err
	}
	defer is.Body.Close()
	var there struct {
		APIVersion, Kind string
		Items            []map[string]any
	}
	if err := json.NewDecoder(is.Body).Decode(&there); err != nil {
		return nil, err
	}
	of, events := strings.TrimSuffix(there.Kind, "List"), &bytes.Buffer{}
	event := func(kind string, object map[string]any) {
		object["apiVersion"], object["kind"] = there.APIVersion, of
		raw, _ := json.Marshal(object)
		fmt.Fprintf(events, "{\"type\":%q,\"object\":%s}\n", kind, raw)
	}
	for _, object := range there.Items {
		event("ADDED", object)
	}
	event("BOOKMARK", map[string]any{"metadata": map[string]any{"resourceVersion": fmt.Sprint(asOf),
		"annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}})
	stream, err := b.lagging(b.next.RoundTrip(with(r, watch)))
	if err == nil {
		stream.Body.(*laggingStream).rest = events.Bytes()
	}
	return stream, err
}

// lagging is the answer to a watch, which brings what comes after asOf when the server has caught up.
func (b *behind) lagging(a *http.Response, err error) (*http.Response, error) {
	if err != nil || a.StatusCode != http.StatusOK {
		return a, err
	}
	s := &laggingStream{b: b, body: a.Body, lines: bufio.NewReader(a.Body), ended: make(chan struct{})}
	a.Body = s
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[s] = path.Base(a.Request.URL.Path)
	return a, nil
}

type laggingStream struct {
	b     *behind
	body  io.Closer
	lines *bufio.Reader
	rest  []byte
	once  sync.Once
	ended chan struct{}
}

func (s *laggingStream) Read(to []byte) (int, error) {
	if len(s.rest) == 0 {
		line, err := s.lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		var event struct{ Object metav1.PartialObjectMetadata }
		_ = json.Unmarshal(line, &event)
		s.b.mu.Lock()
		late, caught := s.b.asOf != 0 && apply.ParseVersion(event.Object.ResourceVersion) > s.b.asOf, s.b.caught
		s.b.mu.Unlock()
		if late {
			select {
			case <-caught:
			case <-s.ended:
				return 0, io.ErrUnexpectedEOF
			}
		}
		s.rest = line
	}
	n := copy(to, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *laggingStream) end() {
	s.once.Do(func() { close(s.ended) })
	_ = s.body.Close()
}

func (s *laggingStream) Close() error {
	s.b.mu.Lock()
	delete(s.b.streams, s)
	s.b.mu.Unlock()
	s.end()
	return nil
}

// An API server ends right after it has answered a write to an object of a kind that a definition makes, and before its watch has told of that; the
// next watch is with another one, which is behind. That is no store which was restored from an older copy.
func TestServerThatIsBehindIsNoRestoredStore(t *testing.T) {
	for name, old := range map[string]bool{"its watches begin with a list": false, "they do not": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.define("widgets", "Widget", "v1")
			var restored atomic.Int64
			r.options = append(r.options, func(o *Options) { o.Restored = func() { restored.Add(1) } })
			b := r.behind(old)
			widget := func(k string) {
				t.Helper()
				s := r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Widget\nmetadata: {name: a, namespace: $NS}\nspec: {k: "+k+"}\n")
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			is := func() string {
				k, _, _ := unstructured.NestedString(r.get(r.group()+"/v1", "widgets", "a").Object, "spec", "k")
				return k
			}
			widget("one")
			b.lag(r)
			widget("two")
			b.cut()
			r.eventually("it is watched again", func() bool { return b.watched("widgets") })
			b.catchUp()
			r.patch(r.group()+"/v1", "widgets", "a", "somebody", `{"spec":{"k":"wrong"}}`)
			r.eventually("what happens is seen", func() bool { return is() == "two" })
			if restored.Load() != 0 || strings.Contains(r.heard.String(), "not in the cluster any more") {
				t.Error("a server that is behind was taken for a store that was restored")
			}
		})
	}
}

// The watches are with an API server that is behind: an operator has made what is dropped the owner of what stays, in a namespace or out of any, and
// they have not told of it.
func TestOwnerOfWhichNoWatchHasToldYet(t *testing.T) {
	for name, tc := range map[string]struct{ owner, apiVersion, resource string }{
		"in a namespace": {configMap("owner", "k: v"), "v1", "configmaps"},
		"in none":        {"apiVersion: $NS.example.com/v1\nkind: Tenant\nmetadata: {name: owner}\n", "$NS.example.com/v1", "tenants"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			apiVersion, space := strings.ReplaceAll(tc.apiVersion, "$NS", r.ns), r.ns
			if tc.resource == "tenants" {
				r.clusterScoped("customresourcedefinitions", tenants)
				r.eventually("the kind is served", func() bool {
					_, err := r.res(apiVersion, tc.resource, "").List(context.Background(), metav1.ListOptions{})
					return err == nil
				})
				space = ""
			}
			owner := func() *unstructured.Unstructured {
				u, err := r.res(apiVersion, tc.resource, space).Get(context.Background(), "owner", metav1.GetOptions{})
				if err != nil {
					return nil
				}
				return u
			}
			b := r.behind(false)
			s := r.bundle("shop", nil, tc.owner, certificate("b2xk"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			uid := r.uidOf("v1", "secrets", "s")
			b.lag(r)
			u := owner()
			r.patch("v1", "secrets", "s", "operator", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":"owner","uid":%q}]}}`,
				apiVersion, u.GetKind(), u.GetUID()))
			next := r.bundle("shop", nil, certificate("b2xk"))
			r.set([]fleet.Sync{next})
			r.eventually("the owner is gone", func() bool { return owner() == nil })
			r.collected()
			if u := r.get("v1", "secrets", "s"); u == nil || u.GetUID() != uid || len(u.GetOwnerReferences()) > 0 {
				t.Errorf("the secret is %v", u)
			}
		})
	}
}

// ownedWhileBehind has the owner of a listed Secret go while the watches are with an API server that is behind and have not told that it is its owner,
// and each request meets an answer, or nil, in place of the API server's, from when the owner is to go. The Secret stays as it is.
func ownedWhileBehind(t *testing.T, from func(r *rig) (meets func(*http.Request) error)) {
	r := newRig(t)
	b := r.behind(false)
	s := r.bundle("shop", nil, configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	b.lag(r)
	r.patch("v1", "secrets", "s", "operator", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`,
		r.uidOf("v1", "configmaps", "owner")))
	var met atomic.Int64
	meets := from(r)
	r.count.upset(func(q *http.Request) error {
		err := meets(q)
		if err != nil {
			met.Add(1)
		}
		return err
	})
	r.set([]fleet.Sync{r.bundle("shop", nil, certificate("b2xk"))})
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if met.Load() == 0 {
		t.Fatal("nobody was asked")
	}
	if u := r.get("v1", "secrets", "s"); u == nil || u.GetUID() != uid || len(u.GetOwnerReferences()) > 0 {
		t.Errorf("the secret is %v", u)
	}
}

// Who owns what is to stay is asked of an API server that has just started, and refuses everybody, or does not serve the kind.
func TestOwnerOfWhichAnAPIServerDoesNotTellYet(t *testing.T) {
	for name, says := range map[string]inPlace{
		"it refuses":              {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"may not","code":403}`},
		"it does not know a path": {http.StatusNotFound, "404 page not found\n"},
	} {
		t.Run(name, func(t *testing.T) {
			ownedWhileBehind(t, func(r *rig) func(*http.Request) error {
				var asked atomic.Int64
				return func(q *http.Request) error {
					if q.Method == http.MethodGet && q.URL.Path == "/api/v1/namespaces/"+r.ns+"/secrets" && q.URL.Query().Get("watch") == "" && asked.Add(1) == 1 {
						return says
					}
					return nil
				}
			})
		})
	}
}

// Which kinds there are is asked anew just then, of an API server that does not have the kind of what is to stay.
func TestOwnerOfAKindThatAnAPIServerDoesNotServe(t *testing.T) {
	ownedWhileBehind(t, func(r *rig) func(*http.Request) error {
		over := time.Now().Add(5 * time.Second)
		go func() {
			for range time.NewTicker(time.Millisecond).C { // once it is known what the module lists
				if time.Now().After(over) {
					return
				}
				r.m.mapper.Reset("")
			}
		}()
		return func(q *http.Request) error {
			if q.URL.Path == "/api/v1" && time.Now().Before(over) {
				return inPlace{http.StatusOK, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
					{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete","get","list","patch","update","watch"]}]}`}
			}
			return nil
		}
	})
}

// Who watches a kind and may never list it waits for that no longer than a refusal counts as none.
func TestOwnerThatNobodyMayListGoes(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && q.URL.Path == "/api/v1/namespaces/"+r.ns+"/secrets" && q.URL.Query().Get("watch") == "" {
			return inPlace{http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"may not","code":403}`}
		}
		return nil
	})
	r.set([]fleet.Sync{r.bundle("shop", nil, certificate("b2xk"))})
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
}

// An agent that starts while its watches meet an API server whose own watches of the store stand still sees nothing of a kind: that server begins no
// watch. It answers lists as ever, and an owner of what is to stay is found by these.
func TestOwnerOfWhatCannotBeWatched(t *testing.T) {
	r := newRig(t)
	shop, other := r.bundle("shop", nil, configMap("owner", "k: v")), r.bundle("other", nil, certificate("b2xk"))
	r.set([]fleet.Sync{shop, other})
	r.ready(shop)
	r.ready(other)
	uid := r.uidOf("v1", "secrets", "s")
	r.stop()
	r.patch("v1", "secrets", "s", "operator", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`,
		r.uidOf("v1", "configmaps", "owner")))
	r.count.upset(func(q *http.Request) error {
		if q.URL.Query().Get("watch") == "" || !strings.HasSuffix(q.URL.Path, "/secrets") {
			return nil
		}
		return inPlace{http.StatusGatewayTimeout, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Timeout: Too large resource version: 9, current: 1",` +
			`"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}`}
	})
	r.restart(func(o *Options) { o.blindAfter = time.Second })
	r.set([]fleet.Sync{shop, other})
	r.wait("other", "blind", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "NotWatched" })
	r.set([]fleet.Sync{other}, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if u := r.get("v1", "secrets", "s"); u == nil || u.GetUID() != uid || len(u.GetOwnerReferences()) > 0 {
		t.Errorf("the secret is %v", u)
	}
}
