package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testDiff asks what a put would do, in clusters of which one differs and one is away; finds nothing changed by that; and then makes
// exactly the put that was asked about.
func testDiff(t *testing.T) {
	remove(t, "diff")
	of := func(more string) string {
		return moduleOf("diff", "diff", map[string]string{"a.yaml": namespace("diff") + configMap("same", "one") + more}, "policies: [{pruneWhen: AfterApply}]", "rollout: {maxFailures: 1}")
	}
	putReady(t, of(configMap("changed", "one")+configMap("dropped", "one")))
	odd, plain, last := system.Clusters[0], system.Clusters[1], system.Clusters[2]
	for _, o := range objects(t, "diff", map[string]string{"a.yaml": configMap("theirs", "other")}) {
		if err := odd.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		theirs, err := odd.Resource(o.GetAPIVersion(), o.GetKind(), o.GetNamespace())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = theirs.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}) })
	}
	last.Agent.Stop()
	eventually(t, last.Name+" is away", func() error { return system.WaitState(t.Context(), last.Name, "Disconnected") })

	file := filepath.Join(t.TempDir(), "diff.yaml")
	next := of(configMap("changed", "two") + configMap("theirs", "ours"))
	if err := os.WriteFile(file, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	from := mark(t)
	r := system.CLI(t.Context(), "diff", "-f", file, "--exit-code")
	if r.Code != 1 {
		t.Errorf("exit %d, want 1 for there are differences: %s", r.Code, r.Stderr)
	}
	got := regexp.MustCompile(`sha256:[0-9a-f]{64}|[0-9a-f]{64}`).ReplaceAllString(r.Stdout, "PLAN")
	want := strings.NewReplacer("ODD", odd.Name, "PLAIN", plain.Name, "LAST", last.Name).Replace(`module/diff selects 3 of 3 clusters; 4 objects in each

ODD: 1 to change, 1 to keep, 1 to refuse, 2 unchanged
  change     ConfigMap diff/changed
               /data/value: "one" → "two"
  refuse     ConfigMap diff/theirs: exists and was made by "towline-lab", and differs at /data/value; make them equal, delete it, or set the policy adopt: Always
               /data/value: "other" → "ours"
  keep       ConfigMap diff/dropped: goes when everything else is applied

PLAIN: 1 to create, 1 to change, 1 to delete, 2 unchanged
  change     ConfigMap diff/changed
               /data/value: "one" → "two"
  create     ConfigMap diff/theirs
  delete     ConfigMap diff/dropped

LAST: not asked: disconnected

Plan   PLAN
`)
	if got != want {
		t.Errorf("towline diff says\n%s\nwant\n%s", got, want)
	}
	from.noWrites(t)
	plan := regexp.MustCompile(`Plan +(\S+)`).FindStringSubmatch(r.Stdout)
	if plan == nil {
		t.Fatal("there is no plan")
	}

	other := of(configMap("changed", "three"))
	refused(t, other, []string{"apply", "-f", "-", "--plan", plan[1]}, "is not what it was for the plan", "towline diff")
	refused(t, other, []string{"apply", "-f", "-", "--plan", "nonsense"}, "nonsense", "towline diff")
	from.noWrites(t)
	put(t, next, "--plan", plan[1])
	eventually(t, "what the plan says is so", func() error {
		if err := there(t, plain, "diff", "changed", "two"); err != nil {
			return err
		}
		if err := gone(t, plain, "v1", "ConfigMap", "diff", "dropped"); err != nil {
			return err
		}
		return there(t, odd, "diff", "theirs", "other")
	})
	if err := last.Agent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster that was away has it, too, and nothing else", func() error {
		return errors.Join(there(t, last, "diff", "theirs", "ours"), gone(t, last, "v1", "ConfigMap", "diff", "dropped"))
	})
	again := towline(t, "diff", "-f", file, "--clusters", plain.Name+","+last.Name)
	if !strings.Contains(again, plain.Name+", "+last.Name+": 4 unchanged\n") && !slices.Contains(strings.Split(again, "\n"), last.Name+", "+plain.Name+": 4 unchanged") {
		t.Errorf("after the put towline diff says\n%s", again)
	}
}
