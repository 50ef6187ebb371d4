package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A check finds what breaks one kind of rule; every finding ends with the
// rule's reason.
type check struct {
	name string
	find func(files []file) []string
}

var checks = []check{
	{"Tiers", findTiers},
	{"Imports", findImports},
	{"PureTime", findPureTime},
	{"PureGoroutines", findPureGoroutines},
	{"PackageDoc", findPackageDoc},
	{"FileLength", findFileLength},
	{"Sleep", findSleep},
	{"Marks", findMarks},
	{"Handles", findHandles},
	{"Logs", findLogs},
}

// TestArch holds the repository to the rules.
func TestArch(t *testing.T) {
	files := load(t, os.DirFS("../.."))
	if len(files) == 0 {
		t.Fatal("no Go files found: the test looks in the wrong place")
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			for _, finding := range c.find(files) {
				t.Error(finding)
			}
		})
	}
}

func finding(where, what, why string) string {
	return fmt.Sprintf("%s: %s\n\twhy: %s", where, what, why)
}

// findTiers finds imports that go up and packages without a tier.
func findTiers(files []file) []string {
	var found []string
	unplaced := map[string]bool{}
	for _, f := range files {
		own := tierOf(f.dir)
		if own < 0 {
			top, _, _ := strings.Cut(f.dir, "/")
			if slices.Contains([]string{"pkg", "hub", "agent", "ctl"}, top) && !unplaced[f.dir] {
				unplaced[f.dir] = true
				found = append(found, finding(f.dir, "the package is in no tier: add it to the table in test/arch/rules_test.go",
					"where imports may go is decided when a package is made, not when the first cycle appears"))
			}
			continue
		}
		if f.test {
			continue
		}
		for _, spec := range f.ast.Imports {
			rel, ok := inModule(importPath(spec))
			if !ok {
				continue
			}
			if their := tierOf(rel); their > own {
				found = append(found, finding(f.at(spec),
					fmt.Sprintf("%s (%s) imports %s (%s): imports go down only", f.dir, tiers[own].name, rel, tiers[their].name),
					tiers[their].why))
			}
		}
	}
	return found
}

// findImports finds imports that an import rule denies.
func findImports(files []file) []string {
	var found []string
	for _, f := range files {
		for _, rule := range importRules {
			if !matchesAny(rule.of, f.dir) || matchesAny(rule.exempt, f.dir) || f.test && !rule.tests {
				continue
			}
			for _, spec := range f.ast.Imports {
				imported := importPath(spec)
				denied := importMatches(rule.deny, imported) && !importMatches(rule.unless, imported)
				if rel, ok := inModule(imported); ok && rule.only != nil && !matchesAny(rule.only, rel) {
					denied = true
				}
				if denied {
					found = append(found, finding(f.at(spec), fmt.Sprintf("imports %s; rule: %s", imported, rule.name), rule.why))
				}
			}
		}
	}
	return found
}

// findPureTime finds pure packages that read the clock or wait for it.
func findPureTime(files []file) []string {
	var found []string
	for _, f := range files {
		if f.test || !matchesAny(purePackages, f.dir) {
			continue
		}
		for _, n := range f.usesOf("time", clockNames...) {
			found = append(found, finding(f.at(n), "a pure package uses time."+n.(*ast.SelectorExpr).Sel.Name, whyNoClock))
		}
	}
	return found
}

// findPureGoroutines finds pure packages that start a goroutine.
func findPureGoroutines(files []file) []string {
	var found []string
	for _, f := range files {
		if f.test || !matchesAny(purePackages, f.dir) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				found = append(found, finding(f.at(n), "a pure package starts a goroutine", whyNoGoroutine))
			}
			return true
		})
	}
	return found
}

// findPackageDoc finds packages without exactly one package comment that says
// something. The files that count are the ordinary ones, or the tests where a
// directory has nothing else.
func findPackageDoc(files []file) []string {
	packages := map[string][]file{}
	for _, f := range files {
		packages[f.dir] = append(packages[f.dir], f)
	}
	var found []string
	for dir, all := range packages {
		isTest := func(f file) bool { return f.test }
		if ordinary := slices.DeleteFunc(slices.Clone(all), isTest); len(ordinary) > 0 {
			all = ordinary
		}
		var documented []string
		for _, f := range all {
			if f.ast.Doc == nil {
				continue
			}
			text := strings.TrimSpace(f.ast.Doc.Text())
			if text == "" { // directives only
				continue
			}
			documented = append(documented, f.path)
			name := f.ast.Name.Name
			if want := "Package " + name + " "; name != "main" && !strings.HasPrefix(text, want) {
				found = append(found, finding(f.path, fmt.Sprintf("the package comment does not start with %q", want), whyDoc))
			}
			if len(text) < minDocLength {
				found = append(found, finding(f.path, fmt.Sprintf("the package comment has %d characters: it can hardly say what the package owns", len(text)), whyDoc))
			}
		}
		switch len(documented) {
		case 0:
			found = append(found, finding(dir, "the package has no package comment", whyDoc))
		case 1:
		default:
			found = append(found, finding(dir, "several files have a package comment: "+strings.Join(documented, ", "), whyDoc))
		}
	}
	slices.Sort(found)
	return found
}

