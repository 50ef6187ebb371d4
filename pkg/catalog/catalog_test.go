package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func digest(s string) fleet.Digest { return fleet.DigestOf([]byte(s)) }

// file is NAME=SPEC, with what it depends on.
func file(s string, dependsOn ...string) File {
	name, spec, _ := strings.Cut(s, "=")
	return File{Name: name, At: name + ".yaml:1", Spec: digest(spec), Words: digest(""), DependsOn: dependsOn}
}

func files(list ...string) (out []File) {
	for _, s := range list {
		out = append(out, file(s))
	}
	return out
}

// mine is NAME=SPEC, put by the catalog.
func mine(s string, dependsOn ...string) Module {
	f := file(s, dependsOn...)
	return Module{Name: f.Name, UID: "uid-" + f.Name, Version: 7, Spec: f.Spec, Words: f.Words, DependsOn: dependsOn, Mine: true, Put: f.Spec}
}

func owned(s, owner string) Module {
	m := mine(s)
	m.Mine, m.Owner = false, owner
	return m
}

func deleting(m Module) Module { m.Deleting = true; return m }

func stopped(m Module, spec string) Module {
	m.Stopped, m.Put = m.Name+"/5", digest(spec)
	return m
}

func put(m Module, spec string) Module { m.Put = digest(spec); return m }

func paused(m Module) Module { m.Paused = m.Name + "/6"; return m }

func running(m Module) Module { m.Running = m.Name + "/7"; return m }

func unbegun(m Module) Module { m.Unbegun = true; return m }

func needs(m Module, names ...string) Module { m.Needs = names; return m }

func damaged(name string, needs ...string) Module {
	return Module{Name: name, Damaged: true, Needs: needs}
}

func worded(m Module) Module { m.Words = digest("by hand"); return m }

// text is a plan in a line.
func (p Plan) text() string {
	var out []string
	for _, x := range p.Puts {
		word := "create "
		if x.Version != 0 {
			word = "put "
		}
		if x.Takes {
			word = "take "
		}
		out = append(out, word+x.Name)
	}
	for _, c := range p.Conflicts {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", c.Reason, c.Name, c.Owner, c.Rollout)))
	}
	for _, g := range p.Prunes {
		out = append(out, "prune "+g.Name)
	}
	for _, l := range p.Later {
		out = append(out, fmt.Sprintf("later %s %s %s%s", l.Name, l.Reason, l.Rollout, strings.Join(l.By, "+")))
	}
	for _, k := range p.Kept {
		out = append(out, "keep "+k)
	}
	if p.Waits {
		out = append(out, "wait")
	}
	for _, r := range p.Refused {
		out = append(out, "refuse: "+r)
	}
	return strings.Join(out, ", ")
}

