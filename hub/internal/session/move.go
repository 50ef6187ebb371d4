package session

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// move is what a frame's index says in fewer bytes; nil: the agent takes none, or it says more than a move can.
func (x *session) move(ctx context.Context, f *frame) (*agentv1.Move, error) {
	ix, features := f.index, x.hello.GetFeatures()
	if ix.GetComplete() || len(ix.GetTombstones()) > 0 || len(ix.GetForgotten()) > 0 || ix.GetHold() != f.base.assemblage.Hold ||
		len(ix.GetSyncs()) == 0 || !slices.Contains(features, wire.FeatureMoves) {
		return nil, nil
	}
	out := &agentv1.Move{AppliesTo: wire.AppliesTo(f.base.assemblage.Digest), ResultsIn: ix.GetResultsIn(), Generation: ix.GetGeneration()}
	sent, made := 0, 0
	for _, s := range ix.GetSyncs() {
		place := slices.IndexFunc(f.base.syncs, func(old *agentv1.Sync) bool { return old.GetModule() == s.GetModule() })
		if place < 0 || !onlyMoves(f.base.syncs[place], s) {
			return nil, nil
		}
		p, err := x.patch(ctx, f.base.syncs[place], s, slices.Contains(features, wire.FeatureDictionaries))
		if p == nil || err != nil {
			return nil, err
		}
		sent += len(p.GetContents())
		for _, n := range p.GetSizes() {
			made += int(n)
		}
		if sent > bundle.MaxDelta || made > wire.MaxPatchBytes {
			return nil, nil
		}
		m := &agentv1.MovedSync{Place: uint32(place), Generation: s.GetGeneration(), Revision: s.GetRevision(), Patch: p}
		if m.GetGeneration() == out.GetGeneration() {
			m.Generation = 0
		}
		out.Syncs = append(out.Syncs, m)
	}
	return out, nil
}

// onlyMoves reports that a sync gets another revision and bundle, and nothing else is new.
func onlyMoves(before, after *agentv1.Sync) bool {
	as := proto.CloneOf(after)
	as.Generation, as.Revision, as.Bundle = before.GetGeneration(), before.GetRevision(), before.GetBundle()
	return proto.Equal(before, as)
}

func (x *session) patch(ctx context.Context, before, after *agentv1.Sync, dictionary bool) (*agentv1.BundlePatch, error) {
	from, err := fleet.DigestFromBytes(before.GetBundle())
	if err != nil {
		return nil, err
	}
	to, err := fleet.DigestFromBytes(after.GetBundle())
	if err != nil {
		return nil, err
	}
	return x.server.o.Bundles.Patch(ctx, from, to, dictionary)
}
