package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// A cluster whose own people do not accept a change is not changed, says why, and goes on when they do; a policy that is broken or
// gone denies everything, over a restart of the agent, too.
func testLocalPolicy(t *testing.T) {
	remove(t, "seen")
	putReady(t, seenModule("1"))
	c := system.Clusters[1]
	write := func(body string) string {
		t.Helper()
		text := "apiVersion: towline.dev/v1\nkind: AgentPolicy\n" + body
		if err := os.WriteFile(c.Agent.Policy, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "sha256:" + fleet.DigestOf([]byte(text)).String()
	}
	expect := func(condition string, shown string) {
		t.Helper()
		eventually(t, "the condition "+condition, func() error {
			if got := conditions(t, c.Name)["LocalPolicy"]; got != condition {
				return fmt.Errorf("condition %q", got)
			}
			if out := towline(t, "describe", "cluster", c.Name); !strings.Contains(out, shown) {
				return fmt.Errorf("%q is not in:\n%s", shown, out)
			}
			return nil
		})
	}
	open := func() {
		expect("True InForce", write("allow: {deleteNamespaces: true, recreate: true, forceConflicts: true, deleteCRDs: true}\n"))
	}
	defer open()

	expect("True InForce", write("kinds: [{kinds: [Secret]}]\n"))
	put(t, seenModule("2"))
	eventually(t, "the other clusters are changed, and this one says why it is not", func() error {
		if err := seenBy(t, 2, 0); err != nil {
			return err
		}
		if out := towline(t, "get", "objects", "--module", "seen", "--cluster", c.Name, "-o", "json"); !strings.Contains(out, "Denied by the cluster's policy: kinds") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	write("kindz: []\n")
	expect("False Broken", `line 3: unknown field "kindz"`)
	c.Agent.Kill()
	if err := os.Remove(c.Agent.Policy); err != nil {
		t.Fatal(err)
	}
	if err := c.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is back", func() error {
		if out := towline(t, "get", "clusters", c.Name); !strings.Contains(out, " Ready ") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	expect("False Broken", "no such file")
	if err := seenBy(t, 2, 0); err != nil {
		t.Error(err)
	}
	open()
	eventually(t, "it goes on without a word of the hub", func() error { return seenBy(t, 3, 0) })
}
