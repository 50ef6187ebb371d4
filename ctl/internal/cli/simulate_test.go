package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

const simulatedShop = `apiVersion: towline.dev/v1
kind: Module
metadata: {name: shop}
spec:
  source: {inline: {files: {a.yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"}}}
  placement: {selector: {matchLabels: {env: prod}}}
  rollout:
    stages:
    - {name: canary, selector: {matchLabels: {ring: canary}}, soak: 5m, after: [{approval: {}}]}
    - {name: rest, maxConcurrency: 50%}
    onFailure: Rollback
`

// simulatedClusters are c1 in the canary, c2 to c5 behind it, and one that the placement does not select.
func simulatedClusters(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for name, labels := range map[string]string{"c1": "env: prod, ring: canary", "c2": "env: prod", "c3": "env: prod", "c4": "env: prod",
		"c5": "env: prod", "dev": "env: dev"} {
		b.WriteString("---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: " + name + ", labels: {" + labels + "}}\n")
	}
	return writeFile(t, b.String())
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSimulateWithoutAHub(t *testing.T) {
	hub := &fakeHub{}
	got := hub.run(t, run{stdin: simulatedShop}, "rollout", "simulate", "-f", "-", "--clusters", simulatedClusters(t), "--ready-after", "10s-10s",
		"--gate-time", "1m", "--fail", "c4")
	same(t, got.out, `
Simulation of shop/1   r1 → r2   5 clusters   seed 1

   AT  WHAT                              CHANGE
   0s  stage canary                      Pending → Progressing
   0s  rollout                           Pending → Progressing
   0s  step 1                            1 cluster to r2: c1
  10s  rollout                           Progressing → Waiting: Soak: stage canary soaks until 03:19:25
5m10s  gate approval after stage canary  Pending → Running
5m10s  rollout                           Waiting → Waiting: Approval: gate approval after stage canary: 0 of 1 approved
6m10s  gate approval after stage canary  Running → Successful: approved by approver-1
6m10s  stage canary                      Progressing → Succeeded
6m10s  stage rest                        Pending → Progressing
6m10s  rollout                           Waiting → Progressing
6m10s  step 2                            2 clusters to r2: c2, c3
6m20s  step 3                            2 clusters to r2: c4, c5
6m30s  rollout                           Progressing → RollingBack: TooManyFailures: 1 of 5 clusters failed, 0 tolerated
6m30s  clusters                          Progressing → Failed: Simulated: fails in this simulation: c4
6m30s  step 4                            5 clusters to r1: c5, c4, c3, c2, c1
6m40s  rollout                           RollingBack → RolledBack: TooManyFailures: 5 clusters moved back to r1; the module stays there

STAGE     STATE       DONE  FAILED  DEFERRED  SKIPPED  TO GO  LIMIT
1 canary  RolledBack   0/1       0         0        0      0      1
2 rest    RolledBack   0/4       0         0        0      0      2

RolledBack after 6m40s, 4 steps. 5 clusters moved back to r1; the module stays there.
At most 5 of 5 clusters not ready at once, first at 6m30s.
`)
	if got.code != 0 || got.err != "" {
		t.Errorf("exit %d, %s", got.code, got.err)
	}
	if len(hub.requests) > 0 {
		t.Errorf("a hub was asked: %v", hub.requests)
	}
}

// TestSimulateLive: clusters, what they run, who is away and what is pinned are those of the hub.
func TestSimulateLive(t *testing.T) {
	pinned := surfaceRollout()
	pinned.Status.Clusters = []*v1.ClusterProgress{{Cluster: "prod-eu-11", State: "Succeeded", Since: ago(day)}} // as of one that has the revision
	hub := &fakeHub{modules: surfaceModules(), clusters: surfaceClusters(), rollouts: []*v1.Rollout{pinned}, revisions: revisionEverywhere(41)}
	for _, c := range hub.clusters {
		hub.trackers = append(hub.trackers, &v1.Tracker{Project: "default", Module: "shop", Cluster: c.GetMetadata().GetName(), Revision: 41})
		if c.GetMetadata().GetName() == "prod-eu-11" {
			c.Status.Pins = []*v1.Pin{{Project: "default", Module: "shop", Revision: 41, By: "ana", Since: ago(day)}}
		} else {
			c.Status.Pins = []*v1.Pin{{Project: "default", Module: "base", Revision: 1, By: "ana", Since: ago(day)}}
		}
	}
	module := strings.Replace(simulatedShop, "{name: canary, selector: {matchLabels: {ring: canary}}, soak: 5m, after: [{approval: {}}]}", "{name: all}", 1)
	module = strings.Replace(module, "    - {name: rest, maxConcurrency: 50%}\n", "", 1)
	got := hub.run(t, run{}, "rollout", "simulate", "-f", writeFile(t, module), "-o", "json")
	var out simulation
	if err := json.Unmarshal([]byte(got.out), &out); err != nil {
		t.Fatalf("%v: %s%s", err, got.out, got.err)
	}
	if out.Module != "shop" || out.FromRevision != 41 || out.Revision != 43 || out.Clusters != 4 || out.State != "Succeeded" || out.MaxNotReady != 1 {
		t.Errorf("%+v", out)
	}
	if s := out.Stages[0]; s.Done != 1 || s.Deferred != 2 || s.Skipped != 1 {
		t.Errorf("one that is there, two away, one pinned: %+v", s)
	}
	at := slices.IndexFunc(out.Events, func(e simEvent) bool { return e.Subject == simAbout{Kind: "Step", Name: "1"} })
	if at < 0 || len(out.Events[at].Clusters) != 1 || out.Events[at].Clusters[0] != "prod-eu-01" {
		t.Errorf("events: %+v", out.Events)
	}
}

// TestSimulateOfWhatIsThereAlready: a put of it would begin no rollout, whatever the timeline of another revision is, unless the one before failed and
// is tried again.
func TestSimulateOfWhatIsThereAlready(t *testing.T) {
	const says = "Module shop is as the file says: apply begins no rollout and changes nothing. What another revision would do by it:"
	for name, tc := range map[string]struct {
		file string
		put  *v1.PutModuleResponse
		want bool
	}{
		"the same":                     {simulatedShop, &v1.PutModuleResponse{Result: "unchanged"}, true},
		"the same, with another label": {simulatedShop, &v1.PutModuleResponse{Result: "configured"}, true},
		"the same, which failed":       {simulatedShop, &v1.PutModuleResponse{Result: "configured", Rollout: "shop/2"}, false},
		"another":                      {strings.Replace(simulatedShop, "soak: 5m", "soak: 6m", 1), &v1.PutModuleResponse{Result: "unchanged"}, false},
	} {
		loaded, err := resource.Load([]string{writeFile(t, simulatedShop)}, resource.Options{Kinds: inFiles()})
		must(err)
		is := loaded[0].Message.(*v1.Module)
		is.Metadata.Project, is.Status = "default", &v1.ModuleStatus{Revision: 1, SucceededRevision: 1}
		hub := &fakeHub{modules: []*v1.Module{is}, revisions: revisionEverywhere(1), put: tc.put}
		file := writeFile(t, tc.file)
		got := hub.run(t, run{}, "rollout", "simulate", "-f", file)
		if got.code != 0 || strings.Contains(got.out, says) != tc.want || !strings.Contains(got.out, "r1 → r2") {
			t.Errorf("%s: exit %d\n%s%s", name, got.code, got.out, got.err)
		}
		if got := hub.run(t, run{}, "rollout", "simulate", "-f", file, "-o", "json"); strings.Contains(got.out, `"unchanged": true`) != tc.want {
			t.Errorf("%s: %s", name, got.out)
		}
		if len(putsOf(hub)) > 0 {
			t.Errorf("%s: was put", name)
		}
	}
}

// TestSimulateOfADeletedModule: a put makes another module, when what the deleted one has is gone, or is refused.
func TestSimulateOfADeletedModule(t *testing.T) {
	for says, refused := range map[string]error{
		"Module shop is being deleted: an apply makes another one of its name": nil,
		"An apply is refused: module shop is being deleted, and held":          fleet.Errorf(fleet.ErrPrecondition, "module shop is being deleted, and held in cluster c1"),
	} {
		loaded, err := resource.Load([]string{writeFile(t, simulatedShop)}, resource.Options{Kinds: inFiles()})
		must(err)
		is := loaded[0].Message.(*v1.Module)
		is.Metadata.Project, is.Metadata.DeletionTimestamp = "default", timestamppb.Now()
		is.Status = &v1.ModuleStatus{Revision: 1, SucceededRevision: 1}
		hub := &fakeHub{modules: []*v1.Module{is}, revisions: revisionEverywhere(1), putRefused: refused, put: &v1.PutModuleResponse{}}
		file := writeFile(t, simulatedShop)
		if got := hub.run(t, run{}, "rollout", "simulate", "-f", file); got.code != 0 || !strings.HasPrefix(got.out, says) || strings.Contains(got.out, "as the file says") {
			t.Errorf("%s: exit %d\n%s%s", says, got.code, got.out, got.err)
		}
		if got := hub.run(t, run{}, "rollout", "simulate", "-f", file, "-o", "json"); !strings.Contains(got.out, `"deleting": "`+says) {
			t.Errorf("%s: %s", says, got.out)
		}
		if len(putsOf(hub)) > 0 {
			t.Errorf("%s: was put", says)
		}
	}
}

// revisionEverywhere is one whose placement has it in every cluster.
func revisionEverywhere(number int64) []*v1.Revision {
	return []*v1.Revision{{Number: number, Module: "shop", Spec: &v1.ModuleSpec{Placement: &v1.Placement{Selector: &v1.LabelSelector{}}}}}
}

// TestSimulatedWayBackAsksThePlacementOfBefore: clusters that have nothing of the module yet get the revision of before when the rollout goes
// back, if the placement of that has them, and lose the module if not.
func TestSimulatedWayBackAsksThePlacementOfBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		only string // the placement of before; empty: every cluster
		want string
	}{
		"had them":     {"", "to r41"},
		"had one only": {"prod-eu-01", "3 clusters must be confirmed: the module would leave them"},
	} {
		done := ended("Succeeded", nil)
		hub := &fakeHub{modules: surfaceModules(), clusters: surfaceClusters(), rollouts: []*v1.Rollout{done}, revisions: revisionEverywhere(41)}
		for _, c := range hub.clusters {
			c.Status.State, c.Status.Pins = "Ready", nil
		}
		if tc.only != "" {
			hub.revisions[0].Spec.Placement = &v1.Placement{Clusters: []string{tc.only}}
		}
		hub.trackers = []*v1.Tracker{{Project: "default", Module: "shop", Cluster: "prod-eu-01", Revision: 41}}
		module := strings.Replace(simulatedShop, "{name: canary, selector: {matchLabels: {ring: canary}}, soak: 5m, after: [{approval: {}}]}", "{name: all}", 1)
		module = strings.Replace(module, "    - {name: rest, maxConcurrency: 50%}\n", "", 1)
		got := hub.run(t, run{}, "rollout", "simulate", "-f", writeFile(t, module), "--fail", "prod-eu-01")
		if got.code != 0 || !strings.Contains(got.out, "RolledBack after") || !strings.Contains(got.out, tc.want) {
			t.Errorf("%s: want %q\n%s%s", name, tc.want, got.out, got.err)
		}
	}
}

