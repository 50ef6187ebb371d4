package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// builtin judges the kinds that the API server serves itself. It reports whether the object is of one.
func (o *object) builtin() (Result, bool) {
	judge := o.builtinJudge()
	if judge != nil {
		return judge(o), true
	}
	if !builtinGroup(o.group) {
		return Result{}, false
	}
	if r, ok := o.conditionsSay(); ok {
		return r, true
	}
	if o.finite() && o.empty() {
		return o.noStatus(), true // what runs to an end has not ended before anything is said of it
	}
	return healthy(), true
}

// builtinJudge finds the judgement by switches: it runs for every event and makes no garbage.
func (o *object) builtinJudge() func(*object) Result {
	switch o.group {
	case "":
		return coreJudge(o.kind)
	case "apps", "extensions", "batch":
		return workloadJudge(o.kind)
	case "autoscaling":
		if o.kind == "HorizontalPodAutoscaler" {
			return autoscalerHealth
		}
	case "policy":
		if o.kind == "PodDisruptionBudget" {
			return budgetHealth
		}
	case "networking.k8s.io":
		if o.kind == "Ingress" {
			return ingressHealth
		}
	case "apiregistration.k8s.io":
		if o.kind == "APIService" {
			return apiServiceHealth
		}
	case "apiextensions.k8s.io":
		if o.kind == "CustomResourceDefinition" {
			return definitionHealth
		}
	case "certificates.k8s.io":
		if o.kind == "CertificateSigningRequest" {
			return signingRequestHealth
		}
	case "storage.k8s.io":
		if o.kind == "VolumeAttachment" {
			return attachmentHealth
		}
	case "admissionregistration.k8s.io":
		if o.kind == "ValidatingAdmissionPolicy" {
			return admissionPolicyHealth
		}
	}
	return nil
}

func coreJudge(kind string) func(*object) Result {
	switch kind {
	case "Pod":
		return podHealth
	case "Service":
		return serviceHealth
	case "PersistentVolumeClaim":
		return claimHealth
	case "PersistentVolume":
		return volumeHealth
	case "ReplicationController":
		return replicaSetHealth
	case "Namespace":
		return namespaceHealth
	}
	return nil
}

func workloadJudge(kind string) func(*object) Result {
	switch kind {
	case "Deployment":
		return deploymentHealth
	case "StatefulSet":
		return statefulSetHealth
	case "DaemonSet":
		return daemonSetHealth
	case "ReplicaSet":
		return replicaSetHealth
	case "Job":
		return jobHealth
	case "CronJob":
		return cronJobHealth
	case "Ingress":
		return ingressHealth
	}
	return nil
}

// builtinGroup reports that a group is the API server's own. The group of a custom resource has a dot.
func builtinGroup(group string) bool {
	if !strings.Contains(group, ".") {
		return true
	}
	switch strings.TrimSuffix(group, ".k8s.io") {
	case "admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates",
		"coordination", "discovery", "events", "flowcontrol.apiserver", "internal.apiserver", "networking", "node",
		"rbac.authorization", "resource", "scheduling", "storage", "storagemigration":
		return true
	}
	return false
}

func serviceHealth(o *object) Result {
	if text(o.spec, "type") != "LoadBalancer" {
		return healthy()
	}
	if c := o.condition("LoadBalancerPortsError"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), nonEmpty(c.message, "the load balancer does not serve all ports"))
	}
	if !o.hasAddress() {
		return progressing("NoAddress", "the load balancer has no address yet")
	}
	return healthy()
}

// ingressGrace is how long an Ingress waits for a controller that cares for it.
const ingressGrace = 30 * time.Second

// ingressHealth waits for an address without end only if a controller has taken the Ingress: where none is installed, or
// where it writes no addresses, there is none to come. Who wrote an object without managed fields is not known, so one may care for it.
func ingressHealth(o *object) Result {
	if o.hasAddress() {
		return healthy()
	}
	r := progressing("NoAddress", "no address yet; where the controller never writes one, say so with a health rule")
	start := o.started()
	if o.taken() || start.IsZero() || len(listOf(o.meta, "managedFields")) == 0 {
		return r
	}
	if r.Until = start.Add(ingressGrace); o.facts.Now.Before(r.Until) {
		return r
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoStatus, Message: "no controller has taken it: there is no address to wait for"}
}

