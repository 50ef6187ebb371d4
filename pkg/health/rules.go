package health

import (
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"towline.dev/towline/pkg/celenv"
	"towline.dev/towline/pkg/fleet"
)

// Rule is the judgement of one group and kind in CEL over the variable `object`, as a person writes it. It goes before
// everything that Towline knows of the kind, except that an object that is being deleted is Terminating and that a status
// of an older generation is Progressing; the latter does not hold for a rule that reads observedGeneration itself.
//
// The conditions are asked in the order Degraded, Progressing, Healthy; the first that holds decides. If none holds and
// Healthy is set, the object is Progressing; if Healthy is not set, the judgement goes on as without the rule. A
// condition that fails because a field is not there does not hold; where Kind is "*" and Healthy fails so, the judgement goes
// on as without the rule, once the controller has written a status and had time for more, and at once for a kind without a status.
type Rule struct {
	// Group is an API group, "" for the core group, or "*.SUFFIX" for every group that ends so.
	Group string
	// Kind is a kind, or "*" for all of the group.
	Kind string
	// Healthy, Progressing and Degraded are conditions; an empty one never holds. At least one is set.
	Healthy, Progressing, Degraded string
	// Message is an expression for the text that says why an object is not healthy; empty: Towline's own text.
	Message string
}

// MaxRules is how many rules a set has at most.
const MaxRules = 200

// Rules are compiled. The first that matches an object is the one that counts. Rules are safe for concurrent use.
type Rules struct{ list []compiled }

type compiled struct {
	group, kind                             string
	healthy, progressing, degraded, message cel.Program
	observes                                bool // reads observedGeneration
}

// ruleLimits bound one expression over one object: a loop over every field of an object of a megabyte fits.
var ruleLimits = celenv.Limits{Cost: 200_000, Memory: 200_000, SizeEvery: 1_000}

var ruleEnv = sync.OnceValues(func() (*cel.Env, error) {
	return celenv.New(cel.Variable("object", cel.MapType(cel.StringType, cel.DynType)))
})

// Compile compiles rules. Its error is a FieldError whose path starts with healthRules.
func Compile(rules []Rule) (*Rules, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	if len(rules) > MaxRules {
		return nil, fleet.Invalidf("healthRules", "has %d entries; at most %d", len(rules), MaxRules)
	}
	out := &Rules{list: make([]compiled, len(rules))}
	for i, r := range rules {
		c, err := r.compile()
		if err != nil {
			return nil, fleet.Join(fmt.Sprintf("healthRules[%d]", i), err)
		}
		out.list[i] = c
	}
	return out, nil
}

func (r Rule) compile() (compiled, error) {
	c := compiled{group: r.Group, kind: r.Kind, observes: strings.Contains(r.Healthy+r.Progressing+r.Degraded, "observedGeneration")}
	if r.Kind == "" {
		return c, fleet.Invalid("kind", `is required; "*" is every kind of the group`)
	}
	if strings.Contains(strings.TrimPrefix(r.Group, "*."), "*") {
		return c, fleet.Invalid("group", `has a "*" in the middle; write a group, or "*." and the end of one`)
	}
	if r.Healthy == "" && r.Progressing == "" && r.Degraded == "" {
		return c, fleet.Invalid("healthy", "one of healthy, progressing and degraded is required")
	}
	env, err := ruleEnv()
	if err != nil {
		return c, err
	}
	for _, e := range []struct {
		field, source string
		into          *cel.Program
		result        *cel.Type
	}{
		{"healthy", r.Healthy, &c.healthy, cel.BoolType},
		{"progressing", r.Progressing, &c.progressing, cel.BoolType},
		{"degraded", r.Degraded, &c.degraded, cel.BoolType},
		{"message", r.Message, &c.message, cel.StringType},
	} {
		if e.source == "" {
			continue
		}
		if *e.into, err = celenv.Program(env, e.source, ruleLimits, e.result, cel.DynType); err != nil {
			return c, fleet.Join(e.field, err)
		}
	}
	return c, nil
}

func (r *Rules) find(o *object) *compiled {
	if r == nil {
		return nil
	}
	for i := range r.list {
		if c := &r.list[i]; (c.kind == o.kind || c.kind == "*") && matchGroup(c.group, o.group) {
			return c
		}
	}
	return nil
}

// For are the rules if one of them speaks of the kind, and nil otherwise; nil rules speak of none.
func (r *Rules) For(group, kind string) *Rules {
	if r.find(&object{group: group, kind: kind}) == nil {
		return nil
	}
	return r
}

func matchGroup(pattern, group string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(group, suffix)
	}
	return pattern == group
}

// judge reports whether the rule decides.
func (c *compiled) judge(o *object) (Result, bool) {
	if !c.observes {
		if r, old := o.unobserved(); old {
			return r, true
		}
	}
	vars, lacks := map[string]any{"object": o.fields}, false
	for _, e := range []struct {
		field string
		is    cel.Program
		then  fleet.Health
	}{
		{"degraded", c.degraded, fleet.HealthDegraded},
		{"progressing", c.progressing, fleet.HealthProgressing},
		{"healthy", c.healthy, fleet.HealthHealthy},
	} {
		holds, absent, err := holds(e.is, vars)
		if err != nil {
			return Result{Health: fleet.HealthUnknown, Reason: ReasonRuleFailed, Message: "health rule: " + e.field + ": " + celenv.Reason(err)}, true
		}
		lacks = absent
		if !holds {
			continue
		}
		if e.then == fleet.HealthHealthy {
			return Result{Health: e.then}, true
		}
		return c.because(e.then, vars, "health rule: "+e.field+" holds"), true
	}
	if c.healthy == nil {
		return Result{}, false
	}
	waits := c.because(fleet.HealthProgressing, vars, "health rule: healthy does not hold yet")
	if c.kind == "*" && lacks {
		return o.lacking(waits)
	}
	return waits, true
}

// lacking is of an object without the field that healthy reads, by a rule for all kinds of a group, of which some may not have that field. It
// reports whether that decides: not of a kind without a status, nor when its controller has written one, and had the time for a first word.
func (o *object) lacking(waits Result) (r Result, decided bool) {
	if o.empty() {
		return waits, o.facts.HasStatus
	}
	return o.graced(waits)
}

func (c *compiled) because(h fleet.Health, vars map[string]any, otherwise string) Result {
	r := Result{Health: h, Reason: ReasonRule, Message: otherwise}
	if c.message == nil {
		return r
	}
	v, _, err := c.message.Eval(vars)
	if err != nil {
		return r // the state is known; what the message reads may come later
	}
	if text, ok := v.(types.String); ok && text != "" {
		r.Message = string(text)
	}
	return r
}

// holds says, too, that a condition does not hold because a field is not there.
func holds(p cel.Program, vars map[string]any) (is, absent bool, err error) {
	if p == nil {
		return false, false, nil
	}
	v, _, err := p.Eval(vars)
	if err != nil {
		if celenv.Absent(err) {
			return false, true, nil
		}
		return false, false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, false, fmt.Errorf("is a %s, neither true nor false", v.Type().TypeName())
	}
	return bool(b), false, nil
}
