package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
)

type C struct {
	Name   string            `cel:"name"`
	Labels map[string]string `cel:"labels"`
	Ready  bool              `cel:"ready"`
	Rev    int64             `cel:"revision"`
}

type wrapped struct{ traits.Lister }

func (w wrapped) AggregateSize(types.AggregateSizer) uint32 { return 1 }

func TestZZ(t *testing.T) {
	s := time.Now()
	env, err := cel.NewEnv(cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), cel.HomogeneousAggregateLiterals(),
		ext.Strings(), ext.Lists(ext.ListsVersion(1)), ext.Sets(), ext.Math(),
		cel.RegexProgramSizeLimit(1000),
		ext.NativeTypes(ext.ParseStructTags(true), cel.NativeTypeFor[C]()),
		cel.Variable("clusters", cel.ListType(cel.ObjectType("expr.C"))))
	fmt.Println(time.Since(s), err)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]C, 100000)
	for i := range list {
		list[i] = C{Name: fmt.Sprint("c", i), Ready: true, Labels: map[string]string{"env": "prod"}}
	}
	for _, src := range []string{
		"clusters.all(c, c.ready)", "clusters.all(c, c.redy)", "clusters.filter(c, c.labels['env'] == 'prod').all(c, c.ready && c.revision >= 0)",
		"clusters.filter(c, c.labels[?'env'].orValue('') == 'prod').all(c, c.ready)",
		"clusters.all(c, c.labels['nope'] == 'x')",
		"clusters.exists(c, clusters.all(d, d.name <= c.name))",
		"'a'" + strings.Repeat(".replace('a', 'aaaaaaaaaaaaaaaaaaaa')", 12) + " == ''",
		"'a'" + strings.Repeat(".replace('', 'aaaaaaaaaaaaaaaaaaaa')", 12) + " == ''",
		"['a','a','a','a','a','a','a','a']" + strings.Repeat(".map(x, [x,x,x,x,x,x,x,x].join())", 1) + " == []",
		"['a','a','a','a','a','a','a','a'].join('" + strings.Repeat("b", 3000) + "')" + strings.Repeat(".split('').join('"+strings.Repeat("b", 300)+"')", 5) + " == ''",
		"'%1000000000f'.format([1.0]) == ''", "'%.1000000000f'.format([1.0]) == ''",
		"'" + strings.Repeat("a", 3000) + "'.matches('(a{1,30}){1,30}')",
		"clusters.map(c, clusters).flatten().size() > 3",
		"clusters.map(c, clusters.map(d, d)).size() > 3",
		"[1]" + strings.Repeat(".map(x, [x,x])", 40) + " == [1]" + strings.Repeat(".map(x, [x,x])", 40),
		"clusters.map(c, c.name) == clusters.map(c, c.name)",
		"clusters.map(c, c.name + c.name + c.name).size() == clusters.map(c, c.name).size()",
		"C{name: 'x'}.ready", "expr.C{name: 'x'}.ready",
	} {
		s = time.Now()
		ast, iss := env.Compile(src)
		c := time.Since(s)
		if len(src) > 100 {
			src = src[:100]
		}
		if iss.Err() != nil {
			fmt.Println(src, c, "ISSUES:", iss.Err())
			continue
		}
		s = time.Now()
		p, err := env.Program(ast, cel.CostLimit(5_000_000), cel.MemoryTracking(types.MemoryTrackerSizeCalculator(types.NewSizeCalculator(types.SizeCalculatorMaxDepth(20), types.SizeCalculatorMaxTraversal(1<<21)))), cel.MemoryLimit(2_000_000), cel.InterruptCheckFrequency(100), cel.EvalOptions(cel.OptOptimize))
		pc := time.Since(s)
		if err != nil {
			fmt.Println(src, "PROGRAM", err, pc)
			continue
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errors.New("too slow"))
		s = time.Now()
		out, d, err := p.ContextEval(ctx, map[string]any{"clusters": wrapped{env.CELTypeAdapter().NativeToValue(list).(traits.Lister)}})
		cancel()
		e := time.Since(s)
		var cost uint64
		if d != nil && d.ActualCost() != nil {
			cost = *d.ActualCost()
		}
		o := fmt.Sprint(out)
		if len(o) > 100 {
			o = o[:100]
		}
		fmt.Println(src, ast.OutputType(), c, pc, "EVAL", e, o, cost, err)
	}
}