func TestDecide(t *testing.T) {
	all := []Module{mine("a=1"), mine("b=1"), mine("c=1"), mine("d=1")}
	for _, c := range []struct {
		name string
		in   Input
		want string
	}{
		{"nothing is there", Input{Files: files("a=1", "b=1")}, "create a, create b"},
		{"all is as the files say", Input{Files: files("a=1"), Modules: []Module{mine("a=1")}, Prune: true}, ""},
		{"a file has changed", Input{Files: files("a=2", "b=1"), Modules: []Module{mine("a=1"), mine("b=1")}}, "put a"},
		{"a person has changed it", Input{Files: files("a=1"), Modules: []Module{mine("a=by hand")}}, "put a"},
		{"a person has changed its labels", Input{Files: files("a=1"), Modules: []Module{worded(mine("a=1"))}}, "put a"},
		{"it is being deleted", Input{Files: files("a=1"), Modules: []Module{deleting(mine("a=1"))}}, "create a"},

		{"put by hand", Input{Files: files("a=1", "b=1"), Modules: []Module{owned("a=2", "")}}, "create b, Owned a"},
		{"put by hand, and the same", Input{Files: files("a=1"), Modules: []Module{owned("a=1", "")}}, "Owned a"},
		{"of a set", Input{Files: files("a=1"), Modules: []Module{owned("a=2", "set/team")}}, "Owned a set/team"},
		{"a person resyncs", Input{Files: files("a=1"), Modules: []Module{owned("a=2", "set/team")}, Person: true}, "Owned a set/team"},
		{"a person takes", Input{Files: files("a=1", "b=1"), Modules: []Module{owned("a=1", "catalog/x"), mine("b=1")}, Person: true, Take: true}, "take a"},
		{"what is of others is never pruned", Input{Files: files("a=1"), Modules: []Module{mine("a=1"), owned("b=1", ""), owned("c=1", "set/x")}, Prune: true}, ""},

		{"aborted, and put back by hand", Input{Files: files("a=2"), Modules: []Module{stopped(mine("a=1"), "2")}}, "Stopped a a/5"},
		{"aborted, and as it was put", Input{Files: files("a=2"), Modules: []Module{stopped(mine("a=2"), "2")}}, ""},
		{"aborted, and the file has changed", Input{Files: files("a=3"), Modules: []Module{stopped(mine("a=1"), "2")}}, "put a"},
		{"a person has put what the files say now", Input{Files: files("a=2"), Modules: []Module{put(mine("a=2"), "1")}}, "put a"},
		{"aborted, and a person resyncs", Input{Files: files("a=2"), Modules: []Module{stopped(mine("a=1"), "2")}, Person: true}, "put a"},

		{"paused, and a file has changed", Input{Files: files("a=2", "b=2"), Modules: []Module{paused(mine("a=1")), mine("b=1")}}, "put b, Paused a a/6"},
		{"paused, and a person has changed it", Input{Files: files("a=1"), Modules: []Module{paused(mine("a=by hand"))}}, "Paused a a/6"},
		{"paused, and as the files say", Input{Files: files("a=1"), Modules: []Module{paused(mine("a=1"))}}, ""},
		{"paused, and labels alone go back", Input{Files: files("a=1"), Modules: []Module{paused(worded(mine("a=1")))}}, "put a"},
		{"paused, and a person resyncs", Input{Files: files("a=2"), Modules: []Module{paused(mine("a=1"))}, Person: true}, "put a"},

		{"a rollout lets no other begin", Input{Files: files("a=2", "b=2"), Modules: []Module{running(mine("a=1")), mine("b=1")}}, "put b, later a RolloutRunning a/7"},
		{"nor for a person", Input{Files: files("a=2"), Modules: []Module{running(mine("a=1"))}, Person: true}, "later a RolloutRunning a/7"},
		{"it runs, and a person has changed it", Input{Files: files("a=1"), Modules: []Module{running(mine("a=by hand"))}}, "later a RolloutRunning a/7"},
		{"it runs, and is as the files say", Input{Files: files("a=1"), Modules: []Module{running(mine("a=1"))}}, ""},
		{"it runs, and labels alone change", Input{Files: files("a=1"), Modules: []Module{running(worded(mine("a=1")))}}, "put a"},
		{"it runs, and is paused", Input{Files: files("a=2"), Modules: []Module{paused(running(mine("a=1")))}}, "Paused a a/6"},
		{"it runs, and is another's", Input{Files: files("a=2"), Modules: []Module{running(owned("a=1", ""))}}, "Owned a"},
		{"it runs, and a person takes it", Input{Files: files("a=2"), Modules: []Module{running(owned("a=1", ""))}, Person: true, Take: true}, "Owned a, later a RolloutRunning a/7"},
		{"it runs, and a person takes it as it is", Input{Files: files("a=1"), Modules: []Module{running(owned("a=1", ""))}, Person: true, Take: true}, "take a"},

		{"the rest of what it was put with never came", Input{Files: files("a=1", "b=1"), Modules: []Module{unbegun(mine("a=1")), mine("b=1")}}, "put a"},
		{"nor for what another has taken", Input{Files: files("a=1"), Modules: []Module{unbegun(owned("a=1", ""))}}, "Owned a"},
		{"nor begun, and what runs is paused", Input{Files: files("a=1"), Modules: []Module{unbegun(paused(mine("a=1")))}}, "Paused a a/6"},
		{"nor begun, and what runs lets no other begin", Input{Files: files("a=1"), Modules: []Module{unbegun(running(mine("a=1")))}}, "later a RolloutRunning a/7"},

		{"its record is damaged", Input{Files: files("a=1", "b=2"), Modules: []Module{damaged("a"), mine("b=1")}, Prune: true}, "put b, Damaged a"},
		{"damaged, and a person takes", Input{Files: files("a=1"), Modules: []Module{damaged("a")}, Person: true, Take: true}, "Damaged a"},
		{"damaged, and in no file", Input{Files: files("b=1"), Modules: []Module{damaged("a"), mine("b=1")}, Prune: true}, ""},
		{"damaged ones need what goes", Input{Files: files("b=1"), Modules: []Module{damaged("x", "a"), mine("a=1"), mine("b=1")}, Prune: true}, "later a InUse x"},
		{"a file of a damaged one needs what goes", Input{Files: []File{file("x=1", "a")}, Modules: []Module{damaged("x"), mine("a=1")}, Prune: true},
			"Damaged x, prune a, refuse: module a is in the files no more, but module x, which stays, depends on it: keep it, or take it out of dependsOn there"},

		{"one is taken out, without prune", Input{Files: files("a=1"), Modules: []Module{mine("a=1"), mine("b=1")}}, "keep b"},
		{"one is taken out", Input{Files: files("a=1"), Modules: []Module{mine("a=1"), mine("b=1")}, Prune: true}, "prune b"},
		{"the only one is renamed", Input{Files: files("b=1"), Modules: []Module{mine("a=1")}, Prune: true}, "create b, prune a"},
		{"half goes", Input{Files: files("a=1", "b=1"), Modules: all, Prune: true}, "prune c, prune d"},
		{"more than half goes", Input{Files: files("a=1"), Modules: all, Prune: true}, "prune b, prune c, prune d, wait"},
		{"all go for others", Input{Files: files("x=1", "y=1", "z=1"), Modules: all[:3], Prune: true}, "create x, create y, create z, prune a, prune b, prune c, wait"},
		{"what is being deleted counts on neither side", Input{Files: files("a=1"), Modules: []Module{mine("a=1"), mine("b=1"), deleting(mine("c=1")), deleting(mine("d=1"))}, Prune: true}, "prune b"},

		{"dependents go first", Input{Files: files("x=1", "y=1"), Modules: []Module{mine("x=1"), mine("y=1"), mine("a=1"), mine("b=1", "a")}, Prune: true}, "prune b, prune a"},
		{"what a module of another depends on stays", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1"), {Name: "hand", DependsOn: []string{"a"}}}, Prune: true},
			"prune a, refuse: module a is in the files no more, but module hand, which stays, depends on it: keep it, or take it out of dependsOn there"},
		{"a file lets go of what goes", Input{Files: files("x=2"), Modules: []Module{mine("x=1", "a"), mine("a=1")}, Prune: true}, "put x, prune a"},
		{"clusters have what depends on it", Input{Files: files("x=2", "y=1"), Modules: []Module{needs(mine("x=1", "a"), "a"), mine("y=1"), mine("a=1"), mine("b=1")}, Prune: true}, "put x, prune b, later a InUse x"},
		{"so does a module of another", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), needs(owned("y=1", ""), "a"), mine("a=1")}, Prune: true}, "later a InUse y"},
		{"what goes later needs another", Input{Files: files("x=1"), Modules: []Module{needs(mine("x=1"), "a"), mine("x2=1"), mine("a=1", "b"), mine("b=1"), mine("c=1")}, Prune: true}, "prune c, prune x2, later a InUse x, later b InUse a, wait"},
		{"what goes needs what goes, in clusters alone", Input{Files: files("x=1", "y=1"), Modules: []Module{mine("x=1"), mine("y=1"), mine("a=1"), needs(mine("b=1"), "a")}, Prune: true}, "prune b, prune a"},
		{"what is not put depends on it still", Input{Files: files("x=2"), Modules: []Module{running(mine("x=1", "a")), mine("a=1")}, Prune: true}, "later x RolloutRunning x/7, later a InUse x"},
		{"nor what a person paused", Input{Files: files("x=2"), Modules: []Module{paused(mine("x=1", "a")), mine("a=1")}, Prune: true}, "Paused x x/6, later a InUse x"},
		{"what goes later is asked for before", Input{Files: files("x=2"), Modules: []Module{needs(mine("x=1"), "a", "b"), mine("a=1"), mine("b=1")}, Prune: true}, "put x, later a InUse x, later b InUse x, wait"},
		{"a new file needs what goes", Input{Files: []File{file("x=1"), file("n=1", "a")}, Modules: []Module{mine("x=1"), mine("a=1")}, Prune: true},
			"create n, prune a, refuse: module a is in the files no more, but module n, which stays, depends on it: keep it, or take it out of dependsOn there"},
		{"it was moved to another catalog", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1")}, Prune: true, Elsewhere: map[string]Place{"a": {At: "b/a.yaml:1", Catalog: "other"}}},
			"prune a, refuse: module a is in b/a.yaml:1, which catalog other reads: towline resync catalog other --take has that catalog take it over as it is, else take it out of there"},
		{"two catalogs took each other's", Input{Files: files("x=1"), Modules: []Module{owned("x=0", "catalog/other"), mine("a=1"), mine("b=1")}, Prune: true, Take: true, Elsewhere: map[string]Place{"a": {At: "b/a.yaml:1", Catalog: "other"}}},
			"take x, prune b, keep a"},
		{"it was moved into a folder below", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1")}, Prune: true, Below: map[string]string{"a": "old/a.yaml:1"}},
			"prune a, refuse: module a is in old/a.yaml:1, which is not read: say recursive: true, or move that out of the folder"},
		{"one that goes is wanted by a set", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1"), mine("b=1"), mine("c=1")}, Prune: true, Wanted: map[string]string{"a": "set/s", "c": "set/s"}},
			"Wanted a set/s, Wanted c set/s, prune b"},
		{"what is wanted needs what goes", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1", "b"), mine("b=1")}, Prune: true, Wanted: map[string]string{"a": "set/s"}},
			"Wanted a set/s, prune b, refuse: module b is in the files no more, but module a, which stays, depends on it: keep it, or take it out of dependsOn there"},
		{"what is there is wanted by a set", Input{Files: files("x=2"), Modules: []Module{mine("x=1")}, Prune: true, Wanted: map[string]string{"x": "set/s"}}, "put x"},
		{"nobody knows what another catalog reads", Input{Files: files("x=1"), Modules: []Module{mine("x=1"), mine("a=1")}, Prune: true, Unknown: []string{"catalog other, which is damaged: mend it"}},
			"prune a, refuse: module a is in the files no more, and may be in those of catalog other, which is damaged: mend it"},
		{"nobody knows, and nothing goes", Input{Files: files("x=2"), Modules: []Module{mine("x=1")}, Prune: true, Unknown: []string{"catalog other, which is damaged: mend it"}}, "put x"},
		{"no file is there", Input{Modules: []Module{mine("a=1")}, Prune: true},
			"prune a, refuse: the files have no module, and all of the catalog would go; to delete it with them: towline delete catalog NAME --cascade"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Decide(c.in).text(); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// What is confirmed is exactly what was listed: of other modules, of others under the same names, or of another catalog it says nothing.
func TestDigestOfWhatWaits(t *testing.T) {
	in := Input{Catalog: "one", Files: files("x=1"), Modules: []Module{mine("a=1"), mine("b=1"), mine("c=1")}, Prune: true}
	digestOf := func(in Input) fleet.Digest { return DigestOf(in.Catalog, Decide(in).Goes) }
	was := digestOf(in)
	for name, change := range map[string]func(*Input){
		"another catalog":  func(in *Input) { in.Catalog = "two" },
		"another module":   func(in *Input) { in.Files = append(in.Files, file("c=1")) },
		"made again since": func(in *Input) { in.Modules[0].UID = "other" },
	} {
		other := in
		other.Files, other.Modules = slices.Clone(in.Files), slices.Clone(in.Modules)
		if change(&other); digestOf(other) == was {
			t.Errorf("%s: the digest is the same", name)
		}
	}
	in.Modules[0].Version, in.Files[0].Spec = 99, digest("other")
	if digestOf(in) != was {
		t.Error("a change of what stays asks again")
	}
	in.Modules = append(in.Modules, needs(mine("x=1"), "b"))
	if p := Decide(in); digestOf(in) != was || len(p.Later) != 1 {
		t.Errorf("what goes later asks again: %s", p.text())
	}
}
