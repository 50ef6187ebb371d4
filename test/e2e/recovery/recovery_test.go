// Package recovery proves what happens to two real clusters when something comes back that is not what it was: a hub with
// an emptied or an older store, an agent that was away, a cluster that was cloned or whose etcd was put back. Nothing may
// be deleted, nothing rolled back unasked, and towline get clusters says what happened. It runs only with TOWLINE_E2E set.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

const (
	// limit is how long anything may take that is expected to happen.
	limit = 90 * time.Second
	// calm is for how long nothing may happen that nobody asked for.
	calm = 5 * time.Second
)

type world struct {
	*lab.Lab
	t *testing.T
}

// TestRecovery runs one scenario after the other; each leaves both clusters in order.
func TestRecovery(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	w := start(t)
	for _, s := range []struct {
		name string
		run  func(*world)
	}{
		{"agent away for a change", agentAway},
		{"hub with an emptied store", emptiedStore},
		{"hub with an older store", olderStore},
		{"hub restored from a backup", restoredHub},
		{"etcd of a cluster put back", restoredCluster},
		{"etcd put back to before much, the agent runs", inASoak(restoredFurther(runsThrough))},
		{"etcd put back to before much, the agent starts anew", inASoak(restoredFurther(startsAnew))},
		{"etcd put back to before much, with the agent's state", inASoak(restoredFurther(stateGoesBack))},
		{"another cluster takes the name of one that is away", nameTaken},
		{"cluster cloned while it is not seen", clonedUnseen},
		{"cluster cloned", clonedCluster},
	} {
		if !t.Run(s.name, func(t *testing.T) {
			w.t = t
			s.run(w)
		}) {
			break
		}
	}
}

