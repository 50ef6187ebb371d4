package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// whileDown stops the API server and the store of a cluster, acts, and starts them again.
func whileDown(t *testing.T, c *lab.Cluster, act func(store string) error) {
	t.Helper()
	part := func(name, action string) error { return c.Part(t.Context(), name, action) }
	err := errors.Join(part("apiserver", "stop"), part("etcd", "stop"), act(filepath.Join(filepath.Dir(c.Kubeconfig), "etcd")),
		part("etcd", "start"), part("apiserver", "start"))
	if err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, c *lab.Cluster, name string) string {
	t.Helper()
	got, err := c.Get(t.Context(), "v1", "ConfigMap", "default", name)
	if err != nil {
		return err.Error()
	}
	v, _, _ := unstructured.NestedString(got.Object, "data", "value")
	return v
}

func pastModule(value string, names ...string) string {
	text := configMap("past-a", value)
	for _, n := range names {
		text += configMap("past-"+n, value)
	}
	return moduleOf("past", "default", map[string]string{"a.yaml": text})
}

// A cluster whose etcd is restored from an older copy gets what it lost, loses nothing that came back, and is said so.
func testClusterRestored(t *testing.T) {
	remove(t, "past")
	c := system.Clusters[1]
	putReady(t, pastModule("1", "dropped"))
	copied := filepath.Join(t.TempDir(), "etcd")
	whileDown(t, c, func(store string) error { return os.CopyFS(copied, os.DirFS(store)) })
	putReady(t, pastModule("2", "added"))
	eventually(t, "what the module omits is gone", func() error { return gone(t, c, "v1", "ConfigMap", "default", "past-dropped") })
	before := mark(t)
	whileDown(t, c, func(store string) error {
		return errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(copied)))
	})
	eventually(t, "what the cluster lost is back", func() error {
		if a, added := value(t, c, "past-a"), value(t, c, "past-added"); a != "2" || added != "2" {
			return fmt.Errorf("a is %q, added is %q", a, added)
		}
		if got := conditions(t, c.Name)["ClusterRestored"]; got != "True StoreWentBack" {
			return fmt.Errorf("condition %q", got)
		}
		if s := module(t, "past").Status; s.Healthy != 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if out := towline(t, "get", "clusters"); !strings.Contains(out, "restored from an older copy") {
		t.Errorf("get clusters:\n%s", out)
	}
	eventually(t, "what came back is told", func() error {
		for _, r := range rows(t, "past", "--cluster", c.Name) {
			if r.Extra && r.Object.Name == "past-dropped" {
				return nil
			}
		}
		return fmt.Errorf("%v", rows(t, "past"))
	})
	if v := value(t, c, "past-dropped"); v != "1" {
		t.Errorf("what came back was touched: %q", v)
	}
	for _, r := range before.requests(t, c, lab.Request.ByAgent) {
		if r.Verb == strings.ToLower(http.MethodDelete) {
			t.Errorf("a delete that nobody asked for: %s", r)
		}
	}
	if out := put(t, pastModule("3", "added", "dropped"), "--wait", "--timeout", "2m"); !strings.Contains(out, "Succeeded") {
		t.Errorf("the module does not take again what came back:\n%s", out)
	}
	if v := value(t, c, "past-dropped"); v != "3" {
		t.Errorf("what came back and is listed again is %q", v)
	}
}
