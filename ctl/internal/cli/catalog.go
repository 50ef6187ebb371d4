package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/resource"
)

var catalogListing = listing[*v1.Catalog]{
	view: func(_ *app, _ context.Context, _ *client.Client, o *getOptions) view[*v1.Catalog] {
		return catalogView(o.all)
	},
	list: func(a *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Catalog, error) {
		return collect(c.AllCatalogs(ctx, &v1.ListCatalogsRequest{Project: a.projectFilter(o), LabelSelector: o.selector}))
	},
	one: (*app).catalog, where: (*app).inProject,
}

// catalog reads one catalog.
func (a *app) catalog(ctx context.Context, name string) (*v1.Catalog, error) {
	ref, err := a.moduleRef(name)
	if err != nil {
		return nil, err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Catalogs.GetCatalog(ctx, &v1.GetCatalogRequest{Project: ref.Project, Name: ref.Name})
	return resp.GetCatalog(), err
}

func catalogName(c *v1.Catalog) string {
	return moduleName(c.GetMetadata().GetProject(), c.GetMetadata().GetName())
}

func catalogView(allProjects bool) view[*v1.Catalog] {
	return view[*v1.Catalog]{
		kind: "catalog", name: catalogName,
		table: func(a *app, items []*v1.Catalog) *table.Table {
			t := &table.Table{Columns: columns(left("NAME", "STATE"), right("MODULES", "CONFLICTS"), left("APPLIED", "AGE", "LOOKED"), wide("PRUNE", "SOURCE", "PATH", "CHANGED BY"), prose("WHAT"))}
			for _, c := range items {
				s, m := c.GetStatus(), c.GetMetadata()
				t.Add(text(m.GetName()), state(catalogState(s)), num(s.GetModules()), graded(table.Yellow, int32(len(s.GetConflicts()))),
					text(orDash(strings.TrimSpace(shortRef(s.GetAppliedRef())))), text(a.since(m.GetCreationTimestamp())), text(a.since(s.GetLooked())),
					text(fmt.Sprint(c.GetSpec().GetPrune())), text(sourceText(c.GetSpec().GetSource())), text(orDash(c.GetSpec().GetPath())), text(orDash(m.GetChangedBy())),
					text(orDash(firstOf(catalogSays(c)))))
			}
			return withProject(allProjects, t, func(i int) string { return items[i].GetMetadata().GetProject() })
		},
	}
}

func firstOf(list []string) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	return fmt.Sprintf("%s (and %d more)", list[0], len(list)-1)
}

func catalogState(s *v1.CatalogStatus) string {
	if s.GetReason() != "" {
		return s.GetState() + ": " + s.GetReason()
	}
	return s.GetState()
}

// catalogSays is what keeps the modules of a catalog from being what its files say, each in a sentence.
func catalogSays(c *v1.Catalog) (out []string) {
	s := c.GetStatus()
	out = append(out, s.GetProblems()...)
	if asksToConfirm(s) {
		out = append(out, fmt.Sprintf("it would delete most of its modules: %s; nothing is done before: towline confirm %s", strings.Join(s.GetLeftover(), ", "), s.GetHold()))
	}
	for _, x := range s.GetConflicts() {
		out = append(out, conflictSays(c.GetMetadata().GetProject(), x))
	}
	for _, x := range s.GetWaits() {
		out = append(out, waitSays(x))
	}
	if !asksToConfirm(s) && len(s.GetLeftover()) > 0 && !c.GetSpec().GetPrune() {
		out = append(out, fmt.Sprintf("in its files no more, and left because prune is false: %s", strings.Join(s.GetLeftover(), ", ")))
	}
	return out
}

// asksToConfirm reports that a catalog waits for a person, not for something that ends by itself.
func asksToConfirm(s *v1.CatalogStatus) bool {
	return s.GetState() == catalog.Waiting && s.GetHold() != ""
}

// keepsOthers is what one module that is put later has the others of its catalog do.
const keepsOthers = "; until then what others of the catalog let go stays in its clusters"

func waitSays(x *v1.CatalogWait) string {
	if x.GetFile() == "" {
		return fmt.Sprintf("module %s is deleted when clusters have nothing more that depends on it: %s; if it was renamed, what takes its place is in conflict until then, and where clusters wait for that, somebody has to delete it (--force)",
			x.GetModule(), strings.Join(x.GetBy(), ", "))
	}
	return fmt.Sprintf("module %s of %s is put when rollout %s is over, which lets no other begin (onSupersede: Reject)%s", x.GetModule(), x.GetFile(), x.GetRollout(), keepsOthers)
}

