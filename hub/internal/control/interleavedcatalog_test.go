package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// wovenCatalog may have the modules, and has one that is nowhere, so that its files are never empty.
var wovenCatalog = fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}

// shelf has the files of the catalog, beside the sources that need no server.
type shelf struct {
	Fetcher
	run *interleaved
}

// Fetch is of a Fetcher.
func (s shelf) Fetch(ctx context.Context, project string, of *towlinev1.Source) (source.Artifact, error) {
	defer s.run.single.fetches(s.run)
	if of.GetGit() == nil {
		return s.Fetcher.Fetch(ctx, project, of)
	}
	var files map[string][]byte
	switch of.GetGit().GetUrl() {
	case "https://git.test/team.git":
		files = maps.Clone(s.run.files)
		s.run.said.reads(files)
	case "https://git.test/other.git":
		files = maps.Clone(s.run.others)
	default:
		files = maps.Clone(s.run.source)
	}
	archive := artifact.Encode(files)
	return source.Artifact{Ref: "main@sha1:" + fleet.DigestOf(archive).Short(), Files: files, Archive: archive, Digest: fleet.DigestOf(archive)}, nil
}

// lists has a file of the catalog say what a module is.
func (w *interleaved) lists(m *towlinev1.Module) {
	raw, err := protojson.Marshal(m)
	w.must(err)
	var text any
	w.must(json.Unmarshal(raw, &text)) // what protojson writes differs from one time to the next
	raw, err = json.Marshal(text)
	w.must(err)
	w.files[fileOf(m.GetMetadata().GetName())] = raw
}

func fileOf(module string) string { return module + ".json" }

func (w *interleaved) listsAnew(ref fleet.ModuleRef) {
	w.number++
	w.lists(w.spec(ref, one(w.tape, 1, 4), one(w.tape, "", "x", "y"), ""))
}

// begins has a person put the modules, or the catalog with them.
func (w *interleaved) begins() {
	if w.tape.pick(3) != 2 {
		for _, ref := range wovenModules {
			w.puts(ref)
		}
		return
	}
	for _, ref := range wovenModules {
		w.listsAnew(ref)
	}
	w.catalogs(wovenModules[0])
}

// catalogs has the catalog be put, deleted or looked at, or changes its files.
func (w *interleaved) catalogs(ref fleet.ModuleRef) {
	team := wovenCatalog
	n := w.tape.pick(8)
	if _, there := w.last.Get(store.CatalogKey(team)); !there && n != 7 {
		n = 0
	}
	switch n {
	case 0, 1:
		w.putsCatalog(w.tape.pick(4) != 3, w.tape.pick(8) == 7)
	case 2:
		cascade := w.tape.pick(2) == 1
		w.call(fmt.Sprintf("delete the catalog, cascade %t", cascade), func(ctx context.Context) error {
			_, err := w.api.DeleteCatalog(ctx, &towlinev1.DeleteCatalogRequest{Project: team.Project, Name: team.Name, Cascade: cascade})
			return err
		})
	case 3, 4:
		take := w.tape.pick(2) == 1
		w.said.looked, w.said.take = true, w.said.take || take
		w.call(fmt.Sprintf("resync the catalog, take %t", take), func(ctx context.Context) error {
			_, err := w.api.ResyncCatalog(ctx, &towlinev1.ResyncCatalogRequest{Project: team.Project, Name: team.Name, Take: take})
			return err
		})
	default:
		w.files = maps.Clone(w.files)
		all := w.tape.pick(5) // 3 and 4: each by itself
		for _, ref := range wovenModules {
			n := all
			if all > 2 {
				n = w.tape.pick(3)
			}
			switch n {
			case 1:
				w.listsAnew(ref)
			case 2:
				delete(w.files, fileOf(ref.Name))
			}
		}
		w.note("the catalog's files are %v", slices.Sorted(maps.Keys(w.files)))
		_ = w.CatalogCalled(team)
	}
}

