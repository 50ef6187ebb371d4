package apply

import (
	"context"
	"log/slog"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// What a revision drops was listed last by the one before it in this cluster, whatever revisions there were elsewhere, and however
// often the agent is started again.
func TestInventoryKnowsWhichRevisionListedLast(t *testing.T) {
	ctx, state := context.Background(), &files{names: map[string][]byte{}}
	open := func() *Inventory {
		inv, err := Open(ctx, state, newVault(t), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return inv
	}
	inv, shop := open(), fleet.ModuleRef{Project: "default", Name: "shop"}
	id := func(name string) fleet.ObjectID {
		return fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}
	}
	put := func(name string, change func(*plan.Record)) {
		r := &Record{Record: plan.Record{ID: id(name), Version: "v1", Module: shop, State: plan.Owned, UID: "u-" + name}}
		if change != nil {
			change(&r.Record)
		}
		inv.Put(r)
	}
	follow := func(revision int64, names ...string) {
		t.Helper()
		lists := map[fleet.ObjectID]bool{}
		for _, n := range names {
			lists[id(n)] = true
		}
		inv.Succeed(shop, revision, func(x fleet.ObjectID) bool { return lists[x] })
		if err := inv.flush(ctx); err != nil {
			t.Fatal(err)
		}
		inv = open()
	}
	is := func(name string, want int64) {
		t.Helper()
		if got := inv.Get(id(name)).Revision; got != want {
			t.Errorf("%s: r%d, want r%d", name, got, want)
		}
	}
	put("before", nil) // of an agent that did not note revisions
	follow(2, "a", "b")
	is("before", plan.RevisionUnknown)
	put("a", nil)
	put("b", nil)
	put("found", func(r *plan.Record) { r.Found, r.Revision = true, plan.RevisionUnknown })
	follow(5, "a")
	is("b", 2)
	is("a", 0)
	is("found", plan.RevisionUnknown)
	follow(6)
	is("a", 5)
	is("b", 2)
	follow(2, "b")
	is("b", 0)
	is("a", 5)
	follow(7)
	is("b", 2)
	follow(0, "a", "b", "found", "before")
	if len(inv.revisions) > 0 {
		t.Errorf("of a module that is gone %v is left", inv.revisions)
	}
}
