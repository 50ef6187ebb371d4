package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// setHub has modules of sets, and one that is of none.
func setHub(names ...string) *fakeHub {
	hub := &fakeHub{put: &v1.PutModuleResponse{Result: "unchanged", Selected: 1, Total: 1}, gone: &v1.DeleteModuleResponse{Objects: 3, Clusters: 1}}
	for i, name := range names {
		origin, name, found := strings.Cut(name, ":")
		if !found {
			origin, name = "", origin
		}
		hub.modules = append(hub.modules, &v1.Module{Metadata: &v1.Metadata{Name: name, Project: "default", Uid: "u-" + name, ResourceVersion: int64(i + 7), Origin: origin}, Spec: &v1.ModuleSpec{}})
	}
	return hub
}

func deletionsOf(h *fakeHub) (out []*v1.DeleteModuleRequest) {
	for _, m := range h.requests {
		if r, ok := m.(*v1.DeleteModuleRequest); ok && !r.GetDryRun() {
			out = append(out, r)
		}
	}
	return out
}

// What is of the set and not in the files goes, as it was seen, and nothing else does.
func TestApplyPrunesItsSetOnly(t *testing.T) {
	hub := setHub("set/a:shop", "set/a:old", "set/b:other", "alone", "set/a:keep")
	two := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: keep", 1)
	got := hub.run(t, run{stdin: two}, "apply", "-f", "-", "--set", "a", "--prune", "-m", "gone")
	if got.code != 0 || !strings.HasSuffix(got.out, "module/old pruned; removes 3 objects in 1 cluster, or hands them to modules that list them\n") {
		t.Fatalf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	want := &v1.DeleteModuleRequest{Project: "default", Name: "old", Uid: "u-old", ResourceVersion: 8, Reason: "gone", Batch: asked[*v1.PutModuleRequest](hub).GetBatch(), Set: "a"}
	if gone := deletionsOf(hub); len(gone) != 1 || !proto.Equal(gone[0], want) {
		t.Errorf("the hub was asked to delete %v, want %v", gone, want)
	}
	for _, m := range hub.requests {
		if put, ok := m.(*v1.PutModuleRequest); ok && (put.GetSet() != "a" || put.GetTake()) {
			t.Errorf("the hub was asked %v", put)
		}
	}
}

// A hub that is too old for what goes with a batch says so before anything is put, and the command says what to do; where nothing goes it is
// not asked for that.
func TestPruneOfAnOlderHub(t *testing.T) {
	hub := setHub("set/a:old", "set/a:shop")
	hub.older = true
	got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--yes")
	if got.code != exitFailed || !strings.Contains(got.err, "upgrade the hubs first") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	for _, m := range hub.requests {
		if put, is := m.(*v1.PutModuleRequest); is && !put.GetDryRun() {
			t.Errorf("put: %v", put)
		}
	}
	if gone := deletionsOf(hub); len(gone) > 0 {
		t.Errorf("deleted: %v", gone)
	}
	if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--dry-run=server"); got.code == 0 {
		t.Errorf("the dry run says nothing of it: %q", got.out)
	}
	hub = setHub("set/a:shop")
	hub.older = true
	if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune"); got.code != 0 {
		t.Errorf("nothing goes: exit %d, stderr %q", got.code, got.err)
	}
}