// findFileLength finds files and mains that are too long.
func findFileLength(files []file) []string {
	var found []string
	for _, f := range files {
		if f.lines > maxFileLines {
			found = append(found, finding(f.path, fmt.Sprintf("%d lines, more than %d", f.lines, maxFileLines), whyFileLines))
		}
		isMain, _ := path.Match("*/cmd/*/main.go", f.path)
		if isMain && f.lines > maxMainLines {
			found = append(found, finding(f.path, fmt.Sprintf("%d lines, more than %d", f.lines, maxMainLines), whyMainLines))
		}
	}
	return found
}

// findSleep finds tests that sleep.
func findSleep(files []file) []string {
	var found []string
	for _, f := range files {
		if !f.test {
			continue
		}
		for _, n := range f.usesOf("time", "Sleep") {
			found = append(found, finding(f.at(n), "a test uses time.Sleep", whyNoSleep))
		}
	}
	return found
}

// logCalls are the methods of slog.Logger, with the number of arguments before the message.
var logCalls = map[string]int{"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1}

// findLogs finds lines of the log whose message, or whose keys, are put together: nobody could look for them.
func findLogs(files []file) []string {
	var found []string
	for _, f := range files {
		if top, _, _ := strings.Cut(f.dir, "/"); f.test || !slices.Contains([]string{"hub", "agent", "pkg"}, top) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !isLog(sel.X) {
				return true
			}
			first, known := logCalls[sel.Sel.Name]
			if sel.Sel.Name == "With" {
				first, known = -1, true
			}
			if !known || call.Ellipsis.IsValid() || len(call.Args) <= first {
				return true
			}
			if first >= 0 && putTogether(call.Args[first]) {
				found = append(found, finding(f.at(call), "the message of a log line is put together", whyLogs))
			}
			for i := first + 1; i < len(call.Args); i += 2 {
				if _, attr := call.Args[i].(*ast.CallExpr); attr || putTogether(call.Args[i]) {
					found = append(found, finding(f.at(call), "a key of a log line is put together", whyLogs))
				}
			}
			return true
		})
	}
	return found
}

// isLog reports that an expression ends in the name of a logger.
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log") || x.Name == "slog"
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	}
	return false
}

// putTogether reports that a text is neither a literal nor a name.
func putTogether(x ast.Expr) bool {
	switch x.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr:
		return false
	}
	return true
}

// marks are the words for work that was put off. They are put together so that
// this file does not contain them.
var marks = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)

// findMarks finds work that was put off.
func findMarks(files []file) []string {
	var found []string
	for _, f := range files {
		for i, line := range strings.Split(string(f.src), "\n") {
			if mark := marks.FindString(line); mark != "" {
				found = append(found, finding(fmt.Sprintf("%s:%d", f.path, i+1), "contains "+mark, whyNoMarks))
			}
		}
	}
	return found
}