func (w *interleaved) putsCatalog(prune, suspend bool) {
	team := wovenCatalog
	c := &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: "Catalog", Metadata: &towlinev1.Metadata{Name: team.Name, Project: team.Project}, Spec: &towlinev1.CatalogSpec{
		Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/team.git"}}, Prune: prune, Suspend: suspend}}
	w.call(fmt.Sprintf("put the catalog, prune %t, suspend %t", c.GetSpec().GetPrune(), c.GetSpec().GetSuspend()), func(ctx context.Context) error {
		_, err := w.api.PutCatalog(ctx, &towlinev1.PutCatalogRequest{Catalog: c})
		return err
	})
}

// reads notes what the files have that are read.
func (x *words) reads(files map[string][]byte) {
	x.listed = map[string]bool{}
	for name := range files {
		module := strings.TrimSuffix(name, ".json")
		x.listed[module] = true
		maps.DeleteFunc(x.confirmed, func(said string, _ bool) bool { return strings.HasPrefix(said, "goes "+itemOf(module)) })
	}
}

// judgeCatalog: a catalog deletes and writes what it has, and nobody else has, as its files say, and as little against a person's word as he would.
func (w *interleaved) judgeCatalog(was, is store.Reader) {
	was = store.Untracked(was)
	own := fleet.CatalogOrigin(wovenCatalog.Name)
	by := catalogOf(was)
	for _, ref := range wovenModules {
		m, old := moduleOf(is, ref), moduleOf(was, ref)
		if m == nil || m.GetModule().GetMetadata().GetChangedBy() != own || proto.Equal(m, old) {
			continue
		}
		has := record.OwnerOf(was, ref, old) == own
		uid := old.GetModule().GetMetadata().GetUid()
		switch goes := m.GetDeleting() != "" && old.GetDeleting() == ""; {
		case goes && !has:
			w.finds("%s: is deleted by a catalog that does not have it", ref.Name)
		case goes && by.GetDeleting():
		case goes && (!by.GetCatalog().GetSpec().GetPrune() || w.said.listed[ref.Name]):
			w.finds("%s: is deleted by its catalog, and is not to be", ref.Name)
		case goes && w.losesMost(was) && !w.said.confirmed["goes "+catalogItem(catalog.Gone{Name: ref.Name, UID: uid})]:
			w.finds("%s: is deleted with most of its catalog without a word", ref.Name)
		case m.GetDeleting() != "" || old == nil || old.GetDeleting() != "" || proto.Equal(m.GetModule().GetSpec(), old.GetModule().GetSpec()):
		case !has && !w.said.take:
			w.finds("%s: is written by a catalog that does not have it", ref.Name)
		case rollouts.PausedRollout(was, ref) != "" && !w.said.looked:
			w.finds("%s: is written by its catalog, and a person paused it", ref.Name)
		}
	}
}

// losesMost reports that the files which were read last lack most of what the catalog has.
func (w *interleaved) losesMost(was store.Reader) bool {
	gone, had, own := 0, 0, fleet.CatalogOrigin(wovenCatalog.Name)
	store.Scan(was, store.ModulePrefix, func(m *storev1.ModuleRecord, e store.Entry) bool {
		ref, _ := store.SplitModule(e.Key)
		if m.GetDeleting() != "" || record.OwnerOf(was, ref, m) != own {
			return true
		}
		if had++; !w.said.listed[ref.Name] {
			gone++
		}
		return true
	})
	return catalog.Most(gone, had)
}

// catalogOf is the record of the catalog; nil: there is none.
func catalogOf(r store.Reader) *storev1.CatalogRecord {
	rec, _, _ := store.Get[*storev1.CatalogRecord](store.Untracked(r), store.CatalogKey(wovenCatalog))
	return rec
}

// restCatalog says whether anything is left of a catalog that is gone.
func (w *interleaved) restCatalog() {
	for _, prefix := range []string{store.CatalogPrefix, store.CatalogStates} {
		w.last.Scan(prefix, func(e store.Entry) bool {
			w.finds("all: left at the end: %s: %v", e.Key, e.Value)
			return false
		})
	}
}
