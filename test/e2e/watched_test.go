package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/test/lab"
)

const watchedCache = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cache}
spec:
  replicas: 1
  selector: {matchLabels: {app: cache}}
  template:
    metadata: {labels: {app: cache}}
    spec: {containers: [{name: main, image: "cache:1"}]}
`

// theirCache makes the Deployment that the module only watches, in a namespace of its owners.
func theirCache(t *testing.T, c *lab.Cluster) {
	t.Helper()
	for _, o := range objects(t, "caches", map[string]string{"a.yaml": watchedCache}) {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// cacheBecomes gives it an image; one that cannot be had never gets ready.
func cacheBecomes(t *testing.T, c *lab.Cluster, image string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image)
	if err := c.Merge(t.Context(), "apps/v1", "Deployment", "caches", "cache", patch); err != nil {
		t.Fatal(err)
	}
}

// cachesAre fails unless the rows of the watched object say so of each cluster.
func cachesAre(t *testing.T, want map[string]string) error {
	t.Helper()
	got := rows(t, "watcher", "--kind", "Deployment")
	if len(got) != len(want) {
		return fmt.Errorf("%d rows of what is watched, want %d", len(got), len(want))
	}
	for _, r := range got {
		if health := want[r.Cluster]; !r.Watched || r.Object.Namespace != "caches" || !strings.Contains(health, r.Health) || r.Health == "Missing" && r.Reason != "Missing" {
			return fmt.Errorf("%s, watched %t; want it watched, and %s", r, r.Watched, health)
		}
	}
	return nil
}

// rolloutIs fails unless the module has so many healthy clusters, and its rollout the state.
func rolloutIs(t *testing.T, name, state string, healthy int) error {
	t.Helper()
	if s := module(t, name).Status; s.RolloutState != state || s.Healthy != healthy {
		return fmt.Errorf("module %s: %+v", name, s)
	}
	return nil
}

// testWatched has a module watch an object of somebody else: while that is absent, or not healthy, a cluster does not succeed, the next
// stage does not begin, and what a revision drops stays. All of that is shown. The object is never written, has one watch in each
// cluster, and when the module is gone it has none and is as it was.
func testWatched(t *testing.T) {
	remove(t, "watcher")
	first, second, last := system.Clusters[0], system.Clusters[1], system.Clusters[2]
	for _, c := range system.Clusters {
		for _, o := range objects(t, "", map[string]string{"a.yaml": namespace("caches")}) {
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			if r, err := c.Resource("v1", "Namespace", ""); err == nil {
				_ = r.Delete(context.Background(), "caches", metav1.DeleteOptions{})
			}
		})
	}
	from := mark(t)
	watches := map[string]*lab.Watches{}
	for _, c := range system.Clusters {
		watches[c.Name] = c.Audit.Watches(from[c.Name], lab.Request.ByAgent)
	}
	of := func(value, more string) string {
		return moduleOf("watcher", "watcher", map[string]string{"a.yaml": namespace("watcher") + configMap("own", value) + more},
			"watch: [{apiVersion: apps/v1, kind: Deployment, namespace: caches, name: cache}]",
			"rollout: {stages: [{name: first, selector: {matchLabels: {name: "+first.Name+"}}}, {name: rest}]}")
	}
	const bad = "Progressing, Degraded"

	theirCache(t, first)
	put(t, of("one", configMap("old", "x")))
	eventually(t, "the first stage succeeds, and the others wait for what is absent", func() error {
		return errors.Join(cachesAre(t, map[string]string{first.Name: "Healthy", second.Name: "Missing", last.Name: "Missing"}), rolloutIs(t, "watcher", "Progressing", 1))
	})
	if err := there(t, last, "watcher", "own", "one"); err != nil {
		t.Errorf("what the module has of its own is not applied: %v", err)
	}
	theirCache(t, second)
	theirCache(t, last)
	eventually(t, "it is made, and the rollout succeeds", func() error { return rolloutIs(t, "watcher", "Succeeded", 3) })

	cacheBecomes(t, first, "never-ready")
	eventually(t, "it is not healthy, and that is shown", func() error {
		return errors.Join(cachesAre(t, map[string]string{first.Name: bad, second.Name: "Healthy", last.Name: "Healthy"}), rolloutIs(t, "watcher", "Succeeded", 2))
	})
	before := mark(t)
	put(t, of("two", ""))
	eventually(t, "the first cluster has the next revision, and is not ready", func() error {
		for _, r := range rows(t, "watcher", "--kind", "Deployment", "--cluster", first.Name) {
			if r.Revision != "2" || !strings.Contains(bad, r.Health) {
				return fmt.Errorf("%s of revision %s", r, r.Revision)
			}
		}
		return errors.Join(there(t, first, "watcher", "own", "two"), rolloutIs(t, "watcher", "Progressing", 2))
	})
	if why := towline(t, "explain", "object", "Deployment/caches/cache", "--cluster", first.Name); !strings.Contains(why, "watcher") || !strings.Contains(why, "watch") {
		t.Errorf("explain does not say that the module watches it:\n%s", why)
	}
	if err := there(t, first, "watcher", "old", "x"); err != nil {
		t.Errorf("what is dropped goes before what is watched is healthy: %v", err)
	}
	before.noWrites(t, second, last)
	cacheBecomes(t, first, "cache:2")
	eventually(t, "it is healthy, and the rollout goes on to its end", func() error {
		return errors.Join(rolloutIs(t, "watcher", "Succeeded", 3), everywhere(func(c *lab.Cluster) error {
			return errors.Join(there(t, c, "watcher", "own", "two"), gone(t, c, "v1", "ConfigMap", "watcher", "old"))
		}))
	})

	deployments, err := last.Resource("apps/v1", "Deployment", "caches")
	if err != nil {
		t.Fatal(err)
	}
	if err := deployments.Delete(t.Context(), "cache", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is deleted by its owners, and that is shown", func() error {
		return errors.Join(cachesAre(t, map[string]string{first.Name: "Healthy", second.Name: "Healthy", last.Name: "Missing"}), rolloutIs(t, "watcher", "Succeeded", 2))
	})
	theirCache(t, last)
	eventually(t, "it is there again", func() error { return rolloutIs(t, "watcher", "Succeeded", 3) })

	watched := func(want int) error {
		return everywhere(func(c *lab.Cluster) error {
			err := watches[c.Name].Read()
			if n := watches[c.Name].Open()["/apis/apps/v1/namespaces/caches/deployments?&metadata.name=cache"]; n != want {
				err = errors.Join(err, fmt.Errorf("cluster %s: %d watches of it are open, want %d", c.Name, n, want))
			}
			return err
		})
	}
	if err := watched(1); err != nil {
		t.Error(err)
	}
	towline(t, "delete", "module", "watcher", "--yes", removing)
	eventually(t, "its watch ends with the module", func() error { return watched(0) })
	for _, c := range system.Clusters {
		if _, err := c.Get(t.Context(), "apps/v1", "Deployment", "caches", "cache"); err != nil {
			t.Errorf("cluster %s: what was only watched went with the module: %v", c.Name, err)
		}
		for _, r := range from.requests(t, c, func(r lab.Request) bool { return r.ByAgent() && r.IsWrite() && r.Namespace == "caches" }) {
			t.Errorf("cluster %s: what is only watched was written: %s", c.Name, r)
		}
	}
}
