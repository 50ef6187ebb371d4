// Package rollouts proves staged rollouts on four real clusters: a canary that fails and is rolled back alone, a revision
// that goes through an approval and a budget while a cluster is away, what is pushed to a Git server, which goes away and
// comes back, and a hub that is killed in every phase of it. All the while what the hub says is held against what the API
// servers have. It runs only with TOWLINE_E2E set.
package rollouts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

// limit is how long anything may take that is expected to happen.
const limit = 90 * time.Second

// world is the lab with what every step of the story uses.
type world struct {
	*lab.Lab
	t      *testing.T
	hub    *client.Client // reconnects by itself
	maria  string         // configuration of a second admin
	truth  *truth
	module string // whose rollouts the step is about
}

// TestStagedRollouts tells one story; each step begins where the one before ended.
func TestStagedRollouts(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	w := start(t)
	w.put(revision{n: 1, stages: noGates}, "--wait", "--timeout", "90s")
	w.isEverywhere(1)
	w.truth = w.watchTruth()
	for _, step := range []struct {
		name string
		run  func(*world)
	}{
		{"a canary that fails is rolled back alone", failingCanary},
		{"canary, approval, half of the rest, one cluster away", approvedWithOneAway},
		{"a newer revision supersedes", superseding},
		{"pushes to a Git server that goes away and comes back", followingGit},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			w.t = t
			step.run(w)
		}) {
			w.logs(t)
			break
		}
	}
	w.truth.end(t)
}

func start(t *testing.T) *world {
	t.Helper()
	l := e2etest.Start(t, lab.Options{Names: []string{"c1", "c2", "c3", "c4"}})
	e2etest.Join(t, l, e2etest.Canary)
	w := &world{Lab: l, t: t, maria: filepath.Join(l.Dir, "maria.yaml"), module: "web"}
	w.towline("user", "create", "maria", "--role", "admin", "--save", w.maria)
	var err error
	w.hub, err = l.Hub.Client(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = w.hub.Close() })
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// logs shows the last words of each process.
func (w *world) logs(t *testing.T) {
	t.Helper()
	t.Logf("hub:\n%s", w.Hub.Tail())
	for _, c := range w.Clusters {
		t.Logf("agent of %s:\n%s", c.Name, c.Agent.Tail())
	}
	t.Logf("status:\n%s", w.CLI(t.Context(), "rollout", "status", w.module, "--watch=false", "--all").Stdout)
	t.Logf("explain:\n%s", w.CLI(t.Context(), "explain", "rollout", w.module).Stdout)
}

// towline runs a command that must end with 0.
func (w *world) towline(args ...string) string {
	w.t.Helper()
	r := w.CLI(w.t.Context(), args...)
	must(w.t, r.Err())
	return r.Stdout
}

// noGates moves the canary and then half of the rest at a time.
const noGates = `  - {name: canary, selector: {matchLabels: {ring: canary}}}
  - {name: rest, maxConcurrency: 50%}
`

// revision is a state of the module: everything in it follows from its number.
type revision struct {
	n        int
	broken   bool   // its pods never become ready
	deadline string // progressDeadline; default 90s
	stages   string
}

// image tells revisions apart in a cluster.
func (r revision) image() string {
	if r.broken {
		return fmt.Sprintf("example.com/web:never-ready-%d", r.n)
	}
	return fmt.Sprintf("example.com/web:%d", r.n)
}

// yaml is the module. Its pods are replaced, not rolled, and take a while, so that a revision which is said to be ready
// but is not can be seen, and so that a hub can be killed in between.
func (r revision) yaml() string {
	deadline := r.deadline
	if deadline == "" {
		deadline = "90s"
	}
	return `apiVersion: towline.dev/v1
kind: Module
metadata: {name: web}
spec:
  namespace: web
  source:
    inline:
      files:
        web.yaml: |
          {apiVersion: v1, kind: Namespace, metadata: {name: web}}
          ---
          {apiVersion: v1, kind: ConfigMap, metadata: {name: web}, data: {image: "` + r.image() + `"}}
          ---
          apiVersion: apps/v1
          kind: Deployment
          metadata: {name: web}
          spec:
            replicas: 1
            strategy: {type: Recreate}
            selector: {matchLabels: {app: web}}
            template:
              metadata: {labels: {app: web}, annotations: {kubelab.towline.dev/ready-after: 1500ms}}
              spec: {containers: [{name: web, image: "` + r.image() + `"}]}
  placement: {selector: {}}
  rollout:
    onFailure: Rollback
    progressDeadline: ` + deadline + `
    stages:
` + strings.ReplaceAll(r.stages, "  - ", "    - ")
}

// put applies a revision.
func (w *world) put(r revision, flags ...string) {
	w.t.Helper()
	must(w.t, w.Feed(w.t.Context(), r.yaml(), append([]string{"apply", "-f", "-"}, flags...)...).Err())
}

// killHub kills the hub and returns when another one serves.
func (w *world) killHub() {
	w.t.Helper()
	w.Hub.Kill()
	must(w.t, w.Hub.Start(w.t.Context()))
}

