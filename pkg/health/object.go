package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// object is a live object with what nearly every judgement asks. It only reads the fields; they belong to the caller.
type object struct {
	fields, meta, spec, status map[string]any
	group, kind                string
	generation                 int64 // 0: not known
	facts                      Facts
}

func newObject(fields map[string]any, f Facts) object {
	version, _ := fields["apiVersion"].(string)
	group, _, grouped := strings.Cut(version, "/")
	if !grouped {
		group = ""
	}
	o := object{fields: fields, meta: mapOf(fields, "metadata"), spec: mapOf(fields, "spec"), status: mapOf(fields, "status"),
		group: group, kind: text(fields, "kind"), facts: f}
	o.generation = count(o.meta, "generation", 0)
	return o
}

// unobserved reports that the controller has not seen the newest generation yet. One that is greater is of another object of the name: this one
// was made again with the status of that, unless something was said since.
func (o *object) unobserved() (Result, bool) {
	if seen, ok := number(o.status, "desiredGeneration"); ok && o.group == "kubevirt.io" && (seen >= o.generation || o.stands()) {
		return Result{}, false // what it calls observed is what the machine was started with
	}
	observed, ok := o.observed()
	switch {
	case !ok || o.generation == 0:
		return Result{}, false
	case o.countsAnother():
		return o.unsaid()
	case observed == o.generation, observed > o.generation && o.saidSince(o.made()):
		return Result{}, false
	}
	return o.old(observed), true
}

// countsAnother reports that what the kind calls observed is a generation of what its controller made: KServe copies that of a Deployment, which
// grows each time that is scaled, begins anew with another Deployment, and stays where a change does not reach it. It tells nothing, also where it
// is by chance the object's own. The conditions of a TigeraStatus have the generation of the Installation.
func (o *object) countsAnother() bool {
	return o.group == "serving.kserve.io" && has("InferenceService InferenceGraph", o.kind) || o.group == "operator.tigera.io" && o.kind == "TigeraStatus"
}

// unsaid is of such a status until a condition of it changes after what the object says now, or until its controller had its time for that.
func (o *object) unsaid() (Result, bool) {
	if o.saidSince(o.started()) {
		return Result{}, false
	}
	return o.graced(progressing(ReasonOldGeneration, "its controller has said nothing since the change: the generation in the status is another object's"))
}

// saidSince reports that a condition changed since then: the status is of what the object was by that time, whatever its controller counts.
func (o *object) saidSince(then time.Time) bool {
	return !then.IsZero() && slices.ContainsFunc(conditionsOf(o.status), func(c any) bool {
		condition, _ := c.(map[string]any)
		at, err := time.Parse(time.RFC3339, text(condition, "lastTransitionTime"))
		return err == nil && at.After(then)
	})
}

// unheard is a good word of a status that may be of what the object said before our last change: it says no generation, and nobody has written it
// since. Its controller has a moment for that; one that has nothing to write proves nothing by more time.
func (o *object) unheard(r Result) Result { return o.unheardFor(heardGrace, r) }

// unheardFor is unheard of a kind whose controller is known to have its own time for a word.
func (o *object) unheardFor(grace time.Duration, r Result) Result {
	changed := o.facts.Changed
	until := changed.Add(grace)
	if changed.IsZero() || !o.facts.Now.Before(until) { // first, since it is so of nearly all
		return r
	}
	good := r.Health == fleet.HealthSuspended || r.Health == fleet.HealthHealthy && !r.Unjudged()
	if !good || o.neverChanged() || o.empty() || o.saysGeneration() || o.writtenSince(changed) || o.isStatic() {
		return r
	}
	waits := progressing(ReasonOldGeneration, "its controller has written nothing since the change, and its status does not say of which generation it is")
	waits.Until = until
	return waits
}

// neverChanged reports that the object is as it was made. An autoscaler of before Kubernetes 1.37 was made without a generation, and comes to the
// first by its first change.
func (o *object) neverChanged() bool {
	return o.generation == 1 && !(o.group == "autoscaling" && o.kind == "HorizontalPodAutoscaler")
}

// isStatic reports that the kind is known to be configuration for others to read: nobody carries out a change of it.
func (o *object) isStatic() bool {
	r := shipped.find(o.group, o.kind)
	return r != nil && r.static
}

// writtenSince reports that somebody wrote the status since our change. Where the status has no subresource, any write but ours may be that.
// Times are of whole seconds: what was written in that second is a word on our change only if the object was written since, and nothing of it
// but its status.
func (o *object) writtenSince(changed time.Time) bool {
	if !o.facts.HasStatus {
		return o.written("").After(changed)
	}
	said := o.written("status")
	return said.After(changed) || said.Equal(changed) && !o.facts.Last && !o.writtenBeside(changed)
}

