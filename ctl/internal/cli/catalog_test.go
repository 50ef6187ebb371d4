package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

func (h *fakeHub) ListCatalogs(_ context.Context, r *v1.ListCatalogsRequest) (*v1.ListCatalogsResponse, error) {
	h.note(r)
	return &v1.ListCatalogsResponse{Catalogs: h.catalogs}, nil
}

func (h *fakeHub) GetCatalog(_ context.Context, r *v1.GetCatalogRequest) (*v1.GetCatalogResponse, error) {
	for _, c := range h.catalogs {
		if c.GetMetadata().GetName() == r.GetName() && c.GetMetadata().GetProject() == r.GetProject() {
			if c.GetStatus().GetState() == "Damaged" {
				return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrCorrupt, "catalog %s, of which the hub's record is damaged", r.GetName()))
			}
			return &v1.GetCatalogResponse{Catalog: c}, nil
		}
	}
	return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrNotFound, "catalog %s not found", r.GetName()))
}

func (h *fakeHub) PutCatalog(_ context.Context, r *v1.PutCatalogRequest) (*v1.PutCatalogResponse, error) {
	h.note(r)
	if h.sameCatalog {
		return &v1.PutCatalogResponse{Catalog: r.GetCatalog(), Result: "unchanged"}, nil
	}
	return &v1.PutCatalogResponse{Catalog: r.GetCatalog(), Result: "configured"}, nil
}

func (h *fakeHub) DeleteCatalog(_ context.Context, r *v1.DeleteCatalogRequest) (*v1.DeleteCatalogResponse, error) {
	h.note(r)
	for _, c := range h.catalogs {
		if c.GetStatus().GetState() == "Damaged" && r.GetCascade() {
			return nil, rpc.ToStatus(fleet.Forbids(fleet.Object{Kind: "Catalog", Name: r.GetName()}, "it cannot be deleted with its modules"))
		}
	}
	return &v1.DeleteCatalogResponse{}, nil
}

func (h *fakeHub) ResyncCatalog(_ context.Context, r *v1.ResyncCatalogRequest) (*v1.ResyncCatalogResponse, error) {
	h.note(r)
	if len(h.recatalogs) > 0 {
		look := h.recatalogs[0]
		h.recatalogs = h.recatalogs[1:]
		return nil, look()
	}
	return h.recataloged, nil
}

// A hub that goes away before it has told what a look at a catalog came to is asked again, and what it had put and deleted by then counts as done by
// the command. A source that cannot be reached is no hub that went away.
func TestResyncOfACatalogOutlivesTheHub(t *testing.T) {
	module := func(name, origin string, rollout int) *v1.Module {
		return &v1.Module{Metadata: &v1.Metadata{Name: name, Uid: "u-" + name, Project: "default", Origin: origin}, Status: &v1.ModuleStatus{Rollout: fmt.Sprintf("%s/%d", name, rollout)}}
	}
	const own = "catalog/team"
	unreachable := status.Error(codes.Unavailable, "connection error: EOF")
	for name, tt := range map[string]struct {
		first error
		then  *v1.ResyncCatalogResponse
		out   string
		asked int
	}{
		"the rest is done by the next": {unreachable, &v1.ResyncCatalogResponse{Created: []string{"new"}}, "catalog/team created new; configured cart, taken; pruned old", 2},
		"all was done":                 {unreachable, &v1.ResyncCatalogResponse{}, "catalog/team created new; configured cart, taken; pruned old", 2},
		"the source is away":           {rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "source https://git.example.com: cannot be reached")), &v1.ResyncCatalogResponse{}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fullHub()
			hub.modules = []*v1.Module{module("base", own, 4), module("cart", own, 7), module("old", own, 1), module("other", "", 2), module("taken", "", 5)}
			hub.recataloged = tt.then
			hub.recataloged.Catalog = hub.catalogs[0]
			hub.recatalogs = []func() error{func() error {
				hub.modules = []*v1.Module{module("base", own, 4), module("cart", own, 8), module("new", own, 1), module("other", "", 3), module("taken", own, 6)}
				return tt.first
			}}
			got := hub.run(t, run{}, "resync", "catalog", "team")
			if !strings.HasPrefix(got.out, tt.out) || (got.code == exitOK) != (tt.out != "") {
				t.Errorf("exit %d, %q, %s", got.code, got.out, got.err)
			}
			if n := timesAsked[*v1.ResyncCatalogRequest](hub); n != tt.asked {
				t.Errorf("asked %d times, want %d", n, tt.asked)
			}
		})
	}
}

