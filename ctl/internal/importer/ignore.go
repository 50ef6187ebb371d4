package importer

import (
	"slices"

	v1 "towline.dev/towline/gen/towline/v1"
)

// anything stands for whatever an object has there.
const anything = "*"

// ignoring is a rule of a tool where all rules that match an object count together: group, kind, namespace and name, where of the last
// three an empty one matches any.
type ignoring struct {
	match    [4]string
	pointers []string
	managers []string
}

func wild(i int, s string) bool { return s == anything || s == "" && i > 0 }

// covers reports that whatever b matches, a matches.
func (a ignoring) covers(b ignoring) bool {
	for i := range a.match {
		if !wild(i, a.match[i]) && (wild(i, b.match[i]) || a.match[i] != b.match[i]) {
			return false
		}
	}
	return true
}

// meet is what both match; false: nothing is.
func (a ignoring) meet(b ignoring) (ignoring, bool) {
	out := ignoring{match: a.match}
	for i := range a.match {
		switch {
		case wild(i, a.match[i]):
			out.match[i] = b.match[i]
		case !wild(i, b.match[i]) && a.match[i] != b.match[i]:
			return out, false
		}
	}
	return out, true
}

func (a ignoring) narrow() (n int) {
	for i, s := range a.match {
		if !wild(i, s) {
			n++
		}
	}
	return n
}

// ignorePolicies are policies that say the same. Of policies the first that matches counts: each has all fields of the rules that
// match what it does, what two rules match has a policy of its own, and the narrower ones come first.
func ignorePolicies(rules []ignoring) []*v1.Policy {
	var matches []ignoring
	add := func(m ignoring) bool {
		same := func(o ignoring) bool { return o.covers(m) && m.covers(o) }
		if slices.ContainsFunc(matches, same) {
			return false
		}
		matches = append(matches, ignoring{match: m.match})
		return true
	}
	for _, r := range rules {
		add(r)
	}
	for again := true; again; {
		again = false
		for _, a := range slices.Clone(matches) {
			for _, b := range slices.Clone(matches) {
				if m, ok := a.meet(b); ok {
					again = add(m) || again
				}
			}
		}
	}
	slices.SortStableFunc(matches, func(a, b ignoring) int { return b.narrow() - a.narrow() })
	var out []*v1.Policy
	for _, m := range matches {
		for _, r := range rules {
			if r.covers(m) {
				m.pointers, m.managers = union(m.pointers, r.pointers), union(m.managers, r.managers)
			}
		}
		if len(m.pointers)+len(m.managers) > 0 {
			out = append(out, &v1.Policy{Match: m.policyMatch(), IgnoreFields: &v1.IgnoreFields{JsonPointers: m.pointers, Managers: m.managers}})
		}
	}
	return out
}

func (a ignoring) policyMatch() *v1.PolicyMatch {
	if a.narrow() == 0 {
		return nil
	}
	out := &v1.PolicyMatch{}
	for i, into := range []*[]string{&out.Groups, &out.Kinds, &out.Namespaces, &out.Names} {
		if !wild(i, a.match[i]) {
			*into = []string{a.match[i]}
		}
	}
	return out
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