// until waits until the newest rollout is as wanted.
func (w *world) until(what string, ok func(*v1.Rollout) bool) *v1.Rollout {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), limit, fmt.Errorf("not within %s: %s", limit, what))
	defer cancel()
	var last *v1.Rollout
	err := w.hub.WatchRollout(ctx, &v1.WatchRolloutRequest{Module: w.module}, func(r *v1.WatchRolloutResponse) error {
		last = r.GetRollout()
		if ok(last) {
			return client.ErrStop
		}
		return nil
	})
	if err != nil {
		w.t.Fatalf("%v; last: %v", err, last.GetStatus())
	}
	if !ok(last) {
		w.t.Fatalf("the rollout ended before it was so: %s: %v", what, last.GetStatus())
	}
	return last
}

// in waits until the newest rollout is the one with the number and in the state.
func (w *world) in(number int64, state, reason string) *v1.Rollout {
	w.t.Helper()
	return w.until(fmt.Sprintf("%s/%d is %s %s", w.module, number, state, reason), func(r *v1.Rollout) bool {
		s := r.GetStatus()
		return r.GetNumber() == number && s.GetState() == state && (reason == "" || s.GetReason() == reason)
	})
}

// at waits until a cluster is in a state in the newest rollout.
func (w *world) at(number int64, cluster, state string) *v1.Rollout {
	w.t.Helper()
	return w.until(fmt.Sprintf("%s is %s in %s/%d", cluster, state, w.module, number), func(r *v1.Rollout) bool {
		return r.GetNumber() == number && progress(r, cluster).GetState() == state
	})
}

// begun waits until a cluster has begun in the newest rollout. Who asks for its state may come too late: it is Progressing as long as its pods
// take, which may have passed when a hub serves again that was killed.
func (w *world) begun(number int64, cluster string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s has begun in %s/%d", cluster, w.module, number), func(r *v1.Rollout) bool {
		return r.GetNumber() == number && progress(r, cluster).GetStarted() != nil
	})
}

func progress(r *v1.Rollout, cluster string) *v1.ClusterProgress {
	for _, c := range r.GetStatus().GetClusters() {
		if c.GetCluster() == cluster {
			return c
		}
	}
	return nil
}

// eventually waits for something that is expected to happen.
func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	if err := lab.PollFor(w.t.Context(), limit, f); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// runs fails unless the pods of the revision are ready in the cluster.
func runs(ctx context.Context, c *lab.Cluster, image string) error {
	return isReady(ctx, c, "web", "web", image)
}

// isReady fails unless the one pod of a Deployment has the image and is ready.
func isReady(ctx context.Context, c *lab.Cluster, namespace, name, image string) error {
	d, err := c.Get(ctx, "apps/v1", "Deployment", namespace, name)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if got := imageOf(d); got != image {
		return fmt.Errorf("cluster %s: has %s, want %s", c.Name, got, image)
	}
	observed, _, _ := unstructured.NestedInt64(d.Object, "status", "observedGeneration")
	ready, _, _ := unstructured.NestedInt64(d.Object, "status", "readyReplicas")
	updated, _, _ := unstructured.NestedInt64(d.Object, "status", "updatedReplicas")
	if observed != d.GetGeneration() || ready != 1 || updated != 1 {
		return fmt.Errorf("cluster %s: %s is not ready: generation %d of %d observed, %d ready, %d updated", c.Name, image, observed,
			d.GetGeneration(), ready, updated)
	}
	return nil
}

func imageOf(d *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	if len(containers) != 1 {
		return ""
	}
	image, _, _ := unstructured.NestedString(containers[0].(map[string]any), "image")
	return image
}

// isEverywhere fails unless revision n runs in the named clusters; none: all.
func (w *world) isEverywhere(n int, names ...string) {
	w.t.Helper()
	for _, c := range w.Clusters {
		if len(names) > 0 && !strings.Contains(strings.Join(names, " "), c.Name) {
			continue
		}
		if err := runs(w.t.Context(), c, revision{n: n}.image()); err != nil {
			w.t.Error(err)
		}
	}
}

// marks are places in the audit logs.
type marks map[string]lab.Mark

func (w *world) mark() marks {
	w.t.Helper()
	out := marks{}
	for _, c := range w.Clusters {
		m, err := c.Audit.Now()
		must(w.t, err)
		out[c.Name] = m
	}
	return out
}

// writes holds what the agents wrote since the mark against the wanted number of writes of each cluster's Deployment.
// Below zero: as many at most, and one at least.
func (w *world) writes(since marks, want ...int) {
	w.t.Helper()
	for i, c := range w.Clusters {
		got, err := c.Audit.Since(since[c.Name], func(r lab.Request) bool { return r.Applies() && r.Resource == "deployments" })
		must(w.t, err)
		if n := len(got); n != want[i] && (want[i] >= 0 || n == 0 || n > -want[i]) {
			w.t.Errorf("cluster %s: the Deployment was written %d times, want %d: %v", c.Name, len(got), want[i], got)
		}
	}
}
