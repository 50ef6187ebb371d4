package rollout

import "testing"

// TestShows is the whole judgement as a table: each row is a rule, in which + and - say of a fact that it is so or not, and * that the rule
// does not ask. Of all combinations of the facts each has exactly one rule, and shows answers by it.
func TestShows(t *testing.T) {
	// There, connected, held, silent, unheard, of this assignment, failed.
	rules := map[string]Shown{
		"++*****": {Verdict: Fine},
		"+-+****": {Unwatched, UnseenHeld, ReasonHeld},
		"-*+****": {Unwatched, UnseenHeld, ReasonHeld},
		"*--****": {Unwatched, UnseenAway, ReasonDisconnected},
		"-+-+***": {Verdict: Unwatched, Why: UnseenSilent},
		"-+--+**": {Verdict: Unwatched, Why: UnseenUnheard},
		"-+----*": {Verdict: Unwatched, Why: UnseenStale},
		"-+---+-": {Verdict: NotYet},
		"-+---++": {Verdict: Failing},
	}
	for n := range 1 << 7 {
		facts := ""
		for bit := range 7 {
			facts += string("-+"[n>>bit&1])
		}
		var rule []string
		for pattern := range rules {
			if matches(pattern, facts) {
				rule = append(rule, pattern)
			}
		}
		if len(rule) != 1 {
			t.Fatalf("%s: rules %q", facts, rule)
		}
		for what, r := range recordsOf() {
			o, ok := observedOf(facts, r)
			if !ok {
				continue
			}
			if got := shows(&r, &o); got != rules[rule[0]] {
				t.Errorf("%s, %s: %+v, want %+v by %s\n%+v", facts, what, got, rules[rule[0]], rule[0], o)
			}
		}
	}
	locked, unseen := Observed{Locked: true}, Observed{NotSeen: true}
	if a, b := shows(&Record{}, &locked).Reason, shows(&Record{}, &unseen).Reason; a != ReasonLocked || b != ReasonNotSeen {
		t.Errorf("away: %s and %s", a, b)
	}
}

func matches(pattern, facts string) bool {
	for i := range facts {
		if pattern[i] != '*' && pattern[i] != facts[i] {
			return false
		}
	}
	return len(pattern) == len(facts)
}

func recordsOf() map[string]Record {
	return map[string]Record{
		"to have r2": {Step: 1, Revision: 2, Generation: 5},
		"found":      {Revision: 2, Generation: 5},
		"to leave":   {Step: 1, Generation: 5, flags: flagLeave},
	}
}

// observedOf is one of the observations for which the facts hold; false: there is none, for what is there is of this assignment.
func observedOf(facts string, r Record) (Observed, bool) {
	is := func(i int) bool { return facts[i] == '+' }
	o := Observed{Connected: is(1), Held: is(2), Silent: is(3), Unheard: is(4), Failed: is(6), Revision: r.Revision, Generation: r.Generation}
	if r.has(flagLeave) {
		o.Removed = is(0)
	} else {
		o.Ready = is(0)
	}
	if !is(5) {
		o.Generation--
	}
	return o, is(5) || !is(0)
}

// TestShownOfOthers: what is said of another assignment shows nothing, however good it is.
func TestShownOfOthers(t *testing.T) {
	r := Record{Step: 1, Revision: 2, Generation: 5}
	for _, o := range []Observed{{Revision: 1, Generation: 5}, {Revision: 2, Generation: 4}, {Lost: true}, {Revision: 1, Generation: 9}} {
		o.Connected, o.Ready = true, true
		if got := shows(&r, &o); got.Verdict != Unwatched || got.Why != UnseenStale {
			t.Errorf("%+v: %+v", o, got)
		}
	}
	later := Observed{Connected: true, Revision: 2, Generation: 9, Ready: true} // other values of the same
	if got := shows(&r, &later); got.Verdict != Fine {
		t.Errorf("%+v", got)
	}
	leaver := Record{Step: 1, Generation: 5, flags: flagLeave}
	forgotten := Observed{Connected: true, Removed: true} // the tombstone was confirmed and is gone
	if got := shows(&leaver, &forgotten); got.Verdict != Fine {
		t.Errorf("%+v", got)
	}
}
