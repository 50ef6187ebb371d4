package expr

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func TestMetricOutcomes(t *testing.T) {
	for _, c := range []struct {
		success, failure string
		result           []float64
		want             rollout.GateState
		says             string
	}{
		{"result[0] < 0.05", "result[0] > 0.2", []float64{0.01}, rollout.GateSuccessful, "successCondition holds for [0.01]"},
		{"result[0] < 0.05", "result[0] > 0.2", []float64{0.3}, rollout.GateFailed, "failureCondition holds for [0.3]"},
		{"result[0] < 0.05", "result[0] > 0.2", []float64{0.1}, rollout.GateInconclusive, "no condition holds for [0.1]"},
		{"result[0] < 1", "", []float64{0.5}, rollout.GateSuccessful, ""},
		{"result[0] < 1", "", []float64{2}, rollout.GateFailed, "successCondition does not hold for [2]"},
		{"", "result[0] > 1", []float64{2}, rollout.GateFailed, ""},
		{"", "result[0] > 1", []float64{0}, rollout.GateSuccessful, "failureCondition does not hold"},
		{"true", "true", []float64{1}, rollout.GateFailed, ""},
		{"result[0] < 1", "", []float64{math.NaN()}, rollout.GateInconclusive, "[NaN]"},
		{"math.isNaN(result[0])", "", []float64{math.NaN()}, rollout.GateSuccessful, ""},
		{"result[0] < 1", "", nil, rollout.GateInconclusive, "the query has no result"},
		{"result[3] < 1", "", []float64{1}, rollout.GateError, "successCondition: index out of bounds: 3; ask size(result) first"},
		{"result.all(x, x < 5)", "", []float64{1, 2, 3, 4, 4, 4, 4, 4, 4, 4}, rollout.GateSuccessful, "… 10 in all"},
		{"result.all(a,result.all(b,result.all(c,result.all(d,result.all(e,result.all(f,result.all(g,true)))))))", "", make([]float64, 20), rollout.GateError, "too much work"},
	} {
		got := Metric(t.Context(), &rollout.Metric{SuccessCondition: c.success, FailureCondition: c.failure}, c.result)
		if got.Outcome != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%q, %q for %v: %+v", c.success, c.failure, c.result, got)
		}
	}
}

func members(n int) []Cluster {
	out := make([]Cluster, n)
	for i := range out {
		out[i] = Cluster{Name: fmt.Sprintf("c%d", i), Labels: map[string]string{"env": []string{"prod", "test"}[i%2]}, Stage: "canary",
			State: "Succeeded", Ready: true, Connected: true, Revision: 7}
	}
	return out
}

func TestExpressionOutcomes(t *testing.T) {
	one := members(4)
	one[1].Ready, one[1].Revision = false, 6
	for _, c := range []struct {
		expression, failure string
		want                rollout.GateState
		says                string
	}{
		{"clusters.all(c, c.ready)", "", rollout.GateRunning, "does not hold yet"},
		{"clusters.filter(c, c.labels['env'] == 'prod').all(c, c.ready && c.revision == rollout.revision)", "", rollout.GateSuccessful, ""},
		{"clusters.exists(c, c.stage == rollout.stage && c.state == 'Succeeded' && c.connected && c.name.startsWith('c'))", "", rollout.GateSuccessful, ""},
		{"rollout.id == 'shop/57' && rollout.module == 'default/shop'", "", rollout.GateSuccessful, ""},
		{"true", "clusters.exists(c, !c.ready)", rollout.GateFailed, "failureExpression holds"},
		{"clusters.all(c, c.labels['zone'] == 'a')", "", rollout.GateError, `expression: no such key: zone; ask "key" in map first`},
		{"clusters.all(c, c.labels[?'zone'].orValue('a') == 'a')", "", rollout.GateSuccessful, ""},
		{"true", "clusters[9].ready", rollout.GateError, "failureExpression: index out of bounds"},
	} {
		got := Fleet(t.Context(), &rollout.Expression{Expression: c.expression, FailureExpression: c.failure}, one,
			Rollout{ID: "shop/57", Module: "default/shop", Revision: 7, Stage: "canary"})
		if got.Outcome != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%q, %q: %+v", c.expression, c.failure, got)
		}
	}
}

