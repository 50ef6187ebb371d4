package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

// inCatalogs are what may stand in files that `towline apply` reads. A catalog keeps modules only, and says so of the others.
var inCatalogs = []proto.Message{&towlinev1.Module{}, &towlinev1.Cluster{}, &towlinev1.Project{}, &towlinev1.Catalog{}}

const (
	// maxListed bounds what is kept of the modules that the files of a catalog have, in bytes: its state, in which each may come to be a conflict, is
	// stored in one request, of which a store takes 1.4 MB.
	maxListed = 1 << 20
	// perListed is what is kept of a module at most beside its place, and its name four times.
	perListed = 96
)

// errNoModules says that the files have none.
type errNoModules struct{ folder, catalog string }

func (e errNoModules) Error() string {
	where := "the source"
	if e.folder != "" {
		where = "folder " + e.folder + " of the source"
	}
	return where + " has no module in a *.yaml, *.yml or *.json, so that nothing is changed, and other catalogs and sets do not delete what it had before: mend path, or say recursive, which reads the folders below, too, or delete the catalog, which leaves its modules: towline delete catalog " + e.catalog
}

// readCatalog reads the files of a catalog as `towline apply -f DIR` does. What is wrong is a *record.CatalogProblems, or that there is nothing.
func readCatalog(ctx context.Context, c *wire.Catalog, files map[string][]byte) (out []record.CatalogFile, below map[string]string, unread map[string][]byte, err error) {
	found, skipped, err := resource.LoadFiles(files, c.Folder, resource.Options{Kinds: inCatalogs, Recursive: c.Recursive, Whole: c.Prune})
	problems := &record.CatalogProblems{List: said(err)}
	for _, r := range found {
		if m := r.Meta(); m.GetProject() == "" {
			m.Project = c.Ref.Project
		}
	}
	problems.List = append(problems.List, said(resource.Unique(found))...)
	for _, r := range found {
		at := fmt.Sprintf("%s:%d", r.Source, r.Line)
		m, is := r.Message.(*towlinev1.Module)
		if !is {
			problems.List = append(problems.List, fmt.Sprintf("%s: %s %s: a catalog keeps modules only; take it out of the folder, and apply it by itself", at, strings.ToLower(r.Kind), r.Meta().GetName()))
			continue
		}
		out = append(out, record.CatalogFile{At: at, Module: m})
	}
	switch {
	case len(problems.List) > 0:
		return nil, nil, nil, problems
	case len(out) == 0:
		return nil, nil, nil, errNoModules{c.Folder, c.Ref.Display()}
	}
	at := map[string]string{}
	for _, f := range out {
		if name := f.Module.GetMetadata().GetName(); fleet.ValidateLabel(name) == nil { // else that is what is said of it
			at[name] = f.At
		}
	}
	if most := mostListed(at); most < len(at) {
		return nil, nil, nil, &record.CatalogProblems{List: []string{fmt.Sprintf("the files have %d modules, and of names and paths as long as theirs one catalog may have %d: make two catalogs of them, each of a folder", len(at), most)}}
	}
	below, unread, err = modulesIn(ctx, files, skipped)
	return out, below, unread, err
}

// elsewhere are the modules that other catalogs of the project have in the same files, or of which their last look found that they are of this one:
// what was moved there is to be taken over as it is, not deleted and made anew. unread are those of their files that cannot be read, and unknown
// the catalogs of which nobody knows what they read. None are looked for while the catalog lists all that it has.
func (c *Controller) elsewhere(ctx context.Context, x *catalogue, lists []record.CatalogFile, files map[string][]byte) (out map[string]catalog.Place, unread map[string][]byte, unknown []string, err error) {
	out, unread = map[string]catalog.Place{}, map[string][]byte{}
	if !x.c.Prune {
		return out, unread, nil, nil
	}
	var others []*wire.Catalog
	if err := c.view(ctx, func(r store.Reader) error {
		if !loses(r, x, lists) {
			return nil
		}
		unknown = record.DamagedCatalogs(r, x.ref.Project)
		store.Scan(r, store.CatalogPrefix+x.ref.Project+"/", func(rec *storev1.CatalogRecord, e store.Entry) bool {
			ref, ok := store.SplitCatalog(e.Key)
			if !ok || ref == x.ref || rec.GetDeleting() {
				return true
			}
			other, err := wire.CatalogFromProto(rec.GetCatalog())
			from, own := rec.GetCatalog().GetSpec().GetSource(), x.rec.GetCatalog().GetSpec().GetSource()
			switch same := wire.SameUpstream(from, own); {
			case same && err != nil:
				unknown = append(unknown, fmt.Sprintf("catalog %s, which is not valid (%v): put that catalog as it is to be, or delete it: towline delete catalog %s", ref.Name, err, ref.Name))
				return true
			case same:
				others = append(others, other)
			}
			if !wire.SameFiles(from, own) {
				unknown = append(unknown, c.had(r, ref, rec, out)...)
			}
			return true
		})
		return nil
	}); err != nil {
		return nil, nil, nil, err
	}
	for _, other := range others {
		files, why, err := c.filesFor(ctx, x, other, files)
		if err != nil {
			return nil, nil, nil, err
		}
		names, _ := resource.InFolder(files, other.Folder, other.Recursive)
		if why = cmp.Or(why, opaque(files, names)); why != nil {
			unknown = append(unknown, fmt.Sprintf("catalog %s, whose folder cannot be read as it is now (%v): mend that, or delete that catalog, which leaves its modules: towline delete catalog %s", other.Ref.Name, why, other.Ref.Name))
		}
		found, broken, err := modulesIn(ctx, files, names)
		if err != nil {
			return nil, nil, nil, err
		}
		maps.Copy(unread, broken)
		for name, at := range found {
			out[name] = catalog.Place{At: at, Catalog: other.Ref.Name}
		}
	}
	return out, unread, unknown, nil
}

