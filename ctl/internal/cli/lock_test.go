package cli

import (
	"strings"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
)

// lockedHub has a cluster that is locked, one that is locked and being removed, and one that is as it should be.
func lockedHub() *fakeHub {
	lock := &v1.ClusterLock{By: "maria", Reason: "a node was broken into", Since: ago(5 * time.Minute)}
	at := func(name, state string, lock *v1.ClusterLock) *v1.Cluster {
		return &v1.Cluster{Metadata: &v1.Metadata{Name: name}, Spec: &v1.ClusterSpec{}, Status: &v1.ClusterStatus{State: state, Lock: lock, Since: lock.GetSince(),
			LastSeen: ago(10 * time.Second), Modules: 2, WasHealthy: 2}}
	}
	return &fakeHub{clusters: []*v1.Cluster{at("a", "Locked", lock), at("b", "Removing", lock), at("c", "Ready", nil)}}
}

func TestLockedClusterIsSaidToBe(t *testing.T) {
	hub := lockedHub()
	rows := strings.Split(hub.run(t, run{}, "get", "clusters").out, "\n")
	for i, want := range [][]string{1: {"a", "Locked", "10s ago", "? (was 2)", "locked by maria: a node was broken into"},
		2: {"b", "Removing", "10s ago", "? (was 2)", "locked by maria: a node was broken into"}, 3: {"c", "Ready", "now"}} {
		for _, word := range want {
			if !strings.Contains(rows[i], word) {
				t.Errorf("row %q does not say %q", rows[i], word)
			}
		}
	}
	if strings.Contains(rows[3], "locked") {
		t.Errorf("row %q", rows[3])
	}
	if out := hub.run(t, run{}, "describe", "cluster", "a").out; !strings.Contains(out, "by maria since") || !strings.Contains(out, ": a node was broken into\n") {
		t.Errorf("describe: %s", out)
	}
	for _, name := range []string{"a", "b"} {
		out := hub.run(t, run{}, "explain", "cluster", name).out
		for _, want := range []string{"its identity is locked (a node was broken into): its agent is not let in", "maria", "towline cluster unlock " + name, "2 of 2 modules were healthy then"} {
			if !strings.Contains(out, want) {
				t.Errorf("explain does not say %q: %s", want, out)
			}
		}
	}
}

func TestLockAndUnlock(t *testing.T) {
	hub := lockedHub()
	got := hub.run(t, run{}, "cluster", "lock", "c", "cluster/a", "-m", "suspected")
	if want := "cluster/c locked; let its agent in again with: towline cluster unlock c\ncluster/a unchanged: it is locked already\n"; got.code != 0 || got.out != want {
		t.Errorf("exit %d: %q %q", got.code, got.out, got.err)
	}
	if req := asked[*v1.LockClusterRequest](hub); req.GetName() != "a" || req.GetReason() != "suspected" {
		t.Errorf("asked for %v", req)
	}
	if got := hub.run(t, run{}, "cluster", "unlock", "a"); got.code != 0 || got.out != "cluster/a unlocked\n" {
		t.Errorf("exit %d: %q %q", got.code, got.out, got.err)
	}
	if req := asked[*v1.UnlockClusterRequest](hub); req.GetReissue() || req.GetTtl() != "" {
		t.Errorf("asked for %v", req)
	}
	if got := hub.run(t, run{}, "cluster", "unlock", "a", "--reissue", "--ttl", "1h", "-m", "new node"); got.code != 0 || got.out != "tl1.secret\n" {
		t.Errorf("exit %d: %q %q", got.code, got.out, got.err)
	}
	if req := asked[*v1.UnlockClusterRequest](hub); !req.GetReissue() || req.GetTtl() != "1h0m0s" || req.GetReason() != "new node" {
		t.Errorf("asked for %v", req)
	}
	if got := hub.run(t, run{}, "cluster", "unlock", "a", "--ttl", "1h"); got.code != 2 || !strings.Contains(got.err, "--reissue") {
		t.Errorf("exit %d: %q %q", got.code, got.out, got.err)
	}
}