// What goes belongs to the batch of what is put, also of one module, so that one which is renamed waits for what the old one has: the puts say that
// deletions come, and the last of these ends the batch. Without deletions, or in a dry run, there is none.
func TestPruneBelongsToTheBatch(t *testing.T) {
	hub := setHub("set/a:old", "set/a:older")
	if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--yes"); got.code != 0 {
		t.Fatalf("exit %d, %s", got.code, got.err)
	}
	put, gone := asked[*v1.PutModuleRequest](hub), deletionsOf(hub)
	if put.GetBatch() == "" || put.GetMore() || !put.GetDeletes() {
		t.Errorf("the put: %v", put)
	}
	if len(gone) != 2 || gone[0].GetBatch() != put.GetBatch() || gone[1].GetBatch() != put.GetBatch() || !gone[0].GetMore() || gone[1].GetMore() {
		t.Errorf("the deletions: %v", gone)
	}
	for _, m := range hub.requests {
		if r, is := m.(*v1.DeleteModuleRequest); is && r.GetDryRun() && r.GetBatch() != "" {
			t.Errorf("a question belongs to the batch: %v", r)
		}
	}
	hub = setHub("set/a:shop")
	hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune")
	if put := asked[*v1.PutModuleRequest](hub); put.GetBatch() != "" || put.GetDeletes() {
		t.Errorf("nothing goes: %v", put)
	}
}

// A dry run tells the same, and does nothing.
func TestApplyPruneDryRun(t *testing.T) {
	hub := setHub("set/a:shop", "set/a:old", "set/a:older")
	got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--dry-run=server")
	if got.code != 0 || !strings.Contains(got.out, "module/old pruned (server dry run); removes 3 objects in 1 cluster, or hands them to modules that list them\nmodule/older pruned (server dry run)") || len(deletionsOf(hub)) > 0 || len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, %v", got.code, got.out, got.err, hub.requests)
	}
}

// Nothing is deleted when the files cannot be read, have no module, or are not put whole, and nothing at all is done where a module that
// stays depends on what would go.
func TestApplyPrunesNothingByMistake(t *testing.T) {
	cluster := "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1}\n"
	dependent := setHub("set/a:shop", "set/a:old", "alone")
	dependent.modules[2].Spec.DependsOn = []*v1.Dependency{{Module: "old"}}
	refuses := setHub("set/a:shop", "set/a:old")
	refuses.err = fleet.Invalid("spec.placement", "is empty")
	refusesToDelete := setHub("set/a:shop", "set/a:old")
	refusesToDelete.kept = fleet.Errorf(fleet.ErrCorrupt, "module old: it is damaged")
	for name, tc := range map[string]struct {
		hub   *fakeHub
		stdin string
		args  string
		want  string
		puts  int
	}{
		"no YAML":           {setHub("set/a:old"), "a: [", "", "is no YAML", 0},
		"empty":             {setHub("set/a:old"), "", "", "stdin: is empty: was it cut off?", 0},
		"a list of nothing": {setHub("set/a:old"), shopYAML + "\n---\napiVersion: v1\nkind: List\nitems: []\n", "", "items: is empty: did what printed the list find nothing?", 0},
		"only a comment":    {setHub("set/a:old"), "# all gone", "", "there is no resource in it", 0},
		"one file is wrong": {setHub("set/a:old"), shopYAML + "\n---\nkind: Module\n", "", "apiVersion", 0},
		"no module":         {setHub("set/a:old"), cluster, "", "--prune: the files have no module, and all of set a would go", 0},
		"a put fails":       {refuses, shopYAML, "", "nothing is pruned, because not all of the files is put: module old would go", 0},
		"is needed":         {dependent, shopYAML, "", "module old is in the files no more, but module alone, which stays, depends on it", 0},
		"another project":   {setHub("set/a:old"), strings.Replace(shopYAML, "name: shop", "name: shop, project: team", 1), "", "module shop is of project team: --prune is of one project", 0},
		"may not go":        {refusesToDelete, shopYAML, "", "module old would not be pruned: module old: it is damaged", 0},
		"most of it":        {setHub("set/a:shop", "set/a:old", "set/a:older"), shopYAML, "", "prune 2 of the 3 modules of set a (hub hub.test:7444): module old removes 3 objects in 1 cluster, or hands them to modules that list them; module older removes 3 objects in 1 cluster, or hands them to modules that list them; say --yes", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.hub.run(t, run{stdin: tc.stdin}, append([]string{"apply", "-f", "-", "--set", "a", "--prune"}, strings.Fields(tc.args)...)...)
			if got.code == 0 || !strings.Contains(got.err, tc.want) || len(deletionsOf(tc.hub)) > 0 || len(putsOf(tc.hub)) != tc.puts {
				t.Errorf("exit %d, stderr %q, want %q; the hub was asked %v", got.code, got.err, tc.want, tc.hub.requests)
			}
		})
	}
	hub := setHub("set/a:shop", "set/a:old", "set/a:older")
	if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--yes"); got.code != 0 || len(deletionsOf(hub)) != 2 {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

