package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
	"towline.dev/towline/pkg/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// traffic notes the requests that write, and may answer instead of the API server.
type traffic struct {
	next    http.RoundTripper
	instead atomic.Pointer[func(*http.Request) *http.Response]

	mu     sync.Mutex
	writes []string
}

func (x *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		x.mu.Lock()
		x.writes = append(x.writes, r.Method+" "+r.URL.Path)
		x.mu.Unlock()
	}
	if f := x.instead.Load(); f != nil {
		if answer := (*f)(r); answer != nil {
			return answer, nil
		}
	}
	return x.next.RoundTrip(r)
}

func (x *traffic) take() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.writes
	x.writes = nil
	return out
}

func watched(t *testing.T) (*rest.Config, *traffic) {
	t.Helper()
	config, x := labtest.Config(t), &traffic{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		x.next = next
		return x
	})
	return config, x
}

func answer(r *http.Request, code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body))}
}

// A state of another cluster is not used, and nothing is written in the cluster that the configuration reaches.
func TestStateOfAnotherCluster(t *testing.T) {
	config, x := watched(t)
	dir := t.TempDir()
	d, err := state.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Take(t.Context(), state.Tenure{Cluster: "uid-of-a", Epoch: 7}); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(t.Context(), "desired", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Hubs: []string{"127.0.0.1:1"}, Config: config, StateDir: dir, Namespace: "wrong-cluster"})
	if err != nil {
		t.Fatal(err)
	}
	err = a.Run(t.Context())
	if !errors.Is(err, fleet.ErrPrecondition) {
		t.Fatalf("error %v", err)
	}
	for _, word := range []string{"uid-of-a", uidOf(t, config), dir, "kubeconfig", "--reissue"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("it does not say %q: %v", word, err)
		}
	}
	if writes := x.take(); len(writes) > 0 {
		t.Errorf("it wrote %q", writes)
	}
}

func uidOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	client, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	uid, err := clusterUID(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

// When another cluster answers at the same address, an agent that leads ends before it writes there.
func TestClusterIsExchanged(t *testing.T) {
	config, x := watched(t)
	namespace := fmt.Sprintf("exchanged-%d", time.Now().UnixNano())
	client, err := kube.New(labtest.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}) })
	token := jointoken.New("c1", [32]byte{1})
	a, err := New(Options{Hubs: []string{"127.0.0.1:1"}, Config: config, StateDir: t.TempDir(), Namespace: namespace, JoinToken: token.String()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	eventually(t, "it leads", func() bool {
		_, err := client.Leases(namespace).Get(t.Context(), "towline-agent", metav1.GetOptions{})
		return err == nil
	})
	x.take()
	other := func(r *http.Request) *http.Response {
		if strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
			return answer(r, http.StatusOK, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"uid-of-b"}}`)
		}
		return answer(r, http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"`+path.Base(r.URL.Path)+`"},"code":404}`)
	}
	x.instead.Store(&other)
	select {
	case err := <-done:
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "uid-of-b") || apierrors.IsNotFound(err) {
			t.Errorf("error %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on in the other cluster")
	}
	for _, write := range x.take() {
		if !strings.HasPrefix(write, http.MethodPut) || !strings.HasSuffix(write, "/leases/towline-agent") {
			t.Errorf("it wrote %s", write)
		}
	}
}

// patience is how long anything may take that is expected to happen, also on a machine that has much to do.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}
