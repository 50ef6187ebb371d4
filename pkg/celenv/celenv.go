// Package celenv owns what every CEL expression of Towline has in common: the functions it may use, the limits of one
// evaluation, and the words in which an error is told. It must not know what an expression is about.
package celenv

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"towline.dev/towline/pkg/fleet"
)

const (
	// MaxSource is how many bytes an expression has at most.
	MaxSource = 4096
	// interruptEvery is after how many rounds of a loop an interrupt is looked for.
	interruptEvery = 100
	regexLimit     = 1000
)

// Limits bound one evaluation.
type Limits struct {
	// Cost is how many operations it has.
	Cost uint64
	// Memory is how many values, ten bytes of a string each, it holds.
	Memory uint32
	// SizeEvery is after how many rounds of a loop its values are counted again.
	SizeEvery uint32
}

// New is an environment with these variables.
func New(variables ...cel.EnvOption) (*cel.Env, error) {
	env, err := cel.NewEnv(append([]cel.EnvOption{cel.HomogeneousAggregateLiterals(), cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true), cel.RegexProgramSizeLimit(regexLimit), cel.ParserExpressionSizeLimit(MaxSource),
		ext.Math(), ext.Sets()}, variables...)...)
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	return env, nil
}

// Program compiles a source whose result has one of the types. The error is a FieldError without a path.
func Program(env *cel.Env, source string, l Limits, results ...*cel.Type) (cel.Program, error) {
	if len(source) > MaxSource {
		return nil, fleet.Invalidf("", "has %d bytes; at most %d", len(source), MaxSource)
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, fleet.Invalid("", explain(issues))
	}
	if !slices.ContainsFunc(results, ast.OutputType().IsExactType) {
		return nil, fleet.Invalidf("", "is a %s; write %s", ast.OutputType(), wanted(results[0]))
	}
	p, err := env.Program(ast, l.options()...)
	if err != nil {
		return nil, fleet.Invalid("", clip(err.Error()))
	}
	return p, nil
}

func (l Limits) options() []cel.ProgramOption {
	size := types.NewSizeCalculator(types.SizeCalculatorMaxDepth(20), types.SizeCalculatorMaxTraversal(int(l.Memory)))
	return []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.CostLimit(l.Cost), cel.InterruptCheckFrequency(interruptEvery),
		cel.MemoryTracking(types.MemoryTrackerSampleInterval(l.SizeEvery), types.MemoryTrackerSizeCalculator(size)), cel.MemoryLimit(l.Memory)}
}

func wanted(t *cel.Type) string {
	if t.IsExactType(cel.StringType) {
		return "an expression that is a text"
	}
	return "a condition that is true or false"
}

// Reason tells an error of an evaluation, with the engine's words for limits put into ours.
func Reason(err error) string {
	text := clip(err.Error())
	switch {
	case strings.Contains(text, "cost limit exceeded"), strings.Contains(text, "memory limit exceeded"):
		return "takes too much work; compare less, or filter first"
	case strings.Contains(text, "operation interrupted"):
		return "took too long and was stopped; compare less, or filter first"
	case Absent(err):
		return text + `; ask "key" in map first, or write map[?"key"].orValue("")`
	case strings.HasPrefix(text, "index out of bounds"):
		return text + "; ask size(result) first"
	}
	return text
}

// Absent reports that an evaluation failed for a key that is not there.
func Absent(err error) bool { return strings.HasPrefix(err.Error(), "no such key: ") }

// explain is the first issue in one line, with its place.
func explain(issues *cel.Issues) string {
	all := issues.Errors()
	if len(all) == 0 {
		return clip(issues.Err().Error())
	}
	text := clip(all[0].Message)
	if strings.Contains(text, "(double, int)") || strings.Contains(text, "(int, double)") {
		text += "; numbers of a metric have a decimal point: write 1.0"
	}
	if at := all[0].Location; at.Line() > 0 {
		return fmt.Sprintf("line %d, column %d: %s", at.Line(), at.Column()+1, text)
	}
	return text
}

func clip(s string) string { return fleet.Clip(strings.Join(strings.Fields(s), " "), 300) }
