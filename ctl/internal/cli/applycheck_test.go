package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// nothingPut is what an apply says of which not all is right.
const nothingPut = "Error: nothing was put: apply all of it when all is right, or what is right by itself\n"

const (
	teamYAML    = "---\napiVersion: towline.dev/v1\nkind: Catalog\nmetadata: {name: team}\nspec: {source: {git: {url: 'https://git.example.com/team.git', ref: {branch: main}}}, prune: true}\n"
	clusterYAML = "---\napiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c1, labels: {team: b}}\n"
)

// putOrder is what was put, in its order.
func putOrder(h *fakeHub) string {
	var out []string
	for _, m := range putsOf(h) {
		switch x := m.(type) {
		case *v1.PutProjectRequest:
			out = append(out, "project/"+x.GetProject().GetMetadata().GetName())
		case *v1.PutClusterRequest:
			out = append(out, "cluster/"+x.GetCluster().GetMetadata().GetName())
		case *v1.PutModuleRequest:
			out = append(out, "module/"+x.GetModule().GetMetadata().GetName())
		case *v1.PutCatalogRequest:
			out = append(out, "catalog/"+x.GetCatalog().GetMetadata().GetName())
		default:
			out = append(out, fmt.Sprintf("%T", m))
		}
	}
	return strings.Join(out, " ")
}

// A catalog is looked at as soon as it is put, and its modules are placed by the labels of clusters: it is put when these have theirs, and when
// the modules that take what its modules let go are put, and not if one of them is not.
func TestCatalogIsPutLast(t *testing.T) {
	all := teamYAML + "---\n" + shopYAML + clusterYAML
	for name, tt := range map[string]struct {
		hub  *fakeHub
		want string
	}{
		"all is right":           {&fakeHub{}, "cluster/c1 module/shop catalog/team"},
		"the module is refused":  {&fakeHub{err: fleet.Invalid("spec.package", "is wrong")}, ""},
		"the cluster is refused": {&fakeHub{badCluster: fleet.Invalid("metadata.labels", "is wrong")}, ""},
		"the cluster's is lost":  {&fakeHub{badPut: fleet.Errorf(fleet.ErrConflict, "changed meanwhile")}, "cluster/c1"},
		"the put of one is lost": {&fakeHub{loses: "shop"}, "cluster/c1 module/shop"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.hub.put, tt.hub.putPlan = putAnswer(), &v1.PutClusterResponse{Result: "configured"}
			got := tt.hub.run(t, run{stdin: all}, "apply", "-f", "-")
			if order := putOrder(tt.hub); order != tt.want || (got.code == 0) != strings.HasSuffix(tt.want, "team") {
				t.Errorf("exit %d, stderr %q, put %q, want %q", got.code, got.err, order, tt.want)
			}
			if tt.want != "" && got.code != 0 && !strings.Contains(got.err, "not put, because of that: ") {
				t.Errorf("stderr %q", got.err)
			}
		})
	}
}

// A cluster has its new labels at once, and a catalog that changes with them is looked at seconds later: by the placements of before, its
// modules would leave the cluster, and come again. Modules of others are as they are in the files.
func TestClusterIsNotRelabelledBeforeItsCatalogFollows(t *testing.T) {
	for name, tt := range map[string]struct {
		origin string
		same   bool
		want   string
	}{
		"its module":               {"catalog/team", false, ""},
		"that of somebody else":    {"set/a", false, "cluster/c1 catalog/team"},
		"the catalog is as before": {"catalog/team", true, "cluster/c1 catalog/team"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := &fakeHub{sameCatalog: tt.same, putPlan: &v1.PutClusterResponse{Result: "configured", Leaves: []string{"default/shop"}, RemovesObjects: 3}}
			hub.modules = setHub(tt.origin + ":shop").modules
			for _, dry := range []string{"none", "server"} {
				hub.requests = nil
				got := hub.run(t, run{stdin: teamYAML + clusterYAML}, "apply", "-f", "-", "--dry-run="+dry)
				refused := strings.Contains(got.err, "Error: cluster c1: by its new labels it would lose objects of module shop before the new catalog team is looked at")
				if refused != (tt.want == "") || (got.code == 0) == refused {
					t.Errorf("exit %d, stderr %q", got.code, got.err)
				}
				if order := putOrder(hub); dry == "none" && order != tt.want {
					t.Errorf("put %q, want %q", order, tt.want)
				}
			}
		})
	}
}

