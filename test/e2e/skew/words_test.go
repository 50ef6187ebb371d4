package skew

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/test/lab"
)

// TestSkewWords: what people say by which something goes, or stays, means the same to both versions: labels, holds, deletions, names that other
// clusters take, confirms, words to a rollout.
func TestSkewWords(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e ARGS='-run TestSkewWords -v'")
	}
	older, newer := build(t), os.Getenv("TOWLINE_BIN")
	t.Run("older agent", func(t *testing.T) {
		startWords(t, map[string]string{"towline-agent": older, "towline-hub": newer, "towline": newer}).words()
	})
	t.Run("older hub", func(t *testing.T) {
		startWords(t, map[string]string{"towline-agent": newer, "towline-hub": older, "towline": older}).words()
	})
}

// startWords starts a hub and three clusters, of which two join, both with in=yes; each has something of its own.
func startWords(t *testing.T, from map[string]string) *world {
	w := startIn(t, from, "c1", "c2", "c3")
	for _, c := range w.Clusters[:2] {
		_, err := w.Join(t.Context(), c, "--label", "in=yes")
		must(t, err)
	}
	for _, c := range w.Clusters[:2] {
		must(t, lab.PollFor(t.Context(), limit, func() error { return w.WaitState(t.Context(), c.Name, "Ready") }))
	}
	return w
}

// sized is a module of so many ConfigMaps, in clusters with in=yes, with more in its spec.
func sized(name string, objects int, content, more string) string {
	var files strings.Builder
	for i := range objects {
		fmt.Fprintf(&files, "          ---\n          apiVersion: v1\n          kind: ConfigMap\n          metadata: {name: %s-%d, namespace: default}\n          data: {is: %q}\n", name, i, content)
	}
	return "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: " + name + "}\nspec:\n  source:\n    inline:\n      files:\n        all.yaml: |\n" +
		files.String() + "  placement: {selector: {matchLabels: {in: \"yes\"}}}\n" + more
}

func (w *world) says(args ...string) string {
	w.t.Helper()
	r := w.CLI(w.t.Context(), args...)
	must(w.t, r.Err())
	return r.Stdout
}

func (w *world) puts(text string, flags ...string) {
	w.t.Helper()
	must(w.t, w.Feed(w.t.Context(), text, append([]string{"apply", "-f", "-"}, flags...)...).Err())
}

// has are the UIDs of the first objects of a module in a cluster; an object that is not there has none.
func (w *world) has(c *lab.Cluster, module string, objects int) (out []types.UID) {
	w.t.Helper()
	for i := range objects {
		o, err := c.Get(w.t.Context(), "v1", "ConfigMap", "default", fmt.Sprintf("%s-%d", module, i))
		if errors.IsNotFound(err) {
			out = append(out, "")
			continue
		}
		must(w.t, err)
		out = append(out, o.GetUID())
	}
	return out
}

