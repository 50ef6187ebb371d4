package desired

import (
	"context"
	"errors"
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// problem is why a sync's contents cannot be taken.
type problem struct{ code, message string }

// obtained is what a set of syncs needs and was not held, and what is wrong with it.
type obtained struct {
	contents contents
	problems map[fleet.ModuleRef]problem
}

// getter fetches contents for syncs and checks them.
type getter struct {
	held  contents
	added contents
	fetch Fetch
	bad   map[fleet.Digest]problem
}

// obtain gets the bundles and policies that are not held, then the objects that are not. A content that does not fit
// concerns the syncs that need it, no other; that the hub cannot be reached concerns all.
func (s *Store) obtain(ctx context.Context, syncs []fleet.Sync, fetch Fetch) (obtained, error) {
	s.mu.RLock()
	g := &getter{held: s.contents, added: newContents(), fetch: fetch, bad: map[fleet.Digest]problem{}}
	s.mu.RUnlock()
	out := obtained{contents: g.added, problems: map[fleet.ModuleRef]problem{}}
	var roots []fleet.Digest
	for _, x := range syncs {
		roots = append(roots, x.Bundle)
		if !x.Policies.IsZero() {
			roots = append(roots, x.Policies)
		}
	}
	if err := g.get(ctx, roots); err != nil {
		return out, err
	}
	bundles := map[fleet.Digest]fleet.Bundle{}
	var objects []fleet.Digest
	for _, x := range syncs {
		if p, bad := g.check(x, bundles); bad {
			out.problems[x.Module] = p
			continue
		}
		for _, e := range bundles[x.Bundle].Entries {
			objects = append(objects, e.Digest)
		}
	}
	if err := g.get(ctx, objects); err != nil {
		return out, err
	}
	for _, x := range syncs {
		if _, bad := out.problems[x.Module]; bad {
			continue
		}
		if p, bad := g.pack(x, bundles[x.Bundle]); bad {
			out.problems[x.Module] = p
		}
	}
	return out, nil
}

// Unfold is the index that a move stands for, and the contents that are new with it. Accept proves both.
func (s *Store) Unfold(m *agentv1.Move) (*agentv1.Index, map[fleet.Digest][]byte, error) {
	return wire.IndexFromMove(m, s.current().listed, s.Object)
}

// Borrow gets what a sync needs that the agent is not to keep: what is held of it already is not fetched again.
func (s *Store) Borrow(ctx context.Context, x fleet.Sync, fetch Fetch) (*Borrowed, error) {
	s.mu.RLock()
	held := s.contents
	s.mu.RUnlock()
	got, err := s.obtain(ctx, []fleet.Sync{x}, fetch)
	if err != nil {
		return nil, err
	}
	if p, bad := got.problems[x.Module]; bad {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "module %s: %s", x.Module.Display(), p.message)
	}
	return &Borrowed{held: held, added: got.contents}, nil
}

// Borrowed are contents that are held as long as they are used.
type Borrowed struct{ held, added contents }

// Object is a content, such as an object's canonical JSON.
func (b *Borrowed) Object(d fleet.Digest) ([]byte, error) {
	if b.added.data[d] != nil {
		return b.added.get(d)
	}
	return b.held.get(d)
}

// Bundle is a bundle.
func (b *Borrowed) Bundle(d fleet.Digest) (fleet.Bundle, error) { return bundleIn(b, d) }

// Policies is a policy set; the zero digest is none.
func (b *Borrowed) Policies(d fleet.Digest) (fleet.PolicySet, error) { return policiesIn(b, d) }

// get fetches what is not there yet. When the hub lacks one of them, each is asked for alone.
func (g *getter) get(ctx context.Context, digests []fleet.Digest) error {
	missing := g.missing(digests)
	if len(missing) == 0 {
		return nil
	}
	got, err := g.fetch(ctx, missing)
	if isolated(err) {
		return g.getEach(ctx, missing)
	}
	if err != nil {
		return err
	}
	for _, d := range missing {
		g.add(d, got[d])
	}
	return nil
}

