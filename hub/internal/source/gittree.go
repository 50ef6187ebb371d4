package source

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

const (
	maxLinks     = 40   // that are followed on the way to one file
	maxLinkBytes = 4096 // of a symbolic link's target
	maxBadName   = 300  // bytes that are kept of a name that can be none
	maxPointer   = 1024 // a file that only says where its content is has fewer bytes
)

// gitFiles makes the files of a commit. What cannot be delivered is refused in the folders that are used, and left out elsewhere.
// Lasts is false of what is signed only for a time.
func gitFiles(ctx context.Context, packed []byte, wanted wantedCommit, g gitRequest) (files map[string][]byte, commit gitCommit, lasts bool, err error) {
	store, err := readObjects(ctx, packed, packLimits{MaxObjects, MaxObjectBytes})
	if err != nil {
		return nil, gitCommit{}, false, err
	}
	c, err := commitOf(store, wanted.commit)
	if err != nil {
		return nil, gitCommit{}, false, err
	}
	if lasts, err = g.signed.checkGit(store, wanted, c); err != nil {
		return nil, gitCommit{}, false, err
	}
	files, err = treeFiles(ctx, store, c, g.path)
	return files, c, lasts, err
}

// treeFiles makes the files of a tree. It does so again when it is known what the charts in a folder depend on beside it, so that nothing of
// that is left out.
func treeFiles(ctx context.Context, store *memory.Storage, c gitCommit, folder string) (map[string][]byte, error) {
	used := usedFolders{path.Clean(folder): ""}
	t, err := takeTree(ctx, store, c, used)
	if err != nil || folder == "" {
		return t.files, err
	}
	if !t.uses {
		return nil, t.nothingIn(folder, c)
	}
	all, err := used.reach(ctx, t.files)
	if err != nil || len(all) == len(used) {
		return t.files, err
	}
	t, err = takeTree(ctx, store, c, all)
	return t.files, err
}

// nothingIn is why a folder has no files: what it is in may have been left out.
func (t *gitTree) nothingIn(folder string, c gitCommit) error {
	for _, e := range t.entries {
		if strings.HasPrefix(folder, e.name+"/") && !t.shows(e) {
			return fleet.Invalidf("source.git.path", "%q is in %q, which cannot be delivered at commit %s: it is a submodule, a symbolic link to what is not in the repository, or has a name that is not allowed", clip(folder), clip(e.name), c.hash)
		}
	}
	return &NoFolderError{fleet.Invalidf("source.git.path", "%q is no folder with files at commit %s", clip(folder), c.hash)}
}

// shows reports that all there is of an entry was taken: it is a file, or a link that leads to some.
func (t *gitTree) shows(e gitEntry) bool {
	if _, is := t.files[e.name]; is {
		return true
	}
	for name := range t.files {
		if strings.HasPrefix(name, e.name+"/") {
			return true
		}
	}
	return false
}

// takeTree makes the files of a tree of which some folders are used.
func takeTree(ctx context.Context, store *memory.Storage, c gitCommit, used usedFolders) (*gitTree, error) {
	t := &gitTree{ctx: ctx, store: store, used: used, files: map[string][]byte{}, names: artifact.NewNames()}
	if err := t.collect("", c.tree); err != nil {
		return t, err
	}
	for _, e := range t.entries {
		if err := t.take(e, e.name, 0); err != nil {
			return t, err
		}
	}
	return t, nil
}

const maxTagChain = 10 // that point to one another

// gitCommit is as much of a commit as is used.
type gitCommit struct {
	hash, tree plumbing.Hash
	made       time.Time
}

// committed is when a commit was made, by its own word: its header ends with an empty line. Zero: it says none.
func committed(raw []byte) time.Time {
	head, _, _ := bytes.Cut(raw, []byte("\n\n"))
	for line := range bytes.Lines(head) {
		who, is := bytes.CutPrefix(line, []byte("committer "))
		if !is {
			continue
		}
		words := bytes.Fields(who[bytes.LastIndexByte(who, '>')+1:])
		if len(words) == 0 {
			break
		}
		if at, err := strconv.ParseInt(string(words[0]), 10, 64); err == nil {
			return madeAt(at)
		}
		break
	}
	return time.Time{}
}

// commitOf is the commit itself, or that of a tag.
func commitOf(store *memory.Storage, wanted plumbing.Hash) (gitCommit, error) {
	at := wanted
	for range maxTagChain {
		if tree, ok := leadsTo(store, plumbing.CommitObject, at); ok {
			raw, err := rawObject(store, plumbing.CommitObject, at)
			return gitCommit{at, tree, committed(raw)}, err
		}
		target, ok := leadsTo(store, plumbing.TagObject, at)
		if !ok {
			break
		}
		at = target
	}
	return gitCommit{}, fleet.Errorf(fleet.ErrCorrupt, "the server does not send commit %s, or it is none", wanted)
}

