package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// TestOf: by itself an object does not say when we wrote it, so it has all the time that there is.
func TestOf(t *testing.T) {
	for object, want := range map[string]fleet.Health{
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, creationTimestamp: '2001-01-01T00:00:00Z'}}":                          fleet.HealthProgressing,
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, creationTimestamp: '2001-01-01T00:00:00Z'}}":       fleet.HealthProgressing,
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {conditions: [{type: Ready, status: 'True'}]}}":              fleet.HealthHealthy,
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x.io/keep]}}": fleet.HealthTerminating,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}":                                                                  fleet.HealthHealthy,
		"{}": fleet.HealthHealthy,
	} {
		if got := Of(parse(t, object)); got.Health != want {
			t.Errorf("%s: %+v, want %s", object, got, want)
		}
	}
}

func TestMessagesNameTheCause(t *testing.T) {
	for object, want := range map[string]string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x.io/keep]}}":                                                                        "waits for finalizers x.io/keep",
		"{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Running, containerStatuses: [{name: web, image: 'web:1', state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}}]}}": "container web (web:1): back-off 40s",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {observedGeneration: 2}}":                                                                                               "generation 2, the object is at 3",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {parents: [{parentRef: {name: gw}, conditions: [{type: Accepted, status: 'False', reason: Invalid, message: no host}]}]}}":             "gw: no host",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, spec: {replicas: 3}, status: {readyReplicas: 1}}":                                                                                              "1 of 3 replicas are ready",
	} {
		if got := Of(parse(t, object)); !strings.Contains(got.Message, want) {
			t.Errorf("%s: %q, want %q", object, got.Message, want)
		}
	}
}

func parse(t testing.TB, object string) map[string]any {
	t.Helper()
	var obj map[string]any
	raw, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(object, "\t", "")))
	if err == nil {
		err = utiljson.Unmarshal(raw, &obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestMessagesAreBounded(t *testing.T) {
	got := Of(map[string]any{"apiVersion": "x.io/v1", "kind": "X", "metadata": map[string]any{"name": "a"}, "status": map[string]any{
		"conditions": []any{map[string]any{"type": "Stalled", "status": "True", "message": strings.Repeat("é", 4000)}}}})
	if len(got.Message) > 256 || !strings.HasSuffix(got.Message, "…") {
		t.Errorf("message of %d bytes", len(got.Message))
	}
}

// TestRulesOfTheJudgement are rules that no sample of a real object needs, each by the word that it decides on.
func TestRulesOfTheJudgement(t *testing.T) {
	conditions := func(list string) string {
		return "{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {conditions: [" + list + "]}}"
	}
	pod := func(meta, spec, status string) string {
		return "{apiVersion: v1, kind: Pod, metadata: {name: a" + meta + "}, spec: {" + spec + "}, status: {" + status + "}}"
	}
	ended := func(code string) string {
		return "containerStatuses: [{name: web, state: {terminated: {exitCode: " + code + "}}}]"
	}
	for object, want := range map[string]Result{
		// A controller that has not seen the newest generation says nothing of it.
		"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: a, generation: 2}, status: {observedGeneration: 1}}":                                    {Health: fleet.HealthProgressing, Reason: ReasonOldGeneration},
		"{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: a, generation: 2}, spec: {replicas: 1}, status: {observedGeneration: 1, replicas: 1, readyReplicas: 1, availableReplicas: 1}}": {Health: fleet.HealthProgressing, Reason: ReasonOldGeneration},
		// A pod that runs to its end is not fine before that, unless somebody says that it is none of that kind.
		pod("", "restartPolicy: Never", "phase: Running, conditions: [{type: Ready, status: 'True'}]"):                                                                                                 {Health: fleet.HealthProgressing, Reason: "Running"},
		pod(", annotations: {argocd.argoproj.io/ignore-restart-policy: 'true'}", "restartPolicy: Never", "phase: Running, conditions: [{type: Ready, status: 'True'}]"):                                {Health: fleet.HealthHealthy},
		pod(", annotations: {argocd.argoproj.io/ignore-restart-policy: 'true', argocd.argoproj.io/hook: Sync}", "restartPolicy: Never", "phase: Running, conditions: [{type: Ready, status: 'True'}]"): {Health: fleet.HealthProgressing, Reason: "Running"},
		// What the node says of a failure comes before what a container says, and a container that ended well is no cause.
		pod("", "", "phase: Failed, reason: Evicted, message: out of memory, "+ended("3")): {Health: fleet.HealthDegraded, Reason: "Evicted", Message: "out of memory"},
		pod("", "", "phase: Failed, "+ended("0")):                                          {Health: fleet.HealthDegraded, Reason: "Failed", Message: "the pod failed"},
		// Statuses of conditions are written in any case.
		conditions("{type: Ready, status: 'true'}"):                                {Health: fleet.HealthHealthy},
		conditions("{type: Ready, status: 'false', reason: Failed, message: bad}"): {Health: fleet.HealthDegraded, Reason: "Failed"},
		// Trouble of no weight is work.
		conditions("{type: Stalled, status: 'True', severity: Info, reason: Slow}"): {Health: fleet.HealthProgressing, Reason: "Slow"},
		conditions("{type: Stalled, status: 'True', reason: Slow}"):                 {Health: fleet.HealthDegraded, Reason: "Slow"},
		// A step that is named is trouble if its message begins as errors do.
		conditions("{type: Ready, status: 'False', reason: Creating, message: 'error: quota'}"): {Health: fleet.HealthDegraded, Reason: "Creating"},
		conditions("{type: Ready, status: 'False', reason: Creating, message: 'the quota'}"):    {Health: fleet.HealthProgressing, Reason: "Creating"},
		// What is not suspended is not held.
		conditions("{type: Ready, status: 'True'}, {type: Suspended, status: 'False'}"):        {Health: fleet.HealthHealthy},
		conditions("{type: Ready, status: 'True'}, {type: Suspended, status: 'True'}"):         {Health: fleet.HealthSuspended},
		conditions("{type: Ready, status: 'True'}, {type: WorkersPaused, status: 'True'}"):     {Health: fleet.HealthSuspended},
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {phase: PoolHibernated}}": {Health: fleet.HealthSuspended},
		// That a step was not taken counts beside a condition that sums up the others.
		conditions("{type: Ready, status: 'True'}, {type: SecretSynced, status: 'False', reason: NotFound}"): {Health: fleet.HealthDegraded, Reason: "NotFound"},
		// Nothing is updated where there is one revision.
		"{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a, generation: 1}, spec: {replicas: 2, updateStrategy: {type: RollingUpdate}}, status: {observedGeneration: 1, replicas: 2, readyReplicas: 2, currentReplicas: 2, currentRevision: r, updateRevision: r}}": {Health: fleet.HealthHealthy},
		// Without numbers of replicas there is nothing to compare.
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, spec: {size: 3}, status: {observedGeneration: 1}}": {Health: fleet.HealthHealthy, Reason: ReasonNoRule},
	} {
		got := Of(parse(t, object))
		if got.Health != want.Health || want.Reason != "" && got.Reason != want.Reason || want.Message != "" && got.Message != want.Message {
			t.Errorf("%s:\n%+v, want %+v", object, got, want)
		}
	}
}

