package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/celenv"
	"towline.dev/towline/pkg/fleet"
)

// rowLimits bound the look at one row, which holds a few short texts.
var rowLimits = celenv.Limits{Cost: 20_000, Memory: 50_000, SizeEvery: 1_000}

// maxRowsCost bounds a list or one look of a watch: some hundred operations for each of a million rows.
const maxRowsCost = 100_000_000

// rowField is a field of a row as conditions see it.
type rowField struct {
	name string
	typ  *cel.Type
	of   func(*towlinev1.Object) any
}

var rowFields = []rowField{
	text("cluster", (*towlinev1.Object).GetCluster),
	text("project", (*towlinev1.Object).GetProject),
	text("module", (*towlinev1.Object).GetModule),
	{"revision", cel.IntType, func(o *towlinev1.Object) any { return o.GetRevision() }},
	text("apiVersion", func(o *towlinev1.Object) string { return o.GetObject().GetApiVersion() }),
	text("group", func(o *towlinev1.Object) string {
		group, _ := fleet.SplitAPIVersion(o.GetObject().GetApiVersion())
		return group
	}),
	text("kind", func(o *towlinev1.Object) string { return o.GetObject().GetKind() }),
	text("ns", func(o *towlinev1.Object) string { return o.GetObject().GetNamespace() }),
	text("name", func(o *towlinev1.Object) string { return o.GetObject().GetName() }),
	text("sync", (*towlinev1.Object).GetSync),
	text("health", (*towlinev1.Object).GetHealth),
	text("drift", (*towlinev1.Object).GetDrift),
	text("reason", (*towlinev1.Object).GetReason),
	text("message", (*towlinev1.Object).GetMessage),
	moment("since", (*towlinev1.Object).GetSince),
	text("changedBy", (*towlinev1.Object).GetChangedBy),
	moment("firstChanged", (*towlinev1.Object).GetFirstChanged),
	moment("lastChanged", (*towlinev1.Object).GetLastChanged),
	text("field", (*towlinev1.Object).GetField),
	text("want", (*towlinev1.Object).GetWant),
	text("live", (*towlinev1.Object).GetLive),
	{"seen", cel.IntType, func(o *towlinev1.Object) any { return int64(o.GetSeen()) }},
	{"extra", cel.BoolType, func(o *towlinev1.Object) any { return o.GetExtra() }},
	{"watched", cel.BoolType, func(o *towlinev1.Object) any { return o.GetWatched() }},
	{"away", cel.BoolType, func(o *towlinev1.Object) any { return o.GetLastHeard() != nil }},
	moment("lastHeard", (*towlinev1.Object).GetLastHeard),
	text("wasSync", (*towlinev1.Object).GetWasSync),
	text("wasHealth", (*towlinev1.Object).GetWasHealth),
	text("wasDrift", (*towlinev1.Object).GetWasDrift),
}

func text(name string, of func(*towlinev1.Object) string) rowField {
	return rowField{name, cel.StringType, func(o *towlinev1.Object) any { return of(o) }}
}

func moment(name string, of func(*towlinev1.Object) *timestamppb.Timestamp) rowField {
	return rowField{name, cel.TimestampType, func(o *towlinev1.Object) any { return of(o).AsTime() }}
}

// fieldNow is the hub's time. A watch does not know it: its rows would come and go without a change.
const fieldNow = "now"

// rowKind is where rows are looked at.
type rowKind struct {
	env   func() (*cel.Env, error)
	names string
}

var (
	listedRows  = newRowKind(cel.Variable(fieldNow, cel.TimestampType))
	watchedRows = newRowKind()
)

func newRowKind(more ...cel.EnvOption) rowKind {
	var names []string
	for _, f := range rowFields {
		more = append(more, cel.Variable(f.name, f.typ))
		names = append(names, f.name)
	}
	return rowKind{env: sync.OnceValues(func() (*cel.Env, error) { return celenv.New(more...) }), names: strings.Join(names, ", ")}
}

// condition is what rows must meet; a nil one takes all. It is of one list or one look.
type condition struct {
	program cel.Program
	now     time.Time
	spent   uint64
}

// conditionOf compiles the expression of a filter; nil: it has none.
func (a *API) conditionOf(f *towlinev1.ObjectFilter, of rowKind) (*condition, error) {
	source := f.GetExpression()
	if source == "" {
		return nil, nil
	}
	env, err := of.env()
	if err != nil {
		return nil, err
	}
	program, err := celenv.Program(env, source, rowLimits, cel.BoolType)
	if err == nil {
		err = checkStates(env, source)
	}
	if err != nil {
		return nil, fleet.Join("filter.expression", of.explain(err))
	}
	return &condition{program: program, now: a.now()}, nil
}

