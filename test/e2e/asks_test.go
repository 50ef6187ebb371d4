package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const askedWeb = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "nginx:1"}]}
`

// testAsks looks into the clusters through their agents: an object that is held stays as somebody made it, and a filter finds it;
// Events of pods come from all clusters; and of a log, which the tests' nodes do not have, comes what the cluster says of it.
func testAsks(t *testing.T) {
	remove(t, "asks")
	putReady(t, moduleOf("asks", "asks", map[string]string{"a.yaml": namespace("asks") + configMap("held", "one") + askedWeb}))
	c := system.Clusters[0]
	towline(t, "hold", "ConfigMap/asks/held", "--cluster", c.Name, "--for", "1h", "-m", "looking at it")
	theirs, err := c.Resource("v1", "ConfigMap", "asks")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent knows of the hold", func() error {
		if r := heldRows(t); len(r) != 1 {
			return fmt.Errorf("held: %v", r)
		}
		return nil
	})
	if _, err := theirs.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"data":{"value":"by hand"}}`), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is shown as held", func() error {
		if r := heldRows(t, `drift == "Held" && changedBy == "ana"`); len(r) != 1 || r[0].Cluster != c.Name {
			return fmt.Errorf("held: %v", r)
		}
		return there(t, c, "asks", "held", "by hand")
	})
	if why := towline(t, "explain", "object", "ConfigMap/asks/held", "--cluster", c.Name); !strings.Contains(why, "looking at it") || !strings.Contains(why, "towline unhold freeze-") {
		t.Errorf("explain: %s", why)
	}
	towline(t, "unhold", "ConfigMap/asks/held", "--cluster", c.Name)
	eventually(t, "it is corrected", func() error { return there(t, c, "asks", "held", "one") })

	var events struct {
		Items []struct {
			Cluster string
			Events  []struct {
				Reason string
				Object struct{ Kind, Name string }
			}
		}
	}
	eventually(t, "Events come from all clusters", func() error { // whose controllers write them when they come to it
		out := towline(t, "events", "module/asks", "-o", "json")
		events.Items = nil
		if err := json.Unmarshal([]byte(out), &events); err != nil {
			t.Fatalf("%v in:\n%s", err, out)
		}
		if len(events.Items) != len(system.Clusters) {
			return fmt.Errorf("events of %d clusters", len(events.Items))
		}
		for _, x := range events.Items {
			kinds := map[string]bool{}
			for _, e := range x.Events {
				kinds[e.Object.Kind] = true
			}
			if !kinds["Deployment"] || !kinds["Pod"] {
				return fmt.Errorf("cluster %s: events of %v", x.Cluster, kinds)
			}
		}
		return nil
	})
	r := system.CLI(t.Context(), "logs", "Deployment/asks/web", "--cluster", c.Name, "-m", "why")
	if r.Code != 1 || !strings.Contains(r.Stderr, `no logs found for container "main"`) {
		t.Errorf("logs: exit %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	refused(t, "", []string{"logs", "Pod/kube-system/none", "--cluster", c.Name}, "is not in the cluster")
}

// heldRows are those of the held object that say so, and meet a condition.
func heldRows(t *testing.T, conditions ...string) []row {
	t.Helper()
	filter := strings.Join(slices.Concat([]string{`name == "held"`, `(reason == "Held" || drift == "Held")`}, conditions), " && ")
	return rows(t, "asks", "--filter", filter)
}
