package cli

import (
	"cmp"
	"strings"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// What stays in clusters that leave with what they have is not called removed.
func TestDeleteTellsOfClustersThatLeave(t *testing.T) {
	for _, tt := range []struct {
		plan           *v1.DeleteModuleResponse
		going, deleted string
	}{
		{&v1.DeleteModuleResponse{Objects: 8, Clusters: 3, Leaving: []string{"a"}, LeavingClusters: 1, Left: 4},
			"removes 8 objects in 2 clusters, or hands them to modules that list them; 4 objects stay in cluster a, which leaves with what it has",
			"gone from 2 clusters, which were to remove 8 objects; 4 objects stay in cluster a, which leaves with what it has"},
		{&v1.DeleteModuleResponse{Clusters: 2, Leaving: []string{"a", "b"}, LeavingClusters: 2, Left: 1},
			"removes nothing; 1 object stays in clusters a and b, which leave with what they have",
			"no cluster was to remove anything; 1 object stays in clusters a and b, which leave with what they have"},
		{&v1.DeleteModuleResponse{Objects: 1, Clusters: 31, Keeps: []*v1.KindCount{{Kind: "Job", Objects: 1}}, Leaving: []string{"a", "b"}, LeavingClusters: 30, Left: 9},
			"removes 1 object in 1 cluster, or hands it to a module that lists it; keeps 1 Job; 9 objects stay in 30 clusters, such as a, which leave with what they have",
			"gone from 1 cluster, which was to remove 1 object and to keep 1 Job; 9 objects stay in 30 clusters, such as a, which leave with what they have"},
	} {
		if got := deleteText(tt.plan, false); got != tt.going {
			t.Errorf("%q, want %q", got, tt.going)
		}
		if got := deletedText(tt.plan, false); got != tt.deleted {
			t.Errorf("%q, want %q", got, tt.deleted)
		}
	}
}

// A second word about a module that is being deleted takes back nothing that is done: it says what stays as it is, and which clusters go on until they
// hear of it.
func TestDeleteTellsWhatAnotherWordComesTooLateFor(t *testing.T) {
	for _, tt := range []struct {
		orphan         bool
		plan           *v1.DeleteModuleResponse
		going, deleted string
	}{
		{true, &v1.DeleteModuleResponse{Clusters: 2, Before: "Delete", Told: []string{"a"}, ToldClusters: 1},
			"leaves its objects in 2 clusters; what was deleted before stays gone, and cluster a deletes on until it hears of this",
			"gone from 2 clusters, which were to leave its objects; what was deleted before they heard of that stays gone"},
		{true, &v1.DeleteModuleResponse{Clusters: 1, Before: "Delete"}, // one is done, the other one held
			"leaves its objects in 1 cluster; what was deleted before stays gone",
			"gone from 1 cluster, which was to leave its objects; what was deleted before they heard of that stays gone"},
		{true, &v1.DeleteModuleResponse{Clusters: 9, Told: []string{"a", "b"}, ToldClusters: 2}, // a rollout takes it from these
			"leaves its objects in 9 clusters; what was deleted before stays gone, and clusters a and b delete on until they hear of this",
			"gone from 9 clusters, which were to leave its objects; what was deleted before they heard of that stays gone"},
		{true, &v1.DeleteModuleResponse{Before: "Delete"},
			"no cluster has it any more; what was deleted before stays gone", "no cluster had it any more; what was deleted before they heard of that stays gone"},
		{true, &v1.DeleteModuleResponse{Clusters: 2, Before: "Orphan"}, "leaves its objects in 2 clusters", "gone from 2 clusters, which were to leave its objects"},
		{false, &v1.DeleteModuleResponse{Objects: 8, Clusters: 30, Before: "Orphan", Told: []string{"a", "b"}, ToldClusters: 30},
			"removes 8 objects in 30 clusters, or hands them to modules that list them; what was left before stays, and 30 clusters, such as a, leave on until they hear of this",
			"gone from 30 clusters, which were to remove 8 objects; what was left before they heard of that stays"},
		{false, &v1.DeleteModuleResponse{Objects: 8, Clusters: 2, Before: "Delete"},
			"removes 8 objects in 2 clusters, or hands them to modules that list them", "gone from 2 clusters, which were to remove 8 objects"},
	} {
		if got := deleteText(tt.plan, tt.orphan); got != tt.going {
			t.Errorf("%q, want %q", got, tt.going)
		}
		if got := deletedText(tt.plan, tt.orphan); got != tt.deleted {
			t.Errorf("%q, want %q", got, tt.deleted)
		}
	}
}

// A teardown that is given again ends well: what a file names and is gone already is said, and is in the way of nothing. A name that is typed may be
// misspelt, and is an error.
func TestTeardownOfWhatIsGone(t *testing.T) {
	const files = "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: MODULE}\nspec: {source: {inline: {files: {a.yaml: ''}}}, placement: {selector: {}}}\n" +
		"---\napiVersion: towline.dev/v1\nkind: Catalog\nmetadata: {name: none}\nspec: {source: {inline: {files: {a.yaml: ''}}}}\n" +
		"---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: CLUSTER}\n"
	for name, tt := range map[string]struct {
		module, cluster string
		args            string
		code            int
		out             string
	}{
		"all is gone":                    {"none", "none", "--cascade --wait=false -f -", exitOK, "catalog/none is not there\nmodule/none is not there\ncluster/none is not there\n"},
		"all is gone, and is waited for": {"none", "none", "-f -", exitOK, "catalog/none is not there\nmodule/none is not there\ncluster/none is not there\n"},
		"the cluster is left":            {"none", "", "--cascade --wait=false -f -", exitOK, "cluster/CLUSTER"},
		"a module is left":               {"shop", "none", "--wait=false -f -", exitUsage, ""},
		"it is named":                    {"", "", "module/none", exitFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			hub.removes = true
			named := strings.NewReplacer("MODULE", tt.module, "CLUSTER", cmp.Or(tt.cluster, hub.clusters[0].GetMetadata().GetName()))
			got := hub.run(t, run{stdin: named.Replace(files)}, append([]string{"delete", "--yes"}, strings.Fields(tt.args)...)...)
			if got.code != tt.code || !strings.Contains(got.out, named.Replace(tt.out)) {
				t.Errorf("exit %d, %s%s", got.code, got.out, got.err)
			}
		})
	}
}

