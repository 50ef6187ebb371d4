package health

import (
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// rule is what Towline knows of a kind of a widely used operator, beyond the general judgement. Its lists are words with
// single spaces between them.
type rule struct {
	// ready are conditions that must all be True; one that is not there yet is work under way.
	ready string
	// any are conditions of which those that are there must be True, and one must be there.
	any string
	// bad, busy and held are conditions that mean failure, work and a stop when they are True.
	bad, busy, held string
	// soft: a condition that is not True is work under way unless its words tell of trouble; otherwise the other way round.
	soft bool
	// hard: a condition that is False is trouble, whatever its words tell; its controller writes Unknown while it works.
	hard bool
	// phase is the path of the phase below status, with dots. Its words have the meaning of good, work, fail, stop and dark
	// (Unknown), and otherwise the field's.
	phase                        string
	good, work, fail, stop, dark string
	// replicas says that the numbers of replicas count whatever the conditions say, and that one that is left out is a zero.
	replicas bool
	// late is a condition whose failure counts though the status speaks of an older generation: its controller notes the generation
	// only with success.
	late string
	// idle: its controller looks at it only when something uses it. That there is no status, or one of an older generation, holds only as long
	// as a first status is waited for.
	idle bool
	// silent: its controller writes no status in some versions, or with some settings.
	silent bool
	// dated: its controller says of each condition of which generation it speaks.
	dated bool
	// once: its conditions stay as they were written once, whatever the generation.
	once bool
	// static says that the kind is configuration for others to read: without a status it is Healthy.
	static bool
	// sparing says that the controller writes a status only when what it finds changes: an older generation may stand there for good.
	sparing bool
	// every: it is of all kinds of a group, of which some may lack what it names. The index sets it.
	every bool
	// judge goes before all of the above. It reports whether it decides.
	judge func(*object) (Result, bool)
}

// groupKind is the key of a shipped rule; the kind is "*" for all of a group.
type groupKind struct{ group, kind string }

// shippedEntry is a rule for kinds of a group; a group that starts with "*." is every group that ends so.
type shippedEntry struct {
	group, kinds string
	rule         rule
}

// library indexes the shipped rules.
type library struct {
	exact    map[groupKind]*rule
	suffixes []shippedEntry
}

var (
	shippedTables = [][]shippedEntry{certificateRules, argoRules, fluxRules, cloudRules, clusterRules, networkRules, observabilityRules,
		messagingRules, databaseRules, workloadRules, storageRules, policyRules, secretRules}
	shipped = index(shippedTables)
)

func index(tables [][]shippedEntry) *library {
	l := &library{exact: map[groupKind]*rule{}}
	for _, t := range tables {
		for i := range t {
			e := &t[i]
			e.rule.every = e.kinds == "*"
			if strings.HasPrefix(e.group, "*.") {
				l.suffixes = append(l.suffixes, *e)
				continue
			}
			for _, kind := range strings.Fields(e.kinds) {
				l.exact[groupKind{e.group, kind}] = &e.rule
			}
		}
	}
	return l
}

func (l *library) find(group, kind string) *rule {
	if r := l.exact[groupKind{group, kind}]; r != nil {
		return r
	}
	if r := l.exact[groupKind{group, "*"}]; r != nil {
		return r
	}
	for i := range l.suffixes {
		e := &l.suffixes[i]
		if (e.kinds == "*" || has(e.kinds, kind)) && (strings.HasSuffix(group, e.group[1:]) || group == e.group[2:]) {
			return &e.rule
		}
	}
	return nil
}

// shippedSays judges by the shipped rule of the kind, if there is one. Its controller always writes a status, unless the
// rule says otherwise.
func (o *object) shippedSays() (Result, bool) {
	r := shipped.find(o.group, o.kind)
	if r == nil {
		return Result{}, false
	}
	v, decided := r.judges(o)
	old := o.allStale(listOf(o.status, "conditions"))
	if v.Health == fleet.HealthHealthy && old.kind != "" && !r.once && !r.idle && !o.finite() {
		if w, waits := r.behind(o, o.old(old.observed)); waits {
			return w, true // a phase and numbers have no generation
		}
	}
	return v, decided
}

// judges is what the rule says of an object that nobody told to stand still.
func (r *rule) judges(o *object) (Result, bool) {
	empty := o.empty()
	if r.idle {
		if v, decided := o.unused(); decided {
			return v, true
		}
	}
	if empty && r.static {
		return healthy(), true
	}
	if !empty {
		if old, yes := o.unobserved(); yes {
			if w, waits := r.behind(o, old); waits {
				return r.lateOr(o, w), true
			}
		}
	}
	if r.judge != nil {
		if v, decided := r.judge(o); decided {
			return v, true
		}
	}
	switch {
	case empty && r.silent, empty && r.every && !o.facts.HasStatus:
		return o.noStatus(), true
	case empty:
		return progressing(ReasonNoStatus, "its controller has written no status yet"), true
	}
	return r.say(o), true
}

// behind is of a status of an older generation: of a kind whose controller spares its words, it tells nothing after a while.
func (r *rule) behind(o *object, old Result) (Result, bool) {
	if r.sparing {
		return o.graced(old)
	}
	return old, true
}

// unused is of an object that its controller has not looked at, or not since its last change, as nothing uses it.
func (o *object) unused() (Result, bool) {
	if o.empty() {
		return o.noStatus(), true
	}
	old, yes := o.unobserved()
	if c := o.allStale(listOf(o.status, "conditions")); !yes && c.kind != "" {
		old, yes = o.old(c.observed), true
	}
	if !yes {
		return Result{}, false
	}
	if r, waits := o.graced(old); waits {
		return r, true
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its controller looks at it when something uses it"}, true
}

// lateOr is what the late condition tells that the newest generation is not, or what is known otherwise.
func (r *rule) lateOr(o *object, otherwise Result) Result {
	if r.late != "" && r.judge != nil {
		if v, decided := r.judge(o); decided && v.Health != fleet.HealthHealthy {
			return v
		}
	}
	c := o.condition(r.late)
	if r.late != "" && c.is("False") && !o.stale(c) && (c.said() == bad || c.observed != 0) {
		return c.isNot()
	}
	return otherwise
}

func (r *rule) say(o *object) Result {
	var s signs
	list := listOf(o.status, "conditions")
	r.troubles(o, &s, list)
	r.needs(o, &s, list)
	if r.phase != "" {
		r.phaseSays(o, &s)
		if r.ready == "" && r.any == "" {
			s.plainTrouble(list)
			s.plainFailures(o, list)
		}
	}
	if r.ready != "" {
		s.strongTrouble(o, list)
	}
	if r.replicas {
		s.replicas(o, true)
	}
	if r.ready == "" && r.any == "" && r.phase == "" {
		s.everything(o)
	}
	if v, ok := s.verdict(); ok {
		return v
	}
	if r.static {
		return healthy()
	}
	return Result{Health: fleet.HealthHealthy, Reason: ReasonNoRule, Message: "its status has nothing to judge by"}
}

func (r *rule) troubles(o *object, s *signs, list []any) {
	if r.bad == "" && r.busy == "" && r.held == "" {
		return
	}
	for _, x := range list {
		c := conditionOf(x)
		if !c.is("True") || o.stale(c) {
			continue
		}
		switch {
		case has(r.bad, c.kind) && reasonClass(c.reason, "") == busy:
			s.add(progressing(c.reason, c.message))
		case has(r.bad, c.kind):
			s.add(c.isBad())
		case has(r.busy, c.kind):
			s.add(progressing(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)))
		case has(r.held, c.kind):
			s.add(suspended(nonEmpty(c.reason, c.kind), nonEmpty(c.message, c.kind)))
		}
	}
}

func (r *rule) needs(o *object, s *signs, list []any) {
	missing := ""
	for rest := r.ready; rest != ""; {
		var kind string
		kind, rest, _ = strings.Cut(rest, " ")
		if c := conditionIn(list, kind); c.kind == "" {
			missing = nonEmpty(missing, kind)
		} else {
			r.need(o, s, c)
		}
	}
	if r.any != "" {
		one, _, _ := strings.Cut(r.any, " ")
		for _, x := range list {
			if c := conditionOf(x); has(r.any, c.kind) {
				one = ""
				r.need(o, s, c)
			}
		}
		missing = nonEmpty(missing, one)
	}
	if missing != "" {
		s.plainTrouble(list)
		r.lacks(o, s, progressing("No"+missing, "its controller has not said yet whether it is "+missing))
	}
}

// lacks takes a status that does not have what the rule names. Of a rule for all kinds of a group, that holds only as long as a first word is
// waited for: the kind may not have it at all, and is judged as without the rule then. Where the rule knows its kinds by more than that, it holds.
func (r *rule) lacks(o *object, s *signs, waits Result) {
	if !r.every || r.judge != nil || r.soft {
		s.add(waits)
		return
	}
	if waits, still := o.graced(waits); still {
		s.add(waits)
		return
	}
	s.everything(o)
}

func (r *rule) need(o *object, s *signs, c condition) {
	switch {
	case o.stale(c):
		s.add(o.old(c.observed))
	case c.is("True") && c.endedBadly():
		s.add(c.isBad())
	case c.is("True") && r.dated && c.observed == 0:
		s.add(progressing("NoGeneration", c.kind+" does not say of which generation it speaks"))
	case c.is("True"):
		s.good = true
	case r.hard && c.is("False"):
		s.add(degraded(nonEmpty(c.reason, "Not"+c.kind), nonEmpty(c.message, c.kind+" is False")))
	default:
		v := c.isNot()
		if r.soft && c.said() != bad {
			v.Health = fleet.HealthProgressing
		}
		s.add(v)
	}
}

// plainTrouble takes conditions that should be True, are False, and name a failure as the reason.
func (s *signs) plainTrouble(list []any) {
	for _, x := range list {
		c := conditionOf(x)
		k := conditionClass(c.kind)
		if c.is("False") && (k == main || k == strong || k == good) && reasonClass(c.reason, "") == bad && c.severity != "Info" {
			s.add(c.isNot())
		}
	}
}

// plainFailures takes conditions that leave no doubt that something is wrong, whatever the phase.
func (s *signs) plainFailures(o *object, list []any) {
	for _, x := range list {
		if c := conditionOf(x); c.is("True") && !o.stale(c) && has("Degraded Failing Stalled", c.kind) {
			s.add(c.isBad())
		}
	}
}

// strongTrouble takes conditions that no other one outweighs, are False, and name a failure as the reason: what runs may be fine
// and still what was wanted before.
func (s *signs) strongTrouble(o *object, list []any) {
	for _, x := range list {
		c := conditionOf(x)
		if c.is("False") && conditionClass(c.kind) == strong && !o.stale(c) && reasonClass(c.reason, "") == bad && c.severity != "Info" {
			s.add(c.isNot())
		}
	}
}

func (r *rule) phaseSays(o *object, s *signs) {
	m, key := o.status, r.phase
	for {
		head, rest, deeper := strings.Cut(key, ".")
		if !deeper {
			break
		}
		m, key = mapOf(m, head), rest
	}
	phase := text(m, key)
	message := nonEmpty(text(m, "message"), text(o.status, "message"), text(o.status, "reason"), text(o.status, "lastError"), "status."+r.phase+" is "+phase)
	word := camel(phase)
	switch {
	case phase == "" && s.summedUp(o):
	case phase == "":
		r.lacks(o, s, progressing("NoPhase", "status."+r.phase+" is not written yet"))
	case either(r.good, phase, word):
		s.good = true
	case either(r.work, phase, word):
		s.add(progressing(word, message))
	case either(r.fail, phase, word):
		s.add(degraded(word, message))
	case either(r.stop, phase, word):
		s.add(suspended(word, message))
	case either(r.dark, phase, word):
		s.unknown = Result{Health: fleet.HealthUnknown, Reason: word, Message: message}
	default:
		s.phaseIs(o.phaseClass(phase), phase, message, busy)
	}
}

// summedUp takes the conditions where one of them sums up the others: a version may have those and no phase any more.
func (s *signs) summedUp(o *object) bool {
	var own signs
	own.conditions(o, listOf(o.status, "conditions"))
	if own.sum {
		s.take(own, "")
	}
	return own.sum
}

// either reports that one of two spellings is in a list.
func either(list, a, b string) bool { return has(list, a) || has(list, b) }
