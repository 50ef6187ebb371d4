package health

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

const sampleRuleObject = `{apiVersion: shop.example/v1, kind: Till, metadata: {name: a, generation: 2}, spec: {drawers: 2},
	status: {observedGeneration: 2, open: 2, phase: Serving, note: all is well, conditions: [{type: Ready, status: 'True'}]}}`

func TestRulesDecide(t *testing.T) {
	till := func(r Rule) []Rule { r.Group, r.Kind = "shop.example", "Till"; return []Rule{r} }
	for _, c := range []struct {
		name    string
		rules   []Rule
		object  string
		want    fleet.Health
		reason  string
		message string
	}{
		{"healthy", till(Rule{Healthy: "object.status.open == object.spec.drawers"}), sampleRuleObject, fleet.HealthHealthy, "", ""},
		{"not healthy yet", till(Rule{Healthy: "object.status.open > 2"}), sampleRuleObject, fleet.HealthProgressing, ReasonRule, "healthy does not hold yet"},
		{"degraded goes first", till(Rule{Healthy: "true", Degraded: "object.status.phase == 'Serving'"}), sampleRuleObject, fleet.HealthDegraded, ReasonRule, "degraded holds"},
		{"progressing goes before healthy", till(Rule{Healthy: "true", Progressing: "true"}), sampleRuleObject, fleet.HealthProgressing, ReasonRule, ""},
		{"own message", till(Rule{Degraded: "true", Message: "'drawer: ' + object.status.note"}), sampleRuleObject, fleet.HealthDegraded, ReasonRule, "drawer: all is well"},
		{"message of a missing field", till(Rule{Degraded: "true", Message: "object.status.nothing"}), sampleRuleObject, fleet.HealthDegraded, ReasonRule, "degraded holds"},
		{"a missing field does not hold", till(Rule{Healthy: "object.status.closed == 0", Degraded: "object.status.failed.size() > 0"}), sampleRuleObject,
			fleet.HealthProgressing, ReasonRule, ""},
		{"no status at all", till(Rule{Healthy: "object.status.open == 2"}), "{apiVersion: shop.example/v1, kind: Till, metadata: {name: a}}", fleet.HealthProgressing, ReasonRule, ""},
		{"without healthy the judgement goes on", till(Rule{Degraded: "object.status.phase == 'Broken'"}), sampleRuleObject, fleet.HealthHealthy, "", ""},
		{"a wrong type is not known", till(Rule{Healthy: "object.status.phase"}), sampleRuleObject, fleet.HealthUnknown, ReasonRuleFailed, "healthy: is a string"},
		{"too much work", till(Rule{Healthy: strings.Repeat("[1,2,3,4,5,6,7,8,9,10].all(x, ", 8) + "true" + strings.Repeat(")", 8)}), sampleRuleObject,
			fleet.HealthUnknown, ReasonRuleFailed, "takes too much work"},
		{"old generation", till(Rule{Healthy: "true"}), strings.Replace(sampleRuleObject, "generation: 2", "generation: 3", 1), fleet.HealthProgressing, ReasonOldGeneration, "generation 2"},
		{"old generation, read by the rule", till(Rule{Healthy: "object.status.observedGeneration > 1"}), strings.Replace(sampleRuleObject, "generation: 2", "generation: 3", 1),
			fleet.HealthHealthy, "", ""},
		{"being deleted", till(Rule{Healthy: "true"}), strings.Replace(sampleRuleObject, "name: a", "name: a, deletionTimestamp: '2026-01-01T00:00:00Z'", 1), fleet.HealthTerminating, ReasonTerminating, ""},
		{"the first that matches", append([]Rule{{Group: "*.example", Kind: "*", Degraded: "true"}}, till(Rule{Healthy: "true"})...), sampleRuleObject, fleet.HealthDegraded, ReasonRule, ""},
		{"another group", []Rule{{Group: "example", Kind: "Till", Degraded: "true"}, {Group: "*.shop.example", Kind: "Till", Degraded: "true"}}, sampleRuleObject, fleet.HealthHealthy, "", ""},
		{"the core group", []Rule{{Kind: "ConfigMap", Degraded: "!('a' in object.data)"}}, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {b: c}}", fleet.HealthDegraded, ReasonRule, ""},
		{"optional fields", till(Rule{Healthy: "object.?status.?conditions.orValue([]).exists(c, c.type == 'Ready' && c.status == 'True')"}), sampleRuleObject, fleet.HealthHealthy, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, err := Compile(c.rules)
			if err != nil {
				t.Fatal(err)
			}
			got := Judge(parse(t, c.object), Facts{}, rules)
			if got.Health != c.want || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
				t.Errorf("%+v, want %s %q with %q", got, c.want, c.reason, c.message)
			}
		})
	}
}

func TestRulesAreRefused(t *testing.T) {
	good := Rule{Group: "a", Kind: "B", Healthy: "true"}
	for want, r := range map[string]Rule{
		"healthRules[1].kind: is required":                                       {Group: "a", Healthy: "true"},
		"healthRules[1].group: has a \"*\" in the middle":                        {Group: "a.*.b", Kind: "B", Healthy: "true"},
		"healthRules[1].healthy: one of healthy, progressing and degraded":       {Group: "a", Kind: "B", Message: "'x'"},
		"healthRules[1].healthy: is a int; write a condition":                    {Group: "a", Kind: "B", Healthy: "1"},
		"healthRules[1].progressing: line 1, column 6: Syntax error":             {Group: "a", Kind: "B", Progressing: "true ="},
		"healthRules[1].degraded: line 1, column 1: undeclared reference to 'x'": {Group: "a", Kind: "B", Degraded: "x"},
		"healthRules[1].message: is a bool; write an expression that is a text":  {Group: "a", Kind: "B", Healthy: "true", Message: "true"},
		"healthRules[1].healthy: has 5000 bytes; at most 4096":                   {Group: "a", Kind: "B", Healthy: strings.Repeat(" ", 5000)},
	} {
		_, err := Compile([]Rule{good, r})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Compile(slices.Repeat([]Rule{good}, MaxRules+1)); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
	if none, err := Compile(nil); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
}
