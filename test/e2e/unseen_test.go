package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// unseenLimit is within which people see that an API server is dead or hangs.
const unseenLimit = 40 * time.Second

// conditions are those of a cluster, by type.
func conditions(t *testing.T, cluster string) map[string]string {
	t.Helper()
	var c struct {
		Status struct {
			State      string
			Conditions []struct{ Type, Status, Reason, Message string }
		}
	}
	read(t, &c, "cluster", cluster)
	if c.Status.State != "Ready" {
		t.Errorf("cluster %s is %s; its agent is connected", cluster, c.Status.State)
	}
	out := map[string]string{}
	for _, x := range c.Status.Conditions {
		out[x.Type] = x.Status + " " + x.Reason
	}
	return out
}

// seenModule has no namespace of its own: that of one would have to be taken away by controllers that are slow to come back
// after their API server was gone.
func seenModule(value string) string {
	return moduleOf("seen", "default", map[string]string{"a.yaml": configMap("seen-a", value) + configMap("seen-b", "fixed")})
}

func seenBy(t *testing.T, healthy, away int) error {
	t.Helper()
	if s := module(t, "seen").Status; s.Clusters != 3 || s.Healthy != healthy || s.Away != away {
		return fmt.Errorf("%+v", s)
	}
	return nil
}

// A cluster whose API server hangs is not called healthy, holds up nobody, and comes back by itself. A restart of it is
// nothing to speak of.
func testUnseenCluster(t *testing.T) {
	remove(t, "seen")
	putReady(t, seenModule("1"))
	c := system.Clusters[1]
	act := func(action string) {
		t.Helper()
		if err := c.Part(t.Context(), "apiserver", action); err != nil {
			t.Fatal(err)
		}
	}
	act("pause")
	defer func() { _ = c.Part(t.Context(), "apiserver", "resume") }()
	if err := lab.PollFor(t.Context(), unseenLimit, func() error {
		if got := conditions(t, c.Name)["APIServerReachable"]; got != "False NoAnswer" {
			return fmt.Errorf("condition %q", got)
		}
		return seenBy(t, 2, 1)
	}); err != nil {
		t.Fatalf("%s after its API server hung: %v", unseenLimit, err)
	}
	for _, r := range rows(t, "seen", "--cluster", c.Name) {
		if r.Health != "Unknown" || r.Sync != "Unknown" {
			t.Errorf("what nobody sees is told as if it was seen: %s", r)
		}
	}
	if out := towline(t, "get", "clusters"); !strings.Contains(out, "the API server does not answer in time") {
		t.Errorf("get clusters:\n%s", out)
	}
	if out := put(t, seenModule("2"), "--wait", "--timeout", "2m"); !strings.Contains(out, "1 deferred") {
		t.Errorf("the rollout counts a cluster that is not seen:\n%s", out)
	}
	act("resume")
	eventually(t, "the cluster is seen again and catches up", func() error {
		if got := conditions(t, c.Name)["APIServerReachable"]; got != "" {
			return fmt.Errorf("condition %q", got)
		}
		return seenBy(t, 3, 0)
	})

	act("kill")
	put(t, seenModule("3"))
	act("start")
	if out := towline(t, "rollout", "status", "seen", "--timeout", "2m"); !strings.Contains(out, "Succeeded") || strings.Contains(out, "deferred") {
		t.Errorf("a short absence of an API server is in the way of a rollout:\n%s", out)
	}
	if got := conditions(t, c.Name)["APIServerReachable"]; got != "" {
		t.Errorf("a short absence of an API server is a condition: %s", got)
	}
}

// An agent that cannot write its state says so, and stays connected, over a restart of the hub too.
func testStateUnwritable(t *testing.T) {
	remove(t, "seen")
	putReady(t, seenModule("1"))
	c := system.Clusters[1]
	away := c.Agent.StateDir + ".away"
	if err := os.Rename(c.Agent.StateDir, away); err != nil {
		t.Fatal(err)
	}
	back := sync.OnceFunc(func() {
		_ = os.RemoveAll(c.Agent.StateDir)
		if err := os.Rename(away, c.Agent.StateDir); err != nil {
			t.Error(err)
		}
	})
	defer back()
	put(t, seenModule("2"))
	said := func() error {
		if got := conditions(t, c.Name)["StateWritable"]; got != "False WriteFails" {
			return fmt.Errorf("condition %q", got)
		}
		return seenBy(t, 2, 0)
	}
	eventually(t, "the condition of a state that cannot be written", said)
	system.Hub.Kill()
	if err := system.Hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is back without a state", func() error {
		if r := system.CLI(t.Context(), "get", "clusters"); strings.Contains(r.Stdout, "Disconnected") {
			return fmt.Errorf("%s", r.Stdout)
		}
		return said()
	})
	back()
	eventually(t, "all is written and applied", func() error {
		if got := conditions(t, c.Name)["StateWritable"]; got != "" {
			return fmt.Errorf("condition %q", got)
		}
		return seenBy(t, 3, 0)
	})
}
