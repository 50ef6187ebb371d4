// Package hubs proves that several hubs on an etcd of several members come and go without harm: under rollouts that never cease, hubs
// and members are killed and paused at random, and what agents were given, what was acknowledged and what rollouts did is judged. It
// runs only with TOWLINE_SOAK set.
package hubs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/test/lab"
)

const (
	hubs     = 3
	clusters = 12
	// canaries are the clusters of the first stage of every rollout.
	canaries = 2
	// good modules are ready everywhere; bad ones fail in each canary.
	good, bad = 4, 2
	// enough is how long a run lasts at least in which everything comes to pass.
	enough = 2 * time.Minute
	// patience is how long all may take to come to rest when everything runs again.
	patience = 3 * time.Minute
)

// world is three hubs, and all that makes use of them.
type world struct {
	*lab.Lab
	t       *testing.T
	seed    uint64
	clients []*client.Client // of each hub
	agents  []*agent
	writers []*writer

	mu    sync.Mutex
	count map[string]int // of what was done
}

// TestHubsAndMembersComeAndGo: rollouts finish, no acknowledged write is lost, no cluster gets a stale revision, and no canary that
// fails lets a revision pass, whichever hubs and members are killed and paused.
func TestHubsAndMembersComeAndGo(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("TOWLINE_SOAK"))
	if err != nil {
		t.Skip("TOWLINE_SOAK is not set to a duration; run: make soak-hubs")
	}
	w := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var wg sync.WaitGroup
	for _, x := range w.writers {
		wg.Go(func() { x.write(ctx) })
	}
	w.havoc(ctx)
	wg.Wait()
	w.rest(t.Context())
	w.logs()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("seed %d: %v", w.seed, w.count)
	for _, what := range []string{"writes acknowledged", "rollouts succeeded", "hub killed", "hub paused", "member killed", "member paused"} {
		if w.count[what] == 0 && long >= enough {
			t.Errorf("nothing of this came to pass: %s", what)
		}
	}
}

func start(t *testing.T) *world {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("TOWLINE_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	w := &world{t: t, seed: seed, count: map[string]int{}}
	t.Logf("seed %d", seed)
	if w.Lab, err = lab.Start(t.Context(), lab.Options{Hubs: hubs, HubArgs: []string{"--grace", "60s"}, Dir: os.Getenv("TOWLINE_DIR")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, h := range w.Hubs {
				t.Logf("%s:\n%s", h.Name, h.Tail())
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, h := range w.Hubs {
		c, err := h.Client(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		w.clients = append(w.clients, c)
	}
	for i := range clusters {
		w.join(i)
	}
	for i := range good + bad {
		x := &writer{w: w, name: fmt.Sprintf("good-%d", i), random: rand.New(rand.NewPCG(seed, uint64(i)))}
		if i >= good {
			x.name = fmt.Sprintf("%s%d", badPrefix, i)
		}
		w.writers = append(w.writers, x)
	}
	return w
}

// join has a cluster join, with an agent that tries one hub after the other.
func (w *world) join(i int) {
	w.t.Helper()
	a := &agent{w: w, name: fmt.Sprintf("c-%02d", i), canary: i < canaries, newest: map[string]given{}}
	labels := map[string]string{"ring": "rest"}
	if a.canary {
		labels["ring"] = "canary"
	}
	got, err := w.clients[0].Clusters.JoinCluster(w.t.Context(), &v1.JoinClusterRequest{Name: a.name, Labels: labels})
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := simagent.Join(w.t.Context(), w.Hubs[0].Agents, got.GetToken(), "uid-"+a.name)
	if err != nil {
		w.t.Fatal(err)
	}
	var others []string
	for k := range hubs - 1 {
		others = append(others, w.Hubs[(i+k+1)%hubs].Agents)
	}
	a.Agent = simagent.New(simagent.Options{Hub: w.Hubs[i%hubs].Agents, Others: others, Identity: id, Keep: true, Took: a.took, Report: a.says,
		Reconnect: 300 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	w.agents = append(w.agents, a)
}

// logs holds that no member of etcd has sent a hub away.
func (w *world) logs() {
	for _, h := range w.Hubs {
		text, err := os.ReadFile(h.Log)
		if err != nil {
			w.t.Error(err)
		}
		if strings.Contains(string(text), "too_many_pings") {
			w.t.Errorf("%s has called etcd more often than that takes", h.Name)
		}
	}
}

// did counts something.
func (w *world) did(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[what]++
}
