package fleet

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// SecretScope says which clusters the values of a secret are for: one by its name, those with labels, or every one, which is the zero value.
type SecretScope struct {
	Cluster ClusterName
	// Labels is a selector as -l of kubectl takes it, in the one form that NewSecretScope gives it.
	Labels string
}

// NewSecretScope checks a scope. Errors name the field.
func NewSecretScope(cluster, selector string) (SecretScope, error) {
	switch {
	case cluster != "" && selector != "":
		return SecretScope{}, Invalid("scope", "has a cluster and a label selector: give one of them")
	case cluster != "":
		if err := ValidateLabel(cluster); err != nil {
			return SecretScope{}, Invalid("scope.cluster", err.Error())
		}
		return SecretScope{Cluster: ClusterName(cluster)}, nil
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		return SecretScope{}, Invalidf("scope.label_selector", "%q: %v", selector, err)
	}
	if parsed.Empty() {
		return SecretScope{}, Invalid("scope", "selects every cluster: leave it out for that")
	}
	return SecretScope{Labels: oneForm(parsed)}, nil
}

// oneForm is the same text for each way to write a selector.
func oneForm(s labels.Selector) string {
	requirements, _ := s.Requirements()
	for i, r := range requirements {
		if r.Operator() != selection.DoubleEquals {
			continue
		}
		if same, err := labels.NewRequirement(r.Key(), selection.Equals, r.Values().List()); err == nil {
			requirements[i] = *same
		}
	}
	return labels.NewSelector().Add(requirements...).String()
}

// Everywhere says that the values are for every cluster.
func (s SecretScope) Everywhere() bool { return s == SecretScope{} }

// String is the scope as flags of the command line say it; empty: every cluster.
func (s SecretScope) String() string {
	switch {
	case s.Cluster != "":
		return "--cluster " + string(s.Cluster)
	case strings.ContainsAny(s.Labels, " ()!,"):
		return "-l '" + s.Labels + "'"
	case s.Labels != "":
		return "-l " + s.Labels
	}
	return ""
}

// Selects reports that the labels of a cluster are those of the scope, if it goes by labels.
func (s SecretScope) Selects(set map[string]string) bool {
	if s.Labels == "" {
		return false
	}
	parsed, err := labels.Parse(s.Labels)
	return err == nil && parsed.Matches(labels.Set(set))
}

// AmbiguousScopes says that a cluster has the labels of two scopes, of which neither is the more specific one.
type AmbiguousScopes struct {
	Cluster ClusterName
	One     SecretScope
	Other   SecretScope
}

func (e *AmbiguousScopes) Error() string {
	return fmt.Sprintf("cluster %s has the labels of both %s and %s, which have values of their own: give the cluster values of its own (--cluster %s), or make one of the two narrower",
		e.Cluster, e.One, e.Other, e.Cluster)
}

// Unwrap yields the sentinel.
func (e *AmbiguousScopes) Unwrap() error { return ErrPrecondition }

// PickSecretScope is the place of the most specific scope that a cluster is of: by its name, else by its labels, else that of every cluster; -1:
// it is of none. An error is *AmbiguousScopes.
func PickSecretScope(scopes []SecretScope, c *Cluster) (int, error) {
	byName, byLabels, everywhere := -1, -1, -1
	var ambiguous error
	for i, s := range scopes {
		switch {
		case s.Everywhere():
			everywhere = i
		case s.Cluster != "" && s.Cluster == c.Name:
			byName = i
		case s.Selects(c.Labels) && byLabels >= 0 && ambiguous == nil:
			ambiguous = &AmbiguousScopes{Cluster: c.Name, One: scopes[byLabels], Other: s}
		case s.Selects(c.Labels):
			byLabels = i
		}
	}
	switch {
	case byName >= 0:
		return byName, nil
	case ambiguous != nil:
		return -1, ambiguous
	case byLabels >= 0:
		return byLabels, nil
	}
	return everywhere, nil
}