// explain adds to an error about a name what names there are.
func (k rowKind) explain(err error) error {
	said := err.Error()
	if strings.Contains(said, "reserved identifier: namespace") {
		return fleet.Invalid("", "namespace is a reserved word of CEL; write ns")
	}
	_, name, found := strings.Cut(said, "undeclared reference to '")
	switch name, _, _ = strings.Cut(name, "'"); {
	case !found:
		return err
	case name == fieldNow:
		return fleet.Invalid("", "now is not known to a watch, whose rows would come and go without a change; compare since with timestamp(\"2026-07-03T12:00:00Z\"), or list")
	}
	return fleet.Invalidf("", "there is no field %q; the fields are: %s, and now in a list; texts stand in quotes", name, k.names)
}

// statesOf are the words that a field may have.
var statesOf = map[string][]string{
	"health": {string(fleet.HealthHealthy), string(fleet.HealthProgressing), string(fleet.HealthDegraded), string(fleet.HealthMissing),
		string(fleet.HealthTerminating), string(fleet.HealthSuspended), string(fleet.HealthUnknown)},
	"sync":  {string(fleet.SyncSynced), string(fleet.SyncOutOfSync), string(fleet.SyncUnknown)},
	"drift": {string(fleet.DriftInSync), string(fleet.DriftDrifted), string(fleet.DriftConflict), string(fleet.DriftIgnored), string(fleet.DriftHeld), string(fleet.DriftUnknown)},
}

// checkStates refuses a comparison with a word that is no state: it would select nothing, or everything, and look as if that
// were so.
func checkStates(env *cel.Env, source string) error {
	parsed, issues := env.Parse(source)
	if issues.Err() != nil {
		return issues.Err()
	}
	compares := func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.CallKind && slices.Contains([]string{operators.Equals, operators.NotEquals, operators.In}, e.AsCall().FunctionName())
	}
	for _, call := range ast.MatchDescendants(ast.NavigateAST(parsed.NativeRep()), compares) {
		args := call.AsCall().Args()
		if err := cmp.Or(checkState(args[0], args[1]), checkState(args[1], args[0])); err != nil {
			return err
		}
	}
	return nil
}

// checkState looks at one side of a comparison, and at what it is compared with.
func checkState(field, with ast.Expr) error {
	if field.Kind() != ast.IdentKind {
		return nil
	}
	name := strings.TrimPrefix(field.AsIdent(), "was")
	states := statesOf[strings.ToLower(name)]
	words := []ast.Expr{with}
	if with.Kind() == ast.ListKind {
		words = with.AsList().Elements()
	}
	for _, w := range words {
		if w.Kind() != ast.LiteralKind || states == nil {
			continue
		}
		if word, ok := w.AsLiteral().Value().(string); ok && word != "" && !slices.Contains(states, word) {
			return fleet.Invalidf("", "%s is never %q; it is one of %s", field.AsIdent(), word, strings.Join(states, ", "))
		}
	}
	return nil
}

// holds reports that a row meets the condition.
func (c *condition) holds(ctx context.Context, o *towlinev1.Object) (bool, error) {
	if c == nil {
		return true, nil
	}
	got, details, err := c.program.ContextEval(ctx, viewedRow{o, c.now})
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		return false, fleet.Invalidf("filter.expression", "%s %s in cluster %s: %s", o.GetObject().GetKind(), o.GetObject().GetName(), o.GetCluster(), celenv.Reason(err))
	}
	if cost := details.ActualCost(); cost != nil {
		c.spent += *cost
	}
	if c.spent > maxRowsCost {
		return false, fleet.Invalid("filter.expression", "takes too much work for so many objects; compare less, or select a module, a cluster or a kind beside it")
	}
	return got.Value() == true, nil
}

// viewedRow is a row as conditions see it.
type viewedRow struct {
	object *towlinev1.Object
	now    time.Time
}

// ResolveName is for cel.
func (r viewedRow) ResolveName(name string) (any, bool) {
	if name == fieldNow {
		return r.now, true
	}
	for i := range rowFields {
		if rowFields[i].name == name {
			return rowFields[i].of(r.object), true
		}
	}
	return nil, false
}

// Parent is for cel.
func (viewedRow) Parent() cel.Activation { return nil }
