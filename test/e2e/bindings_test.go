package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/lab"
)

// testBindings has a module use a secret of the hub and a ConfigMap of one cluster. When either changes, what uses it is applied anew in the
// clusters where it changed, and nothing else is; no file of an agent has the value of the secret.
func testBindings(t *testing.T) {
	remove(t, "bound")
	const one, two = "canary-e2e-one", "canary-e2e-two"
	setSecret := func(value string) {
		t.Helper()
		if r := system.Feed(t.Context(), value, "secret", "set", "bound-api", "token=-"); r.Code != 0 {
			t.Fatal(r.Err())
		}
	}
	t.Cleanup(func() { system.CLI(context.Background(), "delete", "secret", "bound-api", "--yes") })
	setSecret(one)
	boundModule := func(form string) string {
		return moduleOf("bound", "bound", map[string]string{"a.yaml": namespace("bound") + configMap("apart", "x") + "---\n" +
			"apiVersion: v1\nkind: Secret\nmetadata: {name: api}\nstringData: {header: '" + form + " ${TOKEN}'}\n" + configMap("uses", "${REGION}")},
			"bindings: [{name: TOKEN, secret: {name: bound-api, key: token}}, {name: REGION, object: {apiVersion: v1, kind: ConfigMap, namespace: default, name: bound-info, fieldPath: data.region}, default: none}]")
	}
	putReady(t, boundModule("Bearer"))
	header := func(c *lab.Cluster, want string) error {
		got, err := c.Get(t.Context(), "v1", "Secret", "bound", "api")
		if err != nil {
			return err
		}
		data, _, _ := unstructured.NestedString(got.Object, "data", "header")
		if text, _ := base64.StdEncoding.DecodeString(data); string(text) != want {
			return fmt.Errorf("cluster %s: header %q", c.Name, text)
		}
		return nil
	}
	eventually(t, "the value is there", func() error { return everywhere(func(c *lab.Cluster) error { return header(c, "Bearer "+one) }) })
	writes := mark(t)
	setSecret(two)
	eventually(t, "the new value is there", func() error { return everywhere(func(c *lab.Cluster) error { return header(c, "Bearer "+two) }) })
	info := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "bound-info", "namespace": "default"}, "data": map[string]any{"region": "eu"}}}
	c1 := system.Clusters[0]
	if err := c1.Create(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if maps, err := c1.Resource("v1", "ConfigMap", "default"); err == nil {
			_ = maps.Delete(context.Background(), "bound-info", metav1.DeleteOptions{})
		}
	})
	eventually(t, "the ConfigMap of the cluster counts", func() error { return there(t, c1, "bound", "uses", "eu") })
	for _, c := range system.Clusters {
		for _, r := range writes.requests(t, c, lab.Request.Applies) {
			if r.Name != "api" && (c != c1 || r.Name != "uses") {
				t.Errorf("cluster %s: a write that nothing called for: %s", c.Name, r)
			}
		}
		noCanary(t, c)
	}
	// What one cluster has of its own is applied there, and nowhere else.
	const own = "canary-e2e-own"
	writes = mark(t)
	if r := system.Feed(t.Context(), own, "secret", "set", "bound-api", "token=-", "--cluster", c1.Name); r.Code != 0 {
		t.Fatal(r.Err())
	}
	eventually(t, "the cluster has its own value", func() error { return header(c1, "Bearer "+own) })
	if out := towline(t, "secret", "delete", "bound-api", "--cluster", c1.Name, "--yes"); !strings.Contains(out, "deleted") {
		t.Error(out)
	}
	eventually(t, "the cluster has what is for all", func() error { return header(c1, "Bearer "+two) })
	for _, c := range system.Clusters {
		for _, r := range writes.requests(t, c, lab.Request.Applies) {
			if c != c1 || r.Name != "api" {
				t.Errorf("cluster %s: a write that nothing called for: %s", c.Name, r)
			}
		}
	}
	// An agent that was away while the value and the module changed, and has its state alone to begin with, never writes the new form with the
	// value of before.
	c1.Agent.Kill()
	seen := headersOf(t, c1)
	const three = "canary-e2e-three"
	setSecret(three)
	put(t, boundModule("Token"))
	if err := c1.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new value is there in the new form", func() error {
		return everywhere(func(c *lab.Cluster) error { return header(c, "Token "+three) })
	})
	quiet(t)
	if all := seen(); !slices.Contains(all, "Token "+three) || slices.Contains(all, "Token "+two) {
		t.Errorf("cluster %s: what uses the secret was %q", c1.Name, all)
	}
	noCanary(t, c1)
	if out := towline(t, "get", "objects", "--module", "bound", "-o", "json") + towline(t, "get", "trackers", "-o", "json"); strings.Contains(out, "canary-e2e") {
		t.Errorf("a value is shown:\n%s", out)
	}
}

// headersOf watches the Secret of the test, and returns what each version of it said since.
func headersOf(t *testing.T, c *lab.Cluster) (seen func() []string) {
	t.Helper()
	secrets, err := c.Resource("v1", "Secret", "bound")
	if err != nil {
		t.Fatal(err)
	}
	w, err := secrets.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=api"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []string
	go func() {
		for e := range w.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok {
				data, _, _ := unstructured.NestedString(u.Object, "data", "header")
				text, _ := base64.StdEncoding.DecodeString(data)
				mu.Lock()
				all = append(all, string(text))
				mu.Unlock()
			}
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// noCanary looks for planted values in an agent's state and log.
func noCanary(t *testing.T, c *lab.Cluster) {
	t.Helper()
	found := func(data []byte) bool {
		return bytes.Contains(data, []byte("canary-e2e")) || bytes.Contains(data, []byte("Y2FuYXJ5LWUyZ"))
	}
	if found([]byte(c.Agent.Tail())) {
		t.Errorf("cluster %s: the agent's log has a value", c.Name)
	}
	err := filepath.WalkDir(c.Agent.StateDir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it came and went
		}
		if data, err := os.ReadFile(path); err == nil && found(data) {
			t.Errorf("cluster %s: %s has a value", c.Name, path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