func TestSimulateDrawsBySeed(t *testing.T) {
	clusters := simulatedClusters(t)
	atOnce := strings.Split(simulatedShop, "  rollout:")[0] // one stage, so that nobody's turn waits for one that is away
	deferred := func(seed string) []string {
		got := (&fakeHub{}).run(t, run{stdin: atOnce}, "rollout", "simulate", "-f", "-", "--clusters", clusters, "--offline", "40%", "--seed", seed, "-o", "json")
		var out simulation
		if err := json.Unmarshal([]byte(got.out), &out); err != nil {
			t.Fatalf("%v: %s%s", err, got.out, got.err)
		}
		var who []string
		for _, e := range out.Events {
			if e.To == "Deferred" {
				for _, c := range e.Clusters {
					who = append(who, string(c))
				}
			}
		}
		return who
	}
	drawn := map[string]bool{}
	for _, seed := range []string{"1", "2", "3", "4", "5"} {
		who := deferred(seed)
		if len(who) != 2 || !slices.Equal(who, deferred(seed)) {
			t.Errorf("seed %s: away are %v, want two of five, always the same", seed, who)
		}
		drawn[strings.Join(who, " ")] = true
	}
	if len(drawn) < 2 {
		t.Errorf("all seeds draw the same: %v", drawn)
	}
}

