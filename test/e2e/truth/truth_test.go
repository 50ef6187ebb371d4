// Package truth holds what the hub says against the API servers under random operations: puts, deletes, edits and
// deletes by somebody else, kills and pauses of agents, hub and API servers, cut links and relabelled clusters, on two
// real clusters. At every quiet point each row of get objects must be what the cluster has, and nothing that a module
// wanted all the time may have been deleted. It runs only with TOWLINE_E2E set (make test-e2e).
package truth

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

const (
	// atLeast is how long the operations go on; TOWLINE_SOAK, a duration, takes its place.
	atLeast = time.Minute
	// batch is how many operations there are between two quiet points.
	batch = 12
	// limit is how long a system may take to come to rest after the last operation: a control plane's start, an agent
	// that backs off, and a Lease that has to run out are in it.
	limit = 2 * time.Minute
	// lag is how long what the hub says may be behind what a cluster has at a quiet point.
	lag = 5 * time.Second
)

func TestTruth(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	w := newWorld(t, e2etest.Seed(t))
	for end := time.Now().Add(e2etest.Duration(t, atLeast)); time.Now().Before(end); {
		for range batch {
			w.operate()
		}
		w.rest()
		if t.Failed() {
			break
		}
	}
	t.Logf("%d operations, %d quiet points, %d rows compared: %v", w.operations, w.rests, w.compared, w.done)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is the system under test and what the test knows of it.
type world struct {
	*lab.Lab
	t      *testing.T
	random *rand.Rand

	modules map[string]*module
	foreign map[place]string        // what the test made itself and Towline may not touch, with its value
	kept    map[place]string        // UIDs of what was ours at the last quiet point
	touched map[place]bool          // what the test or a change may have replaced since
	listed  map[place][]string      // the modules that listed it then
	removed map[string]bool         // modules deleted since
	forgot  map[string]bool         // clusters whose agent lost its records
	labels  map[string]string       // the ring of each cluster
	down    map[string]func()       // what brings back what is down
	journal []string                // what was done since the last quiet point
	done    map[string]int          // operations by name
	lies    e2etest.Lies            // since when the hub says something that is not so
	history map[string]map[int]set  // objects of each revision of a module
	reports map[string]map[int]bool // of each revision whether it leaves drift as it is

	operations, rests, compared, pods int
}

// place is an object in a cluster.
type place struct {
	cluster string
	id      id
}

func newWorld(t *testing.T, seed uint64) *world {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "towline-truth-")
	must(t, err)
	l, err := lab.Start(ctx, lab.Options{Names: []string{"c1", "c2"}, Dir: dir, Links: true, Bin: os.Getenv("TOWLINE_RACE_BIN")})
	must(t, err)
	w := &world{Lab: l, t: t, random: rand.New(rand.NewPCG(seed, 1)), modules: map[string]*module{}, foreign: map[place]string{},
		kept: map[place]string{}, touched: map[place]bool{}, labels: map[string]string{}, down: map[string]func(){}, done: map[string]int{},
		lies: e2etest.Lies{}, history: map[string]map[int]set{}, reports: map[string]map[int]bool{}, listed: map[place][]string{}, removed: map[string]bool{}, forgot: map[string]bool{}}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("run again with TOWLINE_SEED=%d; logs and state are in %s", seed, dir)
			return
		}
		must(t, os.RemoveAll(dir))
	})
	t.Logf("TOWLINE_SEED=%d", seed)
	for i, c := range l.Clusters {
		w.labels[c.Name] = rings[i%len(rings)]
		w.prepare(ctx, c)
		token, err := l.Token(ctx, c.Name, "--label", "ring="+w.labels[c.Name])
		must(t, err)
		if i == 0 {
			c.Agent = l.NewAgent(c, lab.AgentOptions{Token: token})
		} else { // which keeps its state in Secrets
			c.Agent = l.NewAgent(c, lab.AgentOptions{Token: token, Pod: "pod-0"})
		}
		must(t, c.Agent.Start())
		must(t, l.WaitState(ctx, c.Name, "Ready"))
	}
	return w
}

// towline runs a command that must end with 0.
func (w *world) towline(args ...string) string {
	w.t.Helper()
	r := w.CLI(w.t.Context(), args...)
	if err := r.Err(); err != nil {
		w.fatal("%v", err)
	}
	return r.Stdout
}

// fatal ends the run with what was done before.
func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	for _, args := range [][]string{{"get", "clusters"}, {"get", "modules"}, {"get", "revisions"}, {"get", "rollouts"}, {"get", "trackers"}, {"get", "objects"}} {
		w.t.Logf("towline %s\n%s", strings.Join(args, " "), w.CLI(context.Background(), args...).Stdout)
	}
	w.t.Fatalf("%s\nsince the last quiet point:\n  %s", fmt.Sprintf(format, args...), strings.Join(w.journal, "\n  "))
}

// note remembers an operation for the case that it turns out badly.
func (w *world) note(name, format string, args ...any) {
	w.done[name]++
	w.operations++
	w.journal = append(w.journal, time.Now().UTC().Format("15:04:05.000 ")+name+" "+fmt.Sprintf(format, args...))
}