// A module whose file was moved into a folder below, which is not read without -R, is not taken for one that is in the files no more.
func TestApplyPrunesNothingThatIsBelow(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "team", "old.yaml")
	for file, text := range map[string]string{filepath.Join(dir, "shop.yaml"): shopYAML, below: strings.Replace(shopYAML, "name: shop", "name: old", 1),
		filepath.Join(dir, "team", "chart.yaml"): "{{ range }}"} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hub := setHub("set/a:shop", "set/a:old", "set/a:keep")
	got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a", "--prune", "--yes")
	if want := "module old is in " + below; got.code == 0 || !strings.Contains(got.err, want) || !strings.Contains(got.err, "-R") || len(deletionsOf(hub))+len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stderr %q, want %q; the hub was asked %v", got.code, got.err, want, hub.requests)
	}
	must(os.Remove(below))
	hub = setHub("set/a:shop", "set/a:old")
	if got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a", "--prune"); got.code != 0 || len(deletionsOf(hub)) != 1 {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

// A module whose file was moved into a folder below, and that cannot be read there, is not taken for one that is in the files no more: of such a
// file, and of a folder that cannot be looked into, nobody knows what it has. What says nothing of the module holds up nothing.
func TestApplyPrunesNothingThatMayBeBelow(t *testing.T) {
	old := strings.Replace(shopYAML, "name: shop", "name: old", 1)
	for name, tc := range map[string]struct {
		file, text string
		want       string
	}{
		"a merge's marker":    {"team/old.yaml", old + "\n<<<<<<< HEAD\n", "module old is in the files no more, and may be in what cannot be read: "},
		"a tab in another":    {"team/all.yaml", old + "\n---\n\tx: 1\n", "module old is in the files no more, and may be in what cannot be read: "},
		"of another module":   {"team/new.yaml", shopYAML + "\n<<<<<<< HEAD\n", ""},
		"a chart's template":  {"team/old.yaml", "{{ if .Values.old }}\na: b\n{{ end }}\n", ""},
		"a link to nowhere":   {"team/link", "../../away", "module old is in the files no more, and may be in what cannot be read: "},
		"a list of something": {"team/values.yaml", "- old\n", ""},
		"encrypted":           {"team/secret.yaml", "\x00GITCRYPT\x00\xd7\x1e\x82\x9a", "module old is in the files no more, and may be in what cannot be read: "},
		"in Git LFS":          {"team/all.yaml", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n", "module old is in the files no more, and may be in what cannot be read: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(shopYAML), 0o600))
			must(os.Mkdir(filepath.Join(dir, "team"), 0o700))
			if path := filepath.Join(dir, tc.file); strings.HasSuffix(tc.file, "link") {
				must(os.Symlink(tc.text, path))
			} else {
				must(os.WriteFile(path, []byte(tc.text), 0o600))
			}
			hub := setHub("set/a:shop", "set/a:old", "set/a:keep")
			got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a", "--prune", "--yes")
			if tc.want == "" {
				if got.code != 0 || len(deletionsOf(hub)) != 2 {
					t.Errorf("exit %d, stderr %q; the hub was asked to delete %v", got.code, got.err, deletionsOf(hub))
				}
				return
			}
			if want := tc.want + filepath.Join(dir, tc.file) + ":"; got.code == 0 || !strings.Contains(got.err, want) || len(deletionsOf(hub))+len(putsOf(hub)) > 0 {
				t.Errorf("exit %d, stderr %q, want %q; the hub was asked %v", got.code, got.err, want, hub.requests)
			}
		})
	}
}

