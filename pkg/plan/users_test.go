package plan

import (
	"slices"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// TestWhatStaysMayUseWhatGoes: a workload that is dropped, or removed, with what it uses, and does not go yet: what it uses waits for it.
func TestWhatStaysMayUseWhatGoes(t *testing.T) {
	web, config := owned(object("Deployment.apps/web")), owned(object("ConfigMap/web-1"))
	database := owned(object("Cluster.db.io/db"))
	for _, tc := range []struct {
		name   string
		user   Record
		change func(in *PruneInput, user fleet.ObjectID)
		waits  bool
	}{
		{"nothing stays", web, func(*PruneInput, fleet.ObjectID) {}, false},
		{"held by itself", web, func(in *PruneInput, user fleet.ObjectID) { in.Held = holds(user) }, true},
		{"held by itself, of a custom kind", database, func(in *PruneInput, user fleet.ObjectID) { in.Held = holds(user) }, true},
		{"held by itself, and would be kept", web, func(in *PruneInput, user fleet.ObjectID) {
			in.Held, in.Policies = holds(user), []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Deployment"}}, Prune: fleet.PruneNever}}
		}, false},
		{"held by itself, and nothing waits for pods", web, func(in *PruneInput, user fleet.ObjectID) {
			in.Held, in.Policies = holds(user), []fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}
		}, false},
		{"held by itself, in a removal", web, func(in *PruneInput, user fleet.ObjectID) { in.Held, in.Tombstone = holds(user), true }, true},
		{"another module is to have it", web, func(in *PruneInput, user fleet.ObjectID) {
			in.Heirs = []fleet.Heir{{Module: other, Keys: []uint64{assemble.HeirKey(user)}}}
		}, true},
		{"another module is to have it, in a removal", web, func(in *PruneInput, user fleet.ObjectID) {
			in.Tombstone, in.Heirs = true, []fleet.Heir{{Module: other, Keys: []uint64{assemble.HeirKey(user)}}}
		}, true},
		{"goes to another module", web, func(in *PruneInput, user fleet.ObjectID) { in.WantedBy = wants(user) }, true},
		{"goes to another module, in a removal", web, func(in *PruneInput, user fleet.ObjectID) { in.Tombstone, in.WantedBy = true, wants(user) }, true},
		{"somebody is to confirm it", web, func(in *PruneInput, user fleet.ObjectID) { in.Records[0].Found = true }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input()
			in.Records = []Record{tc.user, config}
			tc.change(&in, tc.user.ID)
			out := Prune(in)
			goes := slices.ContainsFunc(slices.Concat(out.Delete...), func(r Record) bool { return r.ID == config.ID })
			if goes == tc.waits {
				t.Errorf("%s goes: %t; %+v", config.ID, goes, out.Kept)
			}
		})
	}
}

func holds(id fleet.ObjectID) func(fleet.ObjectID) string {
	return func(x fleet.ObjectID) string {
		if x == id {
			return "held by its annotation"
		}
		return ""
	}
}

func wants(id fleet.ObjectID) func(fleet.ObjectID) (fleet.ModuleRef, bool) {
	return func(x fleet.ObjectID) (fleet.ModuleRef, bool) { return other, x == id }
}

// TestInOrder: what is found to stay after all has what goes after it stay, too, unless pods do not come by it.
func TestInOrder(t *testing.T) {
	web, service, config := owned(object("Deployment.apps/web")), owned(object("Service/web")), owned(object("ConfigMap/web-1"))
	for stays, want := range map[Record]int{web: 1, service: 0, config: 2} {
		all := []Record{service, web, config}
		out := PrunePlan{Delete: DeleteStages(slices.DeleteFunc(slices.Clone(all), func(r Record) bool { return r == stays }), all)}
		in := input()
		in.Records = all
		in.InOrder(&out, []Record{stays})
		if n := len(slices.Concat(out.Delete...)); n != want || n+len(out.Kept) != 2 {
			t.Errorf("%s stays: %d go, %+v", stays.ID, n, out.Kept)
		}
	}
}

// TestUsersText: who is through is not named.
func TestUsersText(t *testing.T) {
	web, db := object("Deployment.apps/web"), object("Cluster.db.io/db")
	if got := UsersText([]User{{ID: db, Old: -1, Module: other}}); got != "Cluster.db.io ns/db of module other is not ready there (towline.dev/ready: ignore in its manifest ends that)" {
		t.Errorf("got %s", got)
	}
	got := UsersText([]User{{ID: web}, {ID: web, Old: 2}, {ID: web, Old: -1, Module: other}, {ID: web, Unseen: true}, {ID: web, Differs: true}})
	const want = "Deployment.apps ns/web has 2, Deployment.apps ns/web is not as the revision says, Deployment.apps ns/web of module other is not through with what that module makes of it, Deployment.apps ns/web, of which nothing is known now"
	if got != want {
		t.Errorf("got %s", got)
	}
}
