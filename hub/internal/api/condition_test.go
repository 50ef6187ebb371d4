package api

import (
	"errors"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

func TestConditionsOfGatesMustCompile(t *testing.T) {
	metric := func(success, failure string) *towlinev1.Gate {
		return &towlinev1.Gate{Metric: &towlinev1.MetricGate{Address: "https://prometheus.example", Query: "up", SuccessCondition: success, FailureCondition: failure}}
	}
	expression := func(e, failure string) *towlinev1.Gate {
		return &towlinev1.Gate{Expression: &towlinev1.ExpressionGate{Expression: e, FailureExpression: failure}}
	}
	window := func(allow, deny string) *towlinev1.Gate {
		w := func(cron string) []*towlinev1.Window {
			return []*towlinev1.Window{{Cron: cron, Duration: "1h"}}
		}
		return &towlinev1.Gate{Window: &towlinev1.WindowGate{Allow: w(allow), Deny: w(deny)}}
	}
	for want, g := range map[string]*towlinev1.Gate{
		`spec.rollout.stages[0].after[0].window.allow[0].cron: "0 0 31 11 *" never comes: no month that it names (the fourth field) has a day`: window("0 0 31 11 *", "0 0 29 2 *"),
		`spec.rollout.stages[0].after[0].window.deny[0].cron: "0 0 30 2 *" never comes`:                                                        window("0 9 * * 1-5", "0 0 30 2 *"),
		"spec.rollout.stages[0].after[0].metric.successCondition: line 1, column 1: undeclared reference to 'results'":                         metric("results[0] > 1", ""),
		"spec.rollout.stages[0].after[0].metric.failureCondition: is a double":                                                                 metric("", "result[0]"),
		"spec.rollout.stages[0].after[0].expression.expression: line 1, column 18: undefined field 'redy'":                                     expression("clusters.all(c, c.redy)", ""),
		"spec.rollout.stages[0].after[0].expression.failureExpression: line 1, column 5: Syntax error":                                         expression("true", "true)"),
		"": metric("result[0] > 1", "result.size() == 0"),
	} {
		s, err := wire.StrategyFromProto(&towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "canary", After: []*towlinev1.Gate{g}}}})
		if err != nil {
			t.Fatal(err)
		}
		err = checkConditions(s)
		if want == "" && err != nil || want != "" && (!errors.Is(err, fleet.ErrInvalid) || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