// A file that is empty, as the shell leaves it for a program that fails: what it had does not count as taken away. Without --prune it is nobody's
// matter.
func TestApplyPrunesNothingOfAnEmptyFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cart.yaml": "\n", "shop.yaml": shopYAML} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hub := setHub("set/a:shop", "set/a:cart")
	got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a", "--prune")
	if want := filepath.Join(dir, "cart.yaml") + ": is empty"; got.code == 0 || !strings.Contains(got.err, want) || len(deletionsOf(hub))+len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q; the hub was asked %v", got.code, got.out, got.err, want, hub.requests)
	}
	if got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a"); got.code != 0 || len(putsOf(hub)) != 1 {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

// A file that was copied and not renamed: what it was to be does not count as taken away.
func TestApplyPrunesNothingWhereAModuleIsTwice(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cart.yaml", "shop.yaml"} { // cart.yaml says name: shop, as it was copied
		if err := os.WriteFile(filepath.Join(dir, name), []byte(shopYAML), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hub := setHub("set/a:shop", "set/a:cart")
	got := hub.run(t, run{}, "apply", "-f", dir, "--set", "a", "--prune")
	if gone := deletionsOf(hub); got.code == 0 || len(gone) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q; the hub was asked to delete %v", got.code, got.out, got.err, gone)
	}
}

// A folder that is a link, as to a base that several environments share, is not read, with -R neither: what is in it was not taken away.
func TestApplyPrunesNothingBehindALink(t *testing.T) {
	for name, args := range map[string][]string{"with -R": {"-R"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			env, shared := filepath.Join(root, "prod"), filepath.Join(root, "shared")
			for file, text := range map[string]string{filepath.Join(env, "shop.yaml"): shopYAML, filepath.Join(shared, "old.yaml"): strings.Replace(shopYAML, "name: shop", "name: old", 1)} {
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("../shared", filepath.Join(env, "shared")); err != nil {
				t.Fatal(err)
			}
			hub := setHub("set/a:shop", "set/a:old")
			got := hub.run(t, run{}, append([]string{"apply", "-f", env, "--set", "a", "--prune"}, args...)...)
			if gone := deletionsOf(hub); len(gone) > 0 {
				t.Errorf("exit %d, stdout %q, stderr %q; the hub was asked to delete %v", got.code, got.out, got.err, gone)
			}
		})
	}
}

// Modules go in the order of what depends on what.
func TestApplyPrunesDependentsFirst(t *testing.T) {
	hub := setHub("set/a:base", "set/a:shop", "set/a:mid", "set/a:top")
	hub.modules[2].Spec.DependsOn = []*v1.Dependency{{Module: "base"}}
	hub.modules[3].Spec.DependsOn = []*v1.Dependency{{Module: "mid"}}
	hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--yes")
	var names []string
	for _, r := range deletionsOf(hub) {
		names = append(names, r.GetName())
	}
	if strings.Join(names, " ") != "top mid base" {
		t.Errorf("deleted %v", names)
	}
}

// What the clusters need until the rollouts of the apply are through goes after them with --wait; without it, it stays, and that is said.
func TestApplyPrunesWhatIsNeededStillAfterTheRollouts(t *testing.T) {
	for args, want := range map[string]struct {
		code, asked int
	}{"": {1, 1}, "--wait": {0, 2}} {
		hub := setHub("set/a:shop", "set/a:old")
		hub.needed, hub.removes = 1, true
		hub.watch = watching(&v1.Rollout{Id: "shop/1", Module: "shop", Number: 1, Status: &v1.RolloutStatus{State: "Succeeded", Total: 1}})
		hub.put.Rollout = "shop/1"
		got := hub.run(t, run{stdin: shopYAML}, append([]string{"apply", "-f", "-", "--set", "a", "--prune"}, strings.Fields(args)...)...)
		if got.code != want.code || len(deletionsOf(hub)) != want.asked || (want.code != 0) != strings.Contains(got.err, "module old is not pruned: module old: a revision of shop that clusters have depends on it") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; the hub was asked %d times", args, got.code, got.out, got.err, len(deletionsOf(hub)))
		}
		if says := "module/old is pruned after the rollouts, for clusters need it until then\n"; want.code == 0 && !strings.Contains(got.err, says) {
			t.Errorf("%q: stderr %q does not say %q", args, got.err, says)
		}
	}
}

