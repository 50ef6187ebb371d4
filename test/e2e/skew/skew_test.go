// Package skew has hub and agents of two versions live together as processes: those of this tree, and those of the project's own commit of
// some days before. It runs only with TOWLINE_E2E set, and not in make test, as it builds a whole tree; make soak runs it.
package skew

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

const (
	// limit is how long anything may take that is expected to happen.
	limit = 90 * time.Second
	// calm is for how long nothing may happen that must not.
	calm = 5 * time.Second
	// apart is how much older the other version is at least. TOWLINE_OLD names another commit.
	apart = 2 * 24 * time.Hour
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSkew: with an older agent at a newer hub, and with a newer agent at an older hub, modules come, drift goes, rollouts stop at their
// canaries, and statuses are told; then the older one is replaced by a newer one, which goes on with what it finds.
func TestSkew(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e ARGS='-run TestSkew -v'")
	}
	older, newer := build(t), os.Getenv("TOWLINE_BIN")
	t.Run("older agent", func(t *testing.T) {
		w := start(t, map[string]string{"towline-agent": older, "towline-hub": newer, "towline": newer})
		w.lives()
		w.upgrades(func(ctx context.Context) {
			for _, c := range w.Clusters {
				c.Agent.Stop()
				c.Agent.Path = filepath.Join(newer, "towline-agent")
				must(t, c.Agent.Start())
			}
		})
	})
	t.Run("older hub", func(t *testing.T) {
		w := start(t, map[string]string{"towline-agent": newer, "towline-hub": older, "towline": older})
		w.lives()
		w.upgrades(func(ctx context.Context) {
			w.Hub.Stop()
			w.Hub.Path = filepath.Join(newer, "towline-hub")
			must(t, w.Hub.Start(ctx))
		})
	})
}

// build makes the programs of the older commit, and returns their directory.
func build(t *testing.T) string {
	t.Helper()
	commit, dir := os.Getenv("TOWLINE_OLD"), t.TempDir()
	if exec.CommandContext(t.Context(), "git", "-C", "../../..", "rev-parse", "HEAD").Run() != nil {
		t.Skip("the sources that are here have no history")
	}
	if commit == "" {
		at, err := time.Parse(time.RFC3339, run(t, "../../..", "git", "show", "-s", "--format=%cI", "HEAD"))
		must(t, err)
		commit = run(t, "../../..", "git", "rev-list", "-1", "--before="+at.Add(-apart).Format(time.RFC3339), "HEAD")
	}
	if commit == "" {
		t.Skipf("the history that is here has no commit that is %v older than the newest", apart)
	}
	t.Logf("the older version is %s", run(t, "../../..", "git", "show", "-s", "--format=%h of %cI: %s", commit))
	sources, bin := filepath.Join(dir, "sources"), filepath.Join(dir, "bin")
	must(t, os.Mkdir(sources, 0o700))
	run(t, "../../..", "git", "archive", "--output", filepath.Join(dir, "sources.tar"), commit)
	run(t, sources, "tar", "-xf", filepath.Join(dir, "sources.tar"))
	run(t, sources, "go", "build", "-trimpath", "-buildvcs=false", "-o", bin+"/", "./hub/cmd/towline-hub", "./agent/cmd/towline-agent", "./ctl/cmd/towline")
	return bin
}

// run runs a program that must end with 0, and returns what it prints.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out))
}

type world struct {
	*lab.Lab
	t *testing.T
}

// start starts a hub and two clusters with programs from these directories; the command line is that of the hub.
func start(t *testing.T, from map[string]string) *world {
	t.Helper()
	w := startIn(t, from, "c1", "c2")
	e2etest.Join(t, w.Lab, e2etest.Canary)
	return w
}

// startIn starts a hub and clusters, none of which has joined.
func startIn(t *testing.T, from map[string]string, clusters ...string) *world {
	t.Helper()
	bin := t.TempDir()
	for name, dir := range from {
		must(t, os.Symlink(filepath.Join(dir, name), filepath.Join(bin, name)))
	}
	return &world{Lab: e2etest.Start(t, lab.Options{Names: clusters, Bin: bin}), t: t}
}

// module is a revision of the module, with so many objects, which goes to the canary first.
func module(revision, objects int) string {
	var files strings.Builder
	for i := range objects {
		fmt.Fprintf(&files, "        ---\n        apiVersion: v1\n        kind: ConfigMap\n        metadata: {name: skew-%d, namespace: default}\n        data: {revision: \"%d\"}\n", i, revision)
	}
	return `apiVersion: towline.dev/v1
kind: Module
metadata: {name: skew}
spec:
  source:
    inline:
      files:
        all.yaml: |
` + strings.ReplaceAll(files.String(), "        ", "          ") + `  placement: {selector: {}}
  rollout:
    stages:
    - {name: canary, selector: {matchLabels: {ring: canary}}}
    - {name: rest, maxConcurrency: 100%}
`
}

