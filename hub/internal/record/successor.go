package record

import (
	"context"
	"errors"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// successor is a module as its newest revision has it, or another one that it is going to have.
type successor struct {
	ref     fleet.ModuleRef
	unknown bool // its newest revision is being made, or cannot be read
	damaged bool // it cannot be read
	foreign bool // another program assigns it, where it does so at all
	late    bool // only clusters get it that have nothing of the module
	module  *wire.Module
	// revision is 0 where there is none yet.
	revision int64
	entries  map[string][]fleet.BundleEntry // by the key of the variant
	keys     map[string]map[uint64]bool     // the same, of bundles without placeholders
	refused  map[string]bool                // the variants that cannot be rendered: who has one keeps what it is assigned
	lost     map[string]bool                // those whose list cannot be read
	full     bool                           // there may be no more variants: who would have another one keeps what it is assigned, too
	form     func(fleet.Cluster) fleet.Variant
	// behind reports that it is not known what it is to list where something is let go by that; nil: it is, or unknown.
	behind func(decision) bool
	// held says that it is no heir but where it is behind.
	held bool
}

// variantIn is the key of the variant that it has in a cluster.
func (o *successor) variantIn(c fleet.Cluster) string {
	return o.form(c).Key()
}

// unknownIn reports that nobody knows what it is to list in a cluster.
func (o *successor) unknownIn(c fleet.Cluster) bool {
	if o.unknown {
		return true
	}
	_, known := o.entries[o.variantIn(c)]
	return !known && !o.refusedIn(c)
}

// refusedIn reports that it cannot be rendered for a cluster, which keeps what it is assigned.
func (o *successor) refusedIn(c fleet.Cluster) bool {
	variant := o.variantIn(c)
	_, known := o.entries[variant]
	return o.refused[variant] || o.full && !known && !o.lost[variant]
}

// lostIn reports that what it is to list in a cluster cannot be read, so that nobody is assigned it.
func (o *successor) lostIn(c fleet.Cluster) bool {
	return o.damaged || o.form != nil && o.lost[o.variantIn(c)]
}

// lists are the keys of what it is to list in a cluster, of which that is known, at least of what it is about; nil: of all. False: it cannot be
// assigned there yet, for want of a value; the keys are of what has no placeholder in its name.
func (o *successor) lists(ctx context.Context, treats *treatments, c fleet.Cluster, about map[uint64]bool) (keys map[uint64]bool, ok bool, err error) {
	variant := o.variantIn(c)
	if keys := o.keys[variant]; keys != nil {
		return keys, true, nil
	}
	entries := o.entries[variant]
	values, missing := assemble.Values(o.module.Bindings, c)
	if missing != nil {
		entries, err = treats.withoutRead(ctx, entries, o.module.Policies, nil, about)
		return assemble.HeirKeys(entries, nil), false, err
	}
	entries, err = treats.withoutRead(ctx, assemble.Resolved(entries, values), o.module.Policies, values, about)
	if err != nil {
		return nil, false, err
	}
	keys = assemble.HeirKeys(entries, values)
	same := about == nil || !slices.ContainsFunc(o.module.Policies, sharesOut) // what is only read is left out of what it is about
	if same && len(o.module.Bindings) == 0 && !byLabels(o.module.Policies) {
		if o.keys == nil {
			o.keys = map[string]map[uint64]bool{}
		}
		o.keys[variant] = keys
	}
	return keys, true, nil
}

// successors are a module as those of its revisions have it that it is going to have somewhere (see ofRevisions), and as the put
// does that has no revision yet: until it has one the rollout before it goes on. One that follows our source and is behind,
// or is held back by our catalog, may take anything that is let go.
func (x *Succession) successors(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) ([]successor, error) {
	out, err := x.ofRevisions(ctx, r, ref)
	for i := range out {
		out[i].foreign = rollouts.External(store.Untracked(r), ref, rec)
	}
	lets := x.letting(ctx, r)
	s, held := lets.sibling(r, ref, rec), lets.heldBack(r, ref, rec)
	if o := x.ofPut(ctx, r, ref, rec, s); o != nil {
		o.foreign = rec.GetModule().GetSpec().GetRollout().GetExternal() != nil
		out = append(out, *o)
	}
	x.overtaken = x.overtaken || lets.overtakenBy(s)
	if !held && (s == nil || !s.follows && !s.fails) {
		return out, err
	}
	if m, err := wire.ModuleFromProto(rec.GetModule()); err == nil {
		out = append(out, successor{ref: ref, unknown: true, module: m, held: true, behind: func(by decision) bool { return held || lets.behind(s, by) }})
	}
	return out, err
}

// ofPut is a module, a sibling or not, as its put has it that has no revision yet; nil: there is none, or what it lists is not known.
func (x *Succession) ofPut(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, s *sibling) *successor {
	switch ro, queued := comes(r, ref); {
	case ro == nil:
		return nil
	case queued:
		lets := x.letting(ctx, r)
		draft, o := x.Drafts.of(ctx, r, ref, rec, ro.GetRollout().GetNumber(), lets, s)
		x.overtaken = x.overtaken || draft.overtakes(lets, s)
		return o
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return nil // its rollout is going to fail
	}
	return &successor{ref: ref, unknown: true, module: m, form: func(c fleet.Cluster) fleet.Variant { return assemble.VariantOf(m.Overrides, c) }}
}

// ofRevisions are a module as its newest revision has it, as the one to which its rollout goes back does, and as the one does
// that clusters get which join now.
func (x *Succession) ofRevisions(ctx context.Context, r store.Reader, ref fleet.ModuleRef) (out []successor, err error) {
	r = store.Untracked(r)
	newest := NewestRevision(r, ref)
	out, err = x.ofRevision(ctx, r, ref, newest, out)
	to := rollouts.OutlookOf(rollouts.Driven(r, ref))
	if to.Back && err == nil {
		out, err = x.ofRevision(ctx, r, ref, Revision(r, ref, to.Leads), out)
	}
	if to.Joiners != 0 && to.Joiners != newest.GetRevision().GetNumber() && err == nil {
		n := len(out)
		out, err = x.ofRevision(ctx, r, ref, Revision(r, ref, to.Joiners), out)
		for i := n; i < len(out); i++ {
			out[i].late = true
			out[i].module = placedAs(out[i].module, out[0].module)
		}
	}
	return out, err
}

// ofRevision appends a module as one of its revisions has it; nil: there is none.
func (x *Succession) ofRevision(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord, out []successor) ([]successor, error) {
	if rev == nil {
		return out, nil
	}
	o, err := asOf(ctx, r, x.bundles, ref, rev)
	if err != nil || o == nil {
		return out, err
	}
	if n := rollouts.DamagedNumber(r, store.RevisionPrefix, ref); n > o.revision {
		o.unknown, o.damaged, o.revision = true, true, n // where that one goes is not known, either
	}
	return append(out, *o), nil
}

// placedAs is a module where another one is: who joins a rollout is selected by the placement of what it leads to.
func placedAs(m, other *wire.Module) *wire.Module {
	placed := *m
	placed.Placement = other.Placement
	return &placed
}

// of is a module as its put has it that has no revision yet; nil: that is not known. What lets go may be of the same source, of which the
// module is a sibling: then a draft that is broken there, or of what was there before, may be anything.
func (d Drafts) of(ctx context.Context, r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, number int64, lets *letting, s *sibling) (draft Draft, o *successor) {
	m, err := wire.ModuleFromProto(rec.GetModule())
	if d == nil || err != nil {
		return draft, nil
	}
	draft = d(ctx, m, rec, number)
	if !draft.Known && !draft.Coming && (s == nil || !draft.Failed) {
		return draft, nil
	}
	form := func(c fleet.Cluster) fleet.Variant {
		v := assemble.VariantOf(m.Overrides, c)
		if draft.ByCapabilities {
			v.Capabilities = capabilities(store.Untracked(r), c.Name)
		}
		return v
	}
	o = &successor{ref: ref, module: m, entries: draft.Entries, unknown: draft.Coming, form: form, held: !draft.Known && !draft.Coming}
	if s != nil {
		o.behind = func(by decision) bool { return draft.behind(lets, s, by) }
	}
	return draft, o
}

// asOf is a module as one of its revisions has it; nil: that cannot be assigned. What is listed by one that is damaged comes back
// when it is put once more.
func asOf(ctx context.Context, r store.Reader, bundles Bundles, ref fleet.ModuleRef, rev *storev1.RevisionRecord) (*successor, error) {
	m, err := wire.ModuleFromProto(ModuleOfRevision(ref, rev))
	if err != nil {
		return nil, nil
	}
	out := &successor{ref: ref, module: m, revision: rev.GetRevision().GetNumber(), entries: map[string][]fleet.BundleEntry{}, refused: map[string]bool{}, lost: map[string]bool{}, full: len(Variants(rev)) >= assemble.MaxVariants,
		form: func(c fleet.Cluster) fleet.Variant { return VariantFor(r, ref, rev, m.Overrides, c) }}
	for _, v := range Variants(rev) {
		if v.GetProblem() != "" {
			for _, form := range FormsOf(v) {
				out.refused[form.Key()], out.entries[form.Key()] = true, nil // nobody gets it
			}
			continue
		}
		b, err := bundles.Get(ctx, Digest(v.GetBundle()))
		if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) {
			for _, form := range FormsOf(v) {
				out.lost[form.Key()] = true
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, form := range FormsOf(v) {
			out.entries[form.Key()] = b.Entries
		}
	}
	return out, nil
}

// comes is the rollout of a module's newest put while that has no revision yet, nil after that: its source is being fetched and
// rendered, or it is queued until the rollout that runs has ended.
func comes(r store.Reader, ref fleet.ModuleRef) (ro *storev1.RolloutRecord, queued bool) {
	ro = rollouts.Unresolved(r, ref)
	return ro, ro != nil && rollouts.Queued(r, ref, ro)
}
