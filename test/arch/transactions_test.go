package arch

import (
	"fmt"
	"go/ast"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const whyPure = "a transaction runs again whenever it loses a race, and holds its snapshot while it runs: what it decides must be the same each time, and it must not wait; read the time and contents before it"

// slow are calls that read contents, or what a source holds; clocks are those that read the time, by which a decision could be another
// one each time. What people and agents say is noted with the time of the commit.
var (
	slow   = []string{".Bundles.Get", ".Bundles.Content", ".Blobs.Get", ".Source.Fetch", ".Draft"}
	clocks = []string{"time.Now", "time.Since", "time.Until", ".now"}
	decide = []string{"hub/internal/control", "hub/internal/rollouts", "hub/internal/record"}
)

// TestTransactionsArePure holds that the functions of transactions, those that get a store.Writer, look nothing up outside of the store.
func TestTransactionsArePure(t *testing.T) {
	for _, problem := range impureTransactions(load(t, os.DirFS("../.."))) {
		t.Errorf("%s\n\twhy: %s", problem, whyPure)
	}
}

// TestImpureTransactionsAreFound shows what the rule finds.
func TestImpureTransactionsAreFound(t *testing.T) {
	src := "package control\nfunc (a *API) put(w store.Writer) { w.Put(\"k\", a.now()) }\nfunc look(r store.Reader) { time.Now() }\n" +
		"func (a *API) call() { a.Update(func(w store.Writer) error { return func() error { _, err := a.o.Bundles.Get(ctx, d); return err }() }); a.now() }\n"
	got := impureTransactions(load(t, fstest.MapFS{"hub/internal/control/a.go": {Data: []byte(src)}, "hub/internal/api/a.go": {Data: []byte(src)}}))
	want := []string{"hub/internal/api/a.go: a transaction calls a.o.Bundles.Get",
		"hub/internal/control/a.go: a transaction calls a.now", "hub/internal/control/a.go: a transaction calls a.o.Bundles.Get"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func impureTransactions(files []file) (problems []string) {
	for _, f := range files {
		if f.test || !strings.HasPrefix(f.dir, "hub/") || strings.HasPrefix(f.dir, storeDir) {
			continue
		}
		impure := slow
		if slices.Contains(decide, f.dir) {
			impure = slices.Concat(slow, clocks)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			var params *ast.FuncType
			var body *ast.BlockStmt
			switch fn := n.(type) {
			case *ast.FuncDecl:
				params, body = fn.Type, fn.Body
			case *ast.FuncLit:
				params, body = fn.Type, fn.Body
			default:
				return true
			}
			if !takesWriter(params) || body == nil {
				return true
			}
			for _, call := range impureCalls(body, impure) {
				problems = append(problems, fmt.Sprintf("%s: a transaction calls %s", f.path, call))
			}
			return false
		})
	}
	return problems
}

func takesWriter(fn *ast.FuncType) bool {
	return slices.ContainsFunc(fn.Params.List, func(p *ast.Field) bool { return dotted(p.Type) == "store.Writer" })
}

func impureCalls(body *ast.BlockStmt, impure []string) (calls []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name := dotted(call.Fun)
		if slices.ContainsFunc(impure, func(s string) bool { return name == s || strings.HasPrefix(s, ".") && strings.HasSuffix(name, s) }) {
			calls = append(calls, name)
		}
		return true
	})
	return calls
}

// dotted is a selector as it is written; empty: it is something else.
func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x := dotted(e.X); x != "" {
			return x + "." + e.Sel.Name
		}
	}
	return ""
}
