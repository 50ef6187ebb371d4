package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// general judges a custom resource that no rule knows, by what the field writes into statuses.
func (o *object) general() Result {
	if o.empty() {
		return o.noStatus()
	}
	if r, old := o.unobserved(); old {
		return r
	}
	if r, runs := playbookRuns(o); runs {
		return r
	}
	if r, ok := o.statusSays(); ok {
		return r
	}
	if r, ok := o.partsSay(); ok {
		return r
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its status has nothing to judge by"}
}

// playbookRuns: what is made of Ansible's playbooks is Running while one runs, and also when the last has succeeded: the reason tells.
func playbookRuns(o *object) (Result, bool) {
	c := o.condition("Running")
	runs := c.is("True") && c.reason == "Running" && c.message == "Running reconciliation"
	return progressing(c.reason, c.message), runs && !o.condition("Failure").is("True")
}

// statusSays is the judgement by everything in the status that the field agrees on.
func (o *object) statusSays() (Result, bool) {
	var s signs
	s.everything(o)
	return s.verdict()
}

// everything takes all parts of a status that the field agrees on.
func (s *signs) everything(o *object) {
	s.conditions(o, conditionsOf(o.status))
	for _, list := range []string{"parents", "ancestors", "listeners", "bindings", "controllers"} {
		s.entries(o, list)
	}
	s.phases(o)
	s.flags(o)
	if !s.sum {
		s.failures(o)
		s.replicas(o, false)
	}
}

// held reports that somebody told the controller to leave the object as it is.
func (o *object) held() (Result, bool) {
	for _, key := range []string{"suspend", "suspended", "paused", "pause", "cordoned"} {
		if isTrue(o.spec, key) {
			return suspended("", "spec."+key+" is true"), true
		}
	}
	if strings.EqualFold(text(o.spec, "managementState"), "Unmanaged") {
		return suspended("Unmanaged", "spec.managementState is Unmanaged"), true
	}
	if key := "rabbitmq.com/pauseReconciliation"; text(mapOf(o.meta, "labels"), key) == "true" {
		return suspended("Paused", "label "+key+": true"), true
	}
	annotations := mapOf(o.meta, "annotations")
	for _, a := range holdAnnotations {
		v, ok := annotations[a.key].(string)
		if ok && (a.value == "" || v == a.value) {
			return suspended("Paused", "annotation "+a.key+": "+v), true
		}
	}
	return Result{}, false
}

// holdAnnotations pause a controller; where value is empty, any does.
var holdAnnotations = []struct{ key, value string }{
	{"cluster.x-k8s.io/paused", ""},
	{"crossplane.io/paused", "true"},
	{"autoscaling.keda.sh/paused", "true"},
	{"autoscaling.keda.sh/paused-replicas", ""},
	{"strimzi.io/pause-reconciliation", "true"},
	{"strimzi.io/managed", "false"},
	{"cnpg.io/reconciliation", "disabled"},
	{"cnpg.io/reconciliationLoop", "disabled"},
	{"serverless.openshift.io/paused", "true"},
	{"fluxcd.controlplane.io/reconcile", "disabled"},
	{"eck.k8s.elastic.co/managed", "false"},
	{"kamaji.clastix.io/paused", ""},
}

// empty reports that the status says nothing at all.
func (o *object) empty() bool {
	for _, v := range o.status {
		switch v := v.(type) {
		case nil:
		case string:
			if v != "" {
				return false
			}
		case []any:
			if len(v) > 0 {
				return false
			}
		case map[string]any:
			if len(v) > 0 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// noStatus gives the controller its grace, unless the kind has no status to write.
func (o *object) noStatus() Result {
	if !o.facts.HasStatus {
		return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its kind has no status to judge by"}
	}
	if r, waits := o.graced(progressing(ReasonNoStatus, "its controller has written no status yet")); waits {
		return r
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoStatus, Message: "its controller writes no status: there is nothing to judge by"}
}

// graced is a judgement that holds only as long as a controller has time for its first word. It reports whether that still runs.
func (o *object) graced(r Result) (Result, bool) {
	start := o.started()
	if start.IsZero() {
		return r, true
	}
	r.Until = start.Add(NoStatusGrace)
	return r, o.facts.Now.Before(r.Until)
}

// entries takes a list of the status whose members have conditions of their own: one for each gateway, listener or
// controller. Those that speak of an older generation are of controllers that let go, unless all do.
func (s *signs) entries(o *object, key string) {
	list := listOf(o.status, key)
	var older *condition
	current := false
	for _, x := range list {
		e, _ := x.(map[string]any)
		conditions := conditionsOf(e)
		if len(conditions) == 0 {
			continue
		}
		if c := o.allStale(conditions); c.kind != "" {
			older = &c
			continue
		}
		current = true
		accepted := conditionIn(conditions, "Accepted")
		if accepted.kind == "" && (e["parentRef"] != nil || e["ancestorRef"] != nil) {
			s.add(progressing("NotAccepted", entryName(e)+": does not say yet whether it accepts it"))
		}
		if c := accepted; c.is("False") && c.reason == "TargetNotFound" && acceptedByOther(list, e) {
			continue
		}
		var own signs
		own.conditions(o, conditions)
		s.take(own, entryName(e))
	}
	switch {
	case current:
	case older != nil:
		s.add(o.old(older.observed))
	case len(list) > 0 && key != "listeners" && key != "controllers":
		s.add(progressing("NoConditions", "no controller says what it makes of it yet"))
	}
}

// allStale is a condition of an older generation, if all that say their generation are.
func (o *object) allStale(conditions []any) condition {
	var old condition
	for _, x := range conditions {
		c := conditionOf(x)
		if c.observed == 0 {
			continue
		}
		if !o.stale(c) {
			return condition{}
		}
		old = c
	}
	return old
}

// acceptedByOther reports that another controller than the entry's accepted the object. Every Gateway API controller in
// a cluster writes that it does not know the target of a policy that is meant for another.
func acceptedByOther(list []any, entry map[string]any) bool {
	for _, x := range list {
		e, _ := x.(map[string]any)
		if text(e, "controllerName") != text(entry, "controllerName") && conditionIn(conditionsOf(e), "Accepted").is("True") {
			return true
		}
	}
	return false
}

func entryName(e map[string]any) string {
	for _, ref := range []string{"parentRef", "ancestorRef"} {
		if name := text(mapOf(e, ref), "name"); name != "" {
			return name
		}
	}
	return text(e, "name")
}

// take adds the signs of a part; its name goes into the messages.
func (s *signs) take(part signs, name string) {
	part.settle()
	for _, r := range []Result{part.degraded, part.suspended, part.progressing} {
		if name != "" {
			r.Message = name + ": " + r.Message
		}
		s.add(r)
	}
	s.good = s.good || part.good
	s.sum = s.sum || part.sum
}

// phaseFields are where statuses have their phase.
var phaseFields = []string{"phase", "state", "status", "health", "healthStatus", "currentState", "overallState", "overallStatus", "clusterState",
	"lifecycleState", "jobStatus", "jobState", "deploymentStatus", "printableStatus", "syncState"}

func (s *signs) phases(o *object) {
	for _, field := range phaseFields {
		if v := phaseIn(o.status, field); v != "" {
			s.phase(o, field, v)
		}
	}
	s.otherPhases(o)
}

// phaseIn is the phase at a key, or in the map that is there.
func phaseIn(m map[string]any, key string) string {
	inner := mapOf(m, key)
	return nonEmpty(text(m, key), text(inner, "status"), text(inner, "state"), text(inner, "phase"))
}

// otherPhases takes fields that are called a phase, a state or a status of something, and summaries that have one, where they tell plainly of
// trouble or of work. What was, or what is wanted, does not count.
func (s *signs) otherPhases(o *object) {
	troubled, working := "", ""
	for field := range o.status {
		if !hasSuffix(field, "Phase", "State", "Status") && !has("summary display", field) || slices.Contains(phaseFields, field) || notNow(field) {
			continue
		}
		// Of several the first by name counts: a map has no order.
		switch plainPhase(phaseIn(o.status, field)) {
		case bad:
			troubled = first(troubled, field)
		case busy:
			working = first(working, field)
		}
	}
	for _, field := range []string{troubled, working} {
		if field != "" {
			s.phase(o, field, phaseIn(o.status, field))
		}
	}
}

// partsSay is what a part of a status that says nothing else tells plainly of trouble or of work, such as the job that an object is for.
func (o *object) partsSay() (Result, bool) {
	var s signs
	for _, field := range slices.Sorted(maps.Keys(o.status)) {
		part := mapOf(o.status, field)
		v := nonEmpty(text(part, "phase"), text(part, "state"), text(part, "status"))
		k := plainPhase(v)
		if k == unclear && o.phaseClass(v) == busy && o.finite() {
			k = busy
		}
		if k != unclear && !notNow(field) {
			s.phaseIs(k, v, nonEmpty(text(part, "message"), text(part, "reason"), "status."+field+" is "+v), unclear)
		}
	}
	r, _ := s.verdict()
	return r, r.Health != fleet.HealthHealthy
}

// notNow reports that a field of a status is about what was, or what is wanted.
func notNow(field string) bool {
	return hasPrefix(strings.ToLower(field), "last", "previous", "old", "initial", "desired", "target", "wanted", "requested", "expected")
}

// first is the lesser of two words, or the one that is not empty.
func first(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

func (s *signs) phase(o *object, field, v string) {
	message := nonEmpty(text(o.status, "message"), text(o.status, "reason"), "status."+field+" is "+v)
	s.phaseIs(o.phaseClass(v), v, message, unclear)
}

// phaseClass knows that what should come to an end is not fine while it runs.
func (o *object) phaseClass(v string) class {
	k := phaseClass(v)
	if k == good && o.finite() && (has("running active started created", strings.ToLower(v)) || hasSuffix(plain(v), lasting...)) {
		return busy
	}
	return k
}

// phaseIs takes a phase of a class; one that is unclear is taken for another.
func (s *signs) phaseIs(k class, phase, message string, otherwise class) {
	if k == unclear {
		k = otherwise
	}
	switch k {
	case good:
		s.good = true
	case bad:
		s.add(degraded(camel(phase), message))
	case busy:
		s.add(progressing(camel(phase), message))
	case stopped:
		s.add(suspended(camel(phase), message))
	}
}

// finite reports that objects of the kind run to an end.
func (o *object) finite() bool {
	return hasSuffix(o.kind, "Run", "Job", "Workflow", "Backup", "Restore", "Task", "Migration", "Operation", "Build", "Import", "Export", "Test",
		"Scan", "Execution", "Experiment", "Snapshot", "Upgrade", "Action") && !hasPrefix(o.kind, "Cron", "Scheduled", "Scaled")
}

// camel makes a reason of a phase that is a sentence.
func camel(phase string) string {
	if !strings.ContainsAny(phase, " -_") {
		return phase
	}
	words := strings.FieldsFunc(phase, func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for i, w := range words {
		words[i] = camelKey(w)
	}
	return strings.Join(words, "")
}

// camelKey begins a word with a capital.
func camelKey(word string) string {
	if word == "" || word[0] < 'a' || word[0] > 'z' {
		return word
	}
	return string(word[0]-'a'+'A') + word[1:]
}

// flagFields are where statuses have a yes or no; what stands in lesserFlags counts only where no condition sums up. Some have one where
// others have a phase.
var (
	flagFields  = []string{"ready", "available", "healthy", "applied", "synced", "readyToUse", "valid", "installed", "connected"}
	lesserFlags = []string{"isReady", "isHealthy", "allReady", "initialized", "provisioned", "deployed", "succeeded", "success", "reconciled", "status", "state", "health"}
)

func (s *signs) flags(o *object) {
	s.flagsIn(o, flagFields)
	if !s.sum {
		s.flagsIn(o, lesserFlags)
	}
}

func (s *signs) flagsIn(o *object, keys []string) {
	for _, key := range keys {
		switch is, ok := flagOf(o.status[key]); {
		case !ok:
		case is:
			s.good = true
		default:
			s.add(flagDown(key, nonEmpty(text(o.status, "message"), "status."+key+" is false")))
		}
	}
}

// flagDown is what a no at a key says.
func flagDown(key, message string) Result {
	reason := "Not" + camelKey(key)
	if slices.Contains(phaseFields, key) {
		reason = camelKey(key) + "IsFalse"
	}
	if has("healthy valid health", key) {
		return degraded(reason, message)
	}
	return progressing(reason, message)
}

// flagOf is a yes or no, which some statuses have as a word.
func flagOf(v any) (is, ok bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		return strings.EqualFold(v, "true"), strings.EqualFold(v, "true") || strings.EqualFold(v, "false")
	}
	return false, false
}

// failures finds what went wrong where no condition sums up.
func (s *signs) failures(o *object) {
	for _, key := range []string{"error", "errorMessage", "failureMessage", "failureReason", "lastError", "err", "errors"} {
		message := text(o.status, key)
		if m, ok := o.status[key].(map[string]any); ok {
			message = nonEmpty(text(m, "message"), text(m, "reason"))
		}
		if list := listOf(o.status, key); len(list) > 0 {
			message = fmt.Sprint(list[0])
		}
		if message != "" && !has(noFailures, plain(message)) {
			s.add(degraded(camelKey(key), message))
		}
	}
}

// noFailures are what stands for a failure where there is none, as plain words.
const noFailures = "none null nil ok noerror noerrors"

func firstNumber(m map[string]any, keys ...string) (int64, bool) {
	for _, k := range keys {
		if n, ok := number(m, k); ok {
			return n, true
		}
	}
	return 0, false
}