// had notes which modules another catalog had in its files when these could be read last, and says what is not known of them.
func (c *Controller) had(r store.Reader, ref fleet.ModuleRef, rec *storev1.CatalogRecord, out map[string]catalog.Place) (unknown []string) {
	seen, _ := c.CatalogSeen(ref)
	state := record.CatalogState(r, ref, rec, seen)
	maps.Copy(out, record.CatalogHas(rec, state))
	if record.CatalogNeverRead(rec, state) {
		unknown = append(unknown, record.CatalogUnread(ref.Name, state))
	}
	return unknown
}

// filesFor are the files of a catalog's source with those of the folder of another one. A Git source leaves out without a word what it cannot
// deliver beside its own path, so that the folder is fetched by itself; why says that something in it cannot be delivered.
func (c *Controller) filesFor(ctx context.Context, x *catalogue, other *wire.Catalog, files map[string][]byte) (_ map[string][]byte, why, err error) {
	own := path.Clean("/" + x.c.Source.GetGit().GetPath())
	if own == "/" || strings.HasPrefix("/"+other.Folder+"/", own+"/") {
		return files, nil, nil
	}
	src := proto.CloneOf(x.c.Source)
	src.Git.Path = other.Folder
	a, err := c.o.Source.Fetch(ctx, x.ref.Project, src)
	switch {
	case errors.As(err, new(*source.NoFolderError)):
		return files, nil, nil
	case err != nil && follow.OfServer(lookReason(err)):
		return nil, nil, &lookError{err, lookReason(err)}
	case err != nil:
		return files, err, ctx.Err()
	case a.Ref != x.next.GetStatus().GetResolvedRef():
		return nil, nil, fleet.Errorf(fleet.ErrConflict, "the branch of catalog %s has moved meanwhile; try again", x.ref.Display())
	}
	return a.Files, nil, nil
}

// opaque says that one of some files is no text, as one that is encrypted: no name that it may have is to be found in it.
func opaque(files map[string][]byte, names []string) error {
	for _, name := range names {
		if manifest.IsText(files[name]) {
			continue
		}
		if _, err := resource.ParseDocuments(name, files[name]); err != nil { // else it is in another encoding that YAML has
			return fmt.Errorf("%s is no text", name)
		}
	}
	return nil
}

// lists notes which modules the files have. That counts from now on, before the look has come to its end: whose they are may prune meanwhile.
func (c *Controller) lists(x *catalogue, files []record.CatalogFile) {
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Module.GetMetadata().GetName()
	}
	x.next.Lists = listed(names)
	seen := x.known()
	seen.Lists = x.next.GetLists()
	c.catalogs.remember(x.ref, seen)
}

// namesOthers notes which modules the files have that cannot be applied, and which of others they may have where they cannot be read: whose they
// are prunes these as little as those of files that can be. Where no module was found the folder may be another one by mistake, and what was
// known of the files before is.
func (c *Controller) namesOthers(ctx context.Context, x *catalogue, files map[string][]byte, reason string) error {
	if reason == reasonNoModules {
		if x.was.GetReadGeneration() == record.CatalogUnlisted { // nor does anybody know these better now
			x.next.ReadGeneration = record.CatalogUnlisted
		}
		return nil
	}
	if x.c.Recursive && resource.LinksOut(files, x.c.Folder) != nil { // what is behind them it may list still
		x.next.ReadGeneration = record.CatalogUnlisted
		return nil
	}
	read, _ := resource.InFolder(files, x.c.Folder, x.c.Recursive)
	found, unread, err := modulesIn(ctx, files, read)
	if err != nil {
		return err
	}
	s, lists := x.next.GetStatus(), maps.Clone(found)
	for _, name := range x.was.GetLists() { // its own that may stand where nothing can be read
		if at := mayStandIn(unread, name); lists[name] == "" && at != "" {
			lists[name] = at
		}
	}
	conflicts, err := c.owned(ctx, x, found, unread)
	if err != nil {
		return err
	}
	for _, f := range s.GetConflicts() {
		if f.GetReason() != catalog.Owned {
			conflicts = append(conflicts, f)
		}
	}
	all := maps.Clone(lists)
	for _, f := range conflicts {
		all[f.GetModule()] = f.GetFile()
	}
	if mostListed(all) < len(all) { // what was known before is still, and that there is more
		x.next.ReadGeneration = record.CatalogUnlisted
		return nil
	}
	x.next.Lists, s.Conflicts = listed(slices.Collect(maps.Keys(lists))), conflicts
	return nil
}

