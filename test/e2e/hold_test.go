package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// testHoldByAnnotation: people of a cluster who have kubectl alone hold one object there; who looks at the hub sees it, a change passes
// the cluster by, and the deletion of the module says what it waits for. All goes on when the annotation is taken away.
func testHoldByAnnotation(t *testing.T) {
	remove(t, "noted")
	putReady(t, moduleOf("noted", "noted", map[string]string{"a.yaml": namespace("noted") + configMap("a", "one") + configMap("b", "one")}))
	c := system.Clusters[0]
	annotate := func(value any) {
		t.Helper()
		maps, err := c.Resource("v1", "ConfigMap", "noted")
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{fleet.HoldAnnotation: value}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Patch(t.Context(), "a", types.MergePatchType, body, metav1.PatchOptions{FieldManager: "kubectl-annotate"}); err != nil {
			t.Fatal(err)
		}
	}
	annotate("debugging INC-42")
	eventually(t, "the hub lists the hold", func() error {
		if said := towline(t, "get", "holds", "--module", "noted"); !strings.Contains(said, "annotation  kubectl-annotate") || !strings.Contains(said, "debugging INC-42") || !strings.Contains(said, "ConfigMap noted/a") {
			return errors.New(said)
		}
		return nil
	})
	(touch{kind: "ConfigMap", name: "a", patch: map[string]any{"data": map[string]any{"value": "by hand"}}}).do(t, c, foreign("noted", "a"))
	(touch{kind: "ConfigMap", name: "b", patch: map[string]any{"data": map[string]any{"value": "by hand"}}}).do(t, c, foreign("noted", "b"))
	eventually(t, "the other one is corrected, and this one is shown", func() error {
		if err := there(t, c, "noted", "b", "one"); err != nil {
			return err
		}
		for _, r := range rows(t, "noted", "--cluster", c.Name, "--name", "a") {
			if r.Drift == "Held" && r.Live == `"by hand"` {
				return nil
			}
		}
		return fmt.Errorf("%v", rows(t, "noted", "--cluster", c.Name))
	})
	const end = "kubectl -n noted annotate configmap/a towline.dev/hold-"
	if why := towline(t, "explain", "object", "ConfigMap/noted/a", "--cluster", c.Name); !strings.Contains(why, "debugging INC-42") || !strings.Contains(why, end) {
		t.Errorf("explain: %s", why)
	}
	refused(t, "", []string{"unhold", "ConfigMap/noted/a", "--cluster", c.Name}, end)

	put(t, moduleOf("noted", "noted", map[string]string{"a.yaml": namespace("noted") + configMap("a", "two") + configMap("b", "two")}))
	eventually(t, "the change passes the cluster by", func() error {
		for _, other := range system.Clusters[1:] {
			if err := there(t, other, "noted", "a", "two"); err != nil {
				return err
			}
		}
		if said := towline(t, "rollout", "history", "noted"); !strings.Contains(said, "Succeeded") {
			return errors.New(said)
		}
		return there(t, c, "noted", "b", "one")
	})
	towline(t, "delete", "module", "noted", "--yes", "--wait=false")
	eventually(t, "the deletion says what it waits for", func() error {
		if said := towline(t, "get", "trackers", "--module", "noted"); !strings.Contains(said, "debugging INC-42") {
			return errors.New(said)
		}
		return there(t, c, "noted", "a", "by hand")
	})
	annotate(nil)
	eventually(t, "it goes when the annotation is away", func() error {
		if err := there(t, c, "noted", "a", ""); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}
