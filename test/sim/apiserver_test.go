package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// call is a request to an API server. What comes of the ones before is in it as $UID and $VERSION.
type call struct{ method, path, kind, body string }

const (
	apply = "application/apply-patch+yaml"
	merge = "application/merge-patch+json"
	plain = "application/json"
)

// calls are what agents rely on.
var calls = []call{
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1","labels":{"l":"1"}},"data":{"v":"1","w":"1"}}`},
	{"GET", "/a", "", ""},
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"},"data":{"v":"2"}}`},
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"$UID","labels":{"l":"1"}},"data":{"v":"1","w":"1"}}`},
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"$UID","resourceVersion":"$VERSION"},"data":{"v":"2"}}`},
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"another"},"data":{"v":"3"}}`},
	{"PATCH", "/a?fieldManager=somebody", merge, `{"data":{"v":"edited","x":"theirs"}}`},
	{"PATCH", "/a?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"v":"3"}}`},
	{"PATCH", "/a?fieldManager=towline&force=true&dryRun=All", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"v":"3"}}`},
	{"PATCH", "/a?fieldManager=towline&force=true", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"v":"3"}}`},
	{"PATCH", "/a?fieldManager=towline", merge, `{"metadata":{"uid":"another"},"data":{"v":"4"}}`},
	{"PATCH", "/b?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","uid":"another"},"data":{"v":"1"}}`},
	{"PATCH", "/b?fieldManager=towline", merge, `{"data":{"v":"1"}}`},
	{"DELETE", "/a", plain, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"another"}}`},
	{"DELETE", "/a", plain, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"$UID","resourceVersion":"1"}}`},
	{"POST", "?fieldManager=somebody", plain, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`},
	{"DELETE", "/a", plain, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"$UID","resourceVersion":"$VERSION"}}`},
	{"GET", "/a", "", ""},
	{"DELETE", "/a", plain, `{"apiVersion":"v1","kind":"DeleteOptions"}`},
	{"POST", "?fieldManager=somebody", plain, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"v":"1"}}`},
	{"PUT", "/c?fieldManager=somebody", plain, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","resourceVersion":"1"},"data":{"v":"2"}}`},
	{"PUT", "/c?fieldManager=somebody", plain, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","resourceVersion":"$VERSION"},"data":{"v":"2"}}`},
	{"PATCH", "/c?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"w":"1"}}`},
	{"PATCH", "/c?fieldManager=towline", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`},
}

// answers are what a server says to the calls, without what differs between any two servers.
func answers(t *testing.T, server http.RoundTripper, host, namespace string) []string {
	t.Helper()
	uid, version, out := "", "", []string(nil)
	for _, c := range calls {
		body := strings.NewReplacer("$UID", uid, "$VERSION", version).Replace(c.body)
		r, err := http.NewRequestWithContext(t.Context(), c.method, host+"/api/v1/namespaces/"+namespace+"/configmaps"+c.path, bytes.NewReader([]byte(body)))
		must(t, err)
		r.Header.Set("Content-Type", c.kind)
		got, err := server.RoundTrip(r)
		must(t, err)
		text, err := io.ReadAll(got.Body)
		must(t, err)
		var o map[string]any
		must(t, json.Unmarshal(text, &o))
		meta, _ := o["metadata"].(map[string]any)
		changed := false
		if o["kind"] == "ConfigMap" {
			now := fmt.Sprint(meta["resourceVersion"])
			changed, uid = now != version, fmt.Sprint(meta["uid"])
			if !strings.Contains(c.path, "dryRun") {
				version = now
			}
		}
		out = append(out, fmt.Sprintf("%s %s %s: %d %v %v %v %v, changed %v, managers %s", c.method, c.path, c.body, got.StatusCode, o["kind"], o["reason"], o["data"], meta["labels"], changed, managersOf(meta)))
	}
	return out
}

func managersOf(meta map[string]any) string {
	var out []string
	list, _ := meta["managedFields"].([]any)
	for _, x := range list {
		m := x.(map[string]any)
		fields, _ := json.Marshal(m["fieldsV1"])
		out = append(out, fmt.Sprintf("%v %v %s", m["manager"], m["operation"], fields))
	}
	return strings.Join(out, "; ")
}

// direct asks a server in memory.
type direct struct{ s *Server }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return d.s.Serve(r, body, 1)
}

func TestServerAnswersAsARealOne(t *testing.T) {
	config := labtest.Config(t)
	real, err := rest.TransportFor(config)
	must(t, err)
	namespace := fmt.Sprintf("sim-%d", time.Now().UnixNano())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, config.Host+"/api/v1/namespaces", strings.NewReader(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`))
	must(t, err)
	r.Header.Set("Content-Type", plain)
	made, err := real.RoundTrip(r)
	must(t, err)
	_ = made.Body.Close()
	want, got := answers(t, real, config.Host, namespace), answers(t, direct{NewServer("a")}, "http://a", "default")
	for i := range want {
		if want[i] != got[i] {
			t.Errorf("a real server says\n%s\nand this one\n%s", want[i], got[i])
		}
	}
}
