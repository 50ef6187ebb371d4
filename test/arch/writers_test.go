package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	whyOneWriter = "a record that two write is owned by none: each undoes what the other decided, and no test of one of them sees it"
	whyOneHandle = "what a part of the hub may write is decided where the hub is put together, once; a part that helps itself to another's right is a second writer"
	storeDir     = "hub/internal/store"
	writersDoc   = "docs/architecture.md"
)

// TestWhoWritesWhat holds the table of writers: each class has one, and docs/architecture.md shows it.
func TestWhoWritesWhat(t *testing.T) {
	table := writers(load(t, os.DirFS("../..")))
	if len(table) < 15 {
		t.Fatalf("%d classes found in %s: the test does not find them", len(table), storeDir)
	}
	doc, err := os.ReadFile("../../" + writersDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Who writes what\n")
	section, _, _ = strings.Cut(section, "\n## ")
	shown := slices.DeleteFunc(strings.Split(section, "\n"), func(line string) bool { return !strings.HasPrefix(line, "| `") })
	var rows []string
	for _, c := range table {
		rows = append(rows, c.row())
		if c.owner == "" || strings.Contains(c.owner, ",") {
			t.Errorf("%s is written by %q\n\twhy: %s", c.prefix, c.owner, whyOneWriter)
		}
		if c.clears != "" && c.clears != "Leader" {
			t.Errorf("%s is cleared by %s: the leader alone forgets modules and clusters\n\twhy: %s", c.prefix, c.clears, whyOneWriter)
		}
	}
	if !slices.Equal(shown, rows) {
		t.Errorf("%s, Who writes what, is not the table of the code, which is:\n%s", writersDoc, strings.Join(rows, "\n"))
	}
}

// class is a row of store.Classes, in the words of its source.
type class struct{ prefix, record, owner, clears string }

func (c class) row() string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |", c.prefix, c.record, c.owner, c.clears)
}

// writers reads store.Classes.
func writers(files []file) []class {
	constants, literal := map[string]string{}, (*ast.CompositeLit)(nil)
	for _, f := range files {
		if f.dir != storeDir || f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			switch v := spec.Values[0].(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(v.Value); err == nil {
					constants[spec.Names[0].Name] = text
				}
			case *ast.CompositeLit:
				if spec.Names[0].Name == "Classes" {
					literal = v
				}
			}
			return true
		})
	}
	if literal == nil {
		return nil
	}
	var table []class
	for _, row := range literal.Elts {
		var c class
		for _, field := range row.(*ast.CompositeLit).Elts {
			kv := field.(*ast.KeyValueExpr)
			switch kv.Key.(*ast.Ident).Name {
			case "Prefix":
				c.prefix = constants[words(kv.Value)]
			case "New":
				c.record = made(kv.Value)
			case "Owner":
				c.owner = words(kv.Value)
			case "Clears":
				c.clears = words(kv.Value)
			}
		}
		table = append(table, c)
	}
	return table
}

// words are the names in an expression: those of A | B are "A, B".
func words(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return words(e.X) + ", " + words(e.Y)
		}
	}
	return "?"
}

// made is the type that a function makes by new.
func made(fn ast.Expr) string {
	name := "?"
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && words(call.Fun) == "new" {
			name = words(call.Args[0])
		}
		return true
	})
	return name
}

// findHandles finds uses of a store's rights outside the composition root, and rights that are given out twice.
func findHandles(files []file) []string {
	var found []string
	given := map[string]string{}
	for _, f := range files {
		if f.test || matches(storeDir+"/...", f.dir) || tierOf(f.dir) == len(tiers)-1 {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "As" {
				return true
			}
			owner := words(call.Args[0])
			switch {
			case f.dir != "hub":
				found = append(found, finding(f.at(n), "takes the store as "+owner+" outside the composition root", whyOneHandle))
			case owner == "Everyone" || owner == "?" || strings.Contains(owner, ","):
				found = append(found, finding(f.at(n), "gives out the store as "+owner+": a part is one owner", whyOneHandle))
			case given[owner] != "":
				found = append(found, finding(f.at(n), "gives out the store as "+owner+" again: "+given[owner]+" has it", whyOneHandle))
			default:
				given[owner] = f.at(n)
			}
			return true
		})
	}
	return found
}

// TestWritersBite shows what the table and the handles must find.
func TestWritersBite(t *testing.T) {
	src := "package store\nconst A = \"a/\"\nvar Classes = []Class{{Prefix: A, New: func() proto.Message { return new(storev1.A) }, Owner: API | Hub, Clears: Leader}}\n"
	got := writers(load(t, fstest.MapFS{storeDir + "/a.go": {Data: []byte(src)}}))
	if want := (class{"a/", "A", "API, Hub", "Leader"}); len(got) != 1 || got[0] != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}