// leadsTo is the tree of a commit, or what a tag leads to: its first line, as for git. The rest is not read, which may be as long as a pack,
// and which the library reads in the square of that.
func leadsTo(store *memory.Storage, kind plumbing.ObjectType, at plumbing.Hash) (to plumbing.Hash, ok bool) {
	header := map[plumbing.ObjectType]string{plumbing.CommitObject: "tree ", plumbing.TagObject: "object "}[kind]
	raw, err := rawObject(store, kind, at)
	line, _, ended := bytes.Cut(raw, []byte("\n"))
	name, begins := bytes.CutPrefix(line, []byte(header))
	if err != nil || !ended || !begins || !plumbing.IsHash(string(name)) {
		return to, false
	}
	return plumbing.NewHash(string(name)), true
}

// gitEntry is a file, a symbolic link or a submodule.
type gitEntry struct {
	name string
	mode filemode.FileMode
	hash plumbing.Hash
	bad  string // why it can have no such name
}

// gitTree is a tree that is being made files.
type gitTree struct {
	ctx     context.Context
	store   *memory.Storage
	used    usedFolders
	entries []gitEntry // by name
	seen    int        // entries, and folders
	listed  int64      // bytes of the folders that were looked into
	files   map[string][]byte
	names   *artifact.Names
	bytes   int64
	uses    bool // there is a file in a folder that is used
}

// collect lists a folder and all under it. A folder may be there many times, so that what is counted is how often one is looked into.
func (t *gitTree) collect(dir string, hash plumbing.Hash) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if o, err := t.store.EncodedObject(plumbing.TreeObject, hash); err == nil {
		t.listed += o.Size()
	}
	if t.listed > MaxObjectBytes {
		return manyObjects("has folders with more than %d MiB of names", MaxObjectBytes>>20)
	}
	tree, err := object.GetTree(t.store, hash)
	if err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "the server does not send folder %q", clip(dir))
	}
	for _, e := range tree.Entries {
		if t.seen++; t.seen > MaxObjects {
			return manyObjects("has more than %d files and folders", MaxObjects)
		}
		name := e.Name
		if dir != "" {
			name = dir + "/" + e.Name
		}
		if why := artifact.BadName(name); why != "" { // a link may still show it under another one
			name = name[:min(len(name), len(dir)+maxBadName)]
			t.entries = append(t.entries, gitEntry{name, e.Mode, e.Hash, why})
			continue
		}
		if e.Mode == filemode.Dir {
			if err := t.collect(name, e.Hash); err != nil {
				return err
			}
			continue
		}
		t.entries = append(t.entries, gitEntry{name, e.Mode, e.Hash, ""})
	}
	if dir == "" {
		slices.SortFunc(t.entries, func(a, b gitEntry) int { return strings.Compare(a.name, b.name) })
	}
	return nil
}

// leaveOut is what helps against a file that cannot be delivered, where nothing needs it.
const leaveOut = ", or leave it out of source.git.path"

// refuse refuses a file in a folder that is used.
func (t *gitTree) refuse(name, format string, args ...any) error {
	folder, used := t.used.of(name)
	if !used {
		return nil
	}
	chart := t.used[folder]
	if chart != "" { // it is beside the path, so that no other path helps
		format = strings.TrimSuffix(format, leaveOut)
	}
	err := fleet.Errorf(fleet.ErrInvalid, "%q "+format, append([]any{clip(name)}, args...)...)
	if chart != "" {
		return fleet.Errorf(fleet.ErrInvalid, "the chart in %q depends on all that is in %q: %s", clip(chart), clip(folder), err)
	}
	return err
}

// take makes an entry the file or files of a name.
func (t *gitTree) take(e gitEntry, name string, links int) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if t.seen++; t.seen > 2*MaxObjects { // links to folders may show a few files many times
		return manyObjects("has more than %d files by its symbolic links", MaxObjects)
	}
	if e.bad != "" {
		return t.refuse(name, "%s", e.bad)
	}
	switch e.mode {
	case filemode.Regular, filemode.Deprecated, filemode.Executable:
		return t.add(e, name)
	case filemode.Symlink:
		return t.follow(e, name, links)
	case filemode.Submodule:
		return t.refuse(name, "is a submodule, which is not fetched: put its files into the repository"+leaveOut)
	}
	return t.refuse(name, "is neither a file nor a folder (mode %s)", e.mode)
}

