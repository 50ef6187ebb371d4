// Package e2e proves what a user gets: a hub, three real control planes with agents, and the towline command, all as
// separate processes. It runs only with TOWLINE_E2E set (make test-e2e), and looks at nothing but outputs, live objects
// and audit logs.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// limit is how long anything may take that is expected to happen, also on a machine that has much to do: Kubernetes
// itself may take some tens of seconds until a namespace is gone.
const limit = 90 * time.Second

// removing is the same for the command line.
const removing = "--timeout=2m"

// system is the one lab of all tests.
var system *lab.Lab

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	if os.Getenv("TOWLINE_E2E") == "" {
		return m.Run() // every test skips
	}
	dir, err := os.MkdirTemp("", "towline-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code = 1
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, "e2e: logs and state are in", dir)
			return
		}
		os.RemoveAll(dir)
	}()
	if err := start(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() {
		if err := system.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}()
	code = m.Run()
	return code
}

// start brings up three clusters that have joined the hub.
func start(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	var err error
	if system, err = lab.Start(ctx, lab.Options{Names: []string{"c1", "c2", "c3"}, Dir: dir, Links: true}); err != nil {
		return err
	}
	err = func() error {
		for _, c := range system.Clusters {
			if _, err := system.Join(ctx, c, "--label", "env=test", "--label", "name="+c.Name); err != nil {
				return err
			}
		}
		for _, c := range system.Clusters {
			waiting, cancel := context.WithTimeout(ctx, limit)
			err := system.WaitState(waiting, c.Name, "Ready")
			cancel()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, c.Agent.Tail())
			}
		}
		return nil
	}()
	if err != nil {
		_ = system.Close()
	}
	return err
}

// scenario is a test that shares its lab with those before and after it.
type scenario struct {
	name string
	run  func(*testing.T)
}

// TestObjects is what people do to modules and objects. Each scenario can run alone: -run TestObjects/NAME.
func TestObjects(t *testing.T) {
	inOrder(t, []scenario{
		{"put", testPut},
		{"put-again", testPutAgain},
		{"drift", testDrift},
		{"bad-modules", testBadModules},
		{"source", testSource},
		{"diff", testDiff},
		{"asks", testAsks},
		{"watched", testWatched},
		{"bindings", testBindings},
		{"packages-of-others", testOthers},
		{"prune", testPrune},
		{"delete", testDelete},
		{"name-again", testNameAgain},
		{"last-word", testLastWord},
		{"conflict", testConflict},
		{"move", testMove},
		{"shared", testShared},
		{"adopt", testForeignObject},
		{"hold", testHold},
		{"hold-annotation", testHoldByAnnotation},
	})
}

// TestFaults is what happens to processes, connections and identities, in the order of what it disturbs. It needs
// nothing of TestObjects, so that the two can run at the same time, each in a process with a lab of its own.
func TestFaults(t *testing.T) {
	inOrder(t, []scenario{
		{"join", testJoin},
		{"identity", testIdentity},
		{"lock", testLock},
		{"manifests", testManifests},
		{"cut", testCut},
		{"hub-killed", testHubKilled},
		{"agent-killed", testAgentKilled},
		{"fence", testFence},
		{"cluster-restored", testClusterRestored},
		{"unseen-cluster", testUnseenCluster},
		{"state-unwritable", testStateUnwritable},
		{"state-put-back", testStatePutBack},
		{"local-policy", testLocalPolicy},
	})
}

func inOrder(t *testing.T, scenarios []scenario) {
	t.Helper()
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			s.run(t)
			if t.Failed() {
				logs(t)
			}
		})
	}
}

// logs shows the last words of each process.
func logs(t *testing.T) {
	t.Helper()
	t.Logf("hub:\n%s", system.Hub.Tail())
	for _, c := range system.Clusters {
		t.Logf("agent of %s:\n%s", c.Name, c.Agent.Tail())
	}
}

// towline runs a command that must end with 0 and returns what it printed.
func towline(t *testing.T, args ...string) string {
	t.Helper()
	r := system.CLI(t.Context(), args...)
	if err := r.Err(); err != nil {
		logs(t)
		t.Fatal(err)
	}
	return r.Stdout
}