// stays checks that for a while nothing of what was there goes or is made anew.
func (w *world) stays(what string, c *lab.Cluster, module string, was []types.UID) {
	w.t.Helper()
	if slices.Contains(was, "") {
		w.t.Errorf("%s: not all is there to begin with: %q", what, was)
	}
	if err := lab.Stays(w.t.Context(), calm, func() error {
		if is := w.has(c, module, len(was)); !slices.Equal(is, was) {
			return fmt.Errorf("cluster %s has %q of %s, not %q", c.Name, is, module, was)
		}
		return nil
	}); err != nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

// goes waits until so many objects are gone from a cluster, from one on.
func (w *world) goes(what string, c *lab.Cluster, module string, from, to int) {
	w.t.Helper()
	if err := lab.PollFor(w.t.Context(), limit, func() error {
		for i, uid := range w.has(c, module, to) {
			if (uid == "") != (i >= from) {
				return fmt.Errorf("cluster %s: %s-%d has UID %q", c.Name, module, i, uid)
			}
		}
		return nil
	}); err != nil {
		w.t.Errorf("%s: %v\n%s%s", what, err, w.CLI(w.t.Context(), "get", "trackers").Stdout, w.CLI(w.t.Context(), "get", "holds").Stdout)
	}
}

func (w *world) words() {
	c1, c2 := w.Clusters[0], w.Clusters[1]
	w.puts(sized("base", 1, "1", ""), wait...)
	w.leavesByLabel(c1, c2)
	w.deletedUnderAHold(c1)
	w.confirmed(c1)
	w.stopped(c1, c2)
	w.left(c1)
	w.taken(c2, w.Clusters[2])
	w.fine()
}

func (w *world) leavesByLabel(c1, c2 *lab.Cluster) {
	w.puts(sized("web", 2, "1", "")+"---\n"+strings.Replace(sized("keep", 1, "1", ""), `{matchLabels: {in: "yes"}}`, "{}", 1), wait...)
	one, base := w.has(c1, "web", 2), w.has(c2, "keep", 1)
	w.says("cluster", "label", "c2", "in=no", "--yes")
	w.goes("it left by its label", c2, "web", 0, 2)
	w.stays("it kept its label", c1, "web", one)
	w.stays("it is of every cluster", c2, "keep", base)
	w.says("cluster", "label", "c2", "in=yes", "--yes")
	w.goes("it came back by its label", c2, "web", 2, 2)
}

func (w *world) deletedUnderAHold(c1 *lab.Cluster) {
	w.puts(sized("frozen", 2, "1", ""), wait...)
	was := w.has(c1, "frozen", 2)
	w.says("hold", "module/frozen", "-m", "stays")
	w.says("delete", "module", "frozen", "--yes", "--wait=false")
	w.stays("it is held", c1, "frozen", was)
	w.says("unhold", "module/frozen")
	w.goes("the hold has ended", c1, "frozen", 0, 2)
}

func (w *world) confirmed(c1 *lab.Cluster) {
	w.puts(sized("many", 30, "1", ""), wait...)
	was := w.has(c1, "many", 30)
	w.puts(sized("many", 5, "2", ""))
	w.stays("nobody has confirmed", c1, "many", was)
	var ids []string
	must(w.t, lab.PollFor(w.t.Context(), limit, func() error {
		ids = strings.Fields(w.says("get", "holds", "-o", "jsonpath={range .items[*]}{.id}{\"\\n\"}{end}"))
		if len(ids) == 0 {
			return fmt.Errorf("nobody is asked: %s", w.says("get", "trackers"))
		}
		return nil
	}))
	for _, id := range ids {
		w.says("confirm", id, "--yes")
	}
	w.goes("it is confirmed", c1, "many", 5, 30)
	if now := w.has(c1, "many", 5); !slices.Equal(now, was[:5]) {
		w.t.Errorf("what stays was made anew: %q, before %q", now, was[:5])
	}
}

// content is what the first object of a module says in a cluster.
func (w *world) content(c *lab.Cluster, module string) string {
	w.t.Helper()
	o, err := c.Get(w.t.Context(), "v1", "ConfigMap", "default", module+"-0")
	must(w.t, err)
	got, _, _ := unstructured.NestedString(o.Object, "data", "is")
	return got
}

func (w *world) reaches(what string, c *lab.Cluster, module, content string) {
	w.t.Helper()
	if err := lab.PollFor(w.t.Context(), limit, func() error {
		if got := w.content(c, module); got != content {
			return fmt.Errorf("cluster %s has %q of %s, want %q", c.Name, got, module, content)
		}
		return nil
	}); err != nil {
		w.t.Errorf("%s: %v\n%s", what, err, w.CLI(w.t.Context(), "rollout", "status", module, "--watch=false").Stdout)
	}
}

func (w *world) stopped(c1, c2 *lab.Cluster) {
	staged := "  rollout:\n    stages:\n    - {name: one, maxConcurrency: 1, selector: {matchLabels: {first: \"yes\"}}, after: [{approval: {approvers: 1}}]}\n    - {name: rest}\n"
	w.says("cluster", "label", "c1", "first=yes", "--yes")
	w.puts(sized("slow", 3, "1", ""), wait...)
	was := w.has(c2, "slow", 3)
	w.puts(sized("slow", 2, "2", staged))
	w.reaches("the first stage", c1, "slow", "2")
	w.goes("what the new revision drops", c1, "slow", 2, 3)
	w.says("rollout", "pause", "slow", "-m", "wait")
	w.stays("it is paused", c2, "slow", was)
	w.says("rollout", "resume", "slow", "-m", "go")
	w.says("rollout", "abort", "slow", "-m", "no")
	w.stays("it is aborted", c2, "slow", was)
	w.says("rollout", "rollback", "slow", "-m", "back")
	w.reaches("it is rolled back", c1, "slow", "1")
	w.goes("it is rolled back", c1, "slow", 3, 3)
	w.stays("it never moved", c2, "slow", was)
}

func (w *world) left(c1 *lab.Cluster) {
	w.puts(sized("orphan", 2, "1", ""), wait...)
	was := w.has(c1, "orphan", 2)
	w.says("delete", "module", "orphan", "--orphan", "--yes", "--timeout", limit.String())
	w.stays("it was to be left", c1, "orphan", was)
	o, err := c1.Get(w.t.Context(), "v1", "ConfigMap", "default", "orphan-0")
	must(w.t, err)
	if hub := o.GetLabels()["towline.dev/hub"]; hub != "" {
		w.t.Errorf("it carries the label of hub %s still", hub)
	}
}

// taken has modules be deleted, moved and dropped while c2 is away, and another Kubernetes cluster take its name, that has the same objects from a time of its own.
func (w *world) taken(c2, c3 *lab.Cluster) {
	ctx := w.t.Context()
	w.puts(sized("gone", 2, "1", "")+"---\n"+sized("still", 2, "1", ""), wait...)
	was, kept := w.has(c2, "gone", 2), w.has(c2, "still", 2)
	c2.Agent.Stop()
	must(w.t, lab.PollFor(ctx, limit, func() error { return w.WaitState(ctx, "c2", "Disconnected") }))
	w.says("delete", "module", "gone", "--yes", "--wait=false")
	for i := range 2 {
		must(w.t, c3.Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": fmt.Sprintf("gone-%d", i), "namespace": "default"}, "data": map[string]any{"is": "1"}}}))
	}
	theirs := w.has(c3, "gone", 2)
	token, err := w.Token(ctx, "c2", "--reissue")
	must(w.t, err)
	c3.Agent = w.NewAgent(c3, lab.AgentOptions{Token: token, Name: "agent-c2-anew"})
	must(w.t, c3.Agent.Start())
	must(w.t, lab.PollFor(ctx, limit, func() error { return w.WaitState(ctx, "c2", "Ready") }))
	w.goes("it has the name", c3, "still", 2, 2)
	w.stays("it was never given that", c3, "gone", theirs)
	must(w.t, lab.PollFor(ctx, limit, func() error {
		if out := w.says("get", "modules", "-o", "name"); strings.Contains(out, "gone") {
			return fmt.Errorf("modules are %s: %s", out, w.says("get", "trackers", "--module", "gone"))
		}
		return nil
	}))
	must(w.t, c2.Agent.Start()) // the agent of before
	w.stays("its agent has no part in the fleet any more", c2, "gone", was)
	w.stays("its agent has no part in the fleet any more", c2, "still", kept)
	c2.Agent.Stop()
}

// fine waits until what is left is well.
func (w *world) fine() {
	w.t.Helper()
	must(w.t, lab.PollFor(w.t.Context(), limit, func() error {
		for row := range strings.Lines(w.says("get", "trackers", "--no-headers")) {
			if !strings.Contains(row, "Healthy") {
				return fmt.Errorf("%s", row)
			}
		}
		return nil
	}))
}