// owned are the modules of others in files that cannot be applied, found or where they cannot be read, as conflicts in the order of their names. The files
// are searched when the store has been read, for that takes time.
func (c *Controller) owned(ctx context.Context, x *catalogue, found map[string]string, unread map[string][]byte) (out []*towlinev1.CatalogConflict, err error) {
	own := fleet.CatalogOrigin(x.ref.Name)
	if err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.ModulePrefix+x.ref.Project+"/", func(rec *storev1.ModuleRecord, e store.Entry) bool {
			ref, ok := store.SplitModule(e.Key)
			if owner := record.OwnerOf(r, ref, rec); ok && owner != own && rec.GetDeleting() == "" {
				out = append(out, &towlinev1.CatalogConflict{Module: ref.Name, Reason: catalog.Owned, Owner: owner})
			}
			return true
		})
		return nil
	}); err != nil {
		return nil, err
	}
	for _, f := range out {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f.File = cmp.Or(found[f.GetModule()], mayStandIn(unread, f.GetModule()))
	}
	return slices.DeleteFunc(out, func(f *towlinev1.CatalogConflict) bool { return f.GetFile() == "" }), nil
}

// mostListed is how many modules the state of a catalog has room for whose names and places, by name, are as long as these; not fewer: for all of them.
func mostListed(at map[string]string) int {
	size := 0
	for name, place := range at {
		size += perListed + 4*len(name) + len(place)
	}
	if size <= maxListed {
		return len(at)
	}
	return len(at) * maxListed / size
}

// listed are the names of modules among some, in order. What is none no module can have.
func listed(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return fleet.ValidateLabel(name) != nil })
	slices.Sort(names)
	return names
}

// mayStandIn is the first file, by name, that cannot be read and may have a module; empty: none may.
func mayStandIn(unread map[string][]byte, module string) (at string) {
	for name, data := range unread {
		if (at == "" || name < at) && bytes.Contains(data, []byte(module)) {
			at = name
		}
	}
	return at
}

// loses reports that a catalog may have modules that its files list no more.
func loses(r store.Reader, x *catalogue, lists []record.CatalogFile) (any bool) {
	named := map[string]bool{}
	for _, f := range lists {
		named[f.Module.GetMetadata().GetName()] = true
	}
	uid, prefix := x.rec.GetCatalog().GetMetadata().GetUid(), store.ModulePrefix+x.ref.Project+"/"
	store.Scan(r, prefix, func(rec *storev1.ModuleRecord, _ store.Entry) bool {
		any = rec.GetOriginUid() == uid && !named[rec.GetModule().GetMetadata().GetName()]
		return !any
	})
	return any || len(r.Damaged(prefix)) > 0
}

// said are the errors that an error joins.
func said(err error) (out []string) {
	if err == nil {
		return nil
	}
	joined, is := err.(interface{ Unwrap() []error })
	if !is {
		return []string{err.Error()}
	}
	for _, e := range joined.Unwrap() {
		out = append(out, said(e)...)
	}
	return out
}

// modulesIn are the modules of files that are not read for the catalog, with their place, and the files
// that cannot be read and may have some: what is in these nobody knows. What is no name no module has.
func modulesIn(ctx context.Context, files map[string][]byte, names []string) (out map[string]string, unread map[string][]byte, err error) {
	out, unread = map[string]string{}, map[string][]byte{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		docs, err := resource.ParseDocuments(name, files[name])
		if err != nil && resource.MayHold(files[name], "Module") {
			unread[name] = files[name]
		}
		for _, d := range docs {
			if d.Is("Module") && fleet.ValidateLabel(d.Name()) == nil {
				out[d.Name()] = fmt.Sprintf("%s:%d", d.Source, d.Node.Line)
			}
		}
	}
	return out, unread, nil
}

// problemsOf are what is wrong with the files, and the reason; none: the error is not of the files.
func problemsOf(err error) (list []string, reason string) {
	var problems *record.CatalogProblems
	var none errNoModules
	switch {
	case errors.As(err, &problems):
		return problems.List, reasonInvalidFiles
	case errors.As(err, &none):
		return []string{none.Error()}, reasonNoModules
	}
	return nil, ""
}
