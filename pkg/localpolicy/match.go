package localpolicy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// patterns are names in which "*" stands for any text, or for none.
type patterns []string

func (p patterns) match(name string) bool { return p.index(name) >= 0 }

// index is the first pattern that matches; -1: none does.
func (p patterns) index(name string) int {
	return slices.IndexFunc(p, func(pattern string) bool { return matches(pattern, name) })
}

func matches(pattern, name string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == name
	}
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(part):], after
	}
}

var (
	namePattern = regexp.MustCompile(`^[-a-zA-Z0-9.:_/*$@]+$`)
	kindPattern = regexp.MustCompile(`^[A-Z*][a-zA-Z0-9*]*$`)
)

func (p patterns) check(path string) error {
	for i, s := range p {
		if !namePattern.MatchString(s) {
			return fleet.Invalidf(fmt.Sprintf("%s[%d]", path, i), "%.80q is no name; \"*\" in one stands for any text", s)
		}
	}
	return nil
}

// list is allow and deny. What deny matches is refused, whatever allow says; without allow all else is accepted.
type list struct {
	Allow patterns `yaml:"allow"`
	Deny  patterns `yaml:"deny"`
}

func (l *list) check(path string) error {
	if l == nil {
		return nil
	}
	if l.Allow == nil && l.Deny == nil {
		return fleet.Invalid(path, "has neither allow nor deny")
	}
	if err := l.Allow.check(path + ".allow"); err != nil {
		return err
	}
	return l.Deny.check(path + ".deny")
}

// refuses names the rule that refuses a name; empty: none does.
func (l *list) refuses(path, name string) string {
	switch {
	case l == nil:
		return ""
	case l.Deny.match(name):
		return fmt.Sprintf("%s.deny[%d]", path, l.Deny.index(name))
	case l.Allow != nil && !l.Allow.match(name):
		return path + ".allow"
	}
	return ""
}

// match selects objects. What is left out matches everything; all that is given must match.
type match struct {
	Groups     patterns `yaml:"groups"`
	Kinds      patterns `yaml:"kinds"`
	Namespaces patterns `yaml:"namespaces"`
	Names      patterns `yaml:"names"`
}

func (m *match) check(path string) error {
	for i, g := range m.Groups {
		if g != "" && !namePattern.MatchString(g) {
			return fleet.Invalidf(fmt.Sprintf("%s.groups[%d]", path, i), "%.80q is no API group; \"\" is the core group", g)
		}
		if strings.Contains(g, "/") {
			return fleet.Invalidf(fmt.Sprintf("%s.groups[%d]", path, i), "%.80q has a version; write the group alone", g)
		}
	}
	for i, k := range m.Kinds {
		if !kindPattern.MatchString(k) {
			return fleet.Invalidf(fmt.Sprintf("%s.kinds[%d]", path, i), "%.80q is no kind; write it as in a manifest, such as ConfigMap", k)
		}
	}
	if err := m.Namespaces.check(path + ".namespaces"); err != nil {
		return err
	}
	return m.Names.check(path + ".names")
}

// checkRule is check of a match by which something is kept from happening. A list of it that is empty, as one that a template was to fill, would select
// nothing, so that nothing was kept from happening, without a word. Where a match accepts, an empty list accepts nothing, which shows.
func (m *match) checkRule(path string) error {
	for _, l := range []struct {
		field string
		list  patterns
	}{{"groups", m.Groups}, {"kinds", m.Kinds}, {"namespaces", m.Namespaces}, {"names", m.Names}} {
		if err := l.list.checkFilled(path + "." + l.field); err != nil {
			return err
		}
	}
	return m.check(path)
}

// checkFilled refuses an empty list, not one that is left out.
func (p patterns) checkFilled(path string) error {
	if p != nil && len(p) == 0 {
		return fleet.Invalid(path, "is empty, so that the rule would count for nothing; write what it counts for, or leave the field or the rule out")
	}
	return nil
}

func (m *match) selects(id fleet.ObjectID) bool {
	return (m.Groups == nil || m.Groups.match(id.Group)) && (m.Kinds == nil || m.Kinds.match(id.Kind)) &&
		(m.Namespaces == nil || m.Namespaces.match(id.Namespace)) && (m.Names == nil || m.Names.match(id.Name))
}
