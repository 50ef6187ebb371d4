package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

const shopFile = "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\nspec: {source: {inline: {files: {a.yaml: \"\"}}}, placement: {selector: {}}}\n"

func of(kind, namespace, name string) *v1.ObjectReference {
	return &v1.ObjectReference{ApiVersion: "v1", Kind: kind, Namespace: namespace, Name: name}
}

// saidDiff is what a hub says of eight clusters.
func saidDiff() []*v1.DiffModuleResponse {
	plan := func(p *v1.DiffPlan) *v1.DiffModuleResponse {
		return &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Plan{Plan: p}}
	}
	group := func(g *v1.DiffGroup) *v1.DiffModuleResponse {
		return &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Group{Group: g}}
	}
	cluster := func(c *v1.DiffCluster) *v1.DiffModuleResponse {
		return &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Cluster{Cluster: c}}
	}
	out := []*v1.DiffModuleResponse{plan(&v1.DiffPlan{Digest: "7f31", Selected: 11, Total: 300, Objects: 1234})}
	out = append(out, group(&v1.DiffGroup{Number: 1, Unchanged: 1230, Objects: []*v1.ObjectDiff{
		{Object: of("ConfigMap", "shop", "new"), Action: fleet.PreviewCreate},
		{Object: of("Part", "shop", "one"), Action: fleet.PreviewCreate, Reason: fleet.ReasonUnchecked, Message: "its kind comes with the module"},
		{Object: of("Deployment", "shop", "web"), Action: fleet.PreviewChange, MoreFields: 3, Fields: []*v1.FieldDiff{{Field: "/spec/replicas", Live: "3", Want: "5"}, {Field: "/spec/paused", Live: "true"}}},
		{Object: of("ConfigMap", "shop", "found"), Action: fleet.PreviewAdopt, By: "kubectl"},
		{Object: of("Job", "shop", "once"), Action: fleet.PreviewRecreate, Message: "spec.template: field is immutable"},
		{Object: of("Secret", "shop", "key"), Action: fleet.PreviewRefuse, Reason: "Conflict", Message: "Secret shop/key: belongs to module base; take it out of one of the two modules"},
		{Object: of("Service", "shop", "old"), Action: fleet.PreviewDelete},
		{Object: of("PersistentVolumeClaim", "shop", "data"), Action: fleet.PreviewKeep, Reason: "Kept", Message: "policy prune: Never"},
		{Object: of("Role", "shop", "r"), Action: fleet.PreviewRelease},
		{Object: of("Role", "shop", "s"), Action: fleet.PreviewHandOver, By: "base"},
	}, Omitted: 2}))
	for i := range 7 {
		out = append(out, cluster(&v1.DiffCluster{Cluster: fmt.Sprintf("prod-%d", 7-i), Group: 1}))
	}
	return append(out, group(&v1.DiffGroup{Number: 2, Unchanged: 1234}), cluster(&v1.DiffCluster{Cluster: "canary", Group: 2}),
		cluster(&v1.DiffCluster{Cluster: "edge-1", Reason: "Disconnected"}),
		cluster(&v1.DiffCluster{Cluster: "edge-2", Reason: "Unanswered", Message: "cluster edge-2: no answer: context deadline exceeded"}),
		cluster(&v1.DiffCluster{Cluster: "edge-3", Reason: "NoSync", Message: "bindings: REGION has no value"}),
		cluster(&v1.DiffCluster{Cluster: "edge-4", Reason: "Disconnected"}),
		cluster(&v1.DiffCluster{Cluster: "prod-8", Reason: "Leaves", Removes: 1233, Keeps: []*v1.KindCount{{Kind: "PersistentVolumeClaim", Objects: 2}}}))
}

func (h *fakeHub) DiffModule(r *v1.DiffModuleRequest, s grpc.ServerStreamingServer[v1.DiffModuleResponse]) error {
	h.note(r)
	if err := h.badDiffs[r.GetModule().GetMetadata().GetName()]; err != nil {
		return rpc.ToStatus(err)
	}
	for _, part := range h.diff {
		if err := s.Send(part); err != nil {
			return err
		}
	}
	return rpc.ToStatus(h.err)
}