func conflictSays(project string, x *v1.CatalogConflict) string {
	switch {
	case x.GetReason() == catalog.Stopped:
		return fmt.Sprintf("module %s is left as it was changed by hand: rollout %s of what %s says was ended; it is put again when that changes, or by: towline resync%s", x.GetModule(), x.GetRollout(), x.GetFile(), keepsOthers)
	case x.GetReason() == catalog.Paused:
		return fmt.Sprintf("module %s of %s is not written: rollout %s is paused; it is put when that goes on, at the next look, or by: towline resync%s", x.GetModule(), x.GetFile(), x.GetRollout(), keepsOthers)
	case x.GetReason() == catalog.Damaged:
		return fmt.Sprintf("module %s of %s is not written: the hub's record of it is damaged, and its clusters keep what they have; put it again with towline apply, then: towline resync --take", x.GetModule(), x.GetFile())
	case x.GetReason() == catalog.Wanted:
		return fmt.Sprintf("module %s is in the files no more, and not deleted, for %s wants it and was refused it: apply it there with --take, which takes it over as it is, or delete it: towline delete module %s", x.GetModule(), x.GetOwner(), moduleName(project, x.GetModule()))
	case x.GetOwner() == "":
		return fmt.Sprintf("module %s of %s was put by hand, and is not written; to take it: towline resync --take", x.GetModule(), x.GetFile())
	}
	return fmt.Sprintf("module %s of %s is of %s, and is not written; take it out there, then: towline resync --take", x.GetModule(), x.GetFile(), x.GetOwner())
}

func completeCatalogs(a *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Catalogs.ListCatalogs(ctx, &v1.ListCatalogsRequest{Project: a.project, PageSize: completionPage})
	return namesOf(resp.GetCatalogs(), metaName[*v1.Catalog]), err
}

func (a *app) describeCatalog(ctx context.Context, _ *client.Client, s *sheet, name string) error {
	c, err := a.catalog(ctx, name)
	if err != nil {
		return err
	}
	spec, st := c.GetSpec(), c.GetStatus()
	s.meta(a, c.GetMetadata())
	s.line("Source", "%s", sourceText(spec.GetSource()))
	where := cmp.Or(spec.GetPath(), "the top")
	if spec.GetRecursive() {
		where += ", with all below it"
	}
	s.line("Path", "%s", where)
	if f := spec.GetSource().GetFollow(); f != nil {
		s.line("Follows", "every %s; next at %s", cmp.Or(f.GetInterval(), span(follow.DefaultInterval)), a.clock(st.GetNext()))
		if f.GetWebhook() {
			s.line("Webhook", "POST /hooks/%s/catalogs/%s, signed with secret %s", c.GetMetadata().GetProject(), c.GetMetadata().GetName(), cmp.Or(f.GetSecretName(), follow.DefaultWebhook))
		}
	}
	prunes := "nothing: modules that leave its files stay"
	if spec.GetPrune() {
		prunes = "modules of its own that leave its files"
	}
	s.line("Prunes", "%s", prunes)
	s.line("State", "%s for %s", catalogState(st), a.since(st.GetSince()))
	s.line("Modules", "%d", st.GetModules())
	s.line("Looked", "%s; at %s", a.stamp(st.GetLooked()), orDash(st.GetResolvedRef()))
	s.line("Applied", "%s; of %s", a.stamp(st.GetApplied()), orDash(st.GetAppliedRef()))
	for i, said := range catalogSays(c) {
		if i == 0 {
			s.section("Problems")
		}
		s.indented(table.Clean(said) + "\n")
	}
	return nil
}

// subjectCatalog is a catalog, of a reason.
const subjectCatalog = "Catalog"

func (a *app) explainCatalog(ctx context.Context, _ *client.Client, name string) (chain, error) {
	c, err := a.catalog(ctx, name)
	if err != nil {
		return chain{}, err
	}
	s := c.GetStatus()
	out := chain{head: fmt.Sprintf("catalog %s: %s, %s; applied %s.", catalogName(c), catalogState(s), count(s.GetModules(), "module"), orDash(strings.TrimSpace(shortRef(s.GetAppliedRef()))))}
	for _, said := range catalogSays(c) {
		out.reasons = append(out.reasons, &v1.Reason{Subject: about(subjectCatalog, c.GetMetadata().GetName()), Reason: cmp.Or(s.GetReason(), s.GetState()), Since: s.GetSince(),
			Facts: &v1.Facts{Detail: said}, Blocks: true})
	}
	if s.GetNext() != nil {
		out.foot = append(out.foot, "Next look "+a.clock(s.GetNext())+", or by: towline resync catalog "+catalogName(c))
	}
	return out, nil
}

