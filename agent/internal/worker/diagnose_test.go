package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// What is said to hold a workload up is of a pod of its own, and of a Deployment of one of its newest template.
func TestWorkloadSaysOnlyWhatHoldsItUp(t *testing.T) {
	r := newRig(t)
	back := strings.NewReplacer("name: back", "name: back", "{app: back}", "{app: web, tier: back}", "nginx:1", "never-ready:back").Replace(deployment("back", 1))
	front := func(tag string) string {
		return strings.NewReplacer("selector: {matchLabels: {app: web}}", "selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: NotIn, values: [back]}]}",
			"nginx:1", "never-ready:"+tag).Replace(deployment("web", 1))
	}
	other := r.bundle("other", nil, back)
	r.set([]fleet.Sync{other})
	r.wait("other", "diagnosed", func(x fleet.SyncStatus) bool { return x.Reason == "ImagePullBackOff" })
	for _, tag := range []string{"1", "2", "3", "4"} {
		s := r.bundle("shop", nil, front(tag))
		r.set([]fleet.Sync{other, s})
		status := r.wait("shop", "diagnosed", func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.Reason == "ImagePullBackOff"
		})
		if !strings.Contains(status.Message, "pod web-") || !strings.Contains(status.Message, "never-ready:"+tag) {
			t.Errorf("of never-ready:%s it is said: %s", tag, status.Message)
		}
	}
}