// What is in a project that is not there yet cannot be asked for before it is: the project is put for that, when all else is right.
func TestNewProjectIsPutForWhatIsInIt(t *testing.T) {
	project := "---\napiVersion: towline.dev/v1\nkind: Project\nmetadata: {name: web}\n"
	all := shopYAML + "---\n" + strings.Replace(shopYAML, "name: shop", "name: front, project: web", 1) + project
	for name, tt := range map[string]struct {
		hub  *fakeHub
		want string
	}{
		"all is right":             {&fakeHub{}, "project/web module/shop module/front"},
		"it is there":              {&fakeHub{knows: []string{"web"}}, "project/web module/shop module/front"},
		"what is not in it":        {&fakeHub{refuses: "shop"}, ""},
		"what is in it":            {&fakeHub{refuses: "front"}, "project/web"},
		"what is in one of before": {&fakeHub{knows: []string{"web"}, refuses: "front"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.hub.put = putAnswer()
			if tt.hub.refuses != "" {
				tt.hub.err = fleet.Invalid("spec.package", "is wrong")
			}
			got := tt.hub.run(t, run{stdin: all}, "apply", "-f", "-")
			if order := putOrder(tt.hub); order != tt.want || (got.code == 0) != (tt.hub.err == nil) {
				t.Errorf("exit %d, stderr %q, put %q, want %q", got.code, got.err, order, tt.want)
			}
			if got.code != 0 && strings.Contains(got.err, nothingPut) != (tt.want == "") {
				t.Errorf("stderr %q", got.err)
			}
		})
	}
	// Who is asked first is asked before the project is there.
	hub := &fakeHub{put: putAnswer()}
	hub.run(t, run{stdin: all}, "apply", "-f", "-")
	at := func(fits func(proto.Message) bool) int { return slices.IndexFunc(hub.requests, fits) }
	put := at(func(m proto.Message) bool { r, is := m.(*v1.PutProjectRequest); return is && !r.GetDryRun() })
	of := func(name string) int {
		return at(func(m proto.Message) bool {
			r, is := m.(*v1.PutModuleRequest)
			return is && r.GetDryRun() && r.GetModule().GetMetadata().GetName() == name
		})
	}
	if of("shop") < 0 || of("shop") > put || of("front") < put {
		t.Errorf("the hub was asked %v", hub.requests)
	}
}

// What an apply is bound to is asked for before anything else of it is put.
func TestPlanIsAskedForBeforeAClusterIsPut(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), putPlan: &v1.PutClusterResponse{Result: "configured"}}
	hub.run(t, run{stdin: shopYAML + clusterYAML}, "apply", "-f", "-", "--plan", "sha256:12")
	for _, m := range hub.requests {
		if r, is := m.(*v1.PutModuleRequest); is && r.GetPlan() != "sha256:12" {
			t.Errorf("asked without the plan: %v", r)
		}
	}
}

// A hub that goes away between two puts and is back while their batch waits: nothing begins without the rest.
func TestBatchOutlivesTheHub(t *testing.T) {
	hub := &fakeHub{put: putAnswer(), noPuts: 1}
	got := hub.run(t, run{stdin: shopYAML + "---\n" + strings.Replace(shopYAML, "name: shop", "name: base", 1)}, "apply", "-f", "-")
	if order := putOrder(hub); got.code != 0 || order != "module/shop module/shop module/base" || !strings.Contains(got.err, "trying again") {
		t.Errorf("exit %d, stderr %q, put %q", got.code, got.err, order)
	}
	batch := map[string]bool{}
	for _, m := range putsOf(hub) {
		batch[m.(*v1.PutModuleRequest).GetBatch()] = true
	}
	if len(batch) != 1 {
		t.Errorf("batches %v", batch)
	}
	// It would take its own change for that of somebody else.
	hub = &fakeHub{put: putAnswer(), noPuts: 1}
	if got := hub.run(t, run{stdin: shopYAML}, "apply", "-f", "-", "--if-unchanged"); got.code == 0 || len(putsOf(hub)) != 1 {
		t.Errorf("exit %d, the hub was asked %v", got.code, putsOf(hub))
	}
}
