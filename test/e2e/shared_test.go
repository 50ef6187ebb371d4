package e2e

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/test/lab"
)

// testShared has two modules share an object and a third one read it: the first one's is enforced, and the second one's when the first is
// deleted, without a delete of the object; when the last one is, it is gone, and who reads it says so.
func testShared(t *testing.T) {
	for _, name := range []string{"reader", "second", "first"} {
		remove(t, name)
	}
	const shared, reads = "policies: [{match: {names: [common]}, shared: true}]", "policies: [{match: {names: [common]}, readOnly: true}]"
	file := func(value string) map[string]string {
		return map[string]string{"a.yaml": namespace("sharing") + configMap("common", value)}
	}
	putReady(t, moduleOf("first", "sharing", file("one"), shared))
	putReady(t, moduleOf("second", "sharing", file("two"), shared))
	putReady(t, moduleOf("reader", "sharing", map[string]string{"a.yaml": configMap("common", "one")}, reads))
	uids := map[string]string{}
	for _, c := range system.Clusters {
		if err := there(t, c, "sharing", "common", "one"); err != nil {
			t.Error(err)
		}
		got, err := c.Get(t.Context(), "v1", "ConfigMap", "sharing", "common")
		if err != nil {
			t.Fatal(err)
		}
		uids[c.Name] = string(got.GetUID())
	}
	for _, r := range rows(t, "second", "--kind", "ConfigMap") {
		if r.Health != "Healthy" || !strings.Contains(r.Message, "shared with module first") {
			t.Errorf("the object that is shared: %s", r)
		}
	}
	if r := system.CLI(t.Context(), "delete", "module", "first", "--yes", removing); r.Code != 0 {
		t.Fatal(r.Err())
	}
	eventually(t, "the second one's is enforced", func() error {
		return everywhere(func(c *lab.Cluster) error { return there(t, c, "sharing", "common", "two") })
	})
	for _, c := range system.Clusters {
		if got, err := c.Get(t.Context(), "v1", "ConfigMap", "sharing", "common"); err != nil || string(got.GetUID()) != uids[c.Name] {
			t.Errorf("cluster %s: it was made anew, or is gone: %v", c.Name, err)
		}
	}
	if r := system.CLI(t.Context(), "delete", "module", "second", "--yes", removing); r.Code != 0 {
		t.Fatal(r.Err())
	}
	eventually(t, "who reads it says that it is missing", func() error {
		for _, r := range rows(t, "reader") {
			if r.Health != "Missing" || !strings.Contains(r.Message, "readOnly") {
				return fmt.Errorf("%s", r)
			}
		}
		return everywhere(func(c *lab.Cluster) error { return gone(t, c, "v1", "ConfigMap", "sharing", "common") })
	})
}
