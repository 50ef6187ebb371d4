package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// catalogFile is a module of a file that was read, with the files that it means.
type catalogFile struct {
	record.CatalogFile
	m *wire.Module
}

func authorOf(look record.CatalogLook) *author {
	return &author{catalog: look.Ref, uid: look.UID, generation: look.Generation, ref: look.ResolvedRef, take: look.Take, prunes: look.Prune, again: look.Person, fence: look.Fence}
}

// asCatalog is the context of what a catalog writes.
func asCatalog(ctx context.Context, look record.CatalogLook) context.Context {
	return rpc.WithCaller(ctx, rpc.Caller{Kind: rpc.KindUser, Name: fleet.CatalogOrigin(look.Ref.Name), Role: rpc.RoleAdmin})
}

// PlanCatalog checks what the files of a catalog say as a put of each would, and says what is to be done. Nothing is done where anything is
// wrong.
func (a *API) PlanCatalog(ctx context.Context, look record.CatalogLook) (catalog.Plan, error) {
	files, err := a.readFiles(ctx, look)
	if err != nil {
		return catalog.Plan{}, err
	}
	in := catalog.Input{Catalog: look.UID, Below: look.Below, Elsewhere: look.Elsewhere, Unread: look.Unread, Unknown: look.Unknown, Prune: look.Prune, Person: look.Person, Take: look.Take}
	for _, f := range files {
		digest, err := wire.SpecDigest(f.Module.GetSpec())
		if err != nil {
			return catalog.Plan{}, err
		}
		in.Files = append(in.Files, catalog.File{Name: f.m.Ref.Name, At: f.At, Spec: digest, Words: wordsOf(f.Module.GetMetadata()), DependsOn: namesOf(f.m.Dependencies())})
	}
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		in.Modules = withNeeds(r, look, modulesFor(r, look))
		in.Wanted = a.wantedOf(r, look.Ref.Project, in.Modules)
		return nil
	}); err != nil {
		return catalog.Plan{}, err
	}
	plan := catalog.Decide(in)
	return plan, a.checkPuts(asCatalog(ctx, look), look, files, plan)
}

// readFiles checks each file by itself.
func (a *API) readFiles(ctx context.Context, look record.CatalogLook) ([]catalogFile, error) {
	var out []catalogFile
	problems, at := &record.CatalogProblems{}, map[string]string{}
	for _, f := range look.Files {
		module := proto.CloneOf(f.Module)
		if module.GetMetadata().GetProject() == "" {
			module.Metadata.Project = look.Ref.Project
		}
		m, err := readModule(module)
		if err == nil && m.Ref.Project != look.Ref.Project {
			err = fleet.Invalidf("metadata.project", "is %s: a catalog writes into its own project, %s; leave project out, or put a catalog into project %s", m.Ref.Project, look.Ref.Project, m.Ref.Project)
			err = named("module", m.Ref.Name, err)
		}
		if err == nil {
			if first := at[m.Ref.Name]; first != "" {
				err = fleet.Errorf(fleet.ErrInvalid, "module %s: is in %s already", m.Ref.Name, first)
			}
			at[m.Ref.Name] = f.At
		}
		if err == nil {
			module, _, err = a.settle(ctx, m, module)
		}
		switch {
		case err == nil:
			out = append(out, catalogFile{record.CatalogFile{At: f.At, Module: module}, m})
		case ctx.Err() != nil || errors.Is(err, fleet.ErrUnavailable):
			return nil, err
		default:
			problems.List = append(problems.List, f.At+": "+err.Error())
		}
	}
	if len(problems.List) > 0 {
		return nil, problems
	}
	return out, nil
}

// checkPuts refuses what a put would be refused for. A source that is elsewhere is fetched by the module's own rollout: one that is away
// keeps no other module from being put.
func (a *API) checkPuts(ctx context.Context, look record.CatalogLook, files []catalogFile, plan catalog.Plan) error {
	problems, by, with := &record.CatalogProblems{}, authorOf(look), ordersOf(files)
	by.take = true // what may be taken is in the plan already
	for _, f := range files {
		if !slices.ContainsFunc(plan.Puts, func(p catalog.Put) bool { return p.Name == f.m.Ref.Name }) {
			continue
		}
		req := &towlinev1.PutModuleRequest{Module: f.Module, DryRun: true, With: with}
		var err error
		if wire.Contained(f.m.Source) {
			err = a.render(ctx, f.m, req)
		}
		if err == nil {
			err = a.o.Store.View(ctx, 0, func(r store.Reader) error {
				return a.putModule(ctx, store.Dry(r), f.m, req, by, &towlinev1.PutModuleResponse{})
			})
		}
		if ctx.Err() != nil || errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrUnavailable) {
			return err
		}
		if err != nil {
			problems.List = append(problems.List, f.At+": "+named("module", f.m.Ref.Display(), err).Error())
		}
	}
	if len(problems.List) > 0 {
		return problems
	}
	return nil
}

