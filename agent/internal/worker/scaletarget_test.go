package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

const scalesTarget = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: $NS}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: TARGET}
  maxReplicas: 9
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]
`

// A revision that gives an autoscaler a target that there is not is never ready by what its controller said of the target before, and keeps
// what it drops meanwhile.
func TestAutoscalerLosesItsTarget(t *testing.T) {
	r := newRig(t)
	scales := func(target string) string { return strings.Replace(scalesTarget, "TARGET", target, 1) }
	s := r.bundle("shop", nil, deployment("web", 0), scales("web"), configMap("before", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	s = r.bundle("shop", nil, deployment("web", 0), scales("none"))
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "judged", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (x.Ready || x.Reason == "FailedGetScale")
	})
	if status.Ready {
		t.Error("ready by the word on the target of before")
	}
	if r.get("v1", "configmaps", "before") == nil {
		t.Error("what the revision drops was deleted before it was ready")
	}
}