// taken reports that a controller shows that it cares for the object: by a finalizer, or by writing its status.
func (o *object) taken() bool {
	for _, x := range listOf(o.meta, "managedFields") {
		if m, _ := x.(map[string]any); text(m, "subresource") == "status" {
			return true
		}
	}
	return len(listOf(o.meta, "finalizers")) > 0
}

func (o *object) hasAddress() bool {
	return len(listOf(mapOf(o.status, "loadBalancer"), "ingress")) > 0
}

func claimHealth(o *object) Result {
	switch phase := text(o.status, "phase"); phase {
	case "Bound":
		return o.claimChange()
	case "Lost":
		return degraded("Lost", "the bound volume is gone")
	default:
		return progressing(nonEmpty(phase, ReasonNoStatus), "no volume is bound yet")
	}
}

// claimChange is of a claim that has its volume: whether that could become what the claim asks for by now. One that is on its way there is
// in use meanwhile, and may wait for the next start of a pod.
func (o *object) claimChange() Result {
	for _, kind := range []string{"ControllerResizeError", "NodeResizeError", "ModifyVolumeError"} {
		if c := o.condition(kind); c.is("True") {
			return degraded(nonEmpty(c.reason, kind), nonEmpty(c.message, "the volume could not be changed to what the claim asks for"))
		}
	}
	if size := text(mapOf(o.status, "allocatedResourceStatuses"), "storage"); strings.HasSuffix(size, "Infeasible") || strings.HasSuffix(size, "Failed") {
		return degraded(size, "the volume cannot become as large as the claim asks for")
	}
	return o.claimClass()
}

// claimClass is of the class of attributes that a claim asks for. Where there is none of that name, or the driver refuses it, no condition
// says that it failed. What is said of a claim that asks for the class that it has is of before.
func (o *object) claimClass() Result {
	class := text(o.spec, "volumeAttributesClassName")
	if class == "" || class == text(o.status, "currentVolumeAttributesClassName") {
		return healthy()
	}
	switch state := text(mapOf(o.status, "modifyVolumeStatus"), "status"); state {
	case "Pending":
		return degraded("ModifyVolume"+state, "VolumeAttributesClass "+class+" cannot be had: there may be none of that name")
	case "Infeasible":
		return degraded("ModifyVolume"+state, nonEmpty(o.condition("ModifyingVolume").message, "its driver refuses VolumeAttributesClass "+class))
	}
	return healthy()
}

func volumeHealth(o *object) Result {
	switch phase := text(o.status, "phase"); phase {
	case "Available", "Bound", "Released":
		return healthy()
	case "Failed":
		return degraded(nonEmpty(text(o.status, "reason"), phase), nonEmpty(text(o.status, "message"), "the volume cannot be reclaimed"))
	default:
		return progressing(nonEmpty(phase, ReasonNoStatus), "the volume is not available yet")
	}
}

func namespaceHealth(o *object) Result {
	if text(o.status, "phase") == "Terminating" {
		return o.terminating()
	}
	return healthy()
}

