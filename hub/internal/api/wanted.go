package api

import (
	"context"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// A module that moves from the files of one to those of another is taken over by the other, and not deleted by the one. Where the one is
// looked at, or applied, after the other was refused the module, but before it has taken it, what the other wanted is all that tells a move
// from a deletion.

// wants notes that a set wants a module which is of another one, or of a catalog, and of which a put is refused for that, whatever else is wrong
// with it. What a person asks to be told alone leaves no trace.
func (a *API) wants(ctx context.Context, req *towlinev1.PutModuleRequest, by *author) error {
	set, meta := fleet.SetOrigin(req.GetSet()), req.GetModule().GetMetadata()
	ref, err := refOf(meta.GetProject(), meta.GetName())
	if err != nil || by != nil || fleet.ValidateLabel(req.GetSet()) != nil || req.GetDryRun() && !req.GetWants() {
		return nil
	}
	want := record.NewWant(set, who(ctx), a.now())
	note := func(r store.Reader) (m *storev1.ModuleRecord, now bool) {
		m, damaged, ok := moduleRecord(r, ref)
		had := record.OwnerOf(r, ref, m)
		return m, ok && !damaged && m.GetDeleting() == "" && had != "" && had != set && !record.Noted(r, ref, m, set, a.now())
	}
	now := false
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		_, now = note(r)
		return nil
	}); err != nil || !now {
		return err
	}
	_, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		if m, now := note(w); now {
			record.NoteWant(w, ref, m, want)
		}
		return nil
	})
	return err
}

// mayPrune refuses to delete a module because the files of its set have it no more while somebody else wants it. A person who asks for just this
// module is not refused; the deletions of a batch are those of a command that prunes, also of one that does not say for which set.
func (a *API) mayPrune(r store.Reader, ref fleet.ModuleRef, req *towlinev1.DeleteModuleRequest) error {
	rec, damaged, ok := moduleRecord(r, ref)
	if !ok || damaged || rec.GetDeleting() != "" || req.GetSet() == "" && req.GetBatch() == "" {
		return nil
	}
	owner := record.OwnerOf(r, ref, rec)
	if owner == "" && req.GetSet() == "" {
		return nil
	}
	if set := fleet.SetOrigin(req.GetSet()); req.GetSet() != "" && owner != set {
		return later(fleet.Errorf(fleet.ErrConflict, "module %s is not of %s by now: read again", ref.Display(), set))
	}
	const insists = "; to delete it all the same: towline delete module %s"
	if wants := record.Wants(r, ref, rec, a.now()); len(wants) > 0 {
		return fleet.Forbids(ref.Object(), "module %s is wanted by %s%s: apply it there with --take, which takes it over as it is"+insists,
			ref.Display(), record.WantedBy(wants), refusedAt(wants), ref.Display())
	}
	if says := a.inCatalogs(r, ref, owner); says != "" {
		return fleet.Forbids(ref.Object(), "module %s %s"+insists, ref.Display(), says, ref.Display())
	}
	return nil
}

func refusedAt(wants []*storev1.Want) string {
	at := wants[len(wants)-1].GetAt()
	if at == nil {
		return ""
	}
	return ", which was refused it at " + at.AsTime().UTC().Format(time.RFC3339)
}

// inCatalogs says which catalog of the project has a module of this owner in its files, or may have; empty: none.
func (a *API) inCatalogs(r store.Reader, ref fleet.ModuleRef, owner string) (says string) {
	if damaged := record.DamagedCatalogs(r, ref.Project); len(damaged) > 0 {
		return "may be of " + damaged[0]
	}
	store.Scan(r, store.CatalogPrefix+ref.Project+"/", func(rec *storev1.CatalogRecord, e store.Entry) bool {
		by, ok := store.SplitCatalog(e.Key)
		if !ok || rec.GetDeleting() || owner == fleet.CatalogOrigin(by.Name) {
			return true
		}
		state := a.catalogState(r, by, rec)
		if at := record.CatalogHas(rec, state)[ref.Name]; at.At != "" {
			says = at.Says()
			return false
		}
		if record.CatalogNeverRead(rec, state) {
			says = "may be in the files of " + record.CatalogUnread(by.Name, state)
		}
		return true
	})
	return says
}

// prunesNot has a commit fail by which a catalog would prune what a set wants by now, or what another catalog has by now.
func (a *API) prunesNot(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, by *author) error {
	if by == nil || !by.prunes {
		return nil
	}
	if wants := record.Wants(r, ref, rec, a.now()); len(wants) > 0 {
		return later(fleet.Errorf(fleet.ErrConflict, "module %s is wanted by %s by now; try again", ref.Display(), record.WantedBy(wants)))
	}
	if other := a.listedBy(r, ref, by); other != "" {
		return later(fleet.Errorf(fleet.ErrConflict, "module %s is in the files of catalog %s by now; try again", ref.Display(), other))
	}
	return nil
}

// listedBy is a catalog of other files than those of the one that prunes, which has a module in them; empty: there is none. What those of the same
// files have, these say, which the one was looked at with.
func (a *API) listedBy(r store.Reader, ref fleet.ModuleRef, by *author) (name string) {
	own, _, _ := store.Get[*storev1.CatalogRecord](r, store.CatalogKey(by.catalog))
	store.Scan(r, store.CatalogPrefix+ref.Project+"/", func(rec *storev1.CatalogRecord, e store.Entry) bool {
		other, ok := store.SplitCatalog(e.Key)
		same := wire.SameFiles(rec.GetCatalog().GetSpec().GetSource(), own.GetCatalog().GetSpec().GetSource())
		if ok && other != by.catalog && !rec.GetDeleting() && !same && record.CatalogHas(rec, a.catalogState(r, other, rec))[ref.Name].At != "" {
			name = other.Name
		}
		return name == ""
	})
	return name
}

// catalogState is what came of the last look at a catalog; nil: there was none.
func (a *API) catalogState(r store.Reader, ref fleet.ModuleRef, rec *storev1.CatalogRecord) *storev1.CatalogState {
	var seen *storev1.CatalogState
	if a.o.CatalogSeen != nil {
		seen, _ = a.o.CatalogSeen(ref)
	}
	return record.CatalogState(r, ref, rec, seen)
}
