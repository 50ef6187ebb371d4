package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// testLock: the agent of a locked cluster writes nothing, also when it is started anew: no correction, no new revision, no deletion. The
// others get on meanwhile, and this one does when it is unlocked.
func testLock(t *testing.T) {
	c, other := system.Clusters[1], system.Clusters[0]
	const ns = "default"
	revision := func(value string, more ...string) string {
		return moduleOf("locked", ns, map[string]string{"a.yaml": configMap("locked-a", value) + strings.Join(more, "")})
	}
	remove(t, "locked")
	putReady(t, revision("1", configMap("locked-dropped", "1")))
	anew := func() {
		t.Helper()
		c.Agent.Stop()
		if err := c.Agent.Start(); err != nil {
			t.Fatal(err)
		}
	}

	t.Cleanup(func() { system.CLI(context.Background(), "cluster", "unlock", c.Name) }) // should it fail, other tests use the cluster
	towline(t, "cluster", "lock", c.Name, "-m", "a node was broken into")
	eventually(t, "the agent says that it is kept out", func() error {
		if !strings.Contains(c.Agent.Output(), "nothing is written to the cluster until it accepts it again") {
			return errors.New(c.Agent.Tail())
		}
		return nil
	})
	out := towline(t, "get", "clusters", c.Name)
	for _, word := range []string{"Locked", "a node was broken into"} {
		if !strings.Contains(out, word) {
			t.Errorf("get clusters does not say %q:\n%s", word, out)
		}
	}
	from := mark(t)
	if err := c.Merge(t.Context(), "v1", "ConfigMap", ns, "locked-a", `{"data":{"value":"by hand"}}`); err != nil {
		t.Fatal(err)
	}
	putReady(t, revision("2"))
	eventually(t, "the others have the revision", func() error {
		if err := there(t, other, ns, "locked-a", "2"); err != nil {
			return err
		}
		return gone(t, other, "v1", "ConfigMap", ns, "locked-dropped")
	})
	anew()
	if err := lab.Stays(t.Context(), 3*time.Second, func() error {
		return errors.Join(there(t, c, ns, "locked-a", "by hand"), there(t, c, ns, "locked-dropped", "1"))
	}); err != nil {
		t.Error(err)
	}
	from.noWrites(t, c)

	towline(t, "cluster", "unlock", c.Name)
	anew() // it would try again by itself, within a minute
	eventually(t, c.Name+" has what the others have", func() error {
		if err := there(t, c, ns, "locked-a", "2"); err != nil {
			return err
		}
		return gone(t, c, "v1", "ConfigMap", ns, "locked-dropped")
	})
	if err := system.WaitState(t.Context(), c.Name, "Ready"); err != nil {
		t.Error(err)
	}
}
