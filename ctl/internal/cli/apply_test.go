package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

const shopYAML = `apiVersion: towline.dev/v1
kind: Module
metadata: {name: shop}
spec:
  source: {inline: {files: {a.yaml: "x: y"}}}
  placement: {selector: {matchLabels: {env: prod}}}
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func putAnswer() *v1.PutModuleResponse {
	return &v1.PutModuleResponse{Result: "configured", Rollout: "shop/57", Selected: 120, Total: 300,
		Stages:   []*v1.StageCount{{Name: "canary", Clusters: 6}, {Name: "rest", Clusters: 114}},
		Warnings: []*v1.Note{{Code: "EmptyStage", Facts: &v1.Facts{Stage: "night"}}}}
}

func TestApply(t *testing.T) {
	hub := &fakeHub{put: putAnswer()}
	got := hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "-m", "why not")
	if want := "module/shop configured; rollout shop/57; selects 120 of 300 clusters: canary 6, rest 114\n"; got.out != want {
		t.Errorf("stdout %q, want %q", got.out, want)
	}
	if want := "Warning: module shop: stage night matches no cluster: the rollout waits there\n"; got.err != want || got.code != 0 {
		t.Errorf("exit %d, stderr %q, want 0 and %q", got.code, got.err, want)
	}
	req := asked[*v1.PutModuleRequest](hub)
	if req.GetReason() != "why not" || req.GetDryRun() || req.GetModule().GetMetadata().GetProject() != "default" {
		t.Errorf("the hub was asked %v", req)
	}
}

func TestApplyTellsWhoLosesTheModule(t *testing.T) {
	answer := putAnswer()
	answer.Leaving = 2
	got := (&fakeHub{put: answer}).run(t, run{}, "apply", "-f", write(t, shopYAML), "--dry-run=server")
	if want := "selects 120 of 300 clusters: canary 6, rest 114; leaves 2 clusters, where what it has goes (towline diff says what)\n"; !strings.HasSuffix(got.out, want) {
		t.Errorf("stdout %q, want %q", got.out, want)
	}
	answer.LeavingAsks = true
	got = (&fakeHub{put: answer}).run(t, run{}, "apply", "-f", write(t, shopYAML), "--dry-run=server")
	if want := "(towline diff says what); the rollout waits until that is confirmed: towline get holds\n"; !strings.HasSuffix(got.out, want) {
		t.Errorf("stdout %q, want %q", got.out, want)
	}
}

func TestApplyFromStdinIntoAProject(t *testing.T) {
	hub := &fakeHub{put: putAnswer()}
	got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "-p", "team", "--dry-run=server", "-o", "name")
	if got.out != "module/team/shop\n" || got.code != 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if req := asked[*v1.PutModuleRequest](hub); !req.GetDryRun() || req.GetModule().GetMetadata().GetProject() != "team" {
		t.Errorf("the hub was asked %v", req)
	}
}

func TestApplyWaitIsTheRolloutsResult(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), watch: watching(ended("RolledBack", nil))}
	hub.put.Module = &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default", Uid: "this-one"}}
	got := hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "--wait")
	if got.code != 1 || !strings.Contains(got.out, "shop/57 RolledBack") || strings.Contains(got.err, "Error") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if req := asked[*v1.WatchRolloutRequest](hub); req.GetNumber() != 57 || req.GetModuleUid() != "this-one" {
		t.Error("it did not wait for the rollout that the put started")
	}
}

// Rollouts are followed one after the other. Those whose turn comes after the time is over are as the hub says, not unfinished.
func TestWaitThatIsOverSaysHowRolloutsStand(t *testing.T) {
	three := func(s *v1.RolloutStatus) { s.Total, s.Succeeded = 3, 3 }
	two := shopYAML + "---\n" + strings.ReplaceAll(shopYAML, "name: shop", "name: base")
	late := "Error: rollout shop/57: not done after 1ns; it is Progressing; see: towline explain rollout shop/57\n"
	for name, tc := range map[string]struct {
		stands   *v1.Rollout
		code     int
		err, out string
	}{
		"they have succeeded": {ended("Succeeded", three), 0, "", "shop/57 Succeeded in 6m12s: r41 → r42, 3 of 3 clusters\n"},
		"they have failed":    {ended("Failed", three), 1, "", "shop/57 Failed in 6m12s: r41 → r42, 3 of 3 clusters"},
		"they move":           {surfaceRollout(), 4, late + late, "shop/57 Progressing: r41 → r42, 3 of 300 clusters"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &fakeHub{put: putAnswer(), watch: watching(tc.stands)}
			hub.put.Warnings = nil
			got := hub.run(t, run{stdin: two}, "apply", "-f", "-", "--wait", "--timeout", "1ns")
			if got.code != tc.code || got.err != tc.err || strings.Count(got.out, tc.out) != 2 {
				t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
			}
		})
	}
}

// Each of many rollouts is asked for with a time of its own: a hub that takes two seconds for each of three has said of all how they stand.
// What it says nothing of is not said to be unfinished.
func TestWaitThatIsOverAsksOfEachRollout(t *testing.T) {
	three := func(s *v1.RolloutStatus) { s.Total, s.Succeeded = 3, 3 }
	files := shopYAML
	for _, name := range []string{"base", "cart", "mail"} {
		files += "---\n" + strings.ReplaceAll(shopYAML, "name: shop", "name: "+name)
	}
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{put: putAnswer(), slow: 2 * time.Second, watch: watching(ended("Succeeded", three))}
		hub.put.Warnings = nil
		got := hub.run(t, run{stdin: files, timeout: time.Minute}, "apply", "-f", "-", "--wait", "--timeout", "1ns")
		if got.code != 0 || got.err != "" || strings.Count(got.out, "shop/57 Succeeded in") != 4 {
			t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hub := &fakeHub{put: putAnswer(), slow: time.Hour, watch: watching(ended("Succeeded", three))}
		hub.put.Warnings = nil
		got := hub.run(t, run{timeout: time.Minute}, "apply", "-f", write(t, shopYAML), "--wait", "--timeout", "1ns")
		if got.code != 4 || !strings.Contains(got.err, "rollout shop/57: the hub did not say within 5s how it stands, after the wait of 1ns; see: towline rollout status shop/57") {
			t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
		}
	})
}

// A hub that starts anew between the put and the end of the rollout, or right after that, is waited for: that it was away is
// not the rollout's result.
func TestApplyWaitOutlivesTheHub(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), noWatch: 1, noHolds: 5, watch: watching(ended("Succeeded", func(s *v1.RolloutStatus) { s.Total, s.Succeeded = 3, 3 }))}
	if got := hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "--wait"); got.code != 0 || !strings.Contains(got.err, "trying again") {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	// Who has never met it may have the address wrong.
	hub = &fakeHub{noWatch: 1}
	if got := hub.run(t, run{}, "rollout", "wait", "shop"); got.code != 1 || strings.Contains(got.err, "trying again") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

// What was put and is not delivered, though the rollout has succeeded, is no success of the command.
func TestApplyWaitKnowsWhatWasNotDelivered(t *testing.T) {
	some := func(s *v1.RolloutStatus) { s.Total, s.Succeeded = 3, 3 }
	pinned := func(s *v1.RolloutStatus) {
		s.Total, s.PassedOver, s.Facts = 3, 3, &v1.Facts{Skipped: 3}
	}
	left := []*v1.Tracker{{Module: "shop", Extra: 30}}
	cut := ended("Succeeded", func(s *v1.RolloutStatus) { s.Total = 0 })
	cut.Strategy = &v1.RolloutStrategy{External: &v1.ExternalRollout{}}
	for name, tc := range map[string]struct {
		hub  *fakeHub
		code int
		says string
	}{
		"to no cluster":         {&fakeHub{watch: watching(ended("Succeeded", func(s *v1.RolloutStatus) { s.Total = 0 }))}, 1, "the placement selects no cluster"},
		"taken from all it had": {&fakeHub{watch: watching(ended("Succeeded", func(s *v1.RolloutStatus) { s.Total, s.Deferred, s.PassedOver = 2, 1, 2 }))}, 1, "the placement selects no cluster"},
		"all are pinned":        {&fakeHub{watch: watching(ended("Succeeded", pinned))}, 1, "the placement selects no cluster but such as are skipped or pinned"},
		"some are pinned":       {&fakeHub{watch: watching(ended("Succeeded", func(s *v1.RolloutStatus) { pinned(s); s.Total, s.Succeeded = 4, 1 }))}, 0, ""},
		"prune waits":           {&fakeHub{watch: watching(ended("Succeeded", some)), trackers: left, holds: []*v1.Hold{{Id: "h-1", Kind: "Confirm"}}}, 3, "towline confirm h-1"},
		"leaving waits": {&fakeHub{watch: watching(ended("Succeeded", some)), holds: []*v1.Hold{{Id: "leave-1", Kind: "Confirm", Code: fleet.HoldLeaves, Items: []string{"c1", "c2"}}}}, 3,
			"rollout shop/57: 2 clusters would lose the module; that waits for a person: towline confirm leave-1"},
		"a freeze is no confirm": {&fakeHub{watch: watching(ended("Succeeded", some)), holds: []*v1.Hold{{Id: "h-1", Kind: "Freeze"}}}, 0, ""},
		"another assigns it":     {&fakeHub{watch: watching(cut)}, 0, ""},
		"kept on purpose":        {&fakeHub{watch: watching(ended("Succeeded", some)), trackers: left}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.hub.put = putAnswer()
			got := tc.hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "--wait")
			if got.code != tc.code || !strings.Contains(got.err, tc.says) || tc.code == 0 && strings.Contains(got.err, "Error") {
				t.Errorf("exit %d, stderr %q", got.code, got.err)
			}
		})
	}
}

// What is left is looked for in every cluster, not only in those of the first page: the hub may be about to ask for a confirm.
func TestApplyWaitLooksForLeftoversEverywhere(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), watch: watching(ended("Succeeded", nil)), trackers: make([]*v1.Tracker, 501)}
	for i := range hub.trackers {
		hub.trackers[i] = &v1.Tracker{Module: "shop", Extra: int32(i / 500)}
	}
	hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "--wait")
	if looks := timesAsked[*v1.ListHoldsRequest](hub); looks != 2 {
		t.Errorf("looked for holds %d times, want once more for what is left in the last cluster", looks)
	}
}

// What is put unchanged has no number, and its newest rollout is followed: what is said names that.
func TestApplyWaitNamesTheRolloutOfWhatIsUnchanged(t *testing.T) {
	hub := &fakeHub{put: &v1.PutModuleResponse{Result: "unchanged"}, watch: watching(ended("Succeeded", func(s *v1.RolloutStatus) { s.Total = 0 }))}
	hub.put.Module = &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default"}}
	if got := hub.run(t, run{}, "apply", "-f", write(t, shopYAML), "--wait"); !strings.Contains(got.err, "rollout shop/57: the placement") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestApplyOfWhatIsRefused(t *testing.T) {
	hub := &fakeHub{err: fleet.Invalid("spec.placement", "is empty; name clusters or a selector"), putPlan: &v1.PutClusterResponse{Result: "unchanged"}}
	cluster := "---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1}\n"
	got := hub.run(t, run{}, "apply", "-f", write(t, shopYAML+cluster))
	if want := "Error: module shop: spec.placement: is empty; name clusters or a selector\n" + nothingPut; got.err != want || got.code != 1 {
		t.Errorf("exit %d, stderr %q, want %q", got.code, got.err, want)
	}
	if got.out != "" || len(putsOf(hub)) > 0 {
		t.Errorf("stdout %q, the hub was asked %v", got.out, putsOf(hub))
	}
	hub = &fakeHub{err: fleet.Invalid("module team/shop: a.yaml:2", "is not YAML")}
	if got, want := hub.run(t, run{stdin: shopYAML}, "apply", "-p", "team", "-f", "-"), "Error: module team/shop: a.yaml:2: is not YAML\n"; got.err != want {
		t.Errorf("stderr %q, want %q", got.err, want)
	}
}

func TestApplyNamesTheFieldAndTheNearest(t *testing.T) {
	path := write(t, strings.Replace(shopYAML, "placement:", "placemant:", 1))
	got := (&fakeHub{}).run(t, run{}, "apply", "-f", path)
	if want := "Error: " + path + ":6: module shop: spec.placemant: unknown field; did you mean placement?\n"; got.err != want || got.code != 1 {
		t.Errorf("exit %d, stderr %q, want %q", got.code, got.err, want)
	}
}

// A file that was copied and not renamed has its module twice in one apply: the second would take the place of the first, whose objects
// would go, and neither is put.
func TestApplyRefusesAModuleTwice(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cart.yaml", "shop.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(shopYAML), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hub := setHub("shop", "cart")
	got := hub.run(t, run{}, "apply", "-f", dir)
	want := filepath.Join(dir, "shop.yaml") + ":1: module shop: is in " + filepath.Join(dir, "cart.yaml") + ":1, too"
	if got.code == 0 || !strings.Contains(got.err, want) || len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q; the hub was asked to put %d times", got.code, got.out, got.err, want, len(putsOf(hub)))
	}
}

// A cluster's file that was copied and not renamed: the labels of the second would replace those of the first, by which modules are there.
func TestApplyRefusesAClusterTwice(t *testing.T) {
	const text = "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {env: prod}}\n---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {env: dev}}\n"
	hub := &fakeHub{putPlan: &v1.PutClusterResponse{Result: "configured", Cluster: &v1.Cluster{Metadata: &v1.Metadata{Name: "c1"}}}}
	got := hub.run(t, run{stdin: text}, "apply", "-f", "-")
	if got.code == 0 || len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q; the hub was asked to put %d times", got.code, got.out, got.err, len(putsOf(hub)))
	}
}

// A folder is not given to a module that has files of its own because another one of the same apply takes the folder.
func TestApplyFromOverwritesNoOtherModule(t *testing.T) {
	upload := func(name, of string) string {
		return "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: " + name + "}\nspec: {source: {upload: {" + of + "}}, placement: {selector: {}}}\n---\n"
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("a: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hub := setHub()
	got := hub.run(t, run{stdin: upload("shop", "") + upload("cart", "digest: 'sha256:"+strings.Repeat("ab", 32)+"'")}, "apply", "-f", "-", "--from", dir)
	if want := "module cart has files of its own"; got.code != 2 || !strings.Contains(got.err, want) || len(hub.requests) > 0 {
		t.Errorf("exit %d, stderr %q, want %q; the hub was asked %v", got.code, got.err, want, hub.requests)
	}
}

func TestApplyUsage(t *testing.T) {
	for args, want := range map[string]string{
		"apply":                              "apply: name what to apply with -f FILE, -f DIR or -f -",
		"apply -f x --dry-run=client":        "--dry-run=client: only the hub can tell; use --dry-run=server",
		"apply -f x --dry-run=server --wait": "--dry-run changes nothing, so there is nothing to --wait for",
		"apply -f x -o table":                "-o table: apply prints name, json or yaml",
		"apply shop.yaml":                    "towline apply takes no arguments; name files with -f; see: towline apply --help",
		"apply -f x --timeout soon":          `towline apply: invalid argument "soon" for "--timeout" flag: time: invalid duration "soon"; see: towline apply --help`,
	} {
		got := (&fakeHub{}).run(t, run{}, strings.Fields(args)...)
		if got.code != 2 || got.err != "Error: "+want+"\n" {
			t.Errorf("%s: exit %d, stderr %q, want %q", args, got.code, got.err, want)
		}
	}
}

// What is put unchanged brings nothing that a branch has by now, and says so, unless the source cannot have moved.
func TestApplyOfTheSameSaysThatItDoesNotLook(t *testing.T) {
	const says = "its source was not looked at (towline resync module shop does)"
	for name, tt := range map[string]struct {
		source *v1.Source
		result string
		want   bool
	}{
		"a branch":            {&v1.Source{Git: &v1.GitSource{Ref: &v1.GitRef{Branch: "main"}}}, "unchanged", true},
		"a commit":            {&v1.Source{Git: &v1.GitSource{Ref: &v1.GitRef{Commit: strings.Repeat("1", 40)}}}, "unchanged", false},
		"a tag of a registry": {&v1.Source{Oci: &v1.OciSource{Ref: &v1.OciRef{Tag: "v1"}}}, "unchanged", true},
		"a digest":            {&v1.Source{Oci: &v1.OciSource{Ref: &v1.OciRef{Digest: "sha256:1"}}}, "unchanged", false},
		"a chart":             {&v1.Source{Helm: &v1.HelmSource{Chart: "web"}}, "unchanged", true},
		"a file":              {&v1.Source{Http: &v1.HttpSource{}}, "unchanged", true},
		"a file by its sum":   {&v1.Source{Http: &v1.HttpSource{Sha256: "1"}}, "unchanged", false},
		"a chart's version":   {&v1.Source{Helm: &v1.HelmSource{Chart: "web", Version: "1.2.3"}}, "unchanged", false},
		"files of its own":    {&v1.Source{Inline: &v1.InlineSource{}}, "unchanged", false},
		"another spec":        {&v1.Source{Git: &v1.GitSource{}}, "configured", false},
	} {
		answer := &v1.PutModuleResponse{Result: tt.result, Module: &v1.Module{Metadata: &v1.Metadata{Name: "shop", Project: "default"}, Spec: &v1.ModuleSpec{Source: tt.source}}}
		hub := &fakeHub{put: answer}
		if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-"); got.code != 0 || strings.Contains(got.out, says) != tt.want {
			t.Errorf("%s: exit %d, %s%s", name, got.code, got.out, got.err)
		}
	}
}

// TestRoundTrip: what `get -o yaml` prints goes back into `apply -f -`.
func TestRoundTrip(t *testing.T) {
	for _, format := range []string{"yaml", "json"} {
		for _, what := range [][]string{{"get", "module", "shop"}, {"get", "modules"}} {
			hub := fullHub()
			hub.modules = hub.modules[3:]
			hub.put = &v1.PutModuleResponse{Result: "unchanged", Selected: 300, Total: 300}
			m := hub.modules[0].Metadata
			m.Uid, m.Generation, m.ResourceVersion, m.DeletionTimestamp, m.ChangedBy, m.ChangeReason = "u", 7, 99, ago(0), "maria", "why"
			hub.modules[0].ApiVersion = "towline.dev/v1"
			printed := hub.run(t, run{}, append(what, "-o", format)...)
			got := hub.run(t, run{stdin: printed.out}, "apply", "-f", "-")
			if got.code != 0 || got.out != "module/shop unchanged; selects 300 of 300 clusters\n" {
				t.Fatalf("%v %s: exit %d, stdout %q, stderr %q", what, format, got.code, got.out, got.err)
			}
			want := proto.Clone(hub.modules[0]).(*v1.Module)
			want.Status = nil
			want.Metadata = &v1.Metadata{Name: "shop", Project: "default"}
			if diff := cmp.Diff(want, asked[*v1.PutModuleRequest](hub).GetModule(), protocmp.Transform()); diff != "" {
				t.Errorf("%v %s: (-on the hub +applied)\n%s", what, format, diff)
			}
		}
	}
}

func TestApplyIfUnchangedKeepsTheGeneration(t *testing.T) {
	hub := &fakeHub{put: putAnswer()}
	text := strings.Replace(shopYAML, "{name: shop}", "{name: shop, generation: 7, uid: u}", 1)
	hub.run(t, run{stdin: text}, "apply", "-f", "-", "--if-unchanged")
	if got := asked[*v1.PutModuleRequest](hub).GetModule().GetMetadata(); got.GetGeneration() != 7 || got.GetUid() != "u" {
		t.Errorf("the hub was asked with %v", got)
	}
}

// A cluster that gets other labels comes to other overrides by them: what those leave out goes. While a module of the same apply is
// refused, or is put after the cluster with other overrides, the cluster stays as it is, as one does that a module would leave.
func TestClusterComesToNoOtherOverridesBeforeTheyFollow(t *testing.T) {
	const overrides = "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {source: {inline: {files: {a.yaml: ''}}}, placement: {selector: {}}, " +
		"overrides: [{selector: {matchLabels: {tier: gold}}, patches: [{patch: '{}'}]}]}\n" +
		"---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {tier: gold}}\n"
	loses := &v1.PutClusterResponse{Result: "configured", Loses: []string{"default/shop"}, RemovesObjects: 12}
	for name, tt := range map[string]struct {
		hub  *fakeHub
		args []string
		want string
		puts int
	}{
		"a module is refused": {&fakeHub{put: putAnswer(), refuses: "shop", err: fleet.Invalid("spec.package", "is wrong"), putPlan: loses}, nil,
			"Error: module shop: spec.package: is wrong\n" + nothingPut, 0},
		"the module is put after it": {&fakeHub{put: putAnswer(), putPlan: loses}, nil,
			"Error: cluster c1: by its new labels it would lose objects of module shop before the new shop is put", 0},
		"a dry run says so": {&fakeHub{put: putAnswer(), putPlan: loses}, []string{"--dry-run=server"},
			"Error: cluster c1: by its new labels it would lose objects of module shop before the new shop is put", 0},
		"the module is as it was": {&fakeHub{put: &v1.PutModuleResponse{Result: "unchanged"}, putPlan: loses}, nil, "", 2},
		"nothing goes":            {&fakeHub{put: putAnswer(), putPlan: &v1.PutClusterResponse{Result: "configured"}}, nil, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.hub.run(t, run{stdin: overrides}, append([]string{"apply", "-f", "-"}, tt.args...)...)
			if !strings.Contains(got.err, tt.want) || (got.code == 0) != (tt.want == "") || len(putsOf(tt.hub)) != tt.puts {
				t.Errorf("exit %d, %q; the hub was asked %v", got.code, got.err, putsOf(tt.hub))
			}
		})
	}
}

// The modules of one apply are one batch, so that what one lets go is known to be another's before it is deleted.
func TestModulesOfOneApplyAreABatch(t *testing.T) {
	hub := &fakeHub{put: putAnswer()}
	two := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: base", 1)
	if got := hub.run(t, run{stdin: two}, "apply", "-f", "-"); got.code != 0 {
		t.Fatalf("exit %d, stderr %q", got.code, got.err)
	}
	var puts []*v1.PutModuleRequest
	for _, m := range hub.requests {
		if put, ok := m.(*v1.PutModuleRequest); ok && !put.GetDryRun() {
			puts = append(puts, put)
		}
	}
	if len(puts) != 2 || puts[0].GetBatch() == "" || puts[0].GetBatch() != puts[1].GetBatch() || !puts[0].GetMore() || puts[1].GetMore() {
		t.Errorf("the hub was asked %v", puts)
	}
	hub = &fakeHub{put: putAnswer()}
	hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-")
	if req := asked[*v1.PutModuleRequest](hub); req.GetBatch() != "" {
		t.Errorf("a module alone is a batch: %v", req)
	}
}

// None of several modules is put while one is refused: what one lets go would be deleted, since the other one that is to have it is not
// there.
func TestModulesOfOneApplyArePutTogetherOrNot(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), refuses: "base", err: fleet.Invalid("spec.placement", "is empty"), putPlan: &v1.PutClusterResponse{Result: "unchanged"}}
	all := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: base", 1) + "\n---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1}\n"
	got := hub.run(t, run{stdin: all}, "apply", "-f", "-")
	want := "Error: module base: spec.placement: is empty\n" + nothingPut
	if got.err != want || got.code != 1 || got.out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q", got.code, got.out, got.err, want)
	}
	for _, m := range hub.requests {
		if put, ok := m.(*v1.PutModuleRequest); ok && !put.GetDryRun() {
			t.Errorf("the hub was asked %v", put)
		}
	}
}

// A cluster whose new labels make a module leave it is not put while a module is refused: the placement that was to follow the labels
// does not come, and what the module has there would be deleted.
func TestNoClusterMovesWhileAModuleIsRefused(t *testing.T) {
	cluster := "\n---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {team: b}}\n"
	hub := &fakeHub{put: putAnswer(), refuses: "base", err: fleet.Invalid("spec.package", "is wrong"),
		putPlan: &v1.PutClusterResponse{Result: "configured", Leaves: []string{"default/shop"}, RemovesObjects: 12}}
	two := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: base", 1)
	for _, all := range []string{two, strings.Replace(shopYAML, "name: shop", "name: base", 1)} {
		hub.requests = nil
		got := hub.run(t, run{stdin: all + cluster}, "apply", "-f", "-")
		if want := "Error: module base: spec.package: is wrong\n" + nothingPut; got.err != want || got.code != 1 || got.out != "" {
			t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
		}
		if puts := putsOf(hub); len(puts) > 0 {
			t.Errorf("the hub was asked %v", puts)
		}
	}
}

// A cluster that is refused, of which the hub says nothing, or whose put is lost, has the labels of before: no module is put whose placement may
// follow those that it was to get.
func TestNoModuleIsPutWhenAClusterIsNot(t *testing.T) {
	cluster := "\n---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {team: b}}\n"
	for _, tt := range []struct {
		hub  *fakeHub
		want string
		puts int // of clusters
	}{
		{&fakeHub{badCluster: fleet.Invalid("metadata.labels", "is wrong")}, "Error: cluster c1: metadata.labels: is wrong\n" + nothingPut, 0},
		{&fakeHub{badCluster: fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping")}, "the hub is stopping\n" + nothingPut, 0},
		{&fakeHub{badPut: fleet.Errorf(fleet.ErrConflict, "cluster c1 was changed meanwhile")}, "was changed meanwhile\nError: not put, because of that: module shop\n", 1},
	} {
		tt.hub.put, tt.hub.putPlan = putAnswer(), &v1.PutClusterResponse{}
		got := tt.hub.run(t, run{stdin: shopYAML + cluster}, "apply", "-f", "-")
		if got.code != 1 || got.out != "" || !strings.HasSuffix(got.err, tt.want) || len(putsOf(tt.hub)) != tt.puts {
			t.Errorf("exit %d, stdout %q, stderr %q, want %q; the hub was asked %v", got.code, got.out, got.err, tt.want, putsOf(tt.hub))
		}
	}
}

// One put of several is lost, though all were checked: the batch stays open, so that none of the others begins at once without that.
func TestBatchOfWhichAPutIsLostStaysOpen(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), loses: "base"}
	all := shopYAML
	for _, name := range []string{"base", "web"} {
		all += "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: "+name, 1)
	}
	got := hub.run(t, run{stdin: all}, "apply", "-f", "-")
	if got.code != 1 || !strings.Contains(got.err, "was changed meanwhile") || !strings.Contains(got.err, "apply all of them again") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	for _, put := range putsOf(hub) {
		if m := put.(*v1.PutModuleRequest); m.GetBatch() == "" || !m.GetMore() {
			t.Errorf("%s ends the batch", m.GetModule().GetMetadata().GetName())
		}
	}
}

// The labels of clusters and the placements that select by them change in one apply. Clusters are put first: by the placements of
// before, modules would leave them, and come again.
func TestClusterIsNotRelabelledBeforeItsModulesFollow(t *testing.T) {
	module := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {source: {inline: {files: {a.yaml: ''}}}, placement: {selector: {matchLabels: {team: b}}}}\n"
	cluster := "---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {team: b}}\n"
	hub := &fakeHub{put: putAnswer(), putPlan: &v1.PutClusterResponse{Result: "configured", Leaves: []string{"default/shop"}, RemovesObjects: 12}}
	const want = "Error: cluster c1: module shop would leave it before its new placement is put, and what it has there would be deleted: first apply module shop with a placement that selects the labels of before and of now\n"
	got := hub.run(t, run{stdin: module + cluster}, "apply", "-f", "-")
	if !strings.HasPrefix(got.err, want) || got.code != 1 || got.out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
	if puts := putsOf(hub); len(puts) > 0 {
		t.Errorf("the hub was asked %v", puts)
	}
	if got := hub.run(t, run{stdin: module + cluster}, "apply", "--dry-run=server", "-f", "-"); got.code != 1 || !strings.HasSuffix(got.err, want) {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	// What is to leave the cluster does.
	hub.requests = nil
	if got := hub.run(t, run{stdin: strings.Replace(module, "team: b", "team: a", 1) + cluster}, "apply", "-f", "-"); got.code != 0 || len(putsOf(hub)) != 2 {
		t.Errorf("exit %d, stderr %q, the hub was asked %v", got.code, got.err, putsOf(hub))
	}
}

// A cluster that has its labels already moves by nothing: a placement that has the module there again is put, before it is gone.
func TestPlacementFollowsLabelsThatAreThere(t *testing.T) {
	module := "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {source: {inline: {files: {a.yaml: ''}}}, placement: {selector: {matchLabels: {team: b}}}}\n"
	c1 := &v1.Cluster{Metadata: &v1.Metadata{Name: "c1", Labels: map[string]string{"team": "b"}}}
	hub := &fakeHub{put: putAnswer(), clusters: []*v1.Cluster{c1}, putPlan: &v1.PutClusterResponse{Result: "unchanged", Leaves: []string{"default/shop"}}}
	cluster := "---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {team: b}}\n"
	if got := hub.run(t, run{stdin: module + cluster}, "apply", "-f", "-"); got.code != 0 || len(putsOf(hub)) != 2 {
		t.Errorf("exit %d, stderr %q, the hub was asked %v", got.code, got.err, putsOf(hub))
	}
}

// putsOf are the puts that change something.
func putsOf(h *fakeHub) (out []proto.Message) {
	for _, m := range h.requests {
		if put, ok := m.(interface{ GetDryRun() bool }); ok && !put.GetDryRun() {
			out = append(out, m)
		}
	}
	return out
}
