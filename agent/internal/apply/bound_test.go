package apply

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

var (
	shortLimits = limits{read: 50 * time.Millisecond, page: 60 * time.Millisecond, write: 70 * time.Millisecond, watch: 80 * time.Millisecond}
	configMaps  = Resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}
)

// hung accepts and never answers; with part it sends the head of an answer and a part of its body first.
func hung(t *testing.T, part string) *rest.Config {
	t.Helper()
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if part != "" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(release) })
	return &rest.Config{Host: srv.URL}
}

// Every request that the agent makes of its cluster ends by itself, whoever makes it and whatever context it has.
func TestServerThatNeverAnswersHoldsUpNoRequest(t *testing.T) {
	for _, part := range []string{"", `{"kind":"List","items":[`} {
		config := tunedWith(hung(t, part), shortLimits)
		c, err := newClient(config)
		if err != nil {
			t.Fatal(err)
		}
		lists, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		calls := map[string]func() error{
			"get":  func() error { _, err := c.Get(ctx, configMaps, "n", "a"); return err },
			"meta": func() error { _, err := c.GetMeta(ctx, configMaps, "n", "a"); return err },
			"pods": func() error { _, err := c.Pods(ctx, "n", "a=b", 5); return err },
			"list": func() error {
				return c.EachMeta(ctx, configMaps, "n", "", func(*v1.PartialObjectMetadata) bool { return true })
			},
			"page of a watch's list": func() error {
				_, err := lists.Resource(configMaps.GroupVersionResource).List(ctx, v1.ListOptions{Limit: 5})
				return err
			},
			"apply": func() error { _, err := c.Apply(ctx, configMaps, "n", "a", []byte("{}"), ApplyOptions{}); return err },
			"delete": func() error {
				return c.Delete(ctx, configMaps, "n", &v1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "1"})
			},
			"create": func() error { return c.Create(ctx, configMaps, "n", []byte("{}")) },
			"discovery": func() error {
				_, err := NewMapper(c).Resource(ctx, fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, "v1")
				return err
			},
		}
		for name, call := range calls {
			t.Run(name+" "+part, func(t *testing.T) {
				t.Parallel()
				done := make(chan error, 1)
				go func() { done <- call() }()
				select {
				case err := <-done:
					var timeout net.Error
					if !errors.As(err, &timeout) || !timeout.Timeout() {
						t.Errorf("error %v, want one of time", err)
					}
				case <-time.After(10 * time.Second):
					t.Error("it waits for ever")
				}
			})
		}
	}
}

// A watch that does not begin ends; one that has begun has no limit.
func TestWatchIsBoundedUntilItBegins(t *testing.T) {
	begin := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/never" {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-begin
		_, _ = io.WriteString(w, "late")
	}))
	t.Cleanup(srv.Close)
	client := &http.Client{Transport: bounded{http.DefaultTransport, shortLimits}}
	if _, err := client.Get(srv.URL + "/never?watch=true"); err == nil {
		t.Error("a watch that never began ended without an error")
	}
	resp, err := client.Get(srv.URL + "/?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	time.AfterFunc(3*shortLimits.watch, func() { close(begin) })
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "late" {
		t.Errorf("read %q, %v", b, err)
	}
}