func TestSimulateRefuses(t *testing.T) {
	clusters := simulatedClusters(t)
	for _, tc := range []struct {
		name, module, flags, want string
	}{
		{"no file", "", "", "name the module's file with -f"},
		{"unknown cluster", simulatedShop, "-f - --fail c9", "--fail: cluster c9 is not in the rollout"},
		{"unknown gate", simulatedShop, "-f - --gate canary/after/aproval=Failed", `--gate: "canary/after/aproval" is no gate of the rollout`},
		{"unknown outcome", simulatedShop, "-f - --gate canary/after/approval=Maybe", "the outcome is none of"},
		{"too many away", simulatedShop, "-f - --offline 120%", "0% to 100%"},
		{"times", simulatedShop, "-f - --ready-after 30s-5s", "--ready-after 30s-5s"},
		{"output", simulatedShop, "-f - -o wide", "simulate prints table, json or yaml"},
		{"start", simulatedShop, "-f - --start tomorrow", "--start tomorrow"},
		{"two modules", simulatedShop + "---\n" + simulatedShop, "-f -", "has 2 modules; simulate takes one"},
		{"external", strings.Replace(simulatedShop, "onFailure: Rollback", "external: {}", 1), "-f -", "external"},
	} {
		got := (&fakeHub{}).run(t, run{stdin: tc.module}, append([]string{"rollout", "simulate", "--clusters", clusters}, strings.Fields(tc.flags)...)...)
		if got.code == 0 || !strings.Contains(got.err, tc.want) {
			t.Errorf("%s: exit %d, %q lacks %q", tc.name, got.code, got.err, tc.want)
		}
	}
}

