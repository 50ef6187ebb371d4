package api

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const catalogKind = "Catalog"

func catalogObject(ref fleet.ModuleRef) fleet.Object {
	return fleet.Object{Kind: catalogKind, Name: ref.String()}
}

func noCatalog(ref fleet.ModuleRef) error {
	return fleet.NotFound(catalogObject(ref), "catalog %s not found", ref.Display())
}

// readCatalog is the record of a catalog, and where it stands in the store.
func readCatalog(r store.Reader, ref fleet.ModuleRef) (*storev1.CatalogRecord, store.Entry, error) {
	if err := record.ReadableCatalog(r, ref); err != nil {
		return nil, store.Entry{}, err
	}
	rec, e, ok := store.Get[*storev1.CatalogRecord](r, store.CatalogKey(ref))
	if !ok {
		return nil, store.Entry{}, noCatalog(ref)
	}
	return rec, e, nil
}

// catalogRecord is the record of a catalog of a UID; any is one of no UID.
func catalogRecord(r store.Reader, ref fleet.ModuleRef, uid string) (*storev1.CatalogRecord, error) {
	rec, _, err := readCatalog(r, ref)
	if err != nil {
		return nil, err
	}
	return rec, fleet.SameUID(catalogObject(ref), rec.GetCatalog().GetMetadata().GetUid(), uid)
}

// PutCatalog creates or changes a catalog; the leader does what it says.
func (a *API) PutCatalog(ctx context.Context, req *towlinev1.PutCatalogRequest) (*towlinev1.PutCatalogResponse, error) {
	in := req.GetCatalog()
	if err := refuseMasked(in); err != nil {
		return nil, named("catalog", in.GetMetadata().GetName(), err)
	}
	c, err := wire.CatalogFromProto(in)
	if err != nil {
		return nil, named("catalog", in.GetMetadata().GetName(), err)
	}
	if err := source.CheckVerify(c.Source); err != nil {
		return nil, named("catalog", c.Ref.Display(), fleet.Join("spec.source", err))
	}
	resp := &towlinev1.PutCatalogResponse{}
	put := func(w store.Writer) error { return a.putCatalog(ctx, w, c, req, resp) }
	if req.GetDryRun() {
		err = a.o.Store.View(ctx, 0, func(r store.Reader) error { return put(store.Dry(r)) })
	} else {
		resp.Revision, err = a.o.Store.Update(ctx, put)
	}
	if err != nil {
		return nil, named("catalog", c.Ref.Display(), err)
	}
	return resp, nil
}

func (a *API) putCatalog(ctx context.Context, w store.Writer, c *wire.Catalog, req *towlinev1.PutCatalogRequest, resp *towlinev1.PutCatalogResponse) error {
	key, in := store.CatalogKey(c.Ref), req.GetCatalog()
	project, _, ok := store.Get[*storev1.ProjectRecord](w, store.ProjectPrefix+c.Ref.Project)
	if !ok && c.Ref.Project != fleet.DefaultProject {
		return fleet.NotFound(projectObject(c.Ref.Project), "project %s does not exist; apply a Project of that name first", c.Ref.Project)
	}
	var old *storev1.CatalogRecord
	exists := false
	if store.DamageOf(w, key) == nil { // nothing is known of one that cannot be read, and another one takes its place
		old, _, exists = store.Get[*storev1.CatalogRecord](w, key)
	}
	prev := old.GetCatalog().GetMetadata()
	if err := record.AsSeen(w, key, catalogObject(c.Ref), prev, in.GetMetadata()); err != nil {
		return err
	}
	if old.GetDeleting() {
		return fleet.Forbids(catalogObject(c.Ref), "catalog %s is being deleted with its modules; put it again when it is gone", c.Ref.Display())
	}
	same := exists && proto.Equal(old.GetCatalog().GetSpec(), in.GetSpec())
	if same && sameWords(prev, in.GetMetadata()) {
		resp.Result, resp.Catalog = resultUnchanged, old.GetCatalog()
		return nil
	}
	if err := unscoped(w, c.Ref.Project, c.Source); err != nil {
		return err
	}
	meta := &towlinev1.Metadata{Name: c.Ref.Name, Project: c.Ref.Project, Labels: in.GetMetadata().GetLabels(), Annotations: in.GetMetadata().GetAnnotations(),
		Uid: prev.GetUid(), Generation: prev.GetGeneration(), CreationTimestamp: prev.GetCreationTimestamp(), ChangedBy: prev.GetChangedBy(), ChangeReason: prev.GetChangeReason()}
	if !exists {
		w.Grows()
		meta.Uid, meta.CreationTimestamp = string(uuid.NewUUID()), timestamppb.New(a.now())
	}
	if !same {
		meta.Generation++
		meta.ChangedBy, meta.ChangeReason = who(ctx), req.GetReason()
	}
	resp.Result = putResult(!exists, true)
	resp.Catalog = &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: catalogKind, Metadata: meta, Spec: in.GetSpec()}
	if !exists && ok { // who deletes the project in this moment finds it changed
		next := proto.CloneOf(project)
		next.NewestCatalog = meta.GetUid()
		w.Put(store.ProjectPrefix+c.Ref.Project, next)
	}
	w.Put(key, &storev1.CatalogRecord{Catalog: resp.Catalog})
	return nil
}

