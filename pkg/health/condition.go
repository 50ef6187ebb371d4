package health

import (
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// condition is one of metav1 or of its many relatives.
type condition struct {
	kind, status, reason, message, severity string
	// observed is the generation that it speaks of; 0: not said.
	observed int64
	// changed is when its status did last, as it is written; empty: not said.
	changed string
}

func conditionOf(x any) condition {
	m, _ := x.(map[string]any)
	c := condition{kind: text(m, "type"), reason: text(m, "reason"), message: text(m, "message"), severity: text(m, "severity")}
	c.observed, _ = generationIn(m, "observedGeneration")
	c.changed = text(m, "lastTransitionTime")
	switch v := m["status"].(type) {
	case string:
		c.status = v
		if strings.EqualFold(v, "true") {
			c.status = "True"
		} else if strings.EqualFold(v, "false") {
			c.status = "False"
		}
	case bool:
		c.status = "False"
		if v {
			c.status = "True"
		}
	}
	return c
}

// is reports that the condition is there and has the status.
func (c condition) is(status string) bool { return c.kind != "" && c.status == status }

// condition is that of a type, the last if there are several; without a type if there is none.
func (o *object) condition(kind string) condition {
	return conditionIn(listOf(o.status, "conditions"), kind)
}

func conditionIn(list []any, kind string) condition {
	for i := len(list) - 1; i >= 0; i-- {
		if m, _ := list[i].(map[string]any); text(m, "type") == kind {
			return conditionOf(m)
		}
	}
	return condition{}
}

// isBad is what a condition says that is True and should not be.
func (c condition) isBad() Result {
	if c.severity == "Info" {
		return progressing(nonEmpty(c.reason, c.kind), c.message)
	}
	return degraded(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind))
}

// isNot is what a condition says that should be True: that there is trouble, unless its words tell of work or there are
// none. What is not up to date yet is brought there.
func (c condition) isNot() Result {
	reason, message := nonEmpty(c.reason, "Not"+c.kind), nonEmpty(c.message, c.kind+" is "+c.status)
	said := c.said()
	silent := c.message == "" && (c.reason == "" || c.reason == "Not"+c.kind)
	switch {
	case c.status == "Unknown" && (said != bad || reasonClass("", c.message) == busy), c.severity == "Info", said == busy, said == unclear && (silent || c.kind == "Programmed" || hasSuffix(c.kind, "UpToDate")):
		return progressing(reason, message)
	}
	return degraded(reason, message)
}

// said is what the reason tells, or the message where the reason only repeats that the condition is not True. A message
// that begins as errors do tells of trouble, whatever step the reason names.
func (c condition) said() class {
	if strings.HasSuffix(c.reason, "Not"+c.kind) {
		if said := reasonClass("", c.message); said != unclear {
			return said
		}
	}
	said := reasonClass(c.reason, c.message)
	if said == busy && hasPrefix(strings.ToLower(c.message), "error", "failed") {
		return bad
	}
	return said
}

// endedBadly reports that a condition says by its reason that what it calls complete is a failure.
func (c condition) endedBadly() bool {
	return has("Complete Completed Finished Done", c.kind) && contains(strings.ToLower(c.reason), "fail", "error")
}

// settled reports that the reason of a condition about work says that the work is done.
func (c condition) settled() bool {
	for _, done := range []string{"Available", "Complete", "Completed", "Deployed", "Succeeded", "Finished"} {
		if before, ok := strings.CutSuffix(c.reason, done); ok {
			return !strings.HasSuffix(before, "Not")
		}
	}
	return c.reason == "Ready" || c.kind == "Progressing" && hasSuffix(c.reason, "AsExpected")
}

// signs are what the parts of a status say: the first of each kind, and whether anything says that all is well.
type signs struct {
	degraded, unknown, suspended, progressing Result
	// unsure is of a condition that is not True for reasons that tell nothing.
	unsure Result
	// working: something says plainly that work is under way.
	working bool
	good    bool
	// sum: a condition that sums up the others is True.
	sum bool
	// accepted: a controller accepted the object.
	accepted bool
}

func (s *signs) add(r Result) {
	into := &s.progressing
	switch r.Health {
	case fleet.HealthDegraded:
		into = &s.degraded
	case fleet.HealthSuspended:
		into = &s.suspended
	case fleet.HealthProgressing:
	default:
		return
	}
	if into.Health == "" {
		*into = r
	}
}

// settle decides what is unsure: it is trouble, unless something says that work is under way or that it was stopped.
func (s *signs) settle() {
	if s.unsure.Health != "" && !s.working && s.suspended.Health == "" {
		s.add(s.unsure)
	}
	s.unsure = Result{}
}

