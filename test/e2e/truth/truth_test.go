// Package truth holds what the hub says against the API servers under random operations: puts, deletes, edits and
// deletes by somebody else, kills and pauses of agents, hub and API servers, cut links and relabelled clusters, on two
// real clusters. At every quiet point each row of get objects must be what the cluster has, and nothing that a module
// wanted all the time may have been deleted. It runs only with TOWLINE_E2E set (make test-e2e).
package truth

import (
	"context"
	"os"
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
	t.Logf("%d operations, %d quiet points, %d rows compared: %v", w.operations(), w.rests, w.compared, w.Done)
}

// world is the system under test and what the test knows of it.
type world struct {
	*e2etest.Random

	modules map[string]*module
	foreign map[place]string        // what the test made itself and Towline may not touch, with its value
	kept    map[place]string        // UIDs of what was ours at the last quiet point
	touched map[place]bool          // what the test or a change may have replaced since
	listed  map[place][]string      // the modules that listed it then
	removed map[string]bool         // modules deleted since
	forgot  map[string]bool         // clusters whose agent lost its records
	labels  map[string]string       // the ring of each cluster
	history map[string]map[int]set  // objects of each revision of a module
	reports map[string]map[int]bool // of each revision whether it leaves drift as it is

	rests, compared, pods int
}

// operations is how many there were.
func (w *world) operations() (n int) {
	for _, of := range w.Done {
		n += of
	}
	return n
}

// place is an object in a cluster.
type place struct {
	cluster string
	id      id
}

func newWorld(t *testing.T, seed uint64) *world {
	ctx, cancel := context.WithTimeout(t.Context(), e2etest.Patience)
	defer cancel()
	l := e2etest.Start(t, lab.Options{Names: []string{"c1", "c2"}, Links: true, Bin: os.Getenv("TOWLINE_RACE_BIN")})
	w := &world{Random: e2etest.NewRandom(t, l, seed, 1), modules: map[string]*module{}, foreign: map[place]string{},
		kept: map[place]string{}, touched: map[place]bool{}, labels: map[string]string{},
		history: map[string]map[int]set{}, reports: map[string]map[int]bool{}, listed: map[place][]string{}, removed: map[string]bool{}, forgot: map[string]bool{}}
	for i, c := range l.Clusters {
		w.labels[c.Name] = rings[i%len(rings)]
		w.prepare(ctx, c)
		token, err := l.Token(ctx, c.Name, "--label", "ring="+w.labels[c.Name])
		w.Must(err)
		if i == 0 {
			c.Agent = l.NewAgent(c, lab.AgentOptions{Token: token})
		} else { // which keeps its state in Secrets
			c.Agent = l.NewAgent(c, lab.AgentOptions{Token: token, Pod: "pod-0"})
		}
		w.Must(c.Agent.Start())
		w.Must(l.WaitState(ctx, c.Name, "Ready"))
	}
	return w
}

// towline runs a command that must end with 0.
func (w *world) towline(args ...string) string {
	w.T.Helper()
	r := w.CLI(w.T.Context(), args...)
	if err := r.Err(); err != nil {
		w.Fatal("%v", err)
	}
	return r.Stdout
}