// What was left of another module of the name, which was deleted right before this one was made, is not said of this one, also if this one
// is not seen any more.
func TestDeleteTellsNothingOfANamesake(t *testing.T) {
	for _, changes := range []string{"MODIFIED", "SYNCED"} {
		made := ago(20 * time.Second)
		hub := &fakeHub{modules: []*v1.Module{{Metadata: &v1.Metadata{Name: "shop", Project: "default", Uid: "two", CreationTimestamp: made, DeletionTimestamp: ago(time.Second)}}},
			gone: &v1.DeleteModuleResponse{Objects: 1, Clusters: 1}}
		hub.changes = []*v1.WatchModulesResponse{{Type: changes, Module: hub.modules[0]}, {Type: "DELETED", Module: hub.modules[0]}}
		if got := hub.run(t, run{}, "delete", "module/shop", "--yes"); got.code != 0 {
			t.Fatalf("exit %d, %s%s", got.code, got.out, got.err)
		}
		if req := asked[*v1.ListAuditEntriesRequest](hub); !req.GetSince().AsTime().Equal(made.AsTime()) {
			t.Errorf("%s: asked %v, and the module was made %s", changes, req, made.AsTime())
		}
	}
}

// The last line has what the agents said that they left, as the hub has noted it since the deletion was ordered.
func TestDeleteTellsWhatTheAgentsLeft(t *testing.T) {
	const kept = "kept: Namespace edge (the namespace holds objects that are not ours: ConfigMap x), in cluster a"
	for name, tt := range map[string]struct {
		audit []*v1.AuditEntry
		err   error
		says  string
	}{
		"nothing":      {nil, nil, ""},
		"a namespace":  {[]*v1.AuditEntry{{Detail: kept}}, nil, "; " + kept},
		"in one":       {[]*v1.AuditEntry{{Detail: "in a; kept: b; and c"}}, nil, "; kept: b; and c, in cluster a"},
		"in some":      {[]*v1.AuditEntry{{Detail: "in a, b, c, d, e; kept"}}, nil, "; kept, in clusters a, b, c, d, e"},
		"in many":      {[]*v1.AuditEntry{{Detail: "in a, b, c, d, e, f and 200 more; kept"}}, nil, "; kept, in clusters a, b, c, d, e and 201 more"},
		"one of each":  {[]*v1.AuditEntry{{Detail: "kept: b"}, {Detail: "kept: a"}}, nil, "; kept: a; kept: b"},
		"many":         {[]*v1.AuditEntry{{Detail: "a"}, {Detail: "b"}, {Detail: "c"}, {Detail: "d"}, {Detail: "e"}}, nil, "; e; d; c; and 2 more: towline get audit edge-lb"},
		"nobody knows": {nil, fleet.ErrDenied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			hub.modules = hub.modules[1:2] // edge-lb, being deleted
			hub.changes = []*v1.WatchModulesResponse{{Type: "DELETED", Module: hub.modules[0]}}
			hub.audit, hub.noAudit = append(tt.audit, &v1.AuditEntry{Method: "DeleteModule", Detail: "of a person"}), tt.err
			for _, e := range tt.audit {
				e.Method = "RemoveModule"
			}
			got := hub.run(t, run{}, "delete", "module/edge-lb", "--yes")
			want := "module/edge-lb deleted; gone from 300 clusters, which were to remove 4,200 objects and to keep 300 PersistentVolumeClaims" + tt.says + "\n"
			if got.code != 0 || got.out != want {
				t.Errorf("exit %d, %q, want %q", got.code, got.out, want)
			}
			req := asked[*v1.ListAuditEntriesRequest](hub)
			if ordered := hub.modules[0].GetMetadata().GetDeletionTimestamp().AsTime(); req.GetMethod() != "RemoveModule" || req.GetSubject() != "default/edge-lb" || !req.GetSince().AsTime().Equal(ordered.Add(-auditLate)) {
				t.Errorf("asked %v", req)
			}
		})
	}
}