// TestApplyPrunesWhatIsRenamedNow: where a module is new that may take the place of one that is needed still, for others need it now, it is said how
// the rollouts go on, and only there: the command deletes what others depend on.
func TestApplyPrunesWhatIsRenamedNow(t *testing.T) {
	const new = "---\napiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: base2}\nspec:\n  source: {inline: {files: {a.yaml: \"x: y\"}}}\n"
	const says = "if module base2 is to take its place, that is in conflict meanwhile, and if the rollouts wait for it, have this one go now: towline delete module old --force\n"
	for name, needed := range map[string]bool{"needed": true, "not needed": false} {
		hub := setHub("set/a:old")
		hub.needed, hub.removes = 1, true
		hub.watch = watching(&v1.Rollout{Id: "shop/1", Module: "shop", Number: 1, Status: &v1.RolloutStatus{State: "Succeeded", Total: 1}})
		hub.put.Rollout, hub.put.Result = "shop/1", "created"
		files := shopYAML + new
		if needed {
			files = shopYAML + "  dependsOn: [{module: base2}]\n" + new
		}
		got := hub.run(t, run{stdin: files}, "apply", "-f", "-", "--set", "a", "--prune", "--wait", "--yes")
		if strings.Contains(got.err, says) != needed || strings.Contains(got.err, "--force") != needed {
			t.Errorf("%s: exit %d, stderr %q", name, got.code, got.err)
		}
	}
}

// --timeout is of the whole command: what is pruned, and does not go, is not waited for one after the other with a time of its own for each.
// What is gone when the time is over is not called left.
func TestApplyPruneWaitsNoLongerThanItsTime(t *testing.T) {
	hub := setHub("set/a:shop", "set/a:one", "set/a:two", "set/a:three")
	hub.watch, hub.put.Rollout = watching(ended("Succeeded", nil)), "shop/57"
	watched := 0
	got := hub.run(t, run{stdin: shopYAML, noticed: func(m proto.Message) {
		if _, is := m.(*v1.WatchModulesRequest); is {
			watched++
		}
		if r, is := m.(*v1.GetModuleRequest); is && r.GetName() == "three" { // asked for when the time is over
			hub.modules = hub.modules[:3]
		}
	}}, "apply", "-f", "-", "--set", "a", "--prune", "--yes", "--wait", "--timeout", "500ms")
	want := "Error: module one: not gone after 500ms: -; it goes on by itself\nError: module two: not gone after 500ms: -; it goes on by itself\n"
	if got.code != exitTimedOut || !strings.HasSuffix(got.err, want) || watched != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q, %d waits", got.code, got.out, got.err, watched)
	}
}

func TestSetUsage(t *testing.T) {
	for args, want := range map[string]string{
		"apply -f x --prune":         "--prune deletes what is of a set and not in the files: name it with --set",
		"apply -f x --set=":          "--set is empty: name the set",
		"apply -f x --set A_b":       "--set A_b: ",
		"apply -f x --set a --yes":   "--yes is for --prune",
		"apply -f x --take -y --set": "",
	} {
		got := (&fakeHub{}).run(t, run{}, strings.Fields(args)...)
		if got.code != 2 || !strings.HasPrefix(got.err, "Error: "+want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", args, got.code, got.err, want)
		}
	}
}
