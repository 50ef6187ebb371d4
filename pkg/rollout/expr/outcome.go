package expr

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/traits"

	"towline.dev/towline/pkg/celenv"
	"towline.dev/towline/pkg/rollout"
)

// Interrupt ends an evaluation early. Every context is one; pure code is handed it and makes none.
type Interrupt interface {
	Deadline() (time.Time, bool)
	Done() <-chan struct{}
	Err() error
	Value(key any) any
}

// Answer is what an evaluation came to.
type Answer struct {
	Outcome rollout.GateState
	Message string
	Value   string
}

// Metric judges a measurement. The failure condition goes first. Where only one condition is set, the opposite outcome
// follows from its opposite, unless a number is NaN; where both are set and neither holds, the measurement is
// inconclusive, and so is one without numbers.
func Metric(stop Interrupt, m *rollout.Metric, result []float64) Answer {
	a := Answer{Value: numbers(result)}
	if len(result) == 0 {
		a.Outcome, a.Message = rollout.GateInconclusive, "the query has no result"
		return a
	}
	vars := map[string]any{"result": result}
	failed, err := metricKind.eval(stop, m.FailureCondition, vars)
	if err != nil {
		return a.fail("failureCondition", err)
	}
	if failed {
		return a.is(rollout.GateFailed, "failureCondition holds for "+a.Value)
	}
	succeeded, err := metricKind.eval(stop, m.SuccessCondition, vars)
	if err != nil {
		return a.fail("successCondition", err)
	}
	switch {
	case succeeded:
		return a.is(rollout.GateSuccessful, "successCondition holds for "+a.Value)
	case slices.ContainsFunc(result, math.IsNaN):
		return a.is(rollout.GateInconclusive, "no condition holds for "+a.Value)
	case m.FailureCondition == "":
		return a.is(rollout.GateFailed, "successCondition does not hold for "+a.Value)
	case m.SuccessCondition == "":
		return a.is(rollout.GateSuccessful, "failureCondition does not hold for "+a.Value)
	}
	return a.is(rollout.GateInconclusive, "no condition holds for "+a.Value)
}

// Fleet judges the clusters of a rollout: Running means that the expression does not hold yet.
func Fleet(stop Interrupt, e *rollout.Expression, clusters []Cluster, r Rollout) Answer {
	a := Answer{}
	env, err := fleetKind.env()
	if err != nil {
		return a.fail("expression", err)
	}
	list, ok := env.CELTypeAdapter().NativeToValue(clusters).(traits.Lister)
	if !ok {
		return a.fail("expression", errors.New("clusters are no list"))
	}
	vars := map[string]any{"clusters": input{list}, "rollout": r}
	failed, err := fleetKind.eval(stop, e.FailureExpression, vars)
	if err != nil {
		return a.fail("failureExpression", err)
	}
	if failed {
		return a.is(rollout.GateFailed, "failureExpression holds")
	}
	holds, err := fleetKind.eval(stop, e.Expression, vars)
	if err != nil {
		return a.fail("expression", err)
	}
	if holds {
		return a.is(rollout.GateSuccessful, "the expression holds")
	}
	return a.is(rollout.GateRunning, "the expression does not hold yet")
}

func (a Answer) is(outcome rollout.GateState, message string) Answer {
	a.Outcome, a.Message = outcome, message
	return a
}

func (a Answer) fail(field string, err error) Answer {
	return a.is(rollout.GateError, fmt.Sprintf("%s: %s", field, celenv.Reason(err)))
}

// eval is false for no source.
func (k *kind) eval(stop Interrupt, source string, vars map[string]any) (bool, error) {
	if source == "" {
		return false, nil
	}
	p, err := k.program(source)
	if err != nil {
		return false, err
	}
	v, _, err := p.ContextEval(stop, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("is a %s, neither true nor false", v.Type().TypeName())
	}
	return bool(b), nil
}

// numbers shows what was measured: a few of many.
func numbers(result []float64) string {
	const most = 8
	out := make([]string, 0, most+1)
	for i, x := range result {
		if i == most {
			out = append(out, fmt.Sprintf("… %d in all", len(result)))
			break
		}
		out = append(out, strconv.FormatFloat(x, 'g', 6, 64))
	}
	return "[" + strings.Join(out, " ") + "]"
}