// TestSimulateSaysWhatIsHeldAndWaitedFor: what the hub lists as held is deferred, but not what an annotation or its policy holds in a
// cluster that is away, as with the hub; and nobody is told that modules come in time which the simulation knows nothing of.
func TestSimulateSaysWhatIsHeldAndWaitedFor(t *testing.T) {
	hub := &fakeHub{modules: surfaceModules(), clusters: surfaceClusters(), rollouts: []*v1.Rollout{ended("Succeeded", nil)}, revisions: revisionEverywhere(41)}
	for _, c := range hub.clusters {
		c.Status.State = "Ready"
		hub.trackers = append(hub.trackers, &v1.Tracker{Project: "default", Module: "shop", Cluster: c.GetMetadata().GetName(), Revision: 41})
	}
	held, away := hub.clusters[0].GetMetadata().GetName(), hub.clusters[1]
	away.Status.State = "Disconnected"
	hub.holds = []*v1.Hold{{Kind: "Freeze", Cluster: held}, {Kind: "Freeze", Project: "default", Module: "shop", Cluster: away.GetMetadata().GetName(), Source: "Annotation"}}
	module := strings.Replace(simulatedShop, "env: prod}}", "}}", 1)
	module = strings.Replace(module, "    - {name: canary, selector: {matchLabels: {ring: canary}}, soak: 5m, after: [{approval: {}}]}\n", "", 1)
	module = strings.Replace(module, "  placement:", "  dependsOn: [{module: base}]\n  placement:", 1)
	file := writeFile(t, module)
	got := hub.run(t, run{}, "rollout", "simulate", "-f", file, "-o", "json")
	var out simulation
	if err := json.Unmarshal([]byte(got.out), &out); err != nil {
		t.Fatalf("%v: %s%s", err, got.out, got.err)
	}
	deferred := map[string]string{}
	for _, e := range out.Events {
		for _, c := range e.Clusters {
			if e.To == "Deferred" {
				deferred[string(c)] = e.Reason
			}
		}
	}
	if deferred[held] != "Held" || deferred[away.GetMetadata().GetName()] != "Disconnected" || !slices.Equal(out.WaitsNotSimulated, []string{"base"}) {
		t.Errorf("deferred %v, not simulated %v", deferred, out.WaitsNotSimulated)
	}
	const want = "Not simulated: each cluster begins when it has base Ready, so that it may take longer.\n"
	if got := hub.run(t, run{}, "rollout", "simulate", "-f", file); !strings.HasSuffix(got.out, want) {
		t.Errorf("%s%s", got.out, got.err)
	}
}