// showCatalog is a catalog as people see it, of which so many modules are.
func (a *API) showCatalog(r store.Reader, ref fleet.ModuleRef, rec *storev1.CatalogRecord, version int64, modules int32) *towlinev1.Catalog {
	c := proto.CloneOf(rec.GetCatalog())
	c.Metadata.ResourceVersion = version
	c.Status = cmp.Or(proto.CloneOf(a.catalogState(store.Untracked(r), ref, rec).GetStatus()), &towlinev1.CatalogStatus{})
	c.Status.Next = nil
	if a.o.CatalogSeen != nil && !record.Stands(r) { // else no source is looked at by itself
		if _, next := a.o.CatalogSeen(ref); !next.IsZero() {
			c.Status.Next = timestamppb.New(next)
		}
	}
	c.Status.Modules = modules
	switch s := c.Status; {
	case rec.GetDeleting():
		s.State, s.Reason, s.Waits = catalog.Deleting, "", nil
	case c.GetSpec().GetSuspend():
		s.State, s.Reason, s.Next, s.Waits = catalog.Suspended, "", nil, nil
	case s.GetObservedGeneration() != c.GetMetadata().GetGeneration():
		s.State, s.Reason, s.Problems = catalog.Pending, "", nil
	}
	return c
}

// GetCatalog reads one.
func (a *API) GetCatalog(ctx context.Context, req *towlinev1.GetCatalogRequest) (*towlinev1.GetCatalogResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetCatalogResponse{}
	return resp, a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		rec, e, err := readCatalog(r, ref)
		if err != nil {
			return err
		}
		resp.Catalog = a.showCatalog(r, ref, rec, e.ModRevision, record.ModulesOfCatalogs(r, ref.Project)[ref])
		return nil
	})
}