func (r *applyRun) putCatalog(ctx context.Context, res resource.Resource) error {
	req := &v1.PutCatalogRequest{Catalog: res.Message.(*v1.Catalog), Reason: r.o.reason, DryRun: r.dry()}
	resp, _, err := insisted(ctx, r.a, &r.insists, func() (*v1.PutCatalogResponse, error) { return r.c.Catalogs.PutCatalog(ctx, req) })
	if err != nil {
		return err
	}
	r.stored = append(r.stored, resp.GetCatalog())
	name := catalogName(resp.GetCatalog())
	r.say("catalog/"+name, resp.GetResult(), "")
	if r.o.wait {
		r.a.warnf("catalog %s: its rollouts are not waited for; run: towline resync catalog %s --wait", name, name)
	}
	return nil
}

// resyncCatalog returns the rollouts of the modules that were put.
func (a *app) resyncCatalog(ctx context.Context, name string, o *resyncOptions) (begun []followed, err error) {
	c, err := a.catalog(ctx, name)
	if err != nil {
		return nil, err
	}
	hub, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	meta := c.GetMetadata()
	resp, err := a.resyncedCatalog(ctx, hub, &v1.ResyncCatalogRequest{Project: meta.GetProject(), Name: meta.GetName(), Uid: meta.GetUid(), Reason: o.reason, Take: o.take})
	if err != nil {
		return nil, err
	}
	var said []string
	for _, x := range []struct {
		word  string
		names []string
	}{{"created", resp.GetCreated()}, {"configured", resp.GetConfigured()}, {"pruned", resp.GetPruned()}} {
		if len(x.names) > 0 {
			said = append(said, x.word+" "+strings.Join(x.names, ", "))
		}
	}
	switch s := resp.GetCatalog().GetStatus(); {
	case asksToConfirm(s):
		said = append(said, "waits for a confirm")
	case len(s.GetWaits()) > 0:
		said = append(said, "the rest is done later")
	case len(said) == 0:
		said = append(said, "unchanged")
	}
	if at := resp.GetCatalog().GetStatus().GetResolvedRef(); at != "" {
		said = append(said, "at "+table.Clean(at))
	}
	a.printf("catalog/%s %s\n", catalogName(c), strings.Join(said, "; "))
	for _, problem := range catalogSays(resp.GetCatalog()) {
		a.warnf("catalog %s: %s", catalogName(c), problem)
	}
	for _, name := range append(resp.GetCreated(), resp.GetConfigured()...) {
		of, err := a.newestRollout(ctx, fleet.ModuleRef{Project: meta.GetProject(), Name: name})
		if err != nil {
			return begun, err
		}
		begun = append(begun, of)
	}
	if asksToConfirm(resp.GetCatalog().GetStatus()) {
		return begun, &exitError{exitWaits, fmt.Errorf("catalog %s waits for a person: towline confirm %s", catalogName(c), resp.GetCatalog().GetStatus().GetHold())}
	}
	return begun, nil
}

// resyncedCatalog asks for a look until a hub that leads has answered. What looks did of which the answers were lost counts as done by the command.
func (a *app) resyncedCatalog(ctx context.Context, hub *client.Client, req *v1.ResyncCatalogRequest) (*v1.ResyncCatalogResponse, error) {
	before, err := collect(hub.AllModules(ctx, &v1.ListModulesRequest{Project: req.GetProject()}))
	if err != nil {
		return nil, err
	}
	resp, again, err := insisted(ctx, a, &insistence{passes: passes}, func() (*v1.ResyncCatalogResponse, error) { return hub.Catalogs.ResyncCatalog(ctx, req) })
	if err != nil || !again {
		return resp, err
	}
	now, err := collect(hub.AllModules(ctx, &v1.ListModulesRequest{Project: req.GetProject()}))
	if err != nil {
		return nil, err
	}
	addDone(resp, fleet.CatalogOrigin(req.GetName()), before, now)
	return resp, nil
}

