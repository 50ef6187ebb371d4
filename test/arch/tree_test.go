package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A file is one hand-written Go file.
type file struct {
	path  string // relative to the root
	dir   string // its package: the path's directory
	test  bool   // a _test.go file
	lines int
	src   []byte
	ast   *ast.File
	fset  *token.FileSet
}

// skipDirs hold no code of ours: generated, built or data.
var skipDirs = []string{"gen", "bin", "vendor", "testdata", "node_modules"}

// load parses every hand-written Go file of the tree, those of nested modules
// included, whatever their build tags.
func load(t testing.TB, root fs.FS) []file {
	t.Helper()
	var files []file
	fset := token.NewFileSet()
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			hidden := p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"))
			if hidden || slices.Contains(skipDirs, name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(parsed) {
			return nil
		}
		files = append(files, file{
			path:  p,
			dir:   path.Dir(p),
			test:  strings.HasSuffix(name, "_test.go"),
			lines: bytes.Count(src, []byte("\n")),
			src:   src,
			ast:   parsed,
			fset:  fset,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// at is where a node stands, as path:line.
func (f file) at(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(n.Pos()).Line)
}

// importPath is the path an import names.
func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value)
	return p
}

// inModule is the import's path relative to the module, if it is in it.
func inModule(imported string) (string, bool) {
	return strings.CutPrefix(imported, module+"/")
}

// usesOf finds every mention of one of the names of an imported package.
func (f file) usesOf(imported string, names ...string) []ast.Node {
	local := ""
	for _, spec := range f.ast.Imports {
		if importPath(spec) == imported {
			local = path.Base(imported)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "" {
		return nil
	}
	var found []ast.Node
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
				found = append(found, sel)
			}
		}
		return true
	})
	return found
}

// matches reports whether a path is covered by a pattern: "a/..." is a and
// everything under it, "a" is only itself.
func matches(pattern, p string) bool {
	if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == parent || strings.HasPrefix(p, parent+"/")
	}
	return p == pattern
}

// matchesAny reports whether one of the patterns covers the path.
func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

// importMatches is matchesAny for an import path and patterns of which those
// that start with "./" are relative to the module.
func importMatches(patterns []string, imported string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if rel, ok := strings.CutPrefix(pattern, "./"); ok {
			pattern = module + "/" + rel
		}
		return matches(pattern, imported)
	})
}

// tierOf is the index of a package's tier, or -1.
func tierOf(dir string) int {
	if strings.HasSuffix(path.Base(dir), "test") {
		return len(tiers) - 1
	}
	best, length := -1, -1
	for i, tier := range tiers {
		for _, pattern := range tier.packages {
			if matches(pattern, dir) && len(pattern) > length {
				best, length = i, len(pattern)
			}
		}
	}
	return best
}
