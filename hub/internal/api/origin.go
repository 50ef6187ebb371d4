package api

import (
	"bytes"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// origin is where a module comes from: a set or a catalog, of the catalog its UID, and what its ref came to.
type origin struct{ name, uid, ref string }

// author is a catalog that writes modules; nil: a person does.
type author struct {
	catalog    fleet.ModuleRef
	uid        string
	generation int64
	ref        string
	take       bool // what is of others
	prunes     bool // what its files have no more, which a set may want
	again      bool // a person asks: what is put is tried again where its source failed, and takes the place of what is paused
	fence      store.Fence
}

// may has a commit fail unless the catalog is there as it was looked at, and this hub leads.
func (b *author) may(w store.Writer) error {
	if b == nil {
		return nil
	}
	if b.fence.Key != "" {
		w.Fence(b.fence)
	}
	c, _, ok := store.Get[*storev1.CatalogRecord](w, store.CatalogKey(b.catalog))
	if meta := c.GetCatalog().GetMetadata(); !ok || meta.GetUid() != b.uid || meta.GetGeneration() != b.generation {
		return later(fleet.Errorf(fleet.ErrConflict, "catalog %s was changed meanwhile; try again", b.catalog.Display()))
	}
	return nil
}

// notes reports that a put is to note that a module is what the catalog's files say, though nothing else changes.
func (b *author) notes(old *storev1.ModuleRecord) bool {
	return b != nil && !bytes.Equal(old.GetPutDigest(), old.GetSpecDigest())
}

// putOf is the generation that had last what the files of a module's catalog say, and the digest of that, after a put; a person may put that,
// too.
func putOf(by *author, from origin, rec, old *storev1.ModuleRecord) (int64, []byte) {
	switch {
	case from.uid == "":
		return 0, nil
	case by != nil || bytes.Equal(rec.GetSpecDigest(), old.GetPutDigest()):
		return rec.GetModule().GetMetadata().GetGeneration(), rec.GetSpecDigest()
	}
	return old.GetPutGeneration(), old.GetPutDigest()
}

// mayBegin has a commit fail that would begin a rollout while one runs that lets no other begin, or in the place of one that a person paused,
// unless a person asks for it.
func (b *author) mayBegin(r store.Reader, ref fleet.ModuleRef) error {
	if b == nil {
		return nil
	}
	if id := rollouts.Rejecting(r, ref); id != "" {
		return later(fleet.Errorf(fleet.ErrConflict, "rollout %s has begun meanwhile, and lets no other begin; try again", id))
	}
	if id := rollouts.PausedRollout(r, ref); id != "" && !b.again {
		return later(fleet.Errorf(fleet.ErrConflict, "rollout %s was paused meanwhile; try again", id))
	}
	return nil
}

// mayWrite has a commit fail that would put or delete a module whose record is damaged: whose that is nobody knows but a person.
func (b *author) mayWrite(ref fleet.ModuleRef, damaged bool) error {
	if b == nil || !damaged {
		return nil
	}
	return later(fleet.Errorf(fleet.ErrConflict, "%s", record.DamagedModule(ref)))
}

// originOf is what a module comes from after a put, which was had before by who is named.
func originOf(m *wire.Module, req *towlinev1.PutModuleRequest, by *author, had string, old *storev1.ModuleRecord) (origin, error) {
	if by == nil {
		name, err := originAfter(m, req, had)
		if _, of := fleet.OfCatalog(name); !of || err != nil {
			return origin{name: name}, err
		}
		return origin{name: name, uid: old.GetOriginUid()}, nil
	}
	own := origin{name: fleet.CatalogOrigin(by.catalog.Name), uid: by.uid, ref: by.ref}
	if old == nil || had == own.name || by.take {
		return own, nil
	}
	if had == "" {
		had = "nobody's, put by hand"
	}
	return origin{}, later(fleet.Errorf(fleet.ErrConflict, "module %s is of %s by now; try again", m.Ref.Display(), had))
}

// originAfter is what a module comes from after a put of a person: the set that it is put with, or what it was before. One of another set, or
// of a catalog, is refused, for that would put its own files again, or delete the module because they do not have it; take says that it
// has let go.
func originAfter(m *wire.Module, req *towlinev1.PutModuleRequest, had string) (string, error) {
	set := req.GetSet()
	if set != "" {
		if err := fleet.ValidateLabel(set); err != nil {
			return "", fleet.Invalid("set", err.Error())
		}
		set = fleet.SetOrigin(set)
	}
	switch {
	case req.GetTake():
		return set, nil
	case set == "" || had == "" || had == set:
		if set == "" {
			return had, nil
		}
		return set, nil
	}
	if _, is := fleet.OfCatalog(had); is {
		return "", fleet.Errorf(fleet.ErrPrecondition, "module %s is of %s, which puts what its files say: take it out of the files there, or apply it here with --take", m.Ref.Display(), had)
	}
	return "", fleet.Errorf(fleet.ErrPrecondition, "module %s is of %s, which prunes it: apply it here with --take, and only then take it out of the files there", m.Ref.Display(), had)
}

// warnOwner says that a person changes what a catalog puts back, or puts without a set what is of one: if a file has moved to where it is applied
// so, that set prunes it all the same.
func warnOwner(had string, after origin, req *towlinev1.PutModuleRequest, by *author, resp *towlinev1.PutModuleResponse) {
	warns := func(code, name string) {
		resp.Warnings = append(resp.Warnings, note(code, &towlinev1.Facts{Names: []string{name}}))
	}
	if name, is := fleet.OfCatalog(had); is && after.name == had && resp.GetResult() == resultConfigured {
		warns(fleet.WarnOfCatalog, name)
	}
	if name, is := fleet.OfSet(had); is && after.name == had && req.GetSet() == "" && by == nil {
		warns(fleet.WarnOfSet, name)
	}
}

// showOrigin leaves a module that is shown no origin of a catalog that is gone.
func showOrigin(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, m *towlinev1.Module) {
	if m.GetMetadata().GetOrigin() == "" {
		return
	}
	if m.Metadata.Origin = record.OwnerOf(r, ref, rec); m.Metadata.Origin == "" {
		m.Metadata.OriginRef = ""
	}
}