// addDone adds to what the last look at a catalog did what those before it did, by the modules before the first and after the last.
func addDone(resp *v1.ResyncCatalogResponse, origin string, before, now []*v1.Module) {
	said := slices.Concat(resp.GetCreated(), resp.GetConfigured(), resp.GetPruned())
	there := func(list []*v1.Module) map[string]*v1.Module {
		out := map[string]*v1.Module{}
		for _, m := range list {
			if m.GetMetadata().GetDeletionTimestamp() == nil {
				out[m.GetMetadata().GetName()] = m
			}
		}
		return out
	}
	was, is := there(before), there(now)
	for _, name := range sortedKeys(is) {
		old, m := was[name], is[name]
		switch {
		case m.GetMetadata().GetOrigin() != origin || slices.Contains(said, name):
		case old.GetMetadata().GetUid() != m.GetMetadata().GetUid():
			resp.Created = append(resp.Created, name)
		case old.GetStatus().GetRollout() != m.GetStatus().GetRollout():
			resp.Configured = append(resp.Configured, name)
		}
	}
	for _, name := range sortedKeys(was) {
		if was[name].GetMetadata().GetOrigin() == origin && is[name] == nil && !slices.Contains(said, name) {
			resp.Pruned = append(resp.Pruned, name)
		}
	}
}

// newestRollout is the newest rollout of a module.
func (a *app) newestRollout(ctx context.Context, ref fleet.ModuleRef) (followed, error) {
	m, err := a.moduleOf(ctx, ref)
	of := followed{RolloutID: fleet.RolloutID{Module: ref}, uid: m.GetMetadata().GetUid()}
	if id := m.GetStatus().GetRollout(); err == nil && id != "" {
		of.RolloutID, err = parseRolloutOf(ref.Project, id)
	}
	return of, err
}

func (a *app) deleteCatalog(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	x, err := a.catalog(ctx, name)
	if errors.Is(err, fleet.ErrCorrupt) {
		return a.deleteDamagedCatalog(ctx, c, o, name)
	}
	if err != nil {
		return err
	}
	meta := x.GetMetadata()
	n := x.GetStatus().GetModules()
	goes := agree(n, "module stays, and is of nobody", "modules stay, and are of nobody")
	if o.cascade {
		goes = agree(n, "module goes", "modules go") + " with it, and what " + pronoun(n) + " in the clusters"
	}
	if err := a.ask(o.yes, "delete catalog "+catalogName(x), goes); err != nil {
		return err
	}
	_, err = c.Catalogs.DeleteCatalog(ctx, &v1.DeleteCatalogRequest{Project: meta.GetProject(), Name: meta.GetName(), Uid: meta.GetUid(), Cascade: o.cascade, Reason: o.reason})
	if o.cascade && err == nil {
		a.printf("catalog/%s deleting: its modules go first; see: towline get catalog %s\n", catalogName(x), catalogName(x))
		return nil
	}
	return a.deleted("catalog/"+catalogName(x), err)
}

// deleteDamagedCatalog deletes a catalog of which is known what a list shows: its name, and, if it was ever looked at, its UID and how many modules it has.
// With them the hub refuses it, and says what to do; that nobody has to confirm.
func (a *app) deleteDamagedCatalog(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	ref, err := a.moduleRef(name)
	if err != nil {
		return err
	}
	list, err := collect(c.AllCatalogs(ctx, &v1.ListCatalogsRequest{Project: ref.Project}))
	if err != nil {
		return err
	}
	var x *v1.Catalog
	if i := slices.IndexFunc(list, func(x *v1.Catalog) bool { return x.GetMetadata().GetName() == ref.Name }); i >= 0 {
		x = list[i]
	}
	if !o.cascade {
		goes := "the hub's record of it is damaged; " + agree(x.GetStatus().GetModules(), "module stays, and is of nobody", "modules stay, and are of nobody")
		if err := a.ask(o.yes, "delete catalog "+ref.Display(), goes); err != nil {
			return err
		}
	}
	_, err = c.Catalogs.DeleteCatalog(ctx, &v1.DeleteCatalogRequest{Project: ref.Project, Name: ref.Name, Uid: x.GetMetadata().GetUid(), Cascade: o.cascade, Reason: o.reason})
	return a.deleted("catalog/"+ref.Display(), err)
}

func pronoun(n int32) string {
	if n == 1 {
		return "it has"
	}
	return "they have"
}
