package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

func backModule(value string, names ...string) string {
	text := namespace("back") + configMap("a", value)
	for _, n := range names {
		text += configMap(n, value)
	}
	return moduleOf("back", "back", map[string]string{"a.yaml": text})
}

// An agent whose state was put back from a copy does nothing by it: not what it holds of modules that moved on, nor of
// those that were removed since. It says why, and goes on when the hub is there.
func testStatePutBack(t *testing.T) {
	remove(t, "back")
	remove(t, "removed")
	c := system.Clusters[1]
	putReady(t, backModule("1", "dropped"))
	putReady(t, moduleOf("removed", "removed", map[string]string{"a.yaml": namespace("removed") + configMap("b", "1")}))
	c.Agent.Stop()
	copied := filepath.Join(t.TempDir(), "state")
	if err := lab.CopyState(c.Agent.StateDir, copied); err != nil {
		t.Fatal(err)
	}
	if err := c.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	putReady(t, backModule("2", "added"))
	towline(t, "delete", "module", "removed", "--yes", "--timeout", "120s")

	c.Agent.Stop()
	system.Hub.Kill()
	if err := errors.Join(os.RemoveAll(c.Agent.StateDir), lab.CopyState(copied, c.Agent.StateDir)); err != nil {
		t.Fatal(err)
	}
	from := mark(t)
	if err := c.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent says what is wrong", func() error {
		if !strings.Contains(c.Agent.Output(), "older than the cluster") {
			return errors.New(c.Agent.Tail())
		}
		return nil
	})
	if err := c.Merge(t.Context(), "v1", "ConfigMap", "back", "a", `{"data":{"value":"edited"}}`); err != nil {
		t.Fatal(err)
	}
	err := lab.Stays(t.Context(), 5*time.Second, func() error { return there(t, c, "back", "a", "edited") })
	if err != nil {
		t.Error(err)
	}
	from.noWrites(t, c)

	if err := system.Hub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is as the hub says", func() error {
		if err := errors.Join(there(t, c, "back", "a", "2"), there(t, c, "back", "added", "2")); err != nil {
			return err
		}
		if s := module(t, "back").Status; s.Healthy != 3 {
			return fmt.Errorf("%+v", s)
		}
		if got := conditions(t, c.Name)["StateCurrent"]; got != "" {
			return fmt.Errorf("condition %q", got)
		}
		return errors.Join(gone(t, c, "v1", "ConfigMap", "back", "dropped"), gone(t, c, "v1", "Namespace", "", "removed"))
	})
	for _, r := range from.requests(t, c, lab.Request.Applies) {
		if r.Namespace == "removed" || r.Name == "dropped" || r.Name == "removed" {
			t.Errorf("a write for what is not there any more: %s", r)
		}
	}
}