func (g *getter) getEach(ctx context.Context, digests []fleet.Digest) error {
	for _, d := range digests {
		got, err := g.fetch(ctx, []fleet.Digest{d})
		if err != nil && !isolated(err) {
			return err
		}
		if err != nil {
			g.bad[d] = problem{CodeDigestMismatch, err.Error()}
			continue
		}
		g.add(d, got[d])
	}
	return nil
}

// isolated reports an error that is about one content, not about the hub.
func isolated(err error) bool {
	return errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt)
}

func (g *getter) missing(digests []fleet.Digest) []fleet.Digest {
	seen := map[fleet.Digest]bool{}
	var out []fleet.Digest
	for _, d := range digests {
		if seen[d] || g.held.data[d] != nil || g.added.data[d] != nil {
			continue
		}
		if _, bad := g.bad[d]; bad {
			continue
		}
		seen[d] = true
		out = append(out, d)
	}
	return out
}

func (g *getter) add(d fleet.Digest, packed []byte) {
	if len(packed) == 0 {
		g.bad[d] = problem{CodeDigestMismatch, fmt.Sprintf("content %s did not come", d.Short())}
		return
	}
	if _, err := unpack(d, packed); err != nil {
		g.bad[d] = problem{CodeDigestMismatch, err.Error()}
		return
	}
	g.added.data[d] = packed
}

func (g *getter) read(d fleet.Digest) ([]byte, problem, bool) {
	if p, bad := g.bad[d]; bad {
		return nil, p, true
	}
	from := g.added
	if g.added.data[d] == nil {
		from = g.held
	}
	b, err := from.get(d)
	if err != nil {
		return nil, problem{CodeDigestMismatch, err.Error()}, true
	}
	return b, problem{}, false
}

// check reads a sync's bundle and policies and counts its objects.
func (g *getter) check(x fleet.Sync, bundles map[fleet.Digest]fleet.Bundle) (problem, bool) {
	if !x.Policies.IsZero() {
		b, p, bad := g.read(x.Policies)
		if bad {
			return p, true
		}
		if _, err := wire.PolicySetFromContent(b); err != nil {
			return problem{CodeUndecodable, err.Error()}, true
		}
	}
	bundle, ok := bundles[x.Bundle]
	if !ok {
		b, p, bad := g.read(x.Bundle)
		if bad {
			return p, true
		}
		var err error
		if bundle, err = assemble.DecodeBundle(b); err != nil {
			return problem{CodeUndecodable, err.Error()}, true
		}
		bundles[x.Bundle] = bundle
	}
	if len(bundle.Entries) != x.Objects {
		return problem{CodeCountMismatch, fmt.Sprintf("the bundle has %d objects, the sync says %d", len(bundle.Entries), x.Objects)}, true
	}
	return problem{}, false
}

// pack notes which contents belong to the sync's bundle and policies.
func (g *getter) pack(x fleet.Sync, bundle fleet.Bundle) (problem, bool) {
	members := []fleet.Digest{x.Bundle}
	for _, e := range bundle.Entries {
		if p, bad := g.absent(e.Digest); bad {
			return problem{p.code, fmt.Sprintf("%s: %s", e.ID, p.message)}, true
		}
		members = append(members, e.Digest)
	}
	if g.held.packs[x.Bundle] == nil {
		g.added.packs[x.Bundle] = members
	}
	if !x.Policies.IsZero() && g.held.packs[x.Policies] == nil {
		g.added.packs[x.Policies] = []fleet.Digest{x.Policies}
	}
	return problem{}, false
}

// absent says why a content is not there. What was added was checked then; what is held is checked when it is used.
func (g *getter) absent(d fleet.Digest) (problem, bool) {
	if g.added.data[d] != nil || g.held.data[d] != nil {
		return problem{}, false
	}
	if p, bad := g.bad[d]; bad {
		return p, true
	}
	return problem{CodeDigestMismatch, fmt.Sprintf("content %s did not come", d.Short())}, true
}