// add makes an entry a file. It is read when it counts: one blob may be there under any number of names that are refused.
func (t *gitTree) add(e gitEntry, name string) error {
	size, err := t.size(e)
	if err != nil {
		return err
	}
	if size < maxPointer {
		data, err := t.content(e)
		if err != nil {
			return err
		}
		if manifest.IsPointer(data) {
			return t.refuse(name, "is kept in Git LFS, which is not fetched: put the file itself into the repository"+leaveOut)
		}
	}
	switch err := t.names.Add(name, false); {
	case errors.Is(err, fleet.ErrExhausted):
		return err
	case err != nil:
		return t.refuse(name, "is in the way: %s", err)
	}
	if len(t.files) == MaxEntries {
		return manyObjects("has more than %d files", MaxEntries)
	}
	if t.bytes += size; t.bytes > MaxUnpackedBytes {
		return manyObjects("has more than %d MiB of files", MaxUnpackedBytes>>20)
	}
	if t.files[name], err = t.content(e); err != nil {
		return err
	}
	if !t.uses {
		_, t.uses = t.used.of(name)
	}
	return nil
}

// size is that of a file or a symbolic link.
func (t *gitTree) size(e gitEntry) (int64, error) {
	o, err := t.store.EncodedObject(plumbing.BlobObject, e.hash)
	if err != nil {
		return 0, fleet.Errorf(fleet.ErrCorrupt, "the server does not send file %q", clip(e.name))
	}
	return o.Size(), nil
}

// content is what a file or a symbolic link holds.
func (t *gitTree) content(e gitEntry) ([]byte, error) {
	return rawObject(t.store, plumbing.BlobObject, e.hash)
}

// follow puts what a symbolic link leads to in its place.
func (t *gitTree) follow(e gitEntry, name string, links int) error {
	if links++; links > maxLinks {
		return t.refuse(name, "is a symbolic link that leads in a circle")
	}
	target, err := t.resolve(e, &links)
	if err != nil {
		return t.refuse(name, "%s", err)
	}
	if i, found := t.find(target); found {
		return t.take(t.entries[i], name, links)
	}
	under := t.under(target)
	if len(under) == 0 {
		return t.refuse(name, "is a symbolic link to %q, which is not there", clip(target))
	}
	for _, in := range under {
		if err := t.take(in, name+in.name[len(target):], links); err != nil {
			return err
		}
	}
	return nil
}

// resolve returns the path in the tree that a symbolic link leads to, with all links on the way followed.
func (t *gitTree) resolve(e gitEntry, links *int) (string, error) {
	at, err := t.linkTarget(e)
	for done := 0; err == nil && done < len(at); {
		end := strings.IndexByte(at[done:], '/')
		if end < 0 {
			break // the last part is the entry itself, or a folder
		}
		end += done
		i, found := t.find(at[:end])
		if !found {
			done = end + 1
			continue
		}
		if t.entries[i].mode != filemode.Symlink {
			return "", fleet.Invalidf("", "is a symbolic link through %q, which is no folder", clip(at[:end]))
		}
		if *links++; *links > maxLinks {
			return "", fleet.Invalid("", "is a symbolic link that leads in a circle")
		}
		var to string
		if to, err = t.linkTarget(t.entries[i]); err == nil {
			at, done = path.Join(to, at[end+1:]), 0
		}
	}
	return at, err
}

// linkTarget is where a symbolic link leads, as a path in the tree.
func (t *gitTree) linkTarget(e gitEntry) (string, error) {
	size, err := t.size(e)
	if err != nil {
		return "", err
	}
	if size == 0 || size > maxLinkBytes {
		return "", fleet.Invalid("", "is a symbolic link to nothing")
	}
	data, err := t.content(e)
	if err != nil {
		return "", err
	}
	to := string(data)
	switch at := path.Join(path.Dir(e.name), to); {
	case strings.HasPrefix(to, "/") || at == ".." || strings.HasPrefix(at, "../"):
		return "", fleet.Invalidf("", "is a symbolic link to %q, outside of the repository", clip(to))
	case at == ".":
		return "", fleet.Invalid("", "is a symbolic link to the whole repository, and so to itself")
	default:
		return at, nil
	}
}

// find returns the index of the entry of a name.
func (t *gitTree) find(name string) (int, bool) {
	return slices.BinarySearchFunc(t.entries, name, func(e gitEntry, name string) int { return strings.Compare(e.name, name) })
}

// under are the entries in a folder.
func (t *gitTree) under(dir string) []gitEntry {
	first := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].name >= dir+"/" })
	last := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].name >= dir+"0" }) // 0 is what comes after /
	return t.entries[first:last]
}