// refused runs a command that must fail, and whose error must contain every word.
func refused(t *testing.T, stdin string, args []string, words ...string) {
	t.Helper()
	r := system.Feed(t.Context(), stdin, args...)
	if r.Code == 0 {
		t.Errorf("towline %s: was taken:\n%s", strings.Join(args, " "), r.Stdout)
		return
	}
	for _, word := range words {
		if !strings.Contains(r.Stdout+r.Stderr, word) {
			t.Errorf("towline %s: does not say %q:\n%s%s", strings.Join(args, " "), word, r.Stdout, r.Stderr)
		}
	}
	if said := r.Stdout + r.Stderr; strings.Contains(said, "rpc error") || strings.Contains(said, "goroutine ") {
		t.Errorf("towline %s: the error is not one for people:\n%s", strings.Join(args, " "), said)
	}
}

// put applies a module and returns the command's output.
func put(t *testing.T, module string, flags ...string) string {
	t.Helper()
	r := system.Feed(t.Context(), module, append([]string{"apply", "-f", "-"}, flags...)...)
	if err := r.Err(); err != nil {
		logs(t)
		t.Fatal(err)
	}
	return r.Stdout
}

// putReady applies a module and waits until its rollout has succeeded.
func putReady(t *testing.T, module string) {
	t.Helper()
	put(t, module, "--wait", "--timeout", "2m")
}

// remove deletes a module at the end of a test.
func remove(t *testing.T, name string) {
	t.Cleanup(func() {
		r := system.CLI(context.Background(), "delete", "module", name, "--yes", removing)
		if r.Code != 0 && !strings.Contains(r.Stderr, "there is none") && !strings.Contains(r.Stderr, "not found") {
			t.Error(r.Err())
		}
	})
}

// eventually waits for something that is expected to happen.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := lab.PollFor(t.Context(), limit, f); err != nil {
		logs(t)
		t.Fatalf("%s: %v", what, err)
	}
}

// read gets resources as JSON into v.
func read(t *testing.T, v any, args ...string) {
	t.Helper()
	out := towline(t, append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("towline get %s: %v in:\n%s", strings.Join(args, " "), err, out)
	}
}

// row is one of get objects.
type row struct {
	Cluster, Project, Module   string
	Revision                   json.Number
	Sync, Health, Drift        string
	Reason, Message, ChangedBy string
	Field, Want, Live          string
	Seen                       int
	Extra, Watched             bool
	Object                     struct{ APIVersion, Kind, Namespace, Name string }
}

func (r row) String() string {
	return fmt.Sprintf("%s: %s %s %s/%s is %s, %s, %s %s %s", r.Cluster, r.Object.APIVersion, r.Object.Kind, r.Object.Namespace, r.Object.Name,
		r.Sync, r.Health, r.Drift, r.Reason, r.Message)
}

// rows reads the rows of a module.
func rows(t *testing.T, module string, flags ...string) []row {
	t.Helper()
	var list struct{ Items []row }
	read(t, &list, append([]string{"objects", "--module", module}, flags...)...)
	return list.Items
}

// moduleState is the part of a module's status that tests look at.
type moduleState struct {
	Status struct {
		Revision, SucceededRevision                        json.Number
		Clusters, Updated, Healthy, Progressing, Bad, Away int
		Drift, Objects                                     int
		Rollout, RolloutState, RolloutReason               string
	}
}

func module(t *testing.T, name string) moduleState {
	t.Helper()
	var m moduleState
	read(t, &m, "module", name)
	return m
}

// marks are places in the audit logs of all clusters.
type marks map[string]lab.Mark

func mark(t *testing.T) marks {
	t.Helper()
	out := marks{}
	for _, c := range system.Clusters {
		m, err := c.Audit.Now()
		if err != nil {
			t.Fatal(err)
		}
		out[c.Name] = m
	}
	return out
}

// requests are those of a cluster after the mark.
func (m marks) requests(t *testing.T, c *lab.Cluster, keep func(lab.Request) bool) []lab.Request {
	t.Helper()
	out, err := c.Audit.Since(m[c.Name], keep)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// noWrites fails if the agents have written objects after the mark, in the clusters or in all of them.
func (m marks) noWrites(t *testing.T, clusters ...*lab.Cluster) {
	t.Helper()
	if len(clusters) == 0 {
		clusters = system.Clusters
	}
	for _, c := range clusters {
		for i, r := range m.requests(t, c, lab.Request.Applies) {
			if i == 10 {
				break
			}
			t.Errorf("cluster %s: a write that nothing called for: %s", c.Name, r)
		}
	}
}
