package record

import (
	"context"
	"fmt"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/wire"
)

// CatalogFile is a module as a file of a catalog has it, and where.
type CatalogFile struct {
	At     string
	Module *towlinev1.Module
}

// CatalogLook is what the files of a catalog say, and for whom.
type CatalogLook struct {
	Ref        fleet.ModuleRef
	UID        string
	Generation int64
	Files      []CatalogFile
	// Below are modules in folders that are not read, by name with their place.
	Below map[string]string
	// Elsewhere are those that another catalog of the project reads in the same files.
	Elsewhere map[string]catalog.Place
	// Unread are files of both that cannot be read, with their text.
	Unread map[string][]byte
	// Unknown are other catalogs of the project of which nobody knows what they read, each as "NAME, …" with what to do.
	Unknown []string
	Prune   bool
	// Person says that somebody asks, and Take that he wants what is of others, too.
	Person, Take bool
	// ResolvedRef is what the ref came to, and Reason why the modules are put, for the record.
	ResolvedRef, Reason string
	// Puts is what a hub of before has put.
	Puts []*storev1.CatalogPut
	// Fence has writes fail once this hub does not lead any more.
	Fence store.Fence
}

// CatalogDone is what was written for a catalog.
type CatalogDone struct {
	Created, Configured, Pruned []string
}

// CatalogWriter puts and deletes modules for a catalog.
type CatalogWriter interface {
	// PlanCatalog checks all files, and says what is to be done. What is wrong with them is a *CatalogProblems.
	PlanCatalog(context.Context, CatalogLook) (catalog.Plan, error)
	// ApplyCatalog does it. Done is what was done also where it fails: then nothing is deleted.
	ApplyCatalog(context.Context, CatalogLook, catalog.Plan) (CatalogDone, error)
	// DropCatalog deletes the modules of a catalog that goes with them, and reports whether all are on their way.
	DropCatalog(ctx context.Context, look CatalogLook) error
}

// CatalogProblems are what is wrong with the files of a catalog.
type CatalogProblems struct{ List []string }

func (p *CatalogProblems) Error() string {
	if len(p.List) == 0 {
		return "the files cannot be applied"
	}
	return p.List[0]
}

// Is makes them an ErrInvalid.
func (p *CatalogProblems) Is(target error) bool { return target == fleet.ErrInvalid }

// OwnerOf is what a module comes from: its set, or the catalog that has put it and is there still. Of one that was deleted it is of nobody.
func OwnerOf(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord) string {
	origin := m.GetModule().GetMetadata().GetOrigin()
	name, is := fleet.OfCatalog(origin)
	if !is {
		return origin
	}
	key := store.CatalogKey(fleet.ModuleRef{Project: ref.Project, Name: name})
	if store.DamageOf(r, key) != nil {
		return origin
	}
	c, _, ok := store.Get[*storev1.CatalogRecord](r, key)
	if !ok || c.GetCatalog().GetMetadata().GetUid() != m.GetOriginUid() {
		return ""
	}
	return origin
}

// ModulesOfCatalogs counts the modules of each catalog, in a project or in all.
func ModulesOfCatalogs(r store.Reader, project string) map[fleet.ModuleRef]int32 {
	prefix := store.ModulePrefix
	if project != "" {
		prefix += project + "/"
	}
	out := map[fleet.ModuleRef]int32{}
	store.Scan(r, prefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
		ref, ok := store.SplitModule(e.Key)
		if name, is := fleet.OfCatalog(OwnerOf(store.Untracked(r), ref, rec)); ok && is && rec.GetDeleting() == "" {
			out[fleet.ModuleRef{Project: ref.Project, Name: name}]++
		}
		return true
	})
	return out
}

// CatalogSecretUsers are the catalogs whose sources use secrets, sorted by name, by project and name of the secret: of a project, or of all.
func CatalogSecretUsers(r store.Reader, project string) map[fleet.ModuleRef][]string {
	prefix := store.CatalogPrefix
	if project != "" {
		prefix += project + "/"
	}
	out := map[fleet.ModuleRef][]string{}
	store.Scan(r, prefix, func(rec *storev1.CatalogRecord, e store.Entry) bool {
		ref, ok := store.SplitCatalog(e.Key)
		if !ok {
			return true
		}
		for _, name := range SecretNames(rec.GetCatalog().GetSpec().GetSource()) {
			secret := fleet.ModuleRef{Project: ref.Project, Name: name}
			out[secret] = append(out[secret], ref.Name)
		}
		return true
	})
	return out
}