func autoscalerHealth(o *object) Result {
	conditions := listOf(o.status, "conditions")
	if raw := o.annotation("autoscaling.alpha.kubernetes.io/conditions"); raw != "" && conditions == nil {
		// The first version of the kind has no conditions; the API server writes them into an annotation.
		if err := json.Unmarshal([]byte(raw), &conditions); err != nil {
			return progressing(ReasonNoStatus, "the conditions in the annotations are not readable: "+err.Error())
		}
	}
	able := false
	for _, x := range conditions {
		c := conditionOf(x)
		switch {
		case o.stale(c):
		case c.kind == "AbleToScale" && c.is("False") && strings.HasPrefix(c.reason, "Failed"),
			c.kind == "ScalingActive" && c.is("False") && c.reason != "ScalingDisabled":
			return degraded(c.reason, c.message)
		case c.is("True") && (c.kind == "AbleToScale" || c.kind == "ScalingLimited"):
			able = true
		}
	}
	// After the failures: where the target cannot be read, the conditions tell of the newest generation, and the status does not.
	if r, old := o.unobserved(); old {
		return r
	}
	switch old := o.allStale(conditions); {
	case old.kind != "":
		return o.old(old.observed)
	case !able:
		return progressing("NotScaling", "the autoscaler does not say yet that it is able to scale")
	}
	return o.unheardFor(scaleGrace, healthy())
}

func budgetHealth(o *object) Result {
	if r, old := o.unobserved(); old {
		return r
	}
	// Pods that are not ready are the business of their workload, not of the budget.
	c := o.condition("DisruptionAllowed")
	if c.is("False") && c.reason != "InsufficientPods" {
		return degraded(c.reason, c.message)
	}
	if _, seen := number(o.status, "observedGeneration"); c.kind == "" && !seen {
		return progressing(ReasonNoStatus, "the allowed disruptions are not computed yet")
	}
	return healthy()
}

func apiServiceHealth(o *object) Result {
	c := o.condition("Available")
	switch {
	case !c.is("True"):
		return progressing(nonEmpty(c.reason, ReasonNoStatus), nonEmpty(c.message, "is not available yet"))
	case mapOf(o.spec, "service") == nil:
		return healthy() // the API server has the group itself, and nobody looks at it again
	}
	return o.unheard(healthy())
}

func definitionHealth(o *object) Result {
	if c := o.condition("Terminating"); c.is("True") {
		return o.terminating()
	}
	accepted, told := o.namesAccepted()
	if c := o.condition("NamesAccepted"); c.is("False") && !accepted { // of names that it has again nobody takes the word back
		return degraded(c.reason, nonEmpty(c.message, "its names are not accepted"))
	}
	established := o.condition("Established")
	switch {
	case established.kind == "", established.is("False") && established.reason == "Installing":
		return progressing("Installing", nonEmpty(established.message, "is not established yet"))
	case !established.is("True"):
		return degraded(nonEmpty(established.reason, "NotEstablished"), nonEmpty(established.message, "is not established"))
	}
	if c := o.condition("NonStructuralSchema"); c.is("True") {
		return degraded(nonEmpty(c.reason, c.kind), c.message)
	}
	if told && !accepted {
		if r, waits := o.graced(progressing(ReasonOldGeneration, "whether nobody else has its names is not said yet")); waits {
			return r
		}
	}
	return healthy()
}

// namesAccepted reports whether the names that the status has as accepted are those of now, and whether it has any.
func (o *object) namesAccepted() (accepted, told bool) {
	has := mapOf(o.status, "acceptedNames")
	if len(has) == 0 {
		return false, false
	}
	wants := mapOf(o.spec, "names")
	for _, key := range []string{"plural", "singular", "kind", "listKind"} {
		if text(has, key) != text(wants, key) {
			return false, true
		}
	}
	return sameTexts(has, wants, "shortNames") && sameTexts(has, wants, "categories"), true
}

// sameTexts reports that two maps have the same texts in a list; one that is missing is empty.
func sameTexts(a, b map[string]any, key string) bool {
	return slices.EqualFunc(listOf(a, key), listOf(b, key), func(x, y any) bool {
		s, known := x.(string)
		t, too := y.(string)
		return known && too && s == t
	})
}

func signingRequestHealth(o *object) Result {
	for _, bad := range []string{"Denied", "Failed"} {
		if c := o.condition(bad); c.is("True") {
			return degraded(nonEmpty(c.reason, bad), nonEmpty(c.message, "the request was refused"))
		}
	}
	if text(o.status, "certificate") == "" {
		return progressing("Pending", "no certificate is issued yet")
	}
	return healthy()
}

