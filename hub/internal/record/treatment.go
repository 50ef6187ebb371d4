package record

import (
	"context"
	"errors"
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// treatments tell what the policies of syncs say of objects, as their agents do. It serves one goroutine.
type treatments struct {
	bundles Bundles
	sets    map[fleet.Digest][]fleet.Policy
}

// of is the policy for an entry with its identity in the cluster, and with these values. Policies, or an object, that cannot be read say nothing, so that they
// stop no other module.
func (x *treatments) of(ctx context.Context, policies fleet.Digest, values map[string]string, e fleet.BundleEntry) (fleet.Policy, error) {
	set, err := x.set(ctx, policies)
	if err != nil {
		return fleet.Policy{}, err
	}
	return x.among(ctx, set, values, e)
}

// among is the policy of a set for an entry.
func (x *treatments) among(ctx context.Context, set []fleet.Policy, values map[string]string, e fleet.BundleEntry) (fleet.Policy, error) {
	if len(set) == 0 {
		return fleet.Policy{}, nil
	}
	var labels map[string]string
	if byLabels(set) {
		content, err := x.content(ctx, e.Digest)
		if err != nil {
			return fleet.Policy{}, err
		}
		if labels, err = manifest.Labels(content, values); err != nil {
			return fleet.Policy{}, nil
		}
	}
	return fleet.Resolve(set, e.ID, labels), nil
}

// set are the policies of a digest, as far as they say whose objects are.
func (x *treatments) set(ctx context.Context, d fleet.Digest) ([]fleet.Policy, error) {
	if set, known := x.sets[d]; known || d.IsZero() {
		return set, nil
	}
	content, err := x.content(ctx, d)
	if err != nil {
		return nil, err
	}
	var set []fleet.Policy
	if read, err := wire.PolicySetFromContent(content); err == nil && slices.ContainsFunc(read.Policies, sharesOut) {
		set = read.Policies
	}
	if x.sets == nil {
		x.sets = map[fleet.Digest][]fleet.Policy{}
	}
	x.sets[d] = set
	return set, nil
}

// sharesOut reports that a policy says something of whose an object is.
func sharesOut(p fleet.Policy) bool { return p.ReadOnly != nil }

func (x *treatments) content(ctx context.Context, d fleet.Digest) ([]byte, error) {
	content, err := x.bundles.Content(ctx, d)
	if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) {
		return nil, nil
	}
	return content, err
}

// reads reports that an entry is only read by a sync.
func (x *treatments) reads(ctx context.Context, of side, e fleet.BundleEntry) (bool, error) {
	p, err := x.of(ctx, of.policies, of.values, e)
	return p.Reads(), err
}

// contested are the pairs of which neither side only reads the object.
func (x *treatments) contested(ctx context.Context, pairs []assemble.Pair, mine, theirs side) (out []assemble.Pair, err error) {
	for _, p := range pairs {
		read, err := x.reads(ctx, mine, mine.entries[p.Mine])
		if err == nil && !read {
			read, err = x.reads(ctx, theirs, theirs.entries[p.Theirs])
		}
		if err != nil {
			return nil, err
		}
		if !read {
			out = append(out, p)
		}
	}
	return out, nil
}

// side is what one of two modules lists in a cluster, and how.
type side struct {
	entries  []fleet.BundleEntry // resolved
	policies fleet.Digest
	values   map[string]string
}

// owned are the entries without those that are only read; ordinals stay.
func (x *treatments) owned(ctx context.Context, s side) ([]fleet.BundleEntry, error) {
	set, err := x.set(ctx, s.policies)
	if err != nil || len(set) == 0 {
		return s.entries, err
	}
	out := slices.Clone(s.entries)
	for i, e := range out {
		read, err := x.reads(ctx, s, e)
		if err != nil {
			return nil, err
		}
		if read {
			out[i].ID = fleet.ObjectID{}
		}
	}
	return out, nil
}

// byLabels reports that policies select objects by their labels.
func byLabels(set []fleet.Policy) bool {
	return slices.ContainsFunc(set, func(p fleet.Policy) bool { return p.Match.Labels != nil })
}

// withoutRead are entries without those that the policies of their module have only read, of those that it is about (see meets); nil: of all. What
// selects by labels goes by those of the objects; one that cannot be read counts as the module's own.
func (x *treatments) withoutRead(ctx context.Context, entries []fleet.BundleEntry, policies []fleet.Policy, values map[string]string, about map[uint64]bool) ([]fleet.BundleEntry, error) {
	var set []fleet.Policy
	for _, p := range policies {
		if sharesOut(p) {
			set = append(set, p)
		}
	}
	if len(set) == 0 {
		return entries, nil
	}
	var out []fleet.BundleEntry
	for _, e := range entries {
		if about == nil || meets(about, assemble.HeirKeys([]fleet.BundleEntry{e}, values)) {
			p, err := x.among(ctx, set, values, e)
			if err != nil {
				return nil, err
			}
			if p.Reads() {
				continue
			}
		}
		out = append(out, e)
	}
	return out, nil
}
