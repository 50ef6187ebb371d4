package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"towline.dev/towline/ctl/internal/fielddoc"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestEveryKindWithEveryVerb holds each kind of the registry to what it says of itself: a verb that it has does it, for
// names as `get -o name` prints them, and one that it has not is refused as wrong use.
func TestEveryKindWithEveryVerb(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			name := nameIn(t, k)
			for _, verb := range []struct {
				has  bool
				args []string
			}{
				{k.get != nil, []string{"get", k.plural}},
				{k.get != nil, []string{"get", k.plural, "-A", "-o", "wide"}},
				{k.get != nil, []string{"get", k.name, "-o", "json"}},
				{k.watch != nil, []string{"get", k.plural, "-w"}},
				{k.live, []string{"get", k.plural, "--live"}},
				{k.describe != nil, []string{"describe", name}},
				{k.explain != nil, []string{"explain", name}},
				{k.message != nil, []string{"explain", k.name}},
				{k.tree != nil, []string{"tree", name}},
				{k.hold != nil, []string{"hold", name}},
				{k.delete != nil, deletion(k, name)},
				{k.put != nil, []string{"apply", "-f", writeFile(t, fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: a}\n", fleet.APIVersion, kindOfMessage(k)))}},
			} {
				hub := fullHub()
				hub.put = &v1.PutModuleResponse{Result: "created"}
				hub.watchEnds = errEndOfTest
				got := hub.run(t, run{}, verb.args...)
				done := got.code == exitOK || strings.Contains(got.err, errEndOfTest.Error()) || strings.Contains(got.err, "cluster prod-eu-11 is not connected")
				refused := got.code == exitUsage || strings.Contains(got.err, "is none of Module, Cluster, Project or Catalog")
				if verb.has != done || !verb.has && !refused || done && got.out == "" {
					t.Errorf("towline %s: has it %t, exit %d\n%s%s", strings.Join(verb.args, " "), verb.has, got.code, got.out, got.err)
				}
			}
		})
	}
}

func deletion(k *kind, name string) []string {
	args := []string{"delete", name, "--yes", "--wait=false"}
	if k.revisions {
		args = append(args, "--revision", "r40")
	}
	return args
}

var errEndOfTest = fleet.Errorf(fleet.ErrDenied, "the watch has shown enough")

func kindOfMessage(k *kind) string { return string(k.message.ProtoReflect().Descriptor().Name()) }

// nameIn is the first name that get prints, KIND/NAME.
func nameIn(t *testing.T, k *kind) string {
	t.Helper()
	got := fullHub().run(t, run{}, "get", k.plural, "-A", "-o", "name")
	name, _, _ := strings.Cut(got.out, "\n")
	if !strings.HasPrefix(name, k.name+"/") {
		t.Fatalf("get %s -o name: exit %d, %q%s", k.plural, got.code, got.out, got.err)
	}
	return name
}

// TestEveryKindIsFilteredSortedAndCompleted: by what it says, and by each column that its table has.
func TestEveryKindIsFilteredSortedAndCompleted(t *testing.T) {
	values := map[string]string{"selector": "env=prod", "module": "shop", "cluster": "prod-eu-07", "health": "Healthy", "revision": "r1", "active": "true",
		"since": "1h", "refused": "true"}
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			for _, flag := range k.filters {
				if !slices.Contains(filterFlags, flag) {
					t.Errorf("--%s is no flag that selects", flag)
				}
			}
			for _, flag := range filterFlags {
				value := values[flag]
				if value == "" {
					value = string(fleet.DriftDrifted)
				}
				got := fullHub().run(t, run{}, "get", k.plural, "--"+flag+"="+value)
				if has := slices.Contains(k.filters, flag); has != (got.code == exitOK) || !has && !strings.Contains(got.err, "selects no "+k.plural) {
					t.Errorf("get %s --%s: has it %t, exit %d: %s", k.plural, flag, has, got.code, got.err)
				}
			}
			header, _, _ := strings.Cut(fullHub().run(t, run{}, "get", k.plural, "-o", "wide").out, "\n")
			for column := range strings.SplitSeq(header, "  ") {
				if column = strings.TrimSpace(column); column == "" {
					continue
				}
				if got := fullHub().run(t, run{}, "get", k.plural, "--sort-by", column); got.code != exitOK {
					t.Errorf("get %s --sort-by %q: %s", k.plural, column, got.err)
				}
			}
			got := fullHub().run(t, run{}, "__complete", "get", k.plural, "")
			if has := !strings.HasPrefix(got.out, ":"); has != (k.complete != nil) {
				t.Errorf("completion of %s: %q", k.plural, got.out)
			}
		})
	}
}

func TestEveryFieldOfAKindIsDocumented(t *testing.T) {
	for name, root := range fieldRoots() {
		fields := root.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if fielddoc.Field(fields.Get(i)) == "" {
				t.Errorf("%s.%s has no documentation", name, fields.Get(i).JSONName())
			}
		}
	}
}

// TestKindsAreToldApartInTheRegistryOnly: nothing else compares with the word of a kind, switches over such words or maps
// them. What a verb does with a kind is a field of it.
func TestKindsAreToldApartInTheRegistryOnly(t *testing.T) {
	files := token.NewFileSet()
	sources, err := filepath.Glob("*.go")
	if err != nil || !slices.Contains(sources, "registry.go") {
		t.Fatalf("%v: %v", sources, err)
	}
	var words []string
	for _, k := range kinds() {
		words = append(words, k.name, k.plural, kindOfMessage(k))
	}
	found := func(at ast.Expr) {
		lit, ok := at.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return
		}
		if word, err := strconv.Unquote(lit.Value); err != nil || slices.Contains(words, word) {
			t.Errorf("%s tells kinds apart by %s: make it a field of kind", files.Position(lit.Pos()), lit.Value)
		}
	}
	for _, source := range sources {
		if source == "registry.go" || strings.HasSuffix(source, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, source, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					found(n.X)
					found(n.Y)
				}
			case *ast.CaseClause:
				for _, e := range n.List {
					found(e)
				}
			case *ast.KeyValueExpr:
				found(n.Key)
			}
			return true
		})
	}
}
