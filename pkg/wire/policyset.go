package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// HealthRulesFromProto compiles health rules, so that a bad one is refused where it is written.
func HealthRulesFromProto(in []*towlinev1.HealthRule) ([]fleet.HealthRule, error) {
	var out []fleet.HealthRule
	for _, r := range in {
		out = append(out, fleet.HealthRule{Group: r.GetGroup(), Kind: r.GetKind(), Healthy: r.GetHealthy(), Progressing: r.GetProgressing(),
			Degraded: r.GetDegraded(), Message: r.GetMessage()})
	}
	_, err := HealthRules(out)
	return out, err
}

// HealthRules compiles them; none is nil.
func HealthRules(in []fleet.HealthRule) (*health.Rules, error) {
	rules := make([]health.Rule, len(in))
	for i, r := range in {
		rules[i] = health.Rule(r)
	}
	return health.Compile(rules)
}

// Needs are the features that an agent must have to keep to a policy set.
func Needs(s fleet.PolicySet) (out []string) {
	if len(s.HealthRules) > 0 {
		out = append(out, FeatureHealthRules)
	}
	if len(s.Watch) > 0 {
		out = append(out, FeatureWatch)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return p.IgnoreFields != nil }) {
		out = append(out, FeatureIgnoreFields)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return p.ApplyOnce != nil }) {
		out = append(out, FeatureApplyOnce)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return p.KeepLegacy != nil }) {
		out = append(out, FeatureKeepLegacy)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return p.ReadOnly != nil }) {
		out = append(out, FeatureReadOnly)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return len(p.TakeFrom) > 0 }) {
		out = append(out, FeatureTakeFrom)
	}
	if slices.ContainsFunc(s.Policies, func(p fleet.Policy) bool { return p.Shared != nil }) {
		out = append(out, FeatureShared)
	}
	if s.Substitution != nil {
		out = append(out, FeatureSubstitution)
	}
	if len(s.Bindings) > 0 {
		out = append(out, FeatureObjectBindings)
	}
	if slices.ContainsFunc(s.Bindings, func(b fleet.LateBinding) bool { return b.Secret != nil }) {
		out = append(out, FeatureSecretBindings)
	}
	if s.Waves != "" || len(s.Uncounted) > 0 {
		out = append(out, FeatureWaves)
	}
	return out
}

// PolicySetContent is the canonical JSON of a policy set: what a sync's policies digest names. With policies alone it is
// their list, as agents of before read it.
func PolicySetContent(s fleet.PolicySet) ([]byte, error) {
	if len(s.HealthRules) > 0 || len(s.Watch) > 0 || s.Substitution != nil || len(s.Bindings) > 0 || s.Waves != "" || len(s.Uncounted) > 0 {
		return json.Marshal(s)
	}
	if s.Policies == nil {
		s.Policies = []fleet.Policy{}
	}
	return json.Marshal(s.Policies)
}

// Keeping is the content of what a policy set says of what goes and what stays; nil: nothing.
func Keeping(s fleet.PolicySet) ([]byte, error) {
	var out []fleet.Policy
	for _, p := range s.Policies {
		if p.Prune != "" || p.Delete != "" || p.ReadOnly != nil {
			out = append(out, fleet.Policy{Match: p.Match, Prune: p.Prune, Delete: p.Delete, ReadOnly: p.ReadOnly})
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return PolicySetContent(fleet.PolicySet{Policies: out})
}

// PolicySetFromContent reads it back, with its selectors compiled. A field or a word that is not understood is an error: a policy
// must not be left out, nor taken for its default.
func PolicySetFromContent(b []byte) (fleet.PolicySet, error) {
	var s fleet.PolicySet
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var err error
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("[")) {
		err = dec.Decode(&s.Policies)
	} else {
		err = dec.Decode(&s)
	}
	if err != nil {
		return s, fleet.Errorf(fleet.ErrInvalid, "policies: %v; the hub may be newer than the agent", err)
	}
	for i := range s.Policies {
		if err := s.Policies[i].Match.Labels.Compile(); err != nil {
			return s, fleet.Errorf(fleet.ErrInvalid, "policies[%d].match.labelSelector: %v", i, err)
		}
		if err := validatePolicy(s.Policies[i]); err != nil {
			return s, fleet.Join(fmt.Sprintf("policies[%d]", i), err)
		}
	}
	if len(s.Watch) > MaxWatched {
		return s, fleet.Errorf(fleet.ErrInvalid, "policies: watch: %d are too many; at most %d", len(s.Watch), MaxWatched)
	}
	if s.Waves != "" && s.Waves != fleet.WavesWaitHealthy {
		return s, fleet.Errorf(fleet.ErrInvalid, "policies: waves: %q is unknown; the hub may be newer than the agent", s.Waves)
	}
	if err := checkSetBindings(s.Bindings); err != nil {
		return s, fleet.Errorf(fleet.ErrInvalid, "policies: %v", err)
	}
	if _, err := HealthRules(s.HealthRules); err != nil {
		return s, fmt.Errorf("policies: %w", err)
	}
	return s, nil
}

// checkSetBindings checks what an agent has to rely on.
func checkSetBindings(list []fleet.LateBinding) error {
	if len(list) > maxSyncValues {
		return fleet.Invalidf("bindings", "%d are too many; at most %d", len(list), maxSyncValues)
	}
	objects := 0
	for i, b := range list {
		path := fmt.Sprintf("bindings[%d]", i)
		if err := fleet.ValidateBindingName(b.Name); err != nil {
			return fleet.Invalid(path, err.Error())
		}
		set := 0
		for _, is := range []bool{b.Value != nil, b.Object != nil, b.Secret != nil} {
			if is {
				set++
			}
		}
		if set != 1 {
			return fleet.Invalid(path, "has to have exactly one of value, object and secret")
		}
		if b.Object != nil {
			objects++
		}
	}
	if objects > MaxWatched {
		return fleet.Invalidf("bindings", "%d read objects; at most %d", objects, MaxWatched)
	}
	return nil
}