func start(t *testing.T) *world {
	t.Helper()
	l := e2etest.Start(t, lab.Options{Names: []string{"c1", "c2"}, Links: true})
	e2etest.Join(t, l, func(int, *lab.Cluster) string { return "env=test" })
	return &world{Lab: l, t: t}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ready waits until both clusters are connected.
func (w *world) ready() {
	w.t.Helper()
	for _, c := range w.Clusters {
		w.eventually(func() error { return w.WaitState(w.t.Context(), c.Name, "Ready") })
	}
}

func (w *world) eventually(f func() error) {
	w.t.Helper()
	if err := lab.PollFor(w.t.Context(), limit, f); err != nil {
		w.t.Logf("hub:\n%s", w.Hub.Tail())
		for _, c := range w.Clusters {
			w.t.Logf("agent of %s:\n%s", c.Name, c.Agent.Tail())
		}
		w.t.Logf("%s", w.CLI(context.Background(), "get", "clusters", "-o", "wide").Stdout)
		w.t.Fatal(err)
	}
}

// module lists a ConfigMap for each name, with one value for all.
func module(name, value string, names ...string) string {
	var files strings.Builder
	fmt.Fprintf(&files, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", name)
	for _, n := range names {
		fmt.Fprintf(&files, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %q}, data: {value: %q}}\n", n, value)
	}
	return fmt.Sprintf("apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: %s}\nspec:\n  namespace: %s\n  placement: {selector: {}}\n"+
		"  source:\n    inline:\n      files:\n        a.yaml: %q\n", name, name, files.String())
}

func (w *world) put(text string, flags ...string) {
	w.t.Helper()
	must(w.t, w.Feed(w.t.Context(), text, append([]string{"apply", "-f", "-"}, flags...)...).Err())
}

func (w *world) putReady(text string) {
	w.t.Helper()
	w.put(text, "--wait", "--timeout", "2m")
}

func (w *world) has(c *lab.Cluster, namespace, name, value string) error {
	got, err := c.Get(w.t.Context(), "v1", "ConfigMap", namespace, name)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if v, _, _ := unstructured.NestedString(got.Object, "data", "value"); v != value {
		return fmt.Errorf("cluster %s: ConfigMap %s/%s holds %q, want %q", c.Name, namespace, name, v, value)
	}
	return nil
}

// marks are places in the audit logs.
func (w *world) marks() map[string]lab.Mark {
	w.t.Helper()
	out := map[string]lab.Mark{}
	for _, c := range w.Clusters {
		m, err := c.Audit.Now()
		must(w.t, err)
		out[c.Name] = m
	}
	return out
}

// writes are what the agents wrote of objects since the marks.
func (w *world) writes(from map[string]lab.Mark, keep func(lab.Request) bool) []string {
	w.t.Helper()
	var out []string
	for _, c := range w.Clusters {
		list, err := c.Audit.Since(from[c.Name], func(r lab.Request) bool { return r.Applies() && keep(r) })
		must(w.t, err)
		for _, r := range list {
			out = append(out, c.Name+": "+r.String())
		}
	}
	return out
}

func anyWrite(lab.Request) bool { return true }

func isDelete(r lab.Request) bool { return strings.HasPrefix(r.Verb, "delete") }

// nothingDeleted fails if an agent has deleted anything since the marks.
func (w *world) nothingDeleted(from map[string]lab.Mark) {
	w.t.Helper()
	for _, r := range w.writes(from, isDelete) {
		w.t.Errorf("a delete that nobody asked for: %s", r)
	}
}

// silent holds for a while that the agents write nothing.
func (w *world) silent(from map[string]lab.Mark) {
	w.t.Helper()
	must(w.t, lab.Stays(w.t.Context(), calm, func() error {
		if list := w.writes(from, anyWrite); len(list) > 0 {
			return fmt.Errorf("writes that nobody asked for:\n%s", strings.Join(list, "\n"))
		}
		return nil
	}))
}

// says waits until get clusters shows the words in the row of the cluster.
func (w *world) says(cluster string, words ...string) {
	w.t.Helper()
	w.eventually(func() error {
		out := w.CLI(w.t.Context(), "get", "clusters", "--no-headers")
		for line := range strings.Lines(out.Stdout) {
			if !strings.HasPrefix(line, cluster+" ") {
				continue
			}
			for _, word := range words {
				if !strings.Contains(line, word) {
					return fmt.Errorf("get clusters does not say %q: %s", word, line)
				}
			}
			return nil
		}
		return fmt.Errorf("cluster %s has no row:\n%s%s", cluster, out.Stdout, out.Stderr)
	})
}

// agentAway: what changed while an agent was off is made good, and nothing else is touched.
func agentAway(w *world) {
	c := w.Clusters[0]
	w.putReady(module("shop", "1", "a", "b"))
	c.Agent.Stop()
	w.says(c.Name, "Disconnected")
	from := w.marks()
	w.put(module("shop", "2", "a", "b"))
	must(w.t, c.Merge(w.t.Context(), "v1", "ConfigMap", "shop", "b", `{"data":{"value":"by hand"}}`))
	must(w.t, c.Agent.Start())
	w.ready()
	for _, name := range []string{"a", "b"} {
		w.eventually(func() error { return w.has(c, "shop", name, "2") })
	}
	w.nothingDeleted(from)
}

// emptiedStore: a hub that lost its store but not its CA knows no cluster. The agents go on by themselves.
func emptiedStore(w *world) {
	w.putReady(module("shop", "3", "a", "b"))
	kept := w.Hub.DataDir + "-kept"
	from := w.marks()
	w.Hub.Stop()
	must(w.t, os.Rename(w.Hub.DataDir, kept))
	must(w.t, os.Mkdir(w.Hub.DataDir, 0o700))
	for _, name := range []string{"ca.crt", "ca.key"} {
		data, err := os.ReadFile(filepath.Join(kept, name))
		must(w.t, err)
		must(w.t, os.WriteFile(filepath.Join(w.Hub.DataDir, name), data, 0o600))
	}
	must(w.t, w.Hub.Start(w.t.Context()))
	for _, c := range w.Clusters {
		w.says(c.Name, "Unregistered", "towline cluster join "+c.Name)
	}
	w.silent(from)
	c := w.Clusters[0]
	must(w.t, c.Merge(w.t.Context(), "v1", "ConfigMap", "shop", "a", `{"data":{"value":"by hand"}}`))
	w.eventually(func() error { return w.has(c, "shop", "a", "3") })
	w.nothingDeleted(from)

	w.Hub.Stop()
	must(w.t, os.RemoveAll(w.Hub.DataDir))
	must(w.t, os.Rename(kept, w.Hub.DataDir))
	must(w.t, w.Hub.Start(w.t.Context()))
	for _, c := range w.Clusters {
		c.Agent.Stop() // it would try again within a minute
		must(w.t, c.Agent.Start())
	}
	w.ready()
	w.putReady(module("shop", "4", "a", "b"))
	w.nothingDeleted(from)
}

// olderStore: a copy of the store is put back. The agents have seen a newer one, and are told nothing until a person
// says that the copy counts.
func olderStore(w *world) {
	w.putReady(module("shop", "5", "a", "b"))
	w.putReady(module("gone", "1", "x"))
	copied := w.Hub.DataDir + "-copy"
	w.Hub.Stop()
	must(w.t, os.CopyFS(copied, os.DirFS(w.Hub.DataDir)))
	must(w.t, w.Hub.Start(w.t.Context()))
	w.ready()
	w.putReady(module("shop", "6", "a", "b", "c"))
	w.putReady(module("new", "1", "n"))
	w.Hub.Stop()
	must(w.t, os.RemoveAll(w.Hub.DataDir))
	must(w.t, os.Rename(copied, w.Hub.DataDir))
	from := w.marks()
	must(w.t, w.Hub.Start(w.t.Context()))
	for _, c := range w.Clusters {
		w.says(c.Name, "REGRESSED", "towline cluster join "+c.Name+" --reissue")
	}
	w.put(module("other", "1", "z")) // numbers grow past those that the agents hold
	w.silent(from)
	for _, c := range w.Clusters {
		must(w.t, errors.Join(w.has(c, "shop", "c", "6"), w.has(c, "new", "n", "1")))
		if err := w.has(c, "other", "z", "1"); !apierrors.IsNotFound(errors.Unwrap(err)) {
			w.t.Errorf("a module of the older store was applied before a person looked: %v", err)
		}
	}

	for _, c := range w.Clusters {
		token, err := w.Token(w.t.Context(), c.Name, "--reissue")
		must(w.t, err)
		c.Agent.Stop()
		c.Agent = w.NewAgent(c, lab.AgentOptions{Token: token, Name: c.Agent.Name + "-again", StateDir: c.Agent.StateDir})
		must(w.t, c.Agent.Start())
	}
	w.ready()
	for _, c := range w.Clusters {
		w.eventually(func() error { return errors.Join(w.has(c, "shop", "a", "5"), w.has(c, "other", "z", "1")) })
		must(w.t, w.has(c, "new", "n", "1")) // the hub does not know it: it stays, and is said
		w.says(c.Name, "stray")
	}
	w.putReady(module("new", "2", "n"))
	w.putReady(module("shop", "7", "a", "b"))
	// What the newer store had brought, and this one does not list, goes by its word, although its numbers are lower.
	must(w.t, w.CLI(w.t.Context(), "delete", "module", "new", "--yes", "--timeout", "2m").Err())
	for _, c := range w.Clusters {
		for namespace, name := range map[string]string{"shop": "c", "new": "n"} {
			w.eventually(func() error { return w.gone(c, namespace, name) })
		}
	}
}

func (w *world) gone(c *lab.Cluster, namespace, name string) error {
	_, err := c.Get(w.t.Context(), "v1", "ConfigMap", namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("cluster %s: ConfigMap %s/%s is still there (%v)", c.Name, namespace, name, err)
}

// silentDeletes holds for a while that nothing is deleted.
func (w *world) silentDeletes(from map[string]lab.Mark) {
	w.t.Helper()
	must(w.t, lab.Stays(w.t.Context(), calm, func() error {
		if list := w.writes(from, isDelete); len(list) > 0 {
			return fmt.Errorf("deletes that nobody asked for:\n%s", strings.Join(list, "\n"))
		}
		return nil
	}))
}

// containsRow says that a table has a row with the word.
func containsRow(table, word string) bool {
	for line := range strings.Lines(table) {
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}
