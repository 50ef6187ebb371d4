package source

import (
	"context"
	"errors"
	"net"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// gitRequest is a checked Git source.
type gitRequest struct {
	place
	ref    *towlinev1.GitRef
	path   string
	signed verification
	cache  string // what the key of an artifact begins with
}

// gitRemote is a repository that answers as git-upload-pack does.
type gitRemote interface {
	// refs are the branches and tags, and what the server can do.
	refs(ctx context.Context) (*packp.AdvRefs, error)
	// pack is the pack that the request asks for.
	pack(ctx context.Context, req *packp.UploadPackRequest) ([]byte, error)
	close()
}

// fetchGit takes the tree of one commit. Nothing of it is fetched where the commit is known already.
func (f *Fetcher) fetchGit(ctx context.Context, project string, src *towlinev1.GitSource, signed verification) (Artifact, error) {
	g, err := f.readGit(ctx, project, src, signed)
	if err != nil {
		return Artifact{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	if commit := g.ref.GetCommit(); commit != "" {
		if a, known := f.cache.get(g.key(wantedCommit{commit: plumbing.NewHash(commit)})); known {
			return a, nil
		}
	}
	for try := 0; ; try++ {
		a, again, err := f.gitOnce(ctx, g)
		if err == nil {
			return a, nil
		}
		if !again || try == maxRedownload || ctx.Err() != nil {
			return Artifact{}, g.explain(ctx, err)
		}
	}
}

// gitOnce makes one connection. Again says that it broke off, and another one may bring what is wanted.
func (f *Fetcher) gitOnce(ctx context.Context, g gitRequest) (a Artifact, again bool, err error) {
	remote, err := f.openGit(ctx, g)
	if err != nil {
		return Artifact{}, brokeOff(err), err
	}
	defer remote.close()
	adv, err := remote.refs(ctx)
	if err != nil {
		return Artifact{}, brokeOff(err), err
	}
	wanted, err := chooseRef(g, adv)
	if err != nil {
		return Artifact{}, false, err
	}
	if a, known := f.cache.get(g.key(wanted)); known {
		return named(a, wanted.by), false, nil
	}
	packed, err := remote.pack(ctx, wantPack(adv.Capabilities, wanted.commit))
	if wanted.by != "" && errors.Is(err, errNotTheirs) { // its ref has moved since, or one of several servers is behind
		err = errBroken
	}
	if err != nil {
		return Artifact{}, brokeOff(err), err
	}
	a, err = inTurn(ctx, f, func(ctx context.Context) (Artifact, error) { return f.gitArtifact(ctx, g, wanted, packed) })
	if err != nil {
		return Artifact{}, false, err
	}
	return named(a, wanted.by), false, nil
}

// gitArtifact makes an artifact of a pack.
func (f *Fetcher) gitArtifact(ctx context.Context, g gitRequest, wanted wantedCommit, packed []byte) (Artifact, error) {
	files, commit, lasts, err := gitFiles(ctx, packed, wanted, g)
	if err != nil {
		return Artifact{}, err
	}
	a := newArtifact(files)
	a.Ref, a.Made = "sha1:"+commit.hash.String(), commit.made // as other tools write it
	if lasts {
		f.cache.put(g.key(wanted), a)
	}
	return a, nil
}

// wantPack asks for the tree of a commit without what was before it, where the server can leave that out.
func wantPack(caps *capability.List, commit plumbing.Hash) *packp.UploadPackRequest {
	req := packp.NewUploadPackRequestFromCapabilities(caps)
	req.Capabilities.Delete(capability.ThinPack) // nothing is here that a pack could build on
	if caps.Supports(capability.NoProgress) {
		_ = req.Capabilities.Set(capability.NoProgress) // it takes no value, so that it cannot be wrong
	}
	if caps.Supports(capability.Shallow) {
		_ = req.Capabilities.Set(capability.Shallow)
		req.Depth = packp.DepthCommits(1)
	}
	req.Wants = []plumbing.Hash{commit}
	return req
}

// readGit checks a Git source, and gets its secret.
func (f *Fetcher) readGit(ctx context.Context, project string, src *towlinev1.GitSource, signed verification) (gitRequest, error) {
	u, err := wire.GitURL(src)
	if err != nil {
		return gitRequest{}, fleet.Join("source", err)
	}
	g := gitRequest{ref: src.GetRef(), signed: signed, place: place{url: u, name: safeURL(u), field: "source.git", address: "source.git.url"}}
	if u.Scheme == "file" && !f.opts.AllowFiles {
		return g, g.fail(fleet.ErrDenied, "is a folder of the hub's machine, and the hub reads none: start it with --allow-file-sources")
	}
	if g.path = path.Clean(src.GetPath()); g.path == "." {
		g.path = ""
	}
	err = g.furnish(ctx, f, project, src)
	g.cache = cacheKey("git", project, src.GetUrl(), g.secret.digest(), g.path)
	return g, err
}

// key names the files of a commit. What was signed is kept by what it was verified with, and a tag by its name, which is part of that.
func (g gitRequest) key(w wantedCommit) string {
	if !g.signed.any() {
		return cacheKey(g.cache, w.commit.String())
	}
	name := ""
	if g.signed.tag() {
		name = w.by
	}
	return cacheKey(g.cache, w.commit.String(), g.signed.id, name)
}

// openGit begins to speak with the server of a repository.
func (f *Fetcher) openGit(ctx context.Context, g gitRequest) (gitRemote, error) {
	switch g.url.Scheme {
	case "file":
		return openGitFolder(g.url.Path)
	case "ssh":
		return f.openGitSSH(ctx, g)
	}
	return f.openGitHTTP(g)
}

// brokeOff reports that a connection ended before its time.
func brokeOff(err error) bool {
	var status *statusError
	var named *fleet.Named
	var field *fleet.FieldError
	var op *net.OpError
	switch {
	case errors.As(err, &status) || errors.As(err, &named) || errors.As(err, &field):
		return false
	}
	return errors.Is(err, errBroken) || errors.As(err, &op)
}

// errNotTheirs says that a server does not have the commit that it was asked for.
var errNotTheirs = errors.New("not our ref")

// errBroken is what a reader says whose server stopped in the middle.
var errBroken = errors.New("broke off")

// wantedCommit is a commit, and the name that it was found by.
type wantedCommit struct {
	commit plumbing.Hash // or a tag's, that points to one
	by     string        // a branch or tag; empty: by its commit
}

// chooseRef finds the commit that a source names among what the server has.
func chooseRef(g gitRequest, adv *packp.AdvRefs) (wantedCommit, error) {
	switch ref := g.ref; {
	case ref.GetBranch() != "":
		if h, ok := adv.References["refs/heads/"+ref.GetBranch()]; ok {
			return wantedCommit{h, ref.GetBranch()}, nil
		}
		return wantedCommit{}, fleet.Errorf(fleet.ErrNotFound, "has no branch %q: check source.git.ref.branch%s", clip(ref.GetBranch()), someOf(refsUnder(adv, "refs/heads/")))
	case ref.GetTag() != "":
		if h, ok := g.tagCommit(adv, ref.GetTag()); ok {
			return wantedCommit{h, ref.GetTag()}, nil
		}
		return wantedCommit{}, fleet.Errorf(fleet.ErrNotFound, "has no tag %q: check source.git.ref.tag%s", clip(ref.GetTag()), someOf(refsUnder(adv, "refs/tags/")))
	case ref.GetSemver() != "":
		tag, err := newestVersion("source.git.ref.semver", ref.GetSemver(), refsUnder(adv, "refs/tags/"))
		if err != nil {
			return wantedCommit{}, err
		}
		h, _ := g.tagCommit(adv, tag)
		return wantedCommit{h, tag}, nil
	case ref.GetCommit() != "":
		return chooseCommit(plumbing.NewHash(ref.GetCommit()), adv)
	}
	return chooseHead(adv)
}

// chooseCommit checks that the server gives a commit that is asked for by itself.
func chooseCommit(commit plumbing.Hash, adv *packp.AdvRefs) (wantedCommit, error) {
	for _, one := range []capability.Capability{capability.AllowReachableSHA1InWant, "allow-any-sha1-in-want", capability.AllowTipSHA1InWant} {
		if adv.Capabilities.Supports(one) {
			return wantedCommit{commit: commit}, nil
		}
	}
	for _, list := range []map[string]plumbing.Hash{adv.References, adv.Peeled} {
		for _, h := range list {
			if h == commit {
				return wantedCommit{commit: commit}, nil
			}
		}
	}
	return wantedCommit{}, fleet.Errorf(fleet.ErrNotFound, "commit %s is not the newest of any branch, nor a tag's, and this server gives no other: tag it, or set uploadpack.allowReachableSHA1InWant there", commit)
}

// chooseHead finds the default branch.
func chooseHead(adv *packp.AdvRefs) (wantedCommit, error) {
	if adv.Head == nil {
		return wantedCommit{}, fleet.Errorf(fleet.ErrNotFound, "has no default branch: set source.git.ref%s", someOf(refsUnder(adv, "refs/heads/")))
	}
	for _, link := range adv.Capabilities.Get(capability.SymRef) {
		if branch, ok := strings.CutPrefix(link, "HEAD:refs/heads/"); ok && !strings.ContainsFunc(branch, unicode.IsControl) {
			return wantedCommit{*adv.Head, branch}, nil
		}
	}
	return wantedCommit{*adv.Head, "HEAD"}, nil
}

// tagCommit is the commit of a tag: one with a message is an object of its own, that points to it. A server may not say to what; then it
// is the tag itself, as it is where that has to be signed.
func (g gitRequest) tagCommit(adv *packp.AdvRefs, tag string) (plumbing.Hash, bool) {
	if h, ok := adv.Peeled["refs/tags/"+tag]; ok && !g.signed.tag() {
		return h, true
	}
	h, ok := adv.References["refs/tags/"+tag]
	return h, ok
}

func refsUnder(adv *packp.AdvRefs, prefix string) []string {
	var out []string
	for name := range adv.References {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			out = append(out, short)
		}
	}
	slices.Sort(out)
	return out
}

// someOf names a few of what is there instead.
func someOf(names []string) string {
	const few = 5
	if len(names) == 0 {
		return " (it has none)"
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = clip(n)
	}
	return " (it has " + fleet.Some(quoted, few) + ")"
}
