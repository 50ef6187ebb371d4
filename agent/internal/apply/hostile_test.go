package apply

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// answering answers everything alike.
func answering(t *testing.T, status int, kind, body string) *Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	c, err := newClient(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What stands between the agent and its API server answers in its own way. None of that says anything about an object:
// neither that it is there, nor that it is gone, nor that it is another one.
func TestAnswerThatIsNoObjectSaysNothing(t *testing.T) {
	const page = "<html><body>Please log in</body></html>"
	for name, tc := range map[string]struct {
		status     int
		kind, body string
	}{
		"nothing":             {200, "application/json", ""},
		"null":                {200, "application/json", "null"},
		"empty":               {200, "application/json", "{}"},
		"a proxy's own JSON":  {200, "application/json", `{"error":"upstream away","code":502}`},
		"a list":              {200, "application/json", `[]`},
		"a page":              {200, "text/html", page},
		"half an object":      {200, "application/json", `{"kind":"ConfigMap","metadata":{"name":"a","uid":"u`},
		"another kind":        {200, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Success"}`},
		"an object unnamed":   {200, "application/json", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`},
		"another object":      {200, "application/json", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"A","namespace":"n","uid":"u"}}`},
		"another namespace":   {200, "application/json", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"N","uid":"u"}}`},
		"a page, not found":   {404, "text/html", page},
		"JSON, not found":     {404, "application/json", `{"message":"no route"}`},
		"nothing, not found":  {404, "", ""},
		"gone":                {410, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`},
		"a page, unavailable": {503, "text/html", page},
		"a moved page":        {302, "text/html", page},
		"a teapot":            {418, "text/plain", "short and stout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, tc.status, tc.kind, tc.body)
			ctx := t.Context()
			check := func(what string, err error) {
				t.Helper()
				if err == nil || kube.IsGone(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err := c.GetMeta(ctx, configMaps, "n", "a")
			check("get of the metadata", err)
			_, err = c.Get(ctx, configMaps, "n", "a")
			check("get", err)
			_, err = c.Apply(ctx, configMaps, "n", "a", []byte("{}"), ApplyOptions{})
			check("apply", err)
			if err != nil && !Unanswered(err) && tc.status == 200 {
				t.Errorf("apply: %v counts as an answer", err)
			}
			n := 0
			err = c.EachMeta(ctx, configMaps, "n", "", func(*metav1.PartialObjectMetadata) bool { n++; return true })
			if err == nil || n > 0 {
				t.Errorf("list: %d objects, %v", n, err)
			}
			_, err = c.EventReasons(ctx, "n", "u")
			check("reasons of the Events of an object", err)
			_, err = c.EventsOf(ctx, "n", "Job", "a")
			check("Events", err)
			_, err = c.Pods(ctx, "n", "", 1)
			check("pods", err)
			_, err = c.ScaleTargets(ctx, "n")
			check("autoscalers", err)
			m := NewMapper(c)
			if _, gone, err := m.Served(ctx, fleet.ObjectID{Group: "example.com", Kind: "Widget", Name: "a"}, "v1"); gone || err == nil {
				t.Errorf("kind: gone %t, %v", gone, err)
			}
			if s, err := m.Everything(ctx); err == nil && len(s.Failed) == 0 {
				t.Errorf("survey: %v", s)
			}
			if _, err := m.Resource(ctx, fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, "v1"); err == nil {
				t.Error("the kind was found")
			} else if f := (*Failure)(nil); !errors.As(err, &f) && Explain(fleet.ObjectID{}, err).Transient == false {
				t.Errorf("resource: %v is for good", err)
			}
		})
	}
}

// A page that says 404 in place of the definition of a kind, whose group the API server does not know yet, is no definition that is gone: objects of
// the kind would go from the records with it.
func TestPageIsNoDefinitionThatIsGone(t *testing.T) {
	for answer, gone := range map[string]bool{
		"404 page not found\n": false,
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{},"code":404}`:                                                                                               false,
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"widgets.example.com","group":"apiextensions.k8s.io","kind":"customresourcedefinitions"},"code":404}`: true,
	} {
		widgetAt(t, gone, map[string]string{
			"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			crds:    `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{"metadata":{"name":"widgets.example.com"}}]}`,
		}, map[string]string{crds + "/widgets.example.com": answer})
	}
}

// TestPageIsNoGroupThatIsGone: what does not know the path of a group says nothing of the group, which the API server lists.
func TestPageIsNoGroupThatIsGone(t *testing.T) {
	for listed, gone := range map[string]bool{`{"name":"example.com","versions":[]}`: false, `{"name":"other.example.com","versions":[]}`: true} {
		widgetAt(t, gone, map[string]string{
			"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + listed + `]}`,
			crds:    `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[]}`,
		}, nil)
	}
}

const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// widgetAt sees that the kind of a Widget is gone, or that nothing can be said of it, where an API server has some paths, and answers others with 404
// in some words, or in those for a path that it does not know.
func widgetAt(t *testing.T, gone bool, has, lacks map[string]string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if body, ok := has[r.URL.Path]; ok {
			_, _ = io.WriteString(w, body)
		} else if body, ok := lacks[r.URL.Path]; ok {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, body)
		} else {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	c, err := newClient(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := NewMapper(c).Served(t.Context(), fleet.ObjectID{Group: "example.com", Kind: "Widget", Name: "a"}, "v1")
	if got != gone || (err == nil) != gone {
		t.Errorf("%v, %v: gone %t, %v", has, lacks, got, err)
	}
}

// An API server that has just started lists the API groups that it has read so far, as if there were no others. What is
// registered and not listed cannot be seen: it is not nothing.
func TestGroupThatIsNotListedYetIsNotSeen(t *testing.T) {
	answers := map[string]string{
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiregistration.k8s.io",
			"versions":[{"groupVersion":"apiregistration.k8s.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apiregistration.k8s.io/v1","version":"v1"}}]}`,
		"/api/v1":                         `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","delete"]}]}`,
		"/apis/apiregistration.k8s.io/v1": `{"kind":"APIResourceList","groupVersion":"apiregistration.k8s.io/v1","resources":[]}`,
		"/apis/apiregistration.k8s.io/v1/apiservices": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[
			{"metadata":{"name":"v1."}},{"metadata":{"name":"v1.apps"}},{"metadata":{"name":"v1.apiregistration.k8s.io"}},{"metadata":{"name":"v1beta1.widgets.example.com"}}]}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	t.Cleanup(srv.Close)
	c, err := newClient(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewMapper(c).Everything(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range s.Failed {
		failed = append(failed, f.String())
	}
	if len(s.Resources) != 1 || !slices.Equal(failed, []string{"apps/v1", "widgets.example.com/v1beta1"}) {
		t.Errorf("resources %v, not seen %q", s.Resources, failed)
	}
}
