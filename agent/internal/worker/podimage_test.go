package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestPodOfAnotherImage: a revision gives a Pod another image. It is ready with the container of before until its node has ended that, also when
// the node has seen the change already.
func TestPodOfAnotherImage(t *testing.T) {
	r := newRig(t)
	pod := func(image string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: $NS}\nspec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: %q}]}\n", image)
	}
	is := func(generation int64, image string, began time.Time) {
		t.Helper()
		r.patch("v1", "pods", "p", "kubelet", fmt.Sprintf(`{"status":{"phase":"Running","observedGeneration":%d,"conditions":[{"type":"Ready","status":"True"}],
			"containerStatuses":[{"name":"main","image":%q,"imageID":"","ready":true,"restartCount":0,"state":{"running":{"startedAt":%q}}}]}}`,
			generation, image, began.UTC().Format(time.RFC3339)), "status")
	}
	one, two := r.bundle("shop", nil, pod("shop:1")), r.bundle("shop", nil, pod("shop:2"))
	began := time.Now().Add(-time.Minute)
	r.set([]fleet.Sync{one})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	was := r.get("v1", "pods", "p").GetGeneration()
	is(was, "docker.io/library/shop:1", began)
	r.ready(one)

	says := func(what string) {
		t.Helper()
		r.wait("shop", what, func(x fleet.SyncStatus) bool {
			if x.Generation == two.Generation && x.Ready {
				t.Fatalf("ready with the old container, before it %s", what)
			}
			return x.Generation == two.Generation && strings.Contains(x.Message+x.Reason, what)
		})
	}
	r.set([]fleet.Sync{two})
	says("OldGeneration")
	now := r.get("v1", "pods", "p").GetGeneration()
	if now == was {
		t.Fatalf("the API server counts no generation of a Pod: %d", now)
	}
	is(now, "docker.io/library/shop:1", began)
	says("OldImage")
	is(now, "docker.io/library/shop:2", time.Now())
	r.ready(two)
}
