package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// random is a module that lists the objects of some letters.
func random(name, letters, zone string) *towlinev1.Module {
	m := module(name, map[string]string{"all.yaml": manifests(letters)})
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	if zone != "" {
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"zone": zone}}}
	}
	return m
}

func manifests(letters string) string {
	var out strings.Builder
	for _, o := range letters {
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %q, namespace: default}\n", nameOf(string(o), "${ZONE}"))
	}
	return out.String()
}

// source serves the same as random modules list, late or not at all.
type source struct{ url string }

func newSource(t *testing.T) source {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		how, letters, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
		letters = strings.TrimSuffix(letters, ".yaml")
		if how == "failing" {
			http.NotFound(w, r)
			return
		}
		select {
		case <-time.After(time.Duration(len(letters)) * 100 * time.Millisecond):
		case <-r.Context().Done():
		}
		_, _ = fmt.Fprint(w, manifests(letters))
	}))
	t.Cleanup(server.Close)
	return source{server.URL}
}

func (s source) slow(letters string) *towlinev1.Source    { return s.at("slow", letters) }
func (s source) failing(letters string) *towlinev1.Source { return s.at("failing", letters) }

func (s source) at(how, letters string) *towlinev1.Source {
	return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: s.url + "/" + how + "/" + letters + ".yaml"}}
}