func attachmentHealth(o *object) Result {
	for _, field := range []string{"attachError", "detachError"} {
		if message := text(mapOf(o.status, field), "message"); message != "" {
			return degraded(field, message)
		}
	}
	if !isTrue(o.status, "attached") {
		return progressing("NotAttached", "the volume is not attached yet")
	}
	return healthy()
}

func admissionPolicyHealth(o *object) Result {
	if r, old := o.unobserved(); old {
		return r
	}
	for _, x := range listOf(mapOf(o.status, "typeChecking"), "expressionWarnings") {
		w, _ := x.(map[string]any)
		return degraded("TypeChecking", text(w, "fieldRef")+": "+text(w, "warning"))
	}
	if _, checked := number(o.status, "observedGeneration"); checked {
		return healthy()
	}
	if r, waits := o.graced(progressing(ReasonNoStatus, "its expressions are not checked yet")); waits {
		return r
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoStatus, Message: "nobody checks its expressions"}
}

func jobHealth(o *object) Result {
	for _, bad := range []string{"Failed", "FailureTarget"} {
		if c := o.condition(bad); c.is("True") {
			return degraded(nonEmpty(c.reason, bad), nonEmpty(c.message, "the job failed"))
		}
	}
	if o.condition("Complete").is("True") {
		return healthy()
	}
	if isTrue(o.spec, "suspend") { // the condition says so, too, of one that was told to run a moment ago
		return suspended("", "spec.suspend is true: no pods are started")
	}
	active, failed := count(o.status, "active", 0), count(o.status, "failed", 0)
	switch {
	case count(o.spec, "parallelism", 1) == 0 && active+count(o.status, "terminating", 0) == 0:
		return suspended("Parallelism", "spec.parallelism is 0: no pods are started")
	case failed > 0:
		return progressing("Retrying", fmt.Sprintf("%d pods failed, %d run; the job tries again", failed, active))
	}
	return progressing("Running", fmt.Sprintf("the job is not complete: %d succeeded, %d run", count(o.status, "succeeded", 0), active))
}

// successGrace is how long the controller of a CronJob has to note that a run succeeded, after it took that from the list of the
// active ones: until Kubernetes 1.32 it does the one in one update of the status, and the other in the next.
const successGrace = 10 * time.Second

// cronJobHealth says Degraded when the last run failed, unless that run began before our last change: what was mended can
// only show at its next run.
func cronJobHealth(o *object) Result {
	if isTrue(o.spec, "suspend") {
		return suspended("", "spec.suspend is true: no jobs are started")
	}
	last, err := time.Parse(time.RFC3339, text(o.status, "lastScheduleTime"))
	if err != nil || len(listOf(o.status, "active")) > 0 || o.facts.Changed.After(last) {
		return healthy()
	}
	why := "none has yet"
	if ended := text(o.status, "lastSuccessfulTime"); ended != "" {
		succeeded, err := time.Parse(time.RFC3339, ended)
		if err != nil || !succeeded.Before(last) {
			return healthy()
		}
		why = "the last that did ended at " + succeeded.Format(time.RFC3339)
	}
	if written := o.statusWritten(); !written.IsZero() && o.facts.Now.Before(written.Add(successGrace)) {
		return Result{Health: fleet.HealthHealthy, Until: written.Add(successGrace)}
	}
	return degraded("LastRunFailed", fmt.Sprintf("the run of %s did not succeed; %s", last.Format(time.RFC3339), why))
}

// statusWritten is when the status was written last; zero: it is not known.
func (o *object) statusWritten() (last time.Time) { return o.written("status") }

// written is when a subresource was written last; empty: the object itself.
func (o *object) written(subresource string) (last time.Time) {
	for _, x := range listOf(o.meta, "managedFields") {
		m, _ := x.(map[string]any)
		if at, err := time.Parse(time.RFC3339, text(m, "time")); err == nil && text(m, "subresource") == subresource && at.After(last) {
			last = at
		}
	}
	return last
}