func TestWhatDoesNotCompileIsRefused(t *testing.T) {
	for src, want := range map[string]string{
		"":                       "",
		"result[0] >":            "line 1, column 12: Syntax error",
		"result[0]":              "is a double; write a condition",
		"result[0] + 1 > 2":      "write 1.0",
		"clusters.size() > 0":    "undeclared reference to 'clusters'",
		"result[0].total > 0":    "",
		"'a'.matches('(')":       "",
		"true\n&& result == 1.0": "line 2, column 11",
		strings.Repeat("(", 300) + "true" + strings.Repeat(")", 300): "recursion limit",
		strings.Repeat(" ", MaxSource) + "true":                      "has 4100 bytes; at most 4096",
	} {
		err := CheckMetric(src)
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v", src, err)
		}
	}
	for _, src := range []string{"clusters.all(c, c.redy)", "clusters.size()", "rollout.name == ''", "result[0] > 1.0"} {
		if err := CheckExpression(src); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%q: %v", src, err)
		}
	}
	for _, src := range []string{"clusters.all(c, c.ready)", "rollout.revision > 3"} {
		if err := CheckExpression(src); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
}

// TestBombs: none takes long, whatever an engine's size estimate misses.
func TestBombs(t *testing.T) {
	ten := "[1,2,3,4,5,6,7,8,9,10]"
	nested := "true"
	for range 9 {
		nested = ten + ".all(x, " + nested + ")"
	}
	for name, src := range map[string]string{
		"loops":    nested,
		"clusters": "clusters.all(a, clusters.all(b, clusters.all(c, a.ready)))",
		"pairs":    "clusters.map(a, clusters.map(b, a.name + b.name)).size() > 0",
		"sharing":  "[1]" + strings.Repeat(".map(x, [x,x])", 40) + " == [1]" + strings.Repeat(".map(x, [x,x])", 40),
		"doubling": "['aaaaaaaaaa']" + strings.Repeat(".map(x, x+x+x+x+x+x+x+x+x+x)", 12) + " == []",
	} {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		got := Fleet(ctx, &rollout.Expression{Expression: src}, members(20_000), Rollout{})
		cancel()
		if took := time.Since(start); got.Outcome != rollout.GateError || took > 8*time.Second {
			t.Errorf("%s: %+v after %s", name, got, took)
		}
	}
}

func TestInterruptEndsAnEvaluation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := Fleet(ctx, &rollout.Expression{Expression: "clusters.all(c, c.ready)"}, members(1000), Rollout{})
	if got.Outcome != rollout.GateError || !strings.Contains(got.Message, "was stopped") {
		t.Errorf("%+v", got)
	}
}

// TestLargeFleet: the limits leave room for what people ask of 100,000 clusters.
func TestLargeFleet(t *testing.T) {
	big := members(100_000)
	for _, src := range []string{"clusters.all(c, c.ready)",
		"clusters.filter(c, c.labels['env'] == 'prod').all(c, c.ready && c.revision == rollout.revision)",
		"clusters.filter(c, c.state == 'Succeeded' && c.connected).size() * 10 >= clusters.size() * 9"} {
		if got := Fleet(t.Context(), &rollout.Expression{Expression: src}, big, Rollout{Revision: 7}); got.Outcome != rollout.GateSuccessful {
			t.Errorf("%q: %+v", src, got)
		}
	}
}

func TestProgramsAreCompiledOnceAndBounded(t *testing.T) {
	k := newKind()
	first, err := k.program("1 < 2")
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := k.program("1 < 2"); first != second {
		t.Error("compiled twice")
	}
	for i := range maxPrograms + 10 {
		if _, err := k.program(fmt.Sprintf("%d < 2", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.programs) != maxPrograms {
		t.Errorf("%d programs are kept", len(k.programs))
	}
}
