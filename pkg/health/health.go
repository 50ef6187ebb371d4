// Package health says how a live object is: healthy, on its way, broken, suspended or leaving. It owns that judgement
// for every kind; it must not know who applied the object, nor fetch anything.
package health

import (
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// maxMessage bounds a message in bytes; statuses with thousands of objects travel over the wire.
const maxMessage = 256

// Reasons that Towline gives itself; the others are those of conditions, phases and containers.
const (
	// ReasonNoStatus is of an object whose controller has written no status: Progressing during the grace after its
	// creation or our last change of it, Healthy after it, for want of anything to judge by.
	ReasonNoStatus = "NoStatus"
	// ReasonNoRule is of a Healthy object whose status says nothing that Towline understands.
	ReasonNoRule = "NoRule"
	// ReasonOldGeneration is of an object whose status speaks of an older generation, or says none and may be of before our last change.
	ReasonOldGeneration = "OldGeneration"
	// ReasonRule is of an object that a rule of a module or a project judged.
	ReasonRule = "HealthRule"
	// ReasonRuleFailed is of an object, Unknown, whose rule could not be evaluated.
	ReasonRuleFailed = "HealthRuleFailed"
	// ReasonTerminating is of an object that is being deleted.
	ReasonTerminating = "Terminating"
)

// NoStatusGrace is how long a controller has to write a first status.
const NoStatusGrace = 60 * time.Second

// heardGrace is how long a controller has after a change for its word on it, where the status does not say of which generation it is.
const heardGrace = 10 * time.Second

// scaleGrace is the same for the controller of autoscalers: it looks at each, also at one that was changed, every 15 s.
const scaleGrace = 20 * time.Second

// Facts are what is known beside the object.
type Facts struct {
	// Now is the time of the judgement; zero: every grace still runs.
	Now time.Time
	// Changed is when we last wrote the object; zero: not known.
	Changed time.Time
	// Last says that nobody has written the object since we did, as its version tells.
	Last bool
	// HasStatus says that the kind has a status subresource.
	HasStatus bool
}

// Result is the health of one object. Reason is CamelCase and, with Message, says why an object is not healthy. A Healthy
// object has a Reason only if there was nothing to judge by: ReasonNoStatus or ReasonNoRule.
type Result struct {
	Health  fleet.Health
	Reason  string
	Message string
	// Until is when the verdict changes without any change of the object; zero: never.
	Until time.Time
}

// Unjudged reports that the object is called Healthy for want of anything to judge by.
func (r Result) Unjudged() bool {
	return r.Health == fleet.HealthHealthy && (r.Reason == ReasonNoStatus || r.Reason == ReasonNoRule)
}

// Judge judges a live object as the API server returns it, whole numbers as int64. It never changes obj and never
// panics. In this order, the first that decides counts: a deletion under way, the rules given, the judgement of the
// built-in kind, the shipped rule of the kind, the general judgement of custom resources.
func Judge(obj map[string]any, f Facts, rules *Rules) Result {
	o := newObject(obj, f)
	r := o.judge(rules)
	r.Reason, r.Message = asReason(r.Reason), clip(r.Message)
	return r
}

// Of judges an object by what it says alone: when it was written is not known, so every grace still runs.
func Of(obj map[string]any) Result { return Judge(obj, Facts{HasStatus: true}, nil) }

func (o *object) judge(rules *Rules) Result {
	if text(o.meta, "deletionTimestamp") != "" {
		return o.terminating()
	}
	if c := rules.find(o); c != nil {
		if r, decided := c.judge(o); decided {
			return r
		}
	}
	if r, ok := o.builtin(); ok {
		return r
	}
	if r, ok := o.held(); ok {
		return r
	}
	r, known := o.shippedSays()
	if !known {
		r = o.general()
	}
	return o.unheard(r)
}

func (o *object) terminating() Result {
	r := Result{Health: fleet.HealthTerminating, Reason: ReasonTerminating, Message: "is being deleted"}
	var names []string
	for _, f := range listOf(o.meta, "finalizers") {
		if name, ok := f.(string); ok {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		r.Message += "; waits for finalizers " + strings.Join(names, ", ")
	}
	return r
}

// maxReason bounds a reason in bytes.
const maxReason = 64

// asReason makes a word of what stood in a status as a reason or a phase.
func asReason(s string) string {
	fits := len(s) <= maxReason
	for i := 0; fits && i < len(s); i++ {
		fits = s[i] > ' ' && s[i] < 0x7f
	}
	if fits {
		return s
	}
	word := strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return -1
	}, s)
	return nonEmpty(word[:min(len(word), maxReason)], "Unnamed")
}

func clip(s string) string { return fleet.Clip(s, maxMessage) }