func ordersOf(files []catalogFile) (out []*towlinev1.ModuleOrder) {
	for _, f := range files {
		out = append(out, &towlinev1.ModuleOrder{Project: f.m.Ref.Project, Module: f.m.Ref.Name, DependsOn: f.Module.GetSpec().GetDependsOn()})
	}
	return out
}

func namesOf(refs []fleet.ModuleRef) (out []string) {
	for _, ref := range refs {
		out = append(out, ref.Name)
	}
	return out
}

// wordsOf is the digest of labels and annotations.
func wordsOf(m *towlinev1.Metadata) fleet.Digest {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(&towlinev1.Metadata{Labels: m.GetLabels(), Annotations: m.GetAnnotations()})
	return fleet.DigestOf(raw)
}

// modulesFor are the modules of the project, as the catalog sees them.
func modulesFor(r store.Reader, look record.CatalogLook) (out []catalog.Module) {
	puts := map[string]*storev1.CatalogPut{}
	for _, p := range look.Puts {
		puts[p.GetModule()] = p
	}
	own, prefix := fleet.CatalogOrigin(look.Ref.Name), store.ModulePrefix+look.Ref.Project+"/"
	store.Scan(r, prefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if !ok {
			return true
		}
		meta := rec.GetModule().GetMetadata()
		m := catalog.Module{Name: ref.Name, UID: meta.GetUid(), Version: e.ModRevision, Spec: record.Digest(rec.GetSpecDigest()), Words: wordsOf(meta),
			DependsOn: namesOf(wire.DependenciesOf(ref, rec.GetModule().GetSpec())), Owner: record.OwnerOf(r, ref, rec), Deleting: rec.GetDeleting() != ""}
		if m.Mine = m.Owner == own; m.Mine {
			m.Paused = rollouts.PausedRollout(r, ref)
		}
		m.Running = rollouts.Rejecting(r, ref)
		if m.Mine {
			m.Unbegun = rollouts.PutsMissing(rollouts.Last(r, ref))
			m.Put, m.Stopped = lastPut(r, ref, rec, puts[ref.Name])
		}
		out = append(out, m)
		return true
	})
	for _, d := range r.Damaged(prefix) {
		if ref, ok := store.SplitModule(d.Key); ok {
			out = append(out, catalog.Module{Name: ref.Name, Damaged: true})
		}
	}
	return out
}

// wantedOf are the modules of a catalog that sets want, by name with the set.
func (a *API) wantedOf(r store.Reader, project string, modules []catalog.Module) map[string]string {
	out := map[string]string{}
	for _, m := range modules {
		ref := fleet.ModuleRef{Project: project, Name: m.Name}
		if !m.Mine || m.Damaged {
			continue
		}
		rec, _, _ := moduleRecord(r, ref)
		if wants := record.Wants(r, ref, rec, a.now()); len(wants) > 0 {
			out[m.Name] = record.WantedBy(wants)
		}
	}
	return out
}

// lastPut is the digest of what a catalog has put last of a module, and the rollout of that if a person ended it. before is what a hub of before
// noted.
func lastPut(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, before *storev1.CatalogPut) (put fleet.Digest, stopped string) {
	put = record.Digest(rec.GetPutDigest())
	ro := rollouts.OfGeneration(r, ref, rec.GetPutGeneration())
	if rec.GetPutGeneration() == 0 && before != nil {
		put, ro = record.Digest(before.GetSpecDigest()), rollouts.Get(r, ref, before.GetRollout())
	}
	if s := rollouts.StateOf(ro); s == rollout.Aborted || s == rollout.RolledBack || s == rollout.RollingBack {
		stopped = ro.GetRollout().GetId()
	}
	return put, stopped
}

// withNeeds notes of the modules what clusters have of them depends on, which is looked up only where any may go: it takes a look at all
// that clusters have.
func withNeeds(r store.Reader, look record.CatalogLook, list []catalog.Module) []catalog.Module {
	stays := map[string]bool{}
	for _, f := range look.Files {
		stays[f.Module.GetMetadata().GetName()] = true
	}
	if !look.Prune || !slices.ContainsFunc(list, func(m catalog.Module) bool { return m.Mine && !m.Deleting && !stays[m.Name] }) {
		return list
	}
	needed := record.Needed(r, look.Ref.Project)
	for i, m := range list {
		list[i].Needs = namesOf(needed[fleet.ModuleRef{Project: look.Ref.Project, Name: m.Name}])
	}
	return list
}