// ListCatalogs reads them.
func (a *API) ListCatalogs(ctx context.Context, req *towlinev1.ListCatalogsRequest) (*towlinev1.ListCatalogsResponse, error) {
	sel, err := selector(req.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	prefix := store.CatalogPrefix
	if req.GetProject() != "" {
		prefix += req.GetProject() + "/"
	}
	resp := &towlinev1.ListCatalogsResponse{}
	return resp, a.view(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		var lines []line[*towlinev1.Catalog]
		modules := record.ModulesOfCatalogs(r, req.GetProject())
		store.Scan(r, prefix, func(rec *storev1.CatalogRecord, e store.Entry) bool {
			ref, ok := store.SplitCatalog(e.Key)
			if !ok || !sel.Matches(labels.Set(rec.GetCatalog().GetMetadata().GetLabels())) {
				return true
			}
			lines = append(lines, line[*towlinev1.Catalog]{key: catalogLine(rec.GetCatalog()), show: func() *towlinev1.Catalog {
				return a.showCatalog(r, ref, rec, e.ModRevision, modules[ref])
			}})
			return true
		})
		if sel.Empty() {
			lines = append(lines, shownAll(damagedCatalogs(r, prefix, modules), catalogLine)...)
		}
		sortLines(lines)
		resp.Catalogs, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
}

func catalogLine(c *towlinev1.Catalog) string {
	return c.GetMetadata().GetProject() + "\x00" + c.GetMetadata().GetName()
}

func countCatalogs(r store.Reader, project string) (n int) {
	r.Scan(store.CatalogPrefix+project+"/", func(store.Entry) bool {
		n++
		return true
	})
	return n + len(r.Damaged(store.CatalogPrefix+project+"/"))
}

// DeleteCatalog removes one. Its modules are of nobody from that commit on, because the catalog that they name is gone; those that go with
// it are deleted first, by the leader.
func (a *API) DeleteCatalog(ctx context.Context, req *towlinev1.DeleteCatalogRequest) (*towlinev1.DeleteCatalogResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		if store.DamageOf(w, store.CatalogKey(ref)) != nil { // its modules name a catalog that nobody can read: they stay
			if uid := record.LastCatalogUID(store.Untracked(w), ref); uid != "" { // of one that was never looked at nobody knows it
				if err := fleet.SameUID(catalogObject(ref), uid, req.GetUid()); err != nil {
					return err
				}
			}
			if req.GetCascade() {
				return fleet.Forbids(catalogObject(ref), "%s; it cannot be deleted with its modules before it was put again, and has taken them: towline resync catalog %s --take",
					record.DamagedCatalog(ref), ref.Display())
			}
			w.Delete(store.CatalogKey(ref))
			return nil
		}
		rec, err := catalogRecord(w, ref, req.GetUid())
		if err != nil {
			return err
		}
		if !req.GetCascade() {
			w.Delete(store.CatalogKey(ref))
			return nil
		}
		if rec.GetDeleting() {
			return nil
		}
		next := proto.CloneOf(rec)
		record.DeleteWithModules(w, next)
		next.Catalog.Metadata.DeletionTimestamp = timestamppb.New(a.now())
		next.Catalog.Metadata.ChangedBy, next.Catalog.Metadata.ChangeReason = who(ctx), req.GetReason()
		w.Put(store.CatalogKey(ref), next)
		return nil
	})
	return &towlinev1.DeleteCatalogResponse{Revision: rev}, err
}

// ResyncCatalog looks at the source of a catalog now.
func (a *API) ResyncCatalog(ctx context.Context, req *towlinev1.ResyncCatalogRequest) (*towlinev1.ResyncCatalogResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		rec, err := catalogRecord(r, ref, req.GetUid())
		if err == nil && rec.GetDeleting() {
			err = fleet.Forbids(catalogObject(ref), "catalog %s is being deleted", ref.Display())
		}
		return err
	}); err != nil {
		return nil, err
	}
	if a.o.ResyncCatalog == nil {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "catalog %s: this hub looks at no sources", ref.Display())
	}
	done, err := a.o.ResyncCatalog(ctx, ref, record.Ask{By: who(ctx), Reason: req.GetReason()}, req.GetTake())
	if err != nil {
		return nil, named("catalog", ref.Display(), err)
	}
	resp := &towlinev1.ResyncCatalogResponse{Created: done.Created, Configured: done.Configured, Pruned: done.Pruned}
	got, err := a.GetCatalog(ctx, &towlinev1.GetCatalogRequest{Project: ref.Project, Name: ref.Name})
	if err != nil {
		return nil, err
	}
	resp.Catalog = got.GetCatalog()
	return resp, a.o.Store.View(ctx, 0, func(r store.Reader) error {
		resp.Revision = r.Revision()
		return nil
	})
}

// CatalogHookKey is what calls are signed with that ask for a look at the source of a catalog, as HookKey.
func (a *API) CatalogHookKey(ctx context.Context, ref fleet.ModuleRef) (key []byte) {
	_ = a.o.Store.View(ctx, 0, func(r store.Reader) error {
		rec, _, _ := store.Get[*storev1.CatalogRecord](r, store.CatalogKey(ref))
		if rec == nil || rec.GetDeleting() {
			return nil
		}
		if c, err := wire.CatalogFromProto(rec.GetCatalog()); err == nil && c.Follow != nil {
			key = a.hookKey(r, ref.Project, c.Follow.Webhook)
		}
		return nil
	})
	return key
}
