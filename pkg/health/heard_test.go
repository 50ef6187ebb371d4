package health

import (
	"fmt"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// The API server counts no generations of an autoscaler (until Kubernetes 1.37) and of an APIService, so that only the time of their status
// tells whether that is a word on our last change.
func TestWordOfAnAutoscalerAndAnAPIService(t *testing.T) {
	changed := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	const (
		scaler    = "apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler"
		older     = "apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler"
		aggregate = "apiVersion: apiregistration.k8s.io/v1, kind: APIService"
		able      = "conditions: [{type: AbleToScale, status: 'True'}, {type: ScalingActive, status: 'True'}]"
		unable    = "conditions: [{type: AbleToScale, status: 'False', reason: FailedGetScale}]"
		available = "conditions: [{type: Available, status: 'True', reason: Passed}]"
	)
	before, after := "00:04:50Z", "00:05:14Z"
	waits := func(grace time.Duration) Result {
		return Result{Health: fleet.HealthProgressing, Reason: ReasonOldGeneration, Until: changed.Add(grace)}
	}
	for name, c := range map[string]struct {
		kind, note, spec, written, status string
		at                                time.Duration
		unknown                           bool // when we changed it is not known
		want                              Result
	}{
		"able before":              {kind: scaler, written: before, status: able, want: waits(scaleGrace)},
		"able before, still early": {kind: scaler, written: before, status: able, at: heardGrace, want: waits(scaleGrace)},
		"able before, later":       {kind: scaler, written: before, status: able, at: scaleGrace, want: healthy()},
		"able after":               {kind: scaler, written: after, status: able, at: scaleGrace - time.Second, want: healthy()},
		"unable before":            {kind: scaler, written: before, status: unable, want: Result{Health: fleet.HealthDegraded, Reason: "FailedGetScale"}},
		"not changed by us":        {kind: scaler, written: before, status: able, unknown: true, want: healthy()},
		"in a note, before":        {kind: older, note: able, written: before, status: "currentReplicas: 1", want: waits(scaleGrace)},
		"in a note, after":         {kind: older, note: able, written: after, status: "currentReplicas: 1", at: scaleGrace - time.Second, want: healthy()},
		"available before":         {kind: aggregate, written: before, status: available, want: waits(heardGrace)},
		"available before, later":  {kind: aggregate, written: before, status: available, at: heardGrace, want: healthy()},
		"available, not by us":     {kind: aggregate, written: before, status: available, unknown: true, want: healthy()},
		"of the API server itself": {kind: aggregate, spec: "group: apps", written: before, status: available, want: healthy()},
	} {
		note, spec := "", "service: {namespace: a, name: b}"
		if c.spec != "" {
			spec = c.spec
		}
		if c.note != "" {
			note = `annotations: {autoscaling.alpha.kubernetes.io/conditions: '[{"type":"AbleToScale","status":"True","reason":"ReadyForNewScale"}]'}, `
		}
		obj := parse(t, fmt.Sprintf("{%s, metadata: {name: a, creationTimestamp: '2026-06-01T00:00:00Z', %smanagedFields: ["+
			"{manager: towline, operation: Apply, time: '2026-07-01T00:05:00Z'}, "+
			"{manager: kube-controller-manager, operation: Update, subresource: status, time: '2026-07-01T%s'}]}, spec: {%s}, status: {%s}}", c.kind, note, c.written, spec, c.status))
		f := Facts{Now: changed.Add(c.at), Changed: changed, HasStatus: true}
		if c.unknown {
			f.Changed = time.Time{}
		}
		got := Judge(obj, f, nil)
		got.Message = ""
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// Since Kubernetes 1.37 the API server counts generations of an autoscaler, and its controller says which it has seen, in the status and in
// each condition; in the status not when it cannot read what it is to scale. One that was made before that has none until it is changed.
func TestWordOfAnAutoscalerWithGenerations(t *testing.T) {
	changed := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	const able = "{type: AbleToScale, status: 'True', reason: SucceededGetScale, observedGeneration: %d}, {type: ScalingActive, status: 'True', observedGeneration: %d}"
	says := func(n int) string { return fmt.Sprintf("observedGeneration: %d, conditions: ["+able+"]", n, n, n) }
	old := Result{Health: fleet.HealthProgressing, Reason: ReasonOldGeneration}
	waits := Result{Health: fleet.HealthProgressing, Reason: ReasonOldGeneration, Until: changed.Add(scaleGrace)}
	for name, c := range map[string]struct {
		generation int
		status     string
		at         time.Duration
		want       Result
	}{
		"able before":              {2, says(1), 0, old},
		"able before, much later":  {2, says(1), time.Hour, old},
		"able":                     {2, says(2), 0, healthy()},
		"a label was changed":      {1, says(1), 0, healthy()},
		"its first change":         {1, says(0), time.Hour, old},
		"before the first word":    {1, "conditions: [{type: AbleToScale, status: 'True'}]", 0, waits},
		"only conditions tell":     {2, "conditions: [" + fmt.Sprintf(able, 1, 1) + "]", time.Hour, old},
		"no target":                {2, "observedGeneration: 1, conditions: [{type: AbleToScale, status: 'False', reason: FailedGetScale, observedGeneration: 2}]", 0, degraded("FailedGetScale", "")},
		"no target before":         {2, "observedGeneration: 1, conditions: [{type: AbleToScale, status: 'False', reason: FailedGetScale, observedGeneration: 1}]", 0, old},
		"no target, then no words": {2, "conditions: [{type: AbleToScale, status: 'False', reason: FailedGetScale, observedGeneration: 2}]", 0, degraded("FailedGetScale", "")},
	} {
		obj := parse(t, fmt.Sprintf("{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: a, generation: %d, creationTimestamp: '2026-06-01T00:00:00Z', managedFields: ["+
			"{manager: towline, operation: Apply, time: '2026-07-01T00:05:00Z'}, "+
			"{manager: kube-controller-manager, operation: Update, subresource: status, time: '2026-07-01T00:04:50Z'}]}, spec: {}, status: {%s}}", c.generation, c.status))
		got := Judge(obj, Facts{Now: changed.Add(c.at), Changed: changed, HasStatus: true}, nil)
		got.Message = ""
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
