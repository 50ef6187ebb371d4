package rollouts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/test/lab"
)

// truth holds what the hub says against the API servers for as long as it runs.
type truth struct {
	clusters map[string]*lab.Cluster
	hub      *client.Client

	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	away   string              // a cluster whose agent was killed: what it has been given it takes up when it likes
	looks  map[string]int      // by what was looked at
	wrongs map[string]struct{} // each once
}

// period is between two looks: often enough to see a state that lasts as long as a pod takes.
const period = 100 * time.Millisecond

func (w *world) watchTruth() *truth {
	hub, err := w.Hub.Client(w.t.Context())
	must(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	x := &truth{clusters: map[string]*lab.Cluster{}, hub: hub, stop: cancel, looks: map[string]int{}, wrongs: map[string]struct{}{}}
	for _, c := range w.Clusters {
		x.clusters[c.Name] = c
	}
	for _, look := range []func(context.Context) error{x.readiness, x.counts, x.active} {
		x.done.Go(func() { x.often(ctx, look) })
	}
	return x
}

// end stops looking and tells what was wrong.
func (x *truth) end(t *testing.T) {
	t.Helper()
	x.stop()
	x.done.Wait()
	if err := x.hub.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("looks: %v", x.looks)
	for _, what := range []string{"ready", "not ready", "counts", "active", "no active"} {
		if x.looks[what] == 0 {
			t.Errorf("never looked at: %s", what)
		}
	}
	for _, wrong := range slices.Sorted(maps.Keys(x.wrongs)) {
		t.Error(wrong)
	}
}

// often looks until the end. While the hub is down there is nothing to see.
func (x *truth) often(ctx context.Context, look func(context.Context) error) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := look(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrUnavailable) {
			x.wrong("%v", err)
		}
	}
}

func (x *truth) saw(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.looks[what]++
}

func (x *truth) wrong(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrongs[fmt.Sprintf(format, args...)] = struct{}{}
}

func (x *truth) trackers(ctx context.Context) (map[string]*v1.Tracker, error) {
	resp, err := x.hub.Trackers.ListTrackers(ctx, &v1.ListTrackersRequest{Filter: &v1.ObjectFilter{Module: "web"}})
	out := map[string]*v1.Tracker{}
	for _, t := range resp.GetTrackers() {
		out[t.GetCluster()] = t
	}
	return out, err
}

// readiness: a cluster that is ready or Healthy before and after a look at its API server, for one and the same
// generation, has that revision's Deployment with all its pods ready.
func (x *truth) readiness(ctx context.Context) error {
	before, err := x.trackers(ctx)
	if err != nil {
		return err
	}
	found := map[string]error{}
	for name, t := range before {
		if t.GetReady() || t.GetHealth() == "Healthy" {
			found[name] = runs(ctx, x.clusters[name], revision{n: int(t.GetRevision())}.image())
			continue
		}
		x.saw("not ready")
	}
	after, err := x.trackers(ctx)
	if err != nil {
		return err
	}
	for name, err := range found {
		a, b := before[name], after[name]
		if b.GetGeneration() != a.GetGeneration() || b.GetReady() != a.GetReady() || b.GetHealth() != a.GetHealth() || !b.GetConnected() {
			continue // it moved meanwhile
		}
		x.saw("ready")
		if err != nil {
			x.wrong("the hub says that %s is %s at r%d (ready %t), but: %v", name, a.GetHealth(), a.GetRevision(), a.GetReady(), err)
		}
	}
	return nil
}

// counts: healthy, progressing, bad and away are all clusters, always.
func (x *truth) counts(ctx context.Context) error {
	m, err := x.hub.Modules.GetModule(ctx, &v1.GetModuleRequest{Name: "web"})
	if err != nil {
		return err
	}
	x.saw("counts")
	s := m.GetModule().GetStatus()
	if s.GetClusters() != 4 || s.GetHealthy()+s.GetProgressing()+s.GetBad()+s.GetAway() != s.GetClusters() {
		x.wrong("counts of the module do not add up: %v", s)
	}
	r, err := x.hub.Rollouts.GetRollout(ctx, &v1.GetRolloutRequest{Module: "web"})
	if err != nil {
		return err
	}
	ro := r.GetRollout()
	if len(ro.GetStatus().GetStages()) == 0 {
		return nil // its plan is not made yet
	}
	total := int32(0)
	for _, g := range ro.GetStatus().GetStages() {
		sum := g.GetDone() + g.GetRunning() + g.GetFailed() + g.GetDeferred() + g.GetSkipped() + g.GetToGo()
		if ro.GetStatus().GetState() != "RollingBack" && ro.GetStatus().GetState() != "RolledBack" && sum != g.GetTotal() {
			x.wrong("%s: counts of stage %s do not add up: %v", ro.GetId(), g.GetName(), g)
		}
		if n := x.moving(ro, g.GetName()); n > g.GetLimit() {
			x.wrong("%s: %d clusters of stage %s move at once, the limit is %d", ro.GetId(), n, g.GetName(), g.GetLimit())
		}
		total += g.GetTotal()
	}
	if total != 4 || ro.GetStatus().GetTotal() != 4 {
		x.wrong("%s: the totals have moved: %d, %d", ro.GetId(), total, ro.GetStatus().GetTotal())
	}
	return nil
}

// goesAway says that the agent of a cluster is about to be killed.
func (x *truth) goesAway(cluster string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.away = cluster
}

// moving counts the clusters of a stage that are on their way, but for the one that was away.
func (x *truth) moving(ro *v1.Rollout, stage string) int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := int32(0)
	for _, c := range ro.GetStatus().GetClusters() {
		if c.GetStage() == stage && c.GetCluster() != x.away && (c.GetState() == "Progressing" || c.GetState() == "Soaking") {
			n++
		}
	}
	return n
}

// active: at most one rollout that has a revision has not ended.
func (x *truth) active(ctx context.Context) error {
	resp, err := x.hub.Rollouts.ListRollouts(ctx, &v1.ListRolloutsRequest{Module: "web", Active: true})
	if err != nil {
		return err
	}
	var ids []string
	for _, r := range resp.GetRollouts() {
		if r.GetRevision() != 0 {
			ids = append(ids, r.GetId())
		}
	}
	switch len(ids) {
	case 0:
		x.saw("no active")
	case 1:
		x.saw("active")
	default:
		x.wrong("active at once: %v", ids)
	}
	return nil
}