// AllSecretUsers are the modules that use secrets, and after them the catalogs, as catalog/NAME.
func AllSecretUsers(r store.Reader, project string) map[fleet.ModuleRef][]string {
	out := SecretUsers(r, project)
	for secret, names := range CatalogSecretUsers(r, project) {
		list := slices.Clone(out[secret])
		for _, name := range names {
			list = append(list, fleet.CatalogOrigin(name))
		}
		out[secret] = list
	}
	return out
}

// CatalogState is what came of the last look at a catalog; nil: there was none at this one. seen is newer than what is stored, if there is any.
func CatalogState(r store.Reader, ref fleet.ModuleRef, rec *storev1.CatalogRecord, seen *storev1.CatalogState) *storev1.CatalogState {
	uid := rec.GetCatalog().GetMetadata().GetUid()
	if seen.GetCatalogUid() == uid {
		return seen
	}
	state, _, _ := store.Get[*storev1.CatalogState](r, store.CatalogStateKey(ref))
	if state.GetCatalogUid() != uid {
		return nil
	}
	return state
}

// somewhere stands for the place of a module of which is known only that the files of a catalog have it.
const somewhere = "a file"

// CatalogHas is where the files of a catalog had modules when they could be read last, by name: those that it names as conflicts, and all that it
// lists. Whose these were then does not matter: one may be somebody else's by now. A catalog that is suspended lists nothing, for nobody looks
// whether it does still.
func CatalogHas(rec *storev1.CatalogRecord, state *storev1.CatalogState) map[string]catalog.Place {
	out, at := map[string]catalog.Place{}, catalog.Place{At: somewhere, Catalog: rec.GetCatalog().GetMetadata().GetName(), Last: true}
	mayGoOn := []string{catalog.ReasonNeeded, catalog.ReasonRefused, follow.ReasonGoesBack}
	if s := state.GetStatus(); s.GetState() == catalog.Failed && !slices.Contains(mayGoOn, s.GetReason()) {
		at.Stuck = s.GetReason() // the next look comes to the same, whoever asks for it
	}
	if !rec.GetCatalog().GetSpec().GetSuspend() {
		for _, name := range state.GetLists() {
			out[name] = at
		}
	}
	for _, f := range state.GetStatus().GetConflicts() {
		if f.GetFile() != "" {
			at.At = f.GetFile()
			out[f.GetModule()] = at
		}
	}
	return out
}

// CatalogUnlisted is, as the generation of which the files were had, that these have more modules than a state has room for, or lead to files that
// are not there.
const CatalogUnlisted = -1

// CatalogUnread says of a catalog that was never read why nobody knows what its files have, and what to do.
func CatalogUnread(name string, state *storev1.CatalogState) string {
	if state.GetReadGeneration() == CatalogUnlisted {
		return fmt.Sprintf("catalog %s, whose files may have modules that the hub does not know of: see towline describe catalog %s, and mend its files, or make two catalogs of it where they have too many, or suspend or delete it", name, name)
	}
	return fmt.Sprintf("catalog %s, whose files were not read yet: see towline describe catalog %s, and mend, suspend or delete that catalog", name, name)
}

// CatalogNeverRead reports that nobody knows what the files of a catalog are, by its state: what it was put as was not looked at, or its source was
// not to be had since, or they are too many to be kept. One that is suspended, or not valid, is not looked at at all.
func CatalogNeverRead(rec *storev1.CatalogRecord, state *storev1.CatalogState) bool {
	c, err := wire.CatalogFromProto(rec.GetCatalog())
	if err != nil || c.Suspend {
		return false
	}
	s := state.GetStatus()
	read := state.GetReadGeneration()
	if read == 0 && (s.GetResolvedRef() != "" || s.GetAppliedRef() != "" || s.GetApplied() != nil) {
		read = s.GetObservedGeneration() // as a hub of before has it
	}
	return read != rec.GetCatalog().GetMetadata().GetGeneration()
}
