// Package expr compiles and evaluates the CEL of rollout gates: conditions on what a metric query measured, expressions
// over the clusters of a rollout. It owns the variables, the limits and what an outcome follows from; it must not know
// how anything is measured, nor when it is asked.
package expr

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"towline.dev/towline/pkg/celenv"
	"towline.dev/towline/pkg/fleet"
)

const (
	// MaxSource is how many bytes an expression has at most.
	MaxSource   = celenv.MaxSource
	maxPrograms = 1024
)

// limits leave room for some ten operations for each of 100,000 clusters.
var limits = celenv.Limits{Cost: 5_000_000, Memory: 2_000_000, SizeEvery: 10_000}

// Cluster is a member of the rollout as expressions see it.
type Cluster struct {
	Name   string            `cel:"name"`
	Labels map[string]string `cel:"labels"`
	// Stage of the rollout it is in, and its state there, such as Succeeded.
	Stage string `cel:"stage"`
	State string `cel:"state"`
	// Ready: the newest assignment runs and is healthy; of which revision that is, Revision says.
	Ready     bool  `cel:"ready"`
	Connected bool  `cel:"connected"`
	Revision  int64 `cel:"revision"`
}

// Rollout is the rollout as expressions see it; Stage is that of the gate.
type Rollout struct {
	ID       string `cel:"id"`
	Module   string `cel:"module"`
	Revision int64  `cel:"revision"`
	Stage    string `cel:"stage"`
}

// CheckMetric reports why a condition over result, a list of numbers, cannot be evaluated. Its error is a FieldError
// without a path.
func CheckMetric(condition string) error {
	_, err := metricKind.program(condition)
	return err
}

// CheckExpression reports why an expression over clusters and rollout cannot be evaluated. Its error is a FieldError
// without a path.
func CheckExpression(source string) error {
	_, err := fleetKind.program(source)
	return err
}

// kind is an environment with the programs that were compiled in it.
type kind struct {
	env func() (*cel.Env, error)

	mu       sync.Mutex
	programs map[fleet.Digest]cel.Program
}

var (
	metricKind = newKind(cel.Variable("result", cel.ListType(cel.DoubleType)))
	fleetKind  = newKind(
		ext.NativeTypes(ext.ParseStructTags(true), cel.NativeTypeFor[Cluster](), cel.NativeTypeFor[Rollout]()),
		cel.Variable("clusters", cel.ListType(cel.ObjectType("expr.Cluster"))),
		cel.Variable("rollout", cel.ObjectType("expr.Rollout")))
)

func newKind(variables ...cel.EnvOption) *kind {
	k := &kind{programs: map[fleet.Digest]cel.Program{}}
	k.env = sync.OnceValues(func() (*cel.Env, error) { return celenv.New(variables...) })
	return k
}

// program compiles a source, or takes the one that was compiled before.
func (k *kind) program(source string) (cel.Program, error) {
	key := fleet.DigestOf([]byte(source))
	k.mu.Lock()
	p := k.programs[key]
	k.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := k.compile(source)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for old := range k.programs {
		if len(k.programs) < maxPrograms {
			break
		}
		delete(k.programs, old)
	}
	k.programs[key] = p
	return p, nil
}

func (k *kind) compile(source string) (cel.Program, error) {
	env, err := k.env()
	if err != nil {
		return nil, err
	}
	return celenv.Program(env, source, limits, cel.BoolType)
}

// input is a list that was given, not made by the expression: its size does not count.
type input struct{ traits.Lister }

// AggregateSize is for cel's memory tracker.
func (input) AggregateSize(types.AggregateSizer) uint32 { return 1 }
