package cli

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// deletionRefused is why the hub does not delete a module, whatever needs it.
func (h *fakeHub) deletionRefused(r *v1.DeleteModuleRequest) error {
	switch {
	case h.wanted == r.GetName() && r.GetSet() != "":
		return fleet.Errorf(fleet.ErrPrecondition, "module %s is wanted by set/b", r.GetName())
	case r.GetDryRun():
		return h.kept
	}
	return h.stays
}

// What somebody else wants stays and is named, nothing else is kept from being done, and the command fails. Most of the set does not go where the rest of it
// is wanted.
func TestApplyLeavesWhatIsWanted(t *testing.T) {
	for _, args := range []string{"", "--wait", "--dry-run=server"} {
		hub := setHub("set/a:shop", "set/a:old", "set/a:cart", "set/a:keep")
		hub.modules[2].Spec.DependsOn = []*v1.Dependency{{Module: "keep"}}
		hub.wanted = "old"
		hub.watch, hub.put.Rollout = watching(ended("Succeeded", nil)), "shop/57"
		hub.removes = true
		four := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: keep", 1)
		got := hub.run(t, run{stdin: four}, append([]string{"apply", "-f", "-", "--set", "a", "--prune"}, strings.Fields(args)...)...)
		if says := "module old is not pruned: module old is wanted by set/b"; got.code != exitFailed || strings.Count(got.err, says) != 1 || !strings.Contains(got.out, "module/cart pruned") || strings.Contains(got.err, "say --yes") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", args, got.code, got.out, got.err)
		}
		var gone []string
		for _, r := range deletionsOf(hub) {
			gone = append(gone, r.GetName())
		}
		if want := "cart"; args != "--dry-run=server" && strings.Join(gone, " ") != want {
			t.Errorf("%q: the hub was asked to delete %v", args, gone)
		}
	}
	hub := setHub("set/a:shop", "set/a:old", "set/a:base")
	hub.modules[1].Spec.DependsOn = []*v1.Dependency{{Module: "base"}}
	hub.wanted = "old"
	got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--set", "a", "--prune", "--yes")
	if got.code == 0 || !strings.Contains(got.err, "module base is in the files no more, but module old, which stays, depends on it") || len(putsOf(hub)) > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", got.code, got.out, got.err)
	}
}

// What is wanted, or may be of a catalog, only since the hub was asked is not said to be needed by clusters: it is tried again after the rollouts, and
// why it may not go is said. Before anything is put the hub is asked once.
func TestApplySaysWhatIsWantedMeanwhile(t *testing.T) {
	hub := setHub("set/a:shop", "set/a:old")
	hub.watch, hub.put.Rollout = watching(ended("Succeeded", nil)), "shop/57"
	asked := 0
	got := hub.run(t, run{stdin: shopYAML, noticed: func(m proto.Message) {
		switch r := m.(type) {
		case *v1.PutModuleRequest:
			if !r.GetDryRun() {
				hub.wanted = "old"
			}
		case *v1.DeleteModuleRequest:
			if hub.wanted == "" {
				asked++
			}
		}
	}}, "apply", "-f", "-", "--set", "a", "--prune", "--wait", "--yes")
	const says = "module/old is pruned after the rollouts, if it may be then: module old is wanted by set/b\n"
	if got.code != exitFailed || !strings.Contains(got.err, says) || strings.Contains(got.err, "clusters need it") || !strings.Contains(got.err, "module old is not pruned: module old is wanted by set/b") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if asked != 1 {
		t.Errorf("the hub was asked %d times before", asked)
	}
}

// The hub is told what a set wants where one of its modules is refused and so none is put, and only by what is to be put: not by a dry run, nor
// where it is taken.
func TestApplySaysWhatItWants(t *testing.T) {
	two := shopYAML + "\n---\n" + strings.Replace(shopYAML, "name: shop", "name: keep", 1)
	for args, want := range map[string]string{"--set b": "shop", "--set b --prune": "shop", "--set b --dry-run=server": "", "--set b --take": "shop keep", "": ""} {
		hub := setHub("set/a:shop")
		hub.err, hub.refuses = fleet.Errorf(fleet.ErrPrecondition, "module shop is of set/a"), "shop"
		got := hub.run(t, run{stdin: two}, append([]string{"apply", "-f", "-"}, strings.Fields(args)...)...)
		var wants []string
		for _, m := range hub.requests {
			if r, is := m.(*v1.PutModuleRequest); is && r.GetWants() {
				wants = append(wants, r.GetModule().GetMetadata().GetName())
				if !r.GetDryRun() || r.GetSet() != "b" {
					t.Errorf("%s: %v", args, r)
				}
			}
		}
		if got.code == 0 || strings.Join(wants, " ") != want || len(putsOf(hub)) > 0 {
			t.Errorf("%s: exit %d, %q; wants %v, put %v", args, got.code, got.err, wants, putsOf(hub))
		}
	}
}
