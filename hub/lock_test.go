package hub_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func (w *world) lock(name string) {
	w.t.Helper()
	resp, err := w.Clusters.LockCluster(w.ctx, &towlinev1.LockClusterRequest{Name: name, Reason: "suspected"})
	if must(w.t, err); resp.GetResult() != "locked" {
		w.t.Fatalf("cluster %s: %s", name, resp.GetResult())
	}
}

func (w *world) unlock(name string, reissue bool) string {
	w.t.Helper()
	resp, err := w.Clusters.UnlockCluster(w.ctx, &towlinev1.UnlockClusterRequest{Name: name, Reissue: reissue, Reason: "false alarm"})
	if must(w.t, err); resp.GetResult() != "unlocked" || (resp.GetToken() != "") != reissue {
		w.t.Fatalf("cluster %s: %s", name, resp.GetResult())
	}
	return resp.GetToken()
}

// A cluster is locked at one hub, and its agent is cut off at the other one, which has its session: it is given nothing more, and nothing is
// taken from it. A rollout passes it by for that reason, and goes on there when it is unlocked.
func TestLockAtAnotherHub(t *testing.T) {
	leader, follower, _ := two(t)
	follower.join("a", nil, nil)
	leader.join("b", nil, nil)
	for _, w := range []*world{leader, follower} {
		for _, c := range []string{"a", "b"} {
			w.awaitCluster(c, "Ready")
		}
	}
	leader.await("shop", leader.put(module("shop", configMap("1"))).GetRevision())
	agent := follower.agents["a"]
	held, tries := agent.Held(), agent.Tries.Load()

	began := time.Now()
	leader.lock("a")
	for _, w := range []*world{leader, follower} {
		w.awaitCluster("a", "Locked")
	}
	follower.eventually(func() bool { return agent.Tries.Load() > tries }) // its session has ended
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the session ended after %s", took)
	}
	if _, err := follower.ids["a"].Renew(follower.ctx, follower.listen); !errors.Is(err, fleet.ErrDenied) && !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a renewal: %v", err)
	}
	ro := leader.await("shop", leader.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Fatalf("rollout: %v", s)
	}
	clusters := ro.GetStatus().GetClusters()
	at := slices.IndexFunc(clusters, func(c *towlinev1.ClusterProgress) bool { return c.GetCluster() == "a" })
	if at < 0 || clusters[at].GetReason() != "ClusterLocked" {
		t.Errorf("the rollout says of its clusters: %v", clusters)
	}
	if now := agent.Held(); len(now.Syncs) != len(held.Syncs) || len(now.Tombstones) != 0 {
		t.Errorf("it was told something while it was locked: %v", now)
	}
	if s := leader.module("shop").GetStatus(); s.GetClusters() != 2 || s.GetHealthy() != 1 || s.GetAway() != 1 {
		t.Errorf("module: %v", s)
	}

	follower.unlock("a", false)
	leader.awaitCluster("a", "Ready")
	leader.eventually(func() bool { return leader.module("shop").GetStatus().GetHealthy() == 2 })
	lines := leader.recorded(&towlinev1.ListAuditEntriesRequest{})
	for _, want := range []string{"admin|LockCluster|a|OK|suspected", "admin|UnlockCluster|a|OK|false alarm"} {
		if !slices.Contains(lines, want) {
			t.Errorf("the audit lacks %s: %v", want, lines)
		}
	}
}

// A lock is as it was after the hub has started anew, and who is let in with a new identity has what it had.
func TestLockOutlastsTheHub(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.lock("a")
	w.restart()
	if s := w.cluster("a").GetStatus(); s.GetState() != "Locked" || s.GetLock().GetBy() != "admin" || s.GetLock().GetReason() != "suspected" || s.GetModules() != 1 {
		t.Errorf("after a restart: %v", s)
	}
	token := w.unlock("a", true)
	if s := w.cluster("a").GetStatus(); s.GetState() != "Revoked" || s.GetLock() != nil {
		t.Errorf("unlocked for a new identity: %v", s)
	}
	w.stops["a"]()
	w.redeems("a", token, "uid-a")
	w.connect("a", nil)
	w.awaitCluster("a", "Ready")
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.eventually(func() bool { return w.module("shop").GetStatus().GetHealthy() == 1 })
}

// A lock that is taken back at once has ended the session all the same: nothing counts any more that its agent says in it, so it begins another.
func TestLockThatIsTakenBackAtOnce(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	tries := w.agents["a"].Tries.Load()
	w.lock("a")
	w.unlock("a", false)
	w.eventually(func() bool { return w.agents["a"].Tries.Load() > tries })
	w.put(module("shop", configMap("2")))
	w.eventually(func() bool { s := w.module("shop").GetStatus(); return s.GetUpdated() == 1 && s.GetHealthy() == 1 })
}