// A resync says what was put and what is not, and exits as waiting while a person must confirm.
func TestResyncCatalog(t *testing.T) {
	hub := fullHub()
	hub.recataloged = &v1.ResyncCatalogResponse{Catalog: hub.catalogs[0], Created: []string{"shop"}, Pruned: []string{"old", "older"}}
	got := hub.run(t, run{}, "resync", "catalog", "team", "--take", "-m", "moved")
	if got.code != exitOK || got.out != "catalog/team created shop; pruned old, older; at main@sha1:2e3d1f2e3d4c5b6a\n" || !strings.Contains(got.err, "module cart of modules/cart.yaml:1 is of set/cart-team, and is not written") {
		t.Errorf("%+v", got)
	}
	hub.recataloged = &v1.ResyncCatalogResponse{Catalog: hub.catalogs[1]}
	if got := hub.run(t, run{}, "resync", "catalog/web"); got.code != exitWaits || !strings.Contains(got.err, "towline confirm catalog-1") {
		t.Errorf("%+v", got)
	}
}

// A catalog that waits for what ends by itself says for what, and asks nobody to confirm anything.
func TestResyncCatalogThatWaits(t *testing.T) {
	hub := fullHub()
	c := proto.CloneOf(hub.catalogs[0])
	c.Status.State, c.Status.Reason, c.Status.Leftover = "Waiting", "RolloutRunning", []string{"base"}
	c.Status.Conflicts = []*v1.CatalogConflict{{Module: "old", File: "modules/old.yaml:1", Reason: "Damaged"}}
	c.Status.Waits = []*v1.CatalogWait{{Module: "shop", File: "modules/shop.yaml:1", Reason: "RolloutRunning", Rollout: "shop/4"}, {Module: "base", Reason: "InUse", By: []string{"shop", "cart"}}}
	hub.recataloged = &v1.ResyncCatalogResponse{Catalog: c}
	got := hub.run(t, run{}, "resync", "catalog", "team")
	if got.code != exitOK || got.out != "catalog/team the rest is done later; at main@sha1:2e3d1f2e3d4c5b6a\n" || strings.Contains(got.err, "confirm") {
		t.Errorf("%+v", got)
	}
	for _, says := range []string{"module shop of modules/shop.yaml:1 is put when rollout shop/4 is over", "module base is deleted when clusters have nothing more that depends on it: shop, cart; if it was renamed, what takes its place is in conflict until then",
		"module old of modules/old.yaml:1 is not written: the hub's record of it is damaged"} {
		if !strings.Contains(got.err, says) {
			t.Errorf("does not say %q: %s", says, got.err)
		}
	}
}

