package worker

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestListsOfOwnersAreShared: many objects are made again at once, and of each it is asked what would go with it. Those that ask at the same time
// are told by the same list, which begins after each has asked.
func TestListsOfOwnersAreShared(t *testing.T) {
	const many = 48
	r := newRig(t)
	list := func(v string) []string {
		out := []string{certificate("b2xk"), "{apiVersion: v1, kind: ServiceAccount, metadata: {name: sa, namespace: $NS}}",
			"{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: p, namespace: $NS}, spec: {maxUnavailable: 1}}"}
		for i := range many {
			out = append(out, configMap(fmt.Sprintf("c%d", i), "k: "+v)+"immutable: true\n")
		}
		return out
	}
	s := r.bundle("shop", recreate, list("v")...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.count.take()
	next := r.bundle("shop", recreate, list("w")...)
	r.set([]fleet.Sync{next})
	r.ready(next)
	_, paths := r.count.take()
	lists := map[string]int{}
	for _, p := range paths {
		if of := path.Base(p); strings.HasPrefix(p, http.MethodGet+" ") && slices.Contains([]string{"secrets", "serviceaccounts", "poddisruptionbudgets", "configmaps"}, of) {
			lists[of]++
		}
	}
	t.Log(lists)
	for of, n := range lists {
		if n > many/3 {
			t.Errorf("%s are listed %d times for %d objects", of, n, many)
		}
	}
}
