package fleet

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Selector matches labels. The nil Selector matches nothing, the empty one everything.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []Requirement     `json:"matchExpressions,omitempty"`
	compiled         labels.Selector
}

// Requirement is one expression: Operator is In, NotIn, Exists or DoesNotExist.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Compile checks the selector and makes Matches cheap. Errors name the field below the selector.
func (s *Selector) Compile() error {
	if s == nil || s.compiled != nil {
		return nil
	}
	in := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for i, r := range s.MatchExpressions {
		op := metav1.LabelSelectorOperator(r.Operator)
		if !slices.Contains([]metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}, op) {
			return Invalidf(fmt.Sprintf("matchExpressions[%d].operator", i), "%q is unknown; use In, NotIn, Exists or DoesNotExist", r.Operator)
		}
		in.MatchExpressions = append(in.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key, Operator: op, Values: r.Values})
	}
	compiled, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return Invalid("", err.Error())
	}
	s.compiled = compiled
	return nil
}

// Everything reports that the labels make no difference: there is no selector, or an empty one.
func (s *Selector) Everything() bool {
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// String is the selector as kubectl writes it; empty for one that matches everything.
func (s *Selector) String() string {
	if s.Everything() || s.Compile() != nil {
		return ""
	}
	return s.compiled.String()
}

// Matches reports whether the labels are selected. A selector that does not compile matches nothing.
func (s *Selector) Matches(set map[string]string) bool {
	if s == nil || s.Compile() != nil {
		return false
	}
	return s.compiled.Matches(labels.Set(set))
}