// writtenBeside reports that somebody wrote something else of the object than its status since then, or in that second.
func (o *object) writtenBeside(then time.Time) bool {
	return slices.ContainsFunc(listOf(o.meta, "managedFields"), func(x any) bool {
		m, _ := x.(map[string]any)
		at, err := time.Parse(time.RFC3339, text(m, "time"))
		ours := text(m, "manager") == fleet.FieldManager && text(m, "operation") == "Apply"
		return err == nil && !at.Before(then) && !ours && text(m, "subresource") != "status"
	})
}

// saysGeneration reports that the status, or a part of one of its lists, such as a condition, says of which generation it is.
func (o *object) saysGeneration() bool {
	for key, v := range o.status {
		list, _ := v.([]any)
		if key == "desiredGeneration" || slices.ContainsFunc(list, dated) {
			return true
		}
	}
	_, said := o.observed()
	return said
}

// observed is the generation of which the status says that it speaks.
func (o *object) observed() (n int64, ok bool) {
	for _, key := range []string{"observedGeneration", "lastObservedGeneration", "lastEvaluatedGeneration"} {
		if n, ok = generationIn(o.status, key); ok {
			break
		}
	}
	return n, ok
}

// generationIn is the generation at a key: a number, or a text of digits, which is how the JSON of protobuf writes one.
func generationIn(m map[string]any, key string) (int64, bool) {
	digits := text(m, key)
	if digits == "" {
		return number(m, key)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}

// dated reports that a part of a list says of which generation it, or a condition of its own, is.
func dated(part any) bool {
	m, _ := part.(map[string]any)
	observed, _ := generationIn(m, "observedGeneration")
	return observed != 0 || slices.ContainsFunc(conditionsOf(m), dated)
}

// made is when the object was made; zero: not known.
func (o *object) made() time.Time {
	at, _ := time.Parse(time.RFC3339, text(o.meta, "creationTimestamp"))
	return at
}

// stands reports that a virtual machine is stopped and is not to run: both of its generations are those of its last start.
func (o *object) stands() bool {
	running, _ := o.spec["running"].(bool)
	return !isTrue(o.status, "created") && text(o.status, "printableStatus") == "Stopped" && text(o.spec, "runStrategy") != "Always" && !running
}

// old is of a status, or a part of it, that speaks of an older generation.
func (o *object) old(observed int64) Result {
	return progressing(ReasonOldGeneration, fmt.Sprintf("the status speaks of generation %d, the object is at %d", observed, o.generation))
}

// started is when the controller could begin with what the object says: its creation or our last change.
func (o *object) started() time.Time {
	at := o.made()
	if o.facts.Changed.After(at) {
		return o.facts.Changed
	}
	return at
}

// annotation is the value of an annotation, or "".
func (o *object) annotation(key string) string { return text(mapOf(o.meta, "annotations"), key) }

// namespaceOf is the namespace of what a reference of the object names: its own unless the reference says another.
func (o *object) namespaceOf(ref map[string]any) string {
	return nonEmpty(text(ref, "namespace"), text(o.meta, "namespace"))
}

func healthy() Result { return Result{Health: fleet.HealthHealthy} }

func progressing(reason, message string) Result {
	return Result{Health: fleet.HealthProgressing, Reason: nonEmpty(reason, "Progressing"), Message: message}
}

func degraded(reason, message string) Result {
	return Result{Health: fleet.HealthDegraded, Reason: nonEmpty(reason, "Degraded"), Message: message}
}

func suspended(reason, message string) Result {
	return Result{Health: fleet.HealthSuspended, Reason: nonEmpty(reason, "Suspended"), Message: message}
}

func nonEmpty(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

// mapOf is the map at a path, or nil.
func mapOf(m map[string]any, path ...string) map[string]any {
	for _, p := range path {
		m, _ = m[p].(map[string]any)
	}
	return m
}

// listOf is the list at a key, or nil.
func listOf(m map[string]any, key string) []any {
	list, _ := m[key].([]any)
	return list
}

// conditionsOf are the conditions of a status, or of an entry of it. Some write them by their types instead of as a list.
func conditionsOf(m map[string]any) []any {
	byType, ok := m["conditions"].(map[string]any)
	if !ok {
		return listOf(m, "conditions")
	}
	var out []any
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		c, ok := byType[name].(map[string]any)
		if !ok {
			continue
		}
		c = maps.Clone(c)
		c["type"] = name
		out = append(out, c)
	}
	return out
}

// text is the string at a key, or "".
func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// isTrue reports that the value at a key is true.
func isTrue(m map[string]any, key string) bool {
	b, _ := m[key].(bool)
	return b
}

// number is the whole number at a key.
func number(m map[string]any, key string) (int64, bool) {
	switch n := m[key].(type) {
	case int64:
		return n, true
	case int:
		return int64(n), true
	case float64:
		return int64(n), n == float64(int64(n))
	}
	return 0, false
}

// count is the whole number at a key, or otherwise.
func count(m map[string]any, key string, otherwise int64) int64 {
	if n, ok := number(m, key); ok {
		return n
	}
	return otherwise
}