func (w *world) put(revision, objects int, flags ...string) {
	w.t.Helper()
	must(w.t, w.Feed(w.t.Context(), module(revision, objects), append([]string{"apply", "-f", "-"}, flags...)...).Err())
}

// wait has apply wait until the rollout has succeeded.
var wait = []string{"--wait", "--timeout", limit.String()}

// is says why an object has not the content of a revision.
func is(ctx context.Context, c *lab.Cluster, object, revision int) error {
	o, err := c.Get(ctx, "v1", "ConfigMap", "default", fmt.Sprintf("skew-%d", object))
	if err != nil {
		return err
	}
	if got, _, _ := unstructured.NestedString(o.Object, "data", "revision"); got != fmt.Sprint(revision) {
		return fmt.Errorf("cluster %s: skew-%d has revision %q, want %d", c.Name, object, got, revision)
	}
	return nil
}

// everywhere waits until both clusters have a revision, and the hub says so.
func (w *world) everywhere(revision, objects int) {
	w.t.Helper()
	must(w.t, lab.PollFor(w.t.Context(), limit, func() error {
		for _, c := range w.Clusters {
			for i := range objects {
				if err := is(w.t.Context(), c, i, revision); err != nil {
					return err
				}
			}
		}
		r := w.CLI(w.t.Context(), "get", "modules", "skew", "-o", "jsonpath={.status.healthy} of {.status.clusters}")
		if got := strings.TrimSpace(r.Stdout); r.Err() != nil || got != "2 of 2" {
			return fmt.Errorf("healthy in %q: %v", got, r.Err())
		}
		return nil
	}))
}

// lives has happen what happens to every module.
func (w *world) lives() {
	ctx, c1, c2 := w.t.Context(), w.Clusters[0], w.Clusters[1]
	w.put(1, 2, wait...)
	w.everywhere(1, 2)
	for _, c := range w.Clusters {
		must(w.t, c.Merge(ctx, "v1", "ConfigMap", "default", "skew-0", `{"data":{"revision":"by hand"}}`))
	}
	w.everywhere(1, 2)

	// What is somebody else's stands in the way of the canary.
	theirs := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "skew-2", "namespace": "default"},
		"data": map[string]any{"revision": "theirs"}}}
	must(w.t, c1.Create(ctx, theirs))
	w.put(2, 3)
	must(w.t, lab.PollFor(ctx, limit, func() error { return is(ctx, c1, 0, 2) }))
	must(w.t, lab.Stays(ctx, calm, func() error { return is(ctx, c2, 0, 1) }))
	o, err := c1.Get(ctx, "v1", "ConfigMap", "default", "skew-2")
	must(w.t, err)
	if got, _, _ := unstructured.NestedString(o.Object, "data", "revision"); got != "theirs" {
		w.t.Errorf("somebody else's object has %q", got)
	}
	resource, err := c1.Resource("v1", "ConfigMap", "default")
	must(w.t, err)
	must(w.t, resource.Delete(ctx, "skew-2", metav1.DeleteOptions{}))
	w.everywhere(2, 3)
	w.put(3, 2, wait...)
	w.everywhere(3, 2)
	w.gone(2)
}

// gone waits until no cluster has an object.
func (w *world) gone(object int) {
	w.t.Helper()
	must(w.t, lab.PollFor(w.t.Context(), limit, func() error {
		for _, c := range w.Clusters {
			if _, err := c.Get(w.t.Context(), "v1", "ConfigMap", "default", fmt.Sprintf("skew-%d", object)); !errors.IsNotFound(err) {
				return fmt.Errorf("cluster %s: skew-%d: %v", c.Name, object, err)
			}
		}
		return nil
	}))
}

// uids are those of the objects of the module.
func (w *world) uids() (out []types.UID) {
	w.t.Helper()
	for _, c := range w.Clusters {
		for i := range 2 {
			o, err := c.Get(w.t.Context(), "v1", "ConfigMap", "default", fmt.Sprintf("skew-%d", i))
			must(w.t, err)
			out = append(out, o.GetUID())
		}
	}
	return out
}

// upgrades has the older one be replaced: what is there stays, the next revision comes, and goes with its module.
func (w *world) upgrades(replace func(context.Context)) {
	before := w.uids()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	replace(ctx)
	e2etest.Ready(w.t, w.Lab)
	w.everywhere(3, 2)
	w.put(4, 2, wait...)
	w.everywhere(4, 2)
	if after := w.uids(); fmt.Sprint(after) != fmt.Sprint(before) {
		w.t.Errorf("the objects were made anew: %v, before %v", after, before)
	}
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "skew", "--yes", "--timeout", limit.String()).Err())
	w.gone(0)
	w.gone(1)
}