// A CronJob whose run has just left the list of active ones waits a moment for the word that it succeeded: the controllers of
// Kubernetes 1.29 to 1.32 write that in the next update of the status. Without it, it is a failure.
func TestCronJobWhoseRunJustEnded(t *testing.T) {
	ended := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	for name, status := range map[string]string{
		"the first": "lastScheduleTime: '2026-07-01T00:00:00Z'",
		"a later":   "lastScheduleTime: '2026-07-01T00:00:00Z', lastSuccessfulTime: '2026-06-30T00:05:00Z'",
	} {
		o := parse(t, "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, creationTimestamp: '2026-06-01T00:00:00Z', managedFields: ["+
			"{manager: towline, operation: Apply, time: '2026-06-01T00:00:00Z'}, "+
			"{manager: kube-controller-manager, operation: Update, subresource: status, time: '2026-07-01T00:05:00Z'}]}, status: {"+status+"}}")
		got := Judge(o, Facts{Now: ended.Add(time.Second)}, nil)
		if got.Health != fleet.HealthHealthy || !got.Until.Equal(ended.Add(successGrace)) {
			t.Errorf("%s run, at once: %+v", name, got)
		}
		if got := Judge(o, Facts{Now: got.Until}, nil); got.Health != fleet.HealthDegraded || !got.Until.IsZero() {
			t.Errorf("%s run, later: %+v", name, got)
		}
	}
}