func TestDiff(t *testing.T) {
	hub := &fakeHub{diff: saidDiff()}
	got := hub.run(t, run{stdin: shopFile}, "diff", "-f", "-")
	same(t, got.out, `
module/shop selects 11 of 300 clusters; 1,234 objects in each

canary: 1,234 unchanged

prod-1, prod-2, prod-3, prod-4, prod-5 and 2 more: 2 to create, 1 to adopt, 1 to change, 1 to recreate, 1 to delete, 1 to release, 1 to hand over, 1 to keep, 1 to refuse, 2 more, 1,230 unchanged
  create     ConfigMap shop/new
  create     Part shop/one: its kind comes with the module
  change     Deployment shop/web
               /spec/replicas: 3 → 5
               /spec/paused: true → (none)
               and 3 fields more
  adopt      ConfigMap shop/found: from kubectl
  recreate   Job shop/once: spec.template: field is immutable
  refuse     Secret shop/key: belongs to module base; take it out of one of the two modules
  delete     Service shop/old
  keep       PVC shop/data: policy prune: Never
  release    Role shop/r
  hand over  Role shop/s: to module base
  and 2 objects more

edge-1, edge-4: not asked: disconnected
edge-2: does not say: no answer: context deadline exceeded
edge-3: would get nothing: bindings: REGION has no value
prod-8: loses the module: removes 1,233 objects, or hands them to modules that list them; keeps 2 PersistentVolumeClaims

Plan   7f31
`)
	if got.code != 0 || got.err != "" {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if asked := asked[*v1.DiffModuleRequest](hub); asked.GetModule().GetMetadata().GetName() != "shop" || asked.GetModule().GetMetadata().GetProject() != "default" {
		t.Errorf("asked for %v", asked)
	}
}

// TestDiffSaysWhoIsNotReached: what an apply does not do at once somewhere is said there, with what ends that; where nothing would change nothing is.
func TestDiffSaysWhoIsNotReached(t *testing.T) {
	part := func(c *v1.DiffCluster) *v1.DiffModuleResponse {
		return &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Cluster{Cluster: c}}
	}
	out := []*v1.DiffModuleResponse{{Part: &v1.DiffModuleResponse_Plan{Plan: &v1.DiffPlan{Digest: "7f31", Selected: 6, Total: 6, Objects: 1}}},
		{Part: &v1.DiffModuleResponse_Group{Group: &v1.DiffGroup{Number: 1, Objects: []*v1.ObjectDiff{{Object: of("ConfigMap", "shop", "new"), Action: fleet.PreviewCreate}}}}},
		{Part: &v1.DiffModuleResponse_Group{Group: &v1.DiffGroup{Number: 2, Unchanged: 1}}},
		part(&v1.DiffCluster{Cluster: "cordoned", Group: 1, Reason: "Cordoned"}), part(&v1.DiffCluster{Cluster: "free", Group: 1}),
		part(&v1.DiffCluster{Cluster: "held", Group: 1, Reason: "Held"}), part(&v1.DiffCluster{Cluster: "pin-1", Group: 1, Reason: "Pinned", Message: "r41"}),
		part(&v1.DiffCluster{Cluster: "pin-2", Group: 1, Reason: "Pinned", Message: "r41"}), part(&v1.DiffCluster{Cluster: "same", Group: 2, Reason: "Pinned", Message: "r41"})}
	got := (&fakeHub{diff: out}).run(t, run{stdin: shopFile}, "diff", "-f", "-", "--exit-code")
	same(t, got.out, `
module/shop selects 6 of 6 clusters; 1 object in each

cordoned, free, held, pin-1, pin-2: 1 to create
  cordoned: not before it is uncordoned: towline cluster uncordon cordoned
  held: not before its hold ends: towline get holds
  pin-1, pin-2: pinned at r41, so not before that ends: towline rollout unpin shop --cluster pin-1,pin-2
  create     ConfigMap shop/new

same: 1 unchanged

Plan   7f31
`)
	if got.code != exitFailed {
		t.Errorf("exit %d", got.code)
	}
	for i := range out {
		if c := out[i].GetCluster(); c != nil {
			c.Reason, c.Message = "External", ""
		}
	}
	if got := (&fakeHub{diff: out}).run(t, run{stdin: shopFile}, "diff", "-f", "-"); !strings.Contains(got.out, "\n  cordoned, free, held, pin-1, pin-2: not by an apply: another program assigns the module\n") {
		t.Errorf("of a module that another program assigns: %s", got.out)
	}
}

