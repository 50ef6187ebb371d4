package hub_test

import (
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestJudgeOfAConfirmBeforeTheModuleComes: a person lets a module go from a cluster whose agent takes it up only then. That is one word for
// one stay: the module may go, and where it comes once more and goes again nobody was asked.
func TestJudgeOfAConfirmBeforeTheModuleComes(t *testing.T) {
	digest := fleet.DigestOf([]byte("a"))
	everywhere, inY := want{objects: "a"}, want{objects: "a", zone: "y"}
	c := &chaos{boxes: map[string]*box{}, names: map[fleet.Digest][]string{digest: {"a"}}, orders: map[string]*orders{}, heldBy: map[string]fleet.Assemblage{}}
	c.since = []wish{{modules: map[string]want{"one": inY}, clusters: map[string]place{"east": {zone: "x"}, "north": {zone: "y"}, "west": {zone: "x"}}}}
	x := c.ordersOf("one")
	x.puts = []want{everywhere, inY}
	for _, cluster := range clusters {
		x.given[cluster] = true
	}
	one := fleet.ModuleRef{Project: "default", Name: "one"}
	nothing := fleet.Assemblage{Generation: 1}
	comes := fleet.Assemblage{Generation: 2, Syncs: []fleet.Sync{{Module: one, Generation: 2, Revision: 1, Bundle: digest}}}
	goes := fleet.Assemblage{Generation: 3, Tombstones: []fleet.Tombstone{{Module: one, Generation: 3}}}

	c.lets(&towlinev1.Hold{Kind: "Confirm", Project: "default", Module: "one", Items: []string{"east", "west"}})
	c.told("west", nothing, comes)
	c.told("west", comes, goes)
	if len(c.found) > 0 {
		t.Fatalf("a removal that somebody confirmed before the agent had the module: %q", c.found)
	}
	back := comes
	back.Generation = 4
	last := goes
	last.Generation = 5
	c.told("west", goes, back)
	c.told("west", back, last)
	if len(c.found) == 0 {
		t.Fatal("a second removal that nobody confirmed was not found")
	}
}

// TestJudgeOfADeleteThatIsRefused: a module whose objects somebody wants left is not deleted while a cluster leaves the fleet with all that it has.
func TestJudgeOfADeleteThatIsRefused(t *testing.T) {
	c := newChaos(t, worldOf(t), false, 1, time.Minute)
	c.wish(func(x *wish) { x.modules["one"] = want{objects: "a"} })
	_, err := c.Modules.PutModule(c.ctx, &towlinev1.PutModuleRequest{Module: c.spec("one", want{objects: "a"})})
	must(t, err)
	c.eventually(func() bool { return syncNamed(c.boxes["west"].agent.Held(), "one").Revision != 0 })
	c.toggle("west")
	_, err = c.Clusters.RemoveCluster(c.ctx, &towlinev1.RemoveClusterRequest{Name: "west", Objects: "delete"})
	must(t, err)
	c.deletes("one", true)
	_, wanted := c.now().modules["one"]
	_, err = c.Modules.GetModule(c.ctx, &towlinev1.GetModuleRequest{Project: "default", Name: "one"})
	if must(t, err); !wanted {
		t.Error("the module is there, and counts as deleted")
	}
}

// TestJudgeOfARollback: a rollback gives a cluster what it had, wherever its labels have brought it since, and gives it to no other one
// that the older placement does not select.
func TestJudgeOfARollback(t *testing.T) {
	older, newer := fleet.DigestOf([]byte("ab")), fleet.DigestOf([]byte("c"))
	inY, everywhere := want{objects: "ab", zone: "y"}, want{objects: "c"}
	c := &chaos{boxes: map[string]*box{}, names: map[fleet.Digest][]string{older: {"a", "b"}, newer: {"c"}}, orders: map[string]*orders{}, heldBy: map[string]fleet.Assemblage{}}
	places := func(east string) map[string]place {
		return map[string]place{"east": {zone: east}, "north": {zone: "y"}, "west": {zone: "x"}}
	}
	one := fleet.ModuleRef{Project: "default", Name: "one"}
	last := map[string]fleet.Assemblage{}
	tell := func(cluster string, digest fleet.Digest) {
		n := last[cluster].Generation + 1
		next := fleet.Assemblage{Generation: n, Syncs: []fleet.Sync{{Module: one, Generation: n, Revision: 1, Bundle: digest}}}
		c.told(cluster, last[cluster], next)
		last[cluster] = next
	}
	c.since = []wish{{modules: map[string]want{"one": inY}, clusters: places("y")}}
	c.said("one", inY)
	tell("east", older)
	c.since = []wish{{modules: map[string]want{"one": everywhere}, clusters: places("x")}}
	c.said("one", everywhere)
	tell("east", newer)
	tell("west", newer)
	c.rested()
	c.ordersOf("one").back = true
	tell("east", older)
	if len(c.found) > 0 {
		t.Fatalf("a rollback to what the cluster had: %q", c.found)
	}
	tell("west", older)
	if len(c.found) != 1 {
		t.Fatalf("what a cluster never had, and is not selected for: %q", c.found)
	}
	c.ordersOf("one").back = false
	tell("east", newer)
	tell("east", older)
	if len(c.found) != 2 {
		t.Fatalf("the same without a rollback: %q", c.found)
	}
}
