// Package histories lives random histories of a fleet: a real hub, a canary and another cluster with real controllers whose pods run, and two
// modules with Deployments that use ConfigMaps of hashed names. People put good and bad revisions, move Deployments between modules, roll out,
// back and no further, hold, edit and delete by hand, while agents, hub and API servers are killed and links cut. What may not happen is
// checked in the API servers' own histories. It runs only with TOWLINE_E2E set; `make soak` runs it for long.
package histories

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/test/e2e/e2etest"
	"towline.dev/towline/test/lab"
)

const (
	// home is the namespace of all that the modules have; the test makes it.
	home = "histories"
	// atLeast is how long histories go on; TOWLINE_SOAK, a duration, takes its place.
	atLeast = time.Minute
	// round is how many operations there are until all is brought to rest.
	round = 14
	// limit is how long a fleet may take to come to rest: rollouts with their deadlines, Leases that run out and agents that back off are in it.
	limit = 3 * time.Minute
	// lag is how long what the hub says may be behind what a cluster has.
	lag = 5 * time.Second
)

// modules and apps that there are. Each app is a Deployment that uses the ConfigMap of its revision.
var modules, apps = []string{"one", "two"}, []string{"api", "job", "web"}

func TestHistories(t *testing.T) {
	if os.Getenv("TOWLINE_E2E") == "" {
		t.Skip("TOWLINE_E2E is not set; run: make test-e2e")
	}
	w := start(t, e2etest.Seed(t))
	w.rest()
	for end := time.Now().Add(e2etest.Duration(t, atLeast)); time.Now().Before(end); {
		for range round {
			w.operate()
			w.look(false)
			w.Pause(time.Duration(w.Rand.IntN(3000)) * time.Millisecond)
		}
		w.rest()
	}
	t.Logf("%d quiet points, %d rows compared, %d deletes of what pods use judged, %d revisions beyond the canary: %v",
		w.rests, w.compared, w.deletes, w.beyond, w.Done)
}

// world is the system under test and what the test knows of it.
type world struct {
	*e2etest.Random

	logs   map[string]*history // what the API server of a cluster tells, by cluster
	puts   map[int]put         // by number
	last   int                 // the newest number
	now    map[string]put      // what was put last, by name
	kept   map[string]string   // UIDs of the Deployments at the last quiet point, by CLUSTER/APP
	moved  bool                // since then something happened by which a Deployment may have to be made anew
	hands  map[string]bool     // CLUSTER/OBJECT that the test deleted since then
	edited map[string]bool     // CLUSTER/APP that the test took back or deleted since then

	erased  map[string]bool        // CLUSTER/ConfigMap that the test deleted, ever
	removed map[string]bool        // modules that the test deleted since the last quiet point
	waved   map[int]string         // puts that a person let go on past the canary, or whose canary a person changed, with how
	left    map[string]bool        // CLUSTER/KIND/NAME that is left of before, as by a removal that keeps objects
	leaves  bool                   // since the last quiet point something happened by which more may be left
	frozen  map[string]freeze      // what is held, by the hold
	saved   string                 // a copy of the hub's store; empty: none
	agents  int                    // of new agents, for their names
	revs    map[string]map[int]int // the put of each revision of a module

	rests, compared, deletes, beyond, confirms int
}

// put is a module as it was put once.
type put struct {
	number int
	module string
	apps   map[string]config
	drift  string // policy
}

// config is what an app runs by: a number for its ConfigMap, and whether its pods get ready.
type config struct {
	n   int
	bad bool
}

func start(t *testing.T, seed uint64) *world {
	t.Helper()
	l := e2etest.Start(t, lab.Options{Names: []string{"c1", "c2"}, Links: true})
	w := &world{Random: e2etest.NewRandom(t, l, seed, 3), logs: map[string]*history{}, puts: map[int]put{}, now: map[string]put{},
		kept: map[string]string{}, hands: map[string]bool{}, edited: map[string]bool{}, erased: map[string]bool{}, removed: map[string]bool{},
		waved: map[int]string{}, left: map[string]bool{}, frozen: map[string]freeze{}}
	for _, c := range l.Clusters {
		w.Must(c.Create(t.Context(), object("v1", "Namespace", "", home, nil)))
		for _, name := range foreigners {
			w.Must(c.Create(t.Context(), object("v1", "ConfigMap", home, name, map[string]any{"data": map[string]any{"of": "others"}})))
		}
		w.logs[c.Name] = w.follow(c)
	}
	e2etest.Join(t, l, e2etest.Canary)
	return w
}

// foreigners are ConfigMaps of others, which no module lists.
var foreigners = []string{"foreign-1", "foreign-2"}

func object(apiVersion, kind, ns, name string, more map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	for k, v := range more {
		u.Object[k] = v
	}
	if ns != "" {
		u.SetNamespace(ns)
	}
	return u
}

// towline runs a command, which may be refused, and remembers what it said.
func (w *world) towline(name string, args ...string) bool {
	r := w.CLI(w.T.Context(), args...)
	said := "ok"
	if r.Err() != nil {
		said = strings.TrimSpace(r.Stderr)
	}
	w.Note(name, "%s: %s", strings.Join(args, " "), said)
	return r.Err() == nil
}

func (w *world) cluster(name string) *lab.Cluster {
	return w.Clusters[slices.IndexFunc(w.Clusters, func(c *lab.Cluster) bool { return c.Name == name })]
}