// A deletion says what becomes of the modules.
func TestDeleteCatalogSaysWhatStays(t *testing.T) {
	hub := fullHub()
	for args, says := range map[string]string{"": "3 modules stay, and are of nobody", "--cascade": "3 modules go with it, and what they have in the clusters"} {
		got := hub.run(t, run{terminal: true, stdin: "n\n"}, strings.Fields("delete catalog team "+args)...)
		if got.code == exitOK || !strings.Contains(got.out+got.err, says) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := hub.run(t, run{}, "delete", "catalog", "team", "--cascade", "--yes"); got.code != exitOK ||
		got.out != "catalog/team deleting: its modules go first; see: towline get catalog team\n" {
		t.Errorf("%+v", got)
	}
}

// --orphan is the word of modules: beside --cascade it would pass for one that leaves what these have.
func TestDeleteCatalogOrphansNothing(t *testing.T) {
	const file = "apiVersion: towline.dev/v1\nkind: Catalog\nmetadata: {name: team}\nspec: {source: {inline: {files: {a.yaml: ''}}}}\n"
	for _, args := range []string{"catalog team", "catalog/team module/shop", "-f -"} {
		hub := fullHub()
		got := hub.run(t, run{stdin: file}, strings.Fields("delete --yes --cascade --orphan "+args)...)
		if got.code != exitUsage || !strings.Contains(got.err, "--orphan would leave that") {
			t.Errorf("%s: %+v", args, got)
		}
		if asked[*v1.DeleteCatalogRequest](hub) != nil || asked[*v1.DeleteModuleRequest](hub) != nil {
			t.Errorf("%s: something was deleted", args)
		}
	}
}

// TestDeleteOfADamagedCatalog: a deletion says that the modules stay, and is of the catalog that was shown; with them it is refused, and nobody is asked before.
func TestDeleteOfADamagedCatalog(t *testing.T) {
	damaged := func() *fakeHub {
		hub := fullHub()
		hub.catalogs = []*v1.Catalog{{Metadata: &v1.Metadata{Project: "default", Name: "team", Uid: "u-team"}, Status: &v1.CatalogStatus{State: "Damaged", Modules: 3}}}
		return hub
	}
	hub := damaged()
	if got := hub.run(t, run{terminal: true, stdin: "n\n"}, "delete", "catalog", "team"); got.code == exitOK || !strings.Contains(got.out+got.err, "3 modules stay, and are of nobody") || timesAsked[*v1.DeleteCatalogRequest](hub) != 0 {
		t.Errorf("%+v", got)
	}
	if got := hub.run(t, run{terminal: true, stdin: "n\n"}, "delete", "catalog", "team", "--cascade"); got.code == exitOK || strings.Contains(got.out+got.err, "stay") || !strings.Contains(got.err, "cannot be deleted with its modules") {
		t.Errorf("%+v", got)
	}
	hub = damaged()
	if got := hub.run(t, run{}, "delete", "catalog", "team", "--yes"); got.code != exitOK || got.out != "catalog/team deleted\n" {
		t.Errorf("%+v", got)
	}
	for _, m := range hub.requests {
		if r, is := m.(*v1.DeleteCatalogRequest); is && r.GetUid() != "u-team" {
			t.Errorf("asked for %v", r)
		}
	}
}

// TestWaitOfACatalogShowsNoCommandThatDeletes: whether something takes the place of a module that goes later, the catalog does not say, so that
// nobody is given a line to paste which takes from under what depends on it.
func TestWaitOfACatalogShowsNoCommandThatDeletes(t *testing.T) {
	c := &v1.Catalog{Metadata: &v1.Metadata{Project: "team", Name: "apps"}, Spec: &v1.CatalogSpec{Prune: true}, Status: &v1.CatalogStatus{State: catalog.Waiting, Reason: catalog.InUse,
		Waits: []*v1.CatalogWait{{Module: "base", Reason: catalog.InUse, By: []string{"shop"}}}}}
	said := strings.Join(catalogSays(c), "\n")
	if strings.Contains(said, "towline delete") || !strings.Contains(said, "if it was renamed, what takes its place is in conflict until then") {
		t.Error(said)
	}
}

// TestConflictOfACatalogNamesItsProject: a line to paste is about the module of the catalog's project, not its namesake of another one.
func TestConflictOfACatalogNamesItsProject(t *testing.T) {
	c := &v1.Catalog{Metadata: &v1.Metadata{Project: "team", Name: "apps"}, Spec: &v1.CatalogSpec{}, Status: &v1.CatalogStatus{
		Conflicts: []*v1.CatalogConflict{{Module: "shop", Reason: catalog.Wanted, Owner: "set/carts"}}}}
	if said := strings.Join(catalogSays(c), "\n"); !strings.Contains(said, "towline delete module team/shop") {
		t.Error(said)
	}
}
