package health

import (
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// ruleOf is the rule of an entry as the index has it.
func (l *library) ruleOf(e *shippedEntry) *rule {
	if !strings.HasPrefix(e.group, "*.") {
		return l.exact[groupKind{e.group, strings.Fields(e.kinds)[0]}]
	}
	for i := range l.suffixes {
		if l.suffixes[i].group == e.group && l.suffixes[i].kinds == e.kinds {
			return &l.suffixes[i].rule
		}
	}
	return nil
}

func groupOf(version string) string {
	group, _, grouped := strings.Cut(version, "/")
	if !grouped {
		return ""
	}
	return group
}

// TestEveryRuleHasASample: a shipped rule that no sample shows is a rule that nobody tried.
func TestEveryRuleHasASample(t *testing.T) {
	shown := map[groupKind]bool{}
	used := map[*rule]bool{}
	each(t, func(_, version, kind string, _ sample) {
		shown[groupKind{groupOf(version), kind}] = true
		used[shipped.find(groupOf(version), kind)] = true
	})
	kinds := 0
	for _, table := range shippedTables {
		for i := range table {
			e := &table[i]
			if r := shipped.ruleOf(e); r == nil || !used[r] {
				t.Errorf("%s %s: no sample", e.group, e.kinds)
			}
			for _, kind := range strings.Fields(e.kinds) {
				kinds++
				if kind != "*" && !strings.HasPrefix(e.group, "*.") && !shown[groupKind{e.group, kind}] && len(strings.Fields(e.kinds)) == 1 {
					t.Errorf("%s %s: no sample", e.group, kind)
				}
			}
		}
	}
	if kinds < 60 {
		t.Errorf("%d kinds have rules", kinds)
	}
	t.Logf("%d kinds have rules", kinds)
}

// TestNoRuleIsHidden: of two rules for one kind of a group only one would ever be asked.
func TestNoRuleIsHidden(t *testing.T) {
	seen := map[groupKind]bool{}
	for _, table := range shippedTables {
		for _, e := range table {
			for _, kind := range strings.Fields(e.kinds) {
				if seen[groupKind{e.group, kind}] {
					t.Errorf("%s %s has two rules", e.group, kind)
				}
				seen[groupKind{e.group, kind}] = true
			}
		}
	}
}

// TestWithoutStatus: an object whose controller has written nothing is not healthy, however old it is, unless its kind
// needs no controller.
func TestWithoutStatus(t *testing.T) {
	// These are told to stand still, or are for nobody, by what they say themselves.
	never := "HTTPRoute GRPCRoute TLSRoute TCPRoute UDPRoute"
	each(t, func(name, version, kind string, s sample) {
		r := shipped.find(groupOf(version), kind)
		if r == nil || r.static || r.idle || r.silent || has(never, kind) || strings.HasSuffix(kind, "Template") || s.Spec != nil || s.Meta != nil || kind == "DatadogMetric" {
			return
		}
		got := Judge(sample{}.object(t, version, kind), Facts{Now: sampleBirth.Add(24 * time.Hour), HasStatus: true}, nil)
		if got.Health != fleet.HealthProgressing && got.Health != fleet.HealthDegraded {
			t.Errorf("%s: %+v", name, got)
		}
	})
}

// TestDeletionGoesFirst: whatever an object says, it is Terminating while it is being deleted.
func TestDeletionGoesFirst(t *testing.T) {
	each(t, func(name, version, kind string, s sample) {
		obj := s.object(t, version, kind)
		obj["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
		if got := Judge(obj, s.facts(t), nil); got.Health != fleet.HealthTerminating {
			t.Errorf("%s: %+v", name, got)
		}
	})
}

// TestAnOldStatusIsNotHealthy: a custom resource whose status speaks of an older generation is not healthy.
func TestAnOldStatusIsNotHealthy(t *testing.T) {
	each(t, func(name, version, kind string, s sample) {
		r := shipped.find(groupOf(version), kind)
		if builtinGroup(groupOf(version)) || r != nil && (r.idle || r.sparing) || len(s.Status)+len(s.If)+len(s.Conditions) == 0 {
			return
		}
		obj := s.object(t, version, kind)
		status, _ := obj["status"].(map[string]any)
		if _, text := status["observedGeneration"].(string); text || mapOf(obj, "metadata")["generation"] == nil {
			return
		}
		if o := newObject(obj, Facts{}); o.countsAnother() && s.After > 0 {
			return // holds only as long as a first word is waited for
		}
		status["observedGeneration"] = int64(1)
		if got := Judge(obj, s.facts(t), nil); got.Health == fleet.HealthHealthy {
			t.Errorf("%s: %+v", name, got)
		}
	})
}

// TestOldConditionsAreNotHealthy: a custom resource of a known kind, all of whose conditions speak of an older generation, is not healthy,
// whatever its phase.
func TestOldConditionsAreNotHealthy(t *testing.T) {
	each(t, func(name, version, kind string, s sample) {
		obj := s.object(t, version, kind)
		status, _ := obj["status"].(map[string]any)
		conditions := listOf(status, "conditions")
		r, o := shipped.find(groupOf(version), kind), newObject(obj, Facts{})
		if r == nil || r.once || r.idle || o.finite() || len(conditions) == 0 {
			return
		}
		delete(status, "observedGeneration")
		for _, x := range conditions {
			x.(map[string]any)["observedGeneration"] = int64(1)
		}
		if got := Judge(obj, s.facts(t), nil); got.Health == fleet.HealthHealthy {
			t.Errorf("%s: %+v", name, got)
		}
	})
}