// verdict is the worst sign. It reports whether there is any.
func (s *signs) verdict() (Result, bool) {
	s.settle()
	for _, r := range []*Result{&s.degraded, &s.unknown, &s.suspended, &s.progressing} {
		if r.Health != "" {
			return *r, true
		}
	}
	return healthy(), s.good
}

// conditionsSay is the judgement by status.conditions alone.
func (o *object) conditionsSay() (Result, bool) {
	var s signs
	s.conditions(o, listOf(o.status, "conditions"))
	return s.verdict()
}

// conditions takes a list of them. Where one sums up the others, the others count only if they tell of trouble; where it
// is True, only those that it does not know of.
func (s *signs) conditions(o *object, list []any) {
	summed := false
	s.accepted = conditionIn(list, "Accepted").is("True")
	for _, x := range list {
		c := conditionOf(x)
		if conditionClass(c.kind) != main || c.status == "" || o.runs(c) {
			continue
		}
		summed = true
		s.sum = s.sum || c.is("True") && !o.stale(c)
	}
	for i, x := range list {
		c := conditionOf(x)
		if c.kind == "" || conditionIn(list[i+1:], c.kind).kind != "" {
			continue // of several of a type, the last counts
		}
		s.condition(o, c, summed)
	}
}

// stale reports that a condition is of another generation than the object's. One that is greater is of another object of the name, whose status this
// one was made again with, unless something was said since.
func (o *object) stale(c condition) bool {
	switch {
	case c.observed == 0 || o.generation == 0 || c.observed == o.generation:
		return false
	case c.observed < o.generation:
		return true
	}
	changed, _ := time.Parse(time.RFC3339, c.changed)
	return !o.countsAnother() && !changed.After(o.made()) && !o.saidSince(o.made())
}

func (s *signs) condition(o *object, c condition, summed bool) {
	k := conditionClass(c.kind)
	if o.stale(c) {
		if k == main || k == strong || k != unclear && !s.sum {
			s.add(o.old(c.observed))
		}
		return
	}
	if o.runs(c) {
		s.run(c)
		return
	}
	switch k {
	case bad:
		if c.kind != "Warning" || !s.sum && !s.accepted {
			s.badCondition(c)
		}
	case busy:
		s.busyCondition(c)
	case stopped:
		if c.is("True") {
			s.add(suspended(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)))
		}
	case main, strong:
		s.goodCondition(c)
	case good:
		if !s.sum && (!summed || c.is("True") || c.said() == bad && c.severity != "Info") {
			s.goodCondition(c)
		}
	case unclear:
		if !s.sum && c.is("False") && reasonClass(c.reason, "") == bad {
			s.add(c.isNot())
		}
	}
}

// runs reports that the condition tells of a kind that is to come to an end whether it runs. What Ansible's playbooks make is called
// Running also when the last has succeeded.
func (o *object) runs(c condition) bool {
	return c.kind == "Running" && c.reason != "Successful" && o.finite()
}

// run takes whether a kind that is to come to an end runs: where another condition sums up, that it does not is no trouble.
func (s *signs) run(c condition) {
	switch {
	case c.is("True"):
		s.working = true
		s.add(progressing(nonEmpty(c.reason, c.kind), nonEmpty(c.message, "it is not done")))
	case !s.sum:
		s.goodCondition(c)
	}
}

func (s *signs) goodCondition(c condition) {
	switch {
	case c.is("True") && (c.endedBadly() || c.kind == "Accepted" && c.reason == "PartiallyValid"):
		s.add(c.isBad())
	case c.is("True"):
		s.good = true
	case c.status != "":
		s.not(c)
	}
}

// not takes a condition that should be True and is not.
func (s *signs) not(c condition) {
	r := c.isNot()
	if r.Health != fleet.HealthDegraded || c.said() != unclear {
		s.add(r)
	} else if s.unsure.Health == "" {
		s.unsure = r
	}
}

func (s *signs) badCondition(c condition) {
	switch c.status {
	case "True":
		s.add(c.isBad())
	case "False":
		s.good = true
	}
}

func (s *signs) busyCondition(c condition) {
	switch {
	case c.is("True") && !c.settled():
		s.working = s.working || !contains(strings.ToLower(c.reason), "retry")
		s.add(progressing(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)))
	case c.is("False") && reasonClass(c.reason, "") == bad:
		s.add(degraded(c.reason, c.message))
	case c.status != "":
		s.good = true
	}
}