// TestDiffTells programs, too, and by its exit code if asked to.
func TestDiffTells(t *testing.T) {
	hub := &fakeHub{diff: saidDiff()}
	if got := hub.run(t, run{stdin: shopFile}, "diff", "-f", "-", "--exit-code", "-o", "json"); got.code != exitFailed || got.err != "" ||
		!strings.Contains(got.out, `"digest": "7f31"`) || !strings.Contains(got.out, `"cluster": "edge-1"`) || !strings.Contains(got.out, `"field": "/spec/replicas"`) {
		t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
	}
	plan := saidDiff()[:1]
	same := append(plan, &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Group{Group: &v1.DiffGroup{Number: 1, Unchanged: 3}}},
		&v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Cluster{Cluster: &v1.DiffCluster{Cluster: "a", Group: 1}}})
	if got := (&fakeHub{diff: same}).run(t, run{stdin: shopFile}, "diff", "-f", "-", "--exit-code"); got.code != 0 || strings.Contains(got.out, "Plan") {
		t.Errorf("without a difference: exit %d, %s", got.code, got.out)
	}
	leaving := append(slices.Clone(same), &v1.DiffModuleResponse{Part: &v1.DiffModuleResponse_Cluster{Cluster: &v1.DiffCluster{Cluster: "b", Reason: "Leaves", Removes: 2}}})
	if got := (&fakeHub{diff: leaving}).run(t, run{stdin: shopFile}, "diff", "-f", "-", "--exit-code"); got.code != exitFailed || !strings.Contains(got.out, "b: loses the module: removes 2 objects") ||
		!strings.Contains(got.out, "Plan   7f31") {
		t.Errorf("with a cluster that loses the module: exit %d, %s", got.code, got.out)
	}
	leaving[0] = proto.CloneOf(leaving[0])
	leaving[0].GetPlan().LeavingAsks = true
	if got := (&fakeHub{diff: leaving}).run(t, run{stdin: shopFile}, "diff", "-f", "-"); !strings.Contains(got.out, "\nThe rollout waits until a person confirms that clusters lose the module: towline get holds, after the apply.\n") {
		t.Errorf("with a person to ask: %s", got.out)
	}
	for _, wrong := range [][]string{{"diff"}, {"diff", "-f", "-", "-o", "wide"}, {"diff", "shop"}} {
		if got := hub.run(t, run{stdin: shopFile}, wrong...); got.code != exitUsage {
			t.Errorf("%q: exit %d, %s", wrong, got.code, got.err)
		}
	}
	two := shopFile + "---\n" + strings.ReplaceAll(shopFile, "shop", "base")
	if got := hub.run(t, run{stdin: two}, "apply", "-f", "-", "--plan", "7f31"); got.code != exitUsage || !strings.Contains(got.err, "--plan is of one module") {
		t.Errorf("a plan for two modules: exit %d, %s", got.code, got.err)
	}
	none := &fakeHub{put: &v1.PutModuleResponse{Result: "created"}}
	if got := none.run(t, run{stdin: shopFile}, "apply", "-f", "-", "--plan", ""); got.code != exitUsage || asked[*v1.PutModuleRequest](none) != nil {
		t.Errorf("apply with an empty plan: exit %d, %s; asked for %v", got.code, got.err, asked[*v1.PutModuleRequest](none))
	}
	one := &fakeHub{put: &v1.PutModuleResponse{Result: "created"}}
	if got := one.run(t, run{stdin: shopFile}, "apply", "-f", "-", "--plan", "7f31"); got.code != 0 || asked[*v1.PutModuleRequest](one).GetPlan() != "7f31" {
		t.Errorf("apply --plan: exit %d, %s; asked for %v", got.code, got.err, asked[*v1.PutModuleRequest](one))
	}
}

// TestDiffOfManyGoesOn after modules that are refused, names each of them, and exits with 1; without a hub it asks for no more.
func TestDiffOfManyGoesOn(t *testing.T) {
	three := shopFile + "---\n" + strings.ReplaceAll(shopFile, "shop", "base") + "---\n" + strings.ReplaceAll(shopFile, "shop", "cart")
	refused := map[string]error{"shop": fleet.Invalidf("spec.bindings[0].name", "no object has ${REGION}"), "base": fleet.Errorf(fleet.ErrDenied, "module base: project default allows no such source")}
	for _, args := range [][]string{{"diff", "-f", "-"}, {"diff", "-f", "-", "-o", "json"}, {"diff", "-f", "-", "--exit-code"}} {
		got := (&fakeHub{diff: saidDiff(), badDiffs: refused}).run(t, run{stdin: three}, args...)
		if got.code != exitFailed || !strings.Contains(got.err, "module shop: spec.bindings[0].name: no object has") || !strings.Contains(got.err, "module base: project default allows") ||
			!strings.Contains(got.out, "cart") || strings.Contains(got.out, "shop selects") {
			t.Errorf("%q: exit %d, %s%s", args, got.code, got.out, got.err)
		}
	}
	alone := (&fakeHub{diff: saidDiff(), badDiffs: map[string]error{"shop": refused["shop"]}}).run(t, run{stdin: shopFile}, "diff", "-f", "-", "-o", "json")
	if alone.code != exitFailed || alone.out != "" {
		t.Errorf("one that is refused: exit %d, %q", alone.code, alone.out)
	}
	away := &fakeHub{diff: saidDiff(), badDiffs: map[string]error{"shop": fleet.Errorf(fleet.ErrUnavailable, "no hub answers")}}
	if got := away.run(t, run{stdin: three}, "diff", "-f", "-"); got.code != exitFailed || timesAsked[*v1.DiffModuleRequest](away) != 1 || strings.Count(got.err, "no hub answers") != 1 {
		t.Errorf("without a hub: exit %d, asked %d times, %s", got.code, timesAsked[*v1.DiffModuleRequest](away), got.err)
	}
}

// TestDiffOfASpecThatIsThere says that a plain apply changes nothing, and nothing that anybody wrote reaches the terminal as it is.
func TestDiffOfASpecThatIsThere(t *testing.T) {
	said := saidDiff()
	said[0].GetPlan().SameSpec = true
	said[1].GetGroup().Objects[0].Object.Name = "\x1b[2Jgone"
	got := (&fakeHub{diff: said}).run(t, run{stdin: shopFile}, "diff", "-f", "-")
	if got.code != 0 || !strings.Contains(got.out, "The hub has this spec already: an apply changes nothing, unless it is bound to the plan") || strings.Contains(got.out, "\x1b") {
		t.Errorf("exit %d, %q", got.code, got.out)
	}
}