// TestChecksBite shows every check what it must find and what it must not.
func TestChecksBite(t *testing.T) {
	doc := func(name string) string {
		return "// Package " + name + " owns this and that and must not know about anything else.\npackage " + name + "\n"
	}
	imports := func(name string, paths ...string) string {
		return doc(name) + "import (\n\t_ \"" + strings.Join(paths, "\"\n\t_ \"") + "\"\n)\n"
	}
	in := func(rel string) string { return module + "/" + rel }

	for _, tc := range []struct {
		check string
		path  string
		src   string
		want  string // part of the only finding; empty: none
	}{
		{"Tiers", "pkg/rollout/a.go", imports("rollout", in("pkg/fleet"), in("pkg/manifest")), ""},
		{"Tiers", "pkg/fleet/a.go", imports("fleet", in("pkg/manifest")), "(vocabulary) imports pkg/manifest (pure)"},
		{"Tiers", "pkg/plan/a.go", imports("plan", in("pkg/dirty")), "(pure) imports pkg/dirty"},
		{"Tiers", "hub/internal/store/etcd/a.go", imports("etcd", in("hub/internal/control")), "imports hub/internal/control (drivers)"},
		{"Tiers", "hub/internal/session/a.go", imports("session", in("pkg/wire"), in("hub/internal/store"), in("gen/towline/v1")), ""},
		{"Tiers", "hub/internal/session/a.go", imports("session", in("hub")), "imports hub (composition)"},
		{"Tiers", "hub/internal/control/a.go", imports("control", in("pkg/testkit")), "imports pkg/testkit (tests)"},
		{"Tiers", "hub/internal/control/a_test.go", imports("control", in("pkg/testkit")), ""},
		{"Tiers", "hub/internal/store/storetest/a.go", imports("storetest", in("pkg/testkit")), ""},
		{"Tiers", "hub/internal/unheard/a.go", doc("unheard"), "in no tier"},
		{"Imports", "pkg/client/a_test.go", imports("client", in("hub")), "pkg stands alone"},
		{"Imports", "hub/hub.go", imports("hub", in("agent")), "does not know the agent"},
		{"Imports", "agent/agent.go", imports("agent", in("hub/internal/store")), "does not know the hub"},
		{"Imports", "ctl/internal/get/a.go", imports("get", in("pkg/client"), in("gen/towline/v1"), in("ctl/internal/out")), ""},
		{"Imports", "ctl/internal/get/a.go", imports("get", in("hub")), "ctl uses pkg and gen only"},
		{"Imports", "test/e2e/a_test.go", imports("e2e", in("hub"), in("agent"), in("pkg/testkit"), "os"), ""},
		{"Imports", "bench/store/main.go", imports("main", in("hub/internal/store")), "stay outside"},
		{"Imports", "test/sim/a_test.go", imports("sim", in("ctl/internal/get")), "stay outside"},
		{"Imports", "pkg/rollout/a.go", imports("rollout", "context"), "pure packages compute"},
		{"Imports", "pkg/rollout/a_test.go", imports("rollout", "context"), ""},
		{"Imports", "pkg/fleet/a.go", imports("fleet", "net/http"), "pure packages compute"},
		{"Imports", "pkg/fleet/a.go", imports("fleet", "net/url", "strings"), ""},
		{"Imports", "pkg/health/a.go", imports("health", "k8s.io/apimachinery/pkg/runtime"), ""},
		{"Imports", "pkg/health/a.go", imports("health", "k8s.io/client-go/dynamic"), "pure packages compute"},
		{"Imports", "pkg/plan/a.go", imports("plan", in("gen/towline/v1")), "pure packages compute"},
		{"Imports", "pkg/plan/a.go", imports("plan", "log/slog"), "pure packages compute"},
		{"Imports", "pkg/render/a.go", imports("render", "net/http"), "render reads no network"},
		{"Imports", "hub/internal/store/memory/a.go", imports("memory", in("hub/internal/store")), "know bytes"},
		{"Imports", "hub/internal/store/blobs/a.go", imports("blobs", in("hub/internal/store/engine")), "blobs know no records"},
		{"Imports", "hub/internal/store/engine/a.go", imports("engine", in("hub/internal/store/etcd")), "any backend"},
		{"Imports", "hub/internal/store/engine/a.go", imports("engine", in("hub/internal/store/backend"), in("hub/internal/store/blobs")), ""},
		{"Imports", "hub/internal/control/a.go", imports("control", in("hub/internal/store/engine")), "uses its port"},
		{"Imports", "hub/internal/control/a_test.go", imports("control", in("hub/internal/store/engine")), ""},
		{"PureTime", "pkg/plan/a.go", doc("plan") + "import clock \"time\"\nvar now = clock.Now\n", "uses time.Now"},
		{"PureTime", "pkg/plan/a.go", doc("plan") + "import \"time\"\nvar d = time.Second\n", ""},
		{"PureTime", "pkg/dirty/a.go", doc("dirty") + "import \"time\"\nvar now = time.Now()\n", ""},
		{"PureGoroutines", "pkg/plan/a.go", doc("plan") + "func f() { go f() }\n", "starts a goroutine"},
		{"PureGoroutines", "pkg/dirty/a.go", doc("dirty") + "func f() { go f() }\n", ""},
		{"PackageDoc", "pkg/plan/a.go", doc("plan"), ""},
		{"PackageDoc", "pkg/plan/a.go", "package plan\n", "no package comment"},
		{"PackageDoc", "pkg/plan/a.go", "// Package plan plans.\npackage plan\n", "characters"},
		{"PackageDoc", "pkg/plan/a.go", "//go:build linux\n\npackage plan\n", "no package comment"},
		{"PackageDoc", "pkg/plan/a.go", strings.Replace(doc("plan"), "Package plan", "This package", 1), "does not start with"},
		{"FileLength", "pkg/plan/a.go", doc("plan") + strings.Repeat("\n", maxFileLines-2), ""},
		{"FileLength", "pkg/plan/a_test.go", doc("plan") + strings.Repeat("\n", maxFileLines), "more than 600"},
		{"FileLength", "hub/cmd/towline-hub/main.go", doc("main") + strings.Repeat("\n", maxMainLines), "more than 40"},
		{"Sleep", "test/sim/a_test.go", doc("sim") + "import \"time\"\nfunc f() { time.Sleep(1) }\n", "uses time.Sleep"},
		{"Sleep", "test/e2e/wait.go", doc("e2e") + "import \"time\"\nfunc f() { time.Sleep(1) }\n", ""},
		{"Handles", "hub/hub.go", doc("hub") + "var a = e.As(store.API)\nvar b = e.As(store.Leader)\n", ""},
		{"Handles", "hub/hub.go", doc("hub") + "var a = e.As(store.API)\nvar b = e.As(store.API)\n", "again"},
		{"Handles", "hub/hub.go", doc("hub") + "var a = e.As(store.API | store.Leader)\n", "one owner"},
		{"Handles", "hub/hub.go", doc("hub") + "var a = e.As(store.Everyone)\n", "one owner"},
		{"Handles", "hub/internal/api/a.go", doc("api") + "var a = s.As(store.Leader)\n", "outside the composition root"},
		{"Handles", "hub/internal/api/a_test.go", doc("api") + "var a = s.As(store.Everyone)\n", ""},
		{"Logs", "hub/a.go", doc("hub") + "func f() { h.o.Log.Info(\"module gone: \" + name, \"why\", err) }\n", "the message"},
		{"Logs", "hub/a.go", doc("hub") + "func f() { log.With(\"cluster\", c).Warn(text); log.Error(\"gone\", \"of \"+kind, err) }\n", "a key"},
		{"Logs", "hub/a.go", doc("hub") + "func f() { log.With(\"cluster\", string(c)); log.Info(\"gone\", \"module\", m.String(), \"error\", err); log.Info(\"x\", args...) }\n", ""},
		{"Marks", "pkg/plan/a.go", doc("plan") + "\n// TO" + "DO: later\n", "a.go:4: contains"},
		{"Marks", "gen/towline/v1/a.pb.go", doc("towlinev1") + "\n// FIX" + "ME\n", ""},
		{"Marks", "pkg/plan/zz_gen.go", "// Code generated by x. DO NOT EDIT.\n\n" + doc("plan") + "// FIX" + "ME\n", ""},
	} {
		t.Run(tc.check+" "+tc.path, func(t *testing.T) {
			i := slices.IndexFunc(checks, func(c check) bool { return c.name == tc.check })
			got := checks[i].find(load(t, fstest.MapFS{tc.path: &fstest.MapFile{Data: []byte(tc.src)}}))
			switch {
			case tc.want == "" && len(got) > 0:
				t.Errorf("found %q, want nothing", got)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want) || !strings.Contains(got[0], "\twhy: ")):
				t.Errorf("found %q, want one finding with %q and its reason", got, tc.want)
			}
		})
	}

	twice := fstest.MapFS{
		"pkg/plan/a.go":      {Data: []byte(doc("plan"))},
		"pkg/plan/b.go":      {Data: []byte(doc("plan"))},
		"pkg/plan/a_test.go": {Data: []byte(doc("plan"))},
	}
	if got := findPackageDoc(load(t, twice)); len(got) != 1 || !strings.Contains(got[0], "several files") {
		t.Errorf("two package comments: found %q", got)
	}
}

// TestRulesHaveReasons keeps the table whole.
func TestRulesHaveReasons(t *testing.T) {
	for _, tier := range tiers[1:] {
		if tier.why == "" {
			t.Errorf("tier %s has no reason", tier.name)
		}
	}
	for _, rule := range importRules {
		if rule.why == "" || rule.deny == nil && rule.only == nil {
			t.Errorf("rule %q has no reason, or denies nothing", rule.name)
		}
	}
}
