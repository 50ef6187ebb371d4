package api

import (
	"fmt"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rollout/expr"
)

// checkConditions reports the first condition or expression of a gate that does not compile, or window that never opens. What is stored is read
// without it.
func checkConditions(s rollout.Strategy) error {
	for i := range s.Stages {
		for _, side := range []struct {
			name  string
			gates []rollout.Gate
		}{{"before", s.Stages[i].Before}, {"after", s.Stages[i].After}} {
			for j := range side.gates {
				if err := checkCondition(&side.gates[j]); err != nil {
					return fleet.Join(fmt.Sprintf("spec.rollout.stages[%d].%s[%d]", i, side.name, j), err)
				}
			}
		}
	}
	return nil
}

func checkCondition(g *rollout.Gate) error {
	type field struct {
		path, source string
		check        func(string) error
	}
	var all []field
	if w := g.Window; w != nil {
		return fleet.Join("window", w.Opens())
	}
	if m := g.Metric; m != nil {
		all = append(all, field{"metric.successCondition", m.SuccessCondition, expr.CheckMetric},
			field{"metric.failureCondition", m.FailureCondition, expr.CheckMetric})
	}
	if e := g.Expression; e != nil {
		all = append(all, field{"expression.expression", e.Expression, expr.CheckExpression},
			field{"expression.failureExpression", e.FailureExpression, expr.CheckExpression})
	}
	for _, f := range all {
		if f.source == "" {
			continue
		}
		if err := f.check(f.source); err != nil {
			return fleet.Join(f.path, err)
		}
	}
	return nil
}