// TestWordOfBeforeOurChange: a good word that may be of what the object said before our change is not taken for one on the change before its
// controller wrote, or had a moment for that. What says its generation, and what was never changed, needs none.
func TestWordOfBeforeOurChange(t *testing.T) {
	changed := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	const ready = "conditions: [{type: Ready, status: 'True'}]"
	object := func(generation int, written, spec, status string) string {
		return fmt.Sprintf("{apiVersion: x.io/v1, kind: Till, metadata: {name: a, generation: %d, creationTimestamp: '2026-06-01T00:00:00Z', managedFields: ["+
			"{manager: towline, operation: Apply, time: '2026-07-01T00:05:00Z'}, "+
			"{manager: till-operator, operation: Update, subresource: status, time: '2026-07-01T%s'}]}, spec: {%s}, status: {%s}}", generation, written, spec, status)
	}
	waits := Result{Health: fleet.HealthProgressing, Reason: ReasonOldGeneration, Until: changed.Add(heardGrace)}
	before, same, after := "00:04:59Z", "00:05:00Z", "00:05:01Z"
	for name, c := range map[string]struct {
		object  string
		at      time.Duration
		unknown bool // when we changed it is not known
		bare    bool
		last    bool // nobody has written since
		want    Result
	}{
		"ready before":             {object: object(2, before, "", ready), want: waits},
		"ready before, later":      {object: object(2, before, "", ready), at: heardGrace, want: healthy()},
		"written in that second":   {object: object(2, same, "", ready), want: healthy()},
		"before in that second":    {object: object(2, same, "", ready), last: true, want: waits},
		"beside it in that second": {object: strings.Replace(object(2, same, "", ready), "managedFields: [", "managedFields: [{manager: till-operator, operation: Update, time: '2026-07-01T00:05:00Z'}, ", 1), want: waits},
		"written after":            {object: object(2, after, "", ready), want: healthy()},
		"paused before":            {object: object(2, before, "", "phase: Paused"), want: waits},
		"told to stand still":      {object: object(2, before, "paused: true", ready), want: Result{Health: fleet.HealthSuspended, Reason: "Suspended"}},
		"failed before":            {object: object(2, before, "", "phase: Failed"), want: Result{Health: fleet.HealthDegraded, Reason: "Failed"}},
		"says its generation":      {object: object(2, before, "", "observedGeneration: 2, "+ready), want: healthy()},
		"a part says its own":      {object: object(2, before, "", "conditions: [{type: Ready, status: 'True', observedGeneration: 2}]"), want: healthy()},
		"an entry says its own":    {object: object(2, before, "", "parents: [{parentRef: {name: gw}, conditions: [{type: Accepted, status: 'True', observedGeneration: 2}]}], "+ready), want: healthy()},
		"says another thing's":     {object: object(2, before, "", "machine: {observedGeneration: 7}, hyperVGeneration: V2, "+ready), want: waits},
		"nobody carries it out":    {object: strings.Replace(object(2, before, "", "users: 3, "+ready), "apiVersion: x.io/v1, kind: Till", "apiVersion: aws.upbound.io/v1beta1, kind: ProviderConfig", 1), want: healthy()},
		"of a shipped rule":        {object: strings.Replace(object(2, before, "", ready), "apiVersion: x.io/v1, kind: Till", "apiVersion: keda.sh/v1alpha1, kind: ScaledObject", 1), want: waits},
		"never changed":            {object: object(1, before, "", ready), want: healthy()},
		"nothing to judge by":      {object: object(2, before, "", "note: all is well"), want: Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule}},
		"not changed by us":        {object: object(2, before, "", ready), unknown: true, want: healthy()},
		"no status subresource":    {object: strings.Replace(object(2, before, "", ready), ", subresource: status", "", 1), bare: true, want: waits},
		"written as a whole after": {object: strings.Replace(object(2, after, "", ready), ", subresource: status", "", 1), bare: true, want: healthy()},
	} {
		f := Facts{Now: changed.Add(c.at), Changed: changed, HasStatus: !c.bare, Last: c.last}
		if c.unknown {
			f.Changed = time.Time{}
		}
		got := Judge(parse(t, c.object), f, nil)
		if got.Message = ""; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestIngressThatNobodyTook: who only wrote what it should be has not taken it.
func TestIngressThatNobodyTook(t *testing.T) {
	created := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for fields, want := range map[string]fleet.Health{
		"{manager: towline, operation: Apply}":                         fleet.HealthHealthy,
		"{manager: nginx, operation: Update, subresource: status}":     fleet.HealthProgressing,
		"{manager: scaler, operation: Update, subresource: somewhere}": fleet.HealthHealthy,
	} {
		object := parse(t, "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, creationTimestamp: '2026-07-01T00:00:00Z', managedFields: ["+fields+"]}}")
		if got := Judge(object, Facts{Now: created.Add(time.Hour), HasStatus: true}, nil); got.Health != want {
			t.Errorf("%s: %+v, want %s", fields, got, want)
		}
	}
}