// ApplyCatalog does what was planned. What somebody changes meanwhile is a conflict, and is planned anew.
func (a *API) ApplyCatalog(ctx context.Context, look record.CatalogLook, plan catalog.Plan) (done record.CatalogDone, err error) {
	ctx = asCatalog(ctx, look)
	files, err := a.readFiles(ctx, look)
	if err != nil {
		return done, err
	}
	errs := a.putFiles(ctx, look, files, plan, &done)
	if len(errs) == 0 {
		if err := a.endBatches(ctx, look, files, record.Gathering); err != nil {
			return done, err
		}
		errs = a.prunePlanned(ctx, look, plan, &done)
	}
	if len(errs) == 0 {
		if err := a.endBatches(ctx, look, files, record.Unsettled); err != nil {
			return done, err
		}
	}
	problems := &record.CatalogProblems{}
	for _, err := range errs {
		if errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrStale) || errors.Is(err, fleet.ErrUnavailable) {
			return done, err // it is tried again
		}
		problems.List = append(problems.List, err.Error())
	}
	if len(problems.List) > 0 {
		return done, problems
	}
	return done, ctx.Err()
}

// putFiles puts what is to be put, as one batch. Where one of it is not put the batch stays open: the look is made again, and may put that.
func (a *API) putFiles(ctx context.Context, look record.CatalogLook, files []catalogFile, plan catalog.Plan, done *record.CatalogDone) (errs []error) {
	by, with, batch := authorOf(look), ordersOf(files), rand.Text()
	of := map[string]catalogFile{}
	for _, f := range files {
		of[f.m.Ref.Name] = f
	}
	for i, p := range plan.Puts {
		f := of[p.Name]
		module := proto.CloneOf(f.Module)
		module.Metadata.Uid, module.Metadata.ResourceVersion, module.Metadata.Generation = p.UID, p.Version, 0
		req := &towlinev1.PutModuleRequest{Module: module, Reason: look.Reason, With: with}
		if len(plan.Puts) > 1 || len(plan.Prunes) > 0 {
			req.Batch, req.More, req.Deletes = batch, i < len(plan.Puts)-1 || len(errs) > 0, len(plan.Prunes) > 0
		}
		by.take = p.Takes
		resp, err := a.putAs(ctx, req, by)
		a.auditCatalog(ctx, look, "PutModule", f.m.Ref, resp.GetRollout(), err)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.At, err))
			continue
		}
		switch resp.GetResult() {
		case resultCreated:
			done.Created = append(done.Created, p.Name)
		case resultConfigured:
			done.Configured = append(done.Configured, p.Name)
		}
	}
	return errs
}

func (a *API) auditCatalog(ctx context.Context, look record.CatalogLook, method string, ref fleet.ModuleRef, rollout string, err error) {
	detail := look.ResolvedRef
	if rollout != "" {
		detail = strings.TrimSpace(detail + " rollout " + rollout)
	}
	a.audit(ctx, &towlinev1.AuditEntry{Caller: fleet.CatalogOrigin(look.Ref.Name), Method: method, Subject: ref.String(), Reason: look.Reason, Detail: detail}, err)
}

// prunePlanned deletes what was planned to go, as it was seen.
func (a *API) prunePlanned(ctx context.Context, look record.CatalogLook, plan catalog.Plan, done *record.CatalogDone) (errs []error) {
	for _, g := range plan.Prunes {
		ref := fleet.ModuleRef{Project: look.Ref.Project, Name: g.Name}
		_, err := a.deleteModule(ctx, &towlinev1.DeleteModuleRequest{Project: ref.Project, Name: ref.Name, Uid: g.UID, ResourceVersion: g.Version, Reason: look.Reason}, authorOf(look))
		if errors.Is(err, fleet.ErrNotFound) {
			continue // somebody else has deleted it
		}
		a.auditCatalog(ctx, look, "DeleteModule", ref, "", err)
		if err != nil {
			errs = append(errs, fmt.Errorf("module %s is not pruned: %w", g.Name, err))
			continue
		}
		done.Pruned = append(done.Pruned, g.Name)
	}
	return errs
}

// DropCatalog deletes the modules of a catalog that goes with them: what depends on others goes first. Of a module that cannot be read nobody knows whether
// it is of the catalog: that stays until somebody says what becomes of it.
func (a *API) DropCatalog(ctx context.Context, look record.CatalogLook) error {
	ctx = asCatalog(ctx, look)
	in := catalog.Input{Catalog: look.UID, Prune: true}
	var unknown []error
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		in.Modules = modulesFor(r, look)
		for _, d := range r.Damaged(store.ModulePrefix + look.Ref.Project + "/") {
			if ref, ok := store.SplitModule(d.Key); ok {
				unknown = append(unknown, fmt.Errorf("module %s may be of the catalog, and go with it: %s (%w)", ref.Display(), record.DamagedModule(ref), d.Why))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	plan := catalog.Decide(in)
	return errors.Join(append(a.prunePlanned(ctx, look, plan, &record.CatalogDone{}), unknown...)...)
}
