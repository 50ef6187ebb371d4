package state

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// page answers one request in place of the API server, as a proxy does that does not know the path, or not now.
type page struct {
	next http.RoundTripper
	in   atomic.Int64 // how many requests before that
}

func (p *page) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.in.Add(-1) != 0 {
		return p.next.RoundTrip(r)
	}
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/plain"}}, Request: r,
		Body: io.NopCloser(strings.NewReader("default backend - 404"))}, nil
}

// TestStateBehindAProxyThatDoesNotKnowIt: what stands between the agent and the API server answers one request with a page of its own that says 404.
// Nothing of the state counts as gone for that, nor is it lost to who takes it next.
func TestStateBehindAProxyThatDoesNotKnowIt(t *testing.T) {
	ns, c := realPlace(t)
	large := strings.Repeat("x", 700<<10)
	first := c.leader(t, 1)
	first.write("a", "one")
	first.write("b", large)
	answered := true
	for at := int64(1); answered; at++ {
		p := &page{}
		config := rest.CopyConfig(labtest.Config(t))
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			p.next = next
			return p
		})
		client, err := kube.New(config)
		if err != nil {
			t.Fatal(err)
		}
		meta, err := metadata.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		behind := clients{client.Secrets(ns), meta.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(ns)}.process(t)
		p.in.Store(at)
		err = behind.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: uint64(2 * at)})
		for name, want := range map[string]string{"a": "one", "b": large} {
			if err != nil {
				break
			}
			if got, err := behind.Read(t.Context(), name); errors.Is(err, fleet.ErrNotFound) || err == nil && string(got) != want {
				t.Errorf("request %d: %s is %.10q: %v", at, name, got, err)
			}
		}
		answered = p.in.Load() <= 0
		if names, _ := behind.List(t.Context(), ""); err == nil && fmt.Sprint(names) != "[a b]" {
			t.Errorf("request %d: there is %v", at, names)
		}
		c.leader(t, uint64(2*at+1)).holds("a=one", "b="+large[:10])
		if t.Failed() {
			return
		}
	}
}
