package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

const (
	// askedAtOnce is how many agents one diff asks at a time.
	askedAtOnce = 32
	// askTimeout is how long one may take: each object is a dry run.
	askTimeout = 150 * time.Second
	// maxDiffBytes is how much one may say.
	maxDiffBytes = 1 << 20
)

// asPlanned refuses a put that is bound to a plan and would come to something else.
func (a *API) asPlanned(ctx context.Context, m *wire.Module, req *towlinev1.PutModuleRequest) error {
	if req.GetPlan() == "" {
		return nil
	}
	if _, err := fleet.ParseDigest(req.GetPlan()); err != nil {
		return fleet.Invalidf("plan", "%.80q is no plan that towline diff has printed", req.GetPlan())
	}
	p, err := a.propose(ctx, m, req.GetModule())
	if err != nil {
		return err
	}
	if p.Plan.String() != req.GetPlan() {
		return fleet.Errorf(fleet.ErrPrecondition, record.OtherPlan)
	}
	return nil
}

// isPlanned reports that a module's newest rollout is about what a plan names, or is to come to that or to nothing.
func isPlanned(r store.Reader, ref fleet.ModuleRef, plan string) bool {
	ro := rollouts.Last(r, ref).GetRollout()
	if ro.GetRevision() == 0 {
		return ro.GetPlan() == plan
	}
	rev := record.Revision(r, ref, ro.GetRevision())
	spec, err := wire.SpecDigest(rev.GetRevision().GetSpec())
	return err == nil && record.PlanOf(rev, spec).String() == plan
}

func (a *API) propose(ctx context.Context, m *wire.Module, in *towlinev1.Module) (record.Proposal, error) {
	if a.o.Propose == nil {
		return record.Proposal{}, fleet.Errorf(fleet.ErrUnavailable, "this hub renders nothing")
	}
	spec, err := wire.SpecDigest(in.GetSpec())
	if err != nil {
		return record.Proposal{}, err
	}
	return a.o.Propose(ctx, m, spec)
}

// DiffModule asks the agents of the selected clusters what a put would do there.
func (a *API) DiffModule(req *towlinev1.DiffModuleRequest, st grpc.ServerStreamingServer[towlinev1.DiffModuleResponse]) error {
	m, err := readModule(req.GetModule())
	if err != nil {
		return err
	}
	in, _, err := a.settle(st.Context(), m, req.GetModule())
	if err != nil {
		return named("module", m.Ref.Display(), err)
	}
	d := &diff{a: a, module: m, send: st.Send, groups: map[fleet.Digest]int32{}}
	if d.proposal, err = a.propose(st.Context(), m, in); err != nil {
		return named("module", m.Ref.Display(), err)
	}
	plan := &towlinev1.DiffPlan{Digest: d.proposal.Plan.String(), Objects: int32(d.proposal.Objects()), Variants: int32(len(d.proposal.Variants)), Waves: d.proposal.Waves()}
	if err := a.o.Store.View(st.Context(), 0, func(r store.Reader) (err error) {
		if plan.SameSpec, err = sameSpec(r, m.Ref, in.GetSpec()); err != nil {
			return err
		}
		if plan.Deleting, err = beingDeleted(r, m.Ref); err != nil {
			return err
		}
		return d.choose(r, req.GetClusters(), plan)
	}); err != nil {
		return named("module", m.Ref.Display(), err)
	}
	if err := d.tell(&towlinev1.DiffModuleResponse{Part: &towlinev1.DiffModuleResponse_Plan{Plan: plan}}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(st.Context())
	g.SetLimit(askedAtOnce)
	for _, c := range d.clusters {
		g.Go(func() error { return guard.Run(func() error { return d.ask(ctx, c) }) })
	}
	return g.Wait()
}

// sameSpec reports that a module is there with this spec.
func sameSpec(r store.Reader, ref fleet.ModuleRef, spec *towlinev1.ModuleSpec) (bool, error) {
	digest, err := wire.SpecDigest(spec)
	rec, _, exists := moduleRecord(r, ref)
	return exists && rec.GetDeleting() == "" && record.Digest(rec.GetSpecDigest()) == digest, err
}

// diff is one question to many clusters.
type diff struct {
	a        *API
	module   *wire.Module
	proposal record.Proposal
	clusters []diffTarget
	holds    record.Holds
	pins     []rollout.Pin

	mu     sync.Mutex // of send and groups
	send   func(*towlinev1.DiffModuleResponse) error
	groups map[fleet.Digest]int32 // by what they say
}

// diffTarget is a cluster to ask, or why there is nothing to ask it.
type diffTarget struct {
	name            fleet.ClusterName
	sync            *agentv1.Sync
	has             record.Tracked // of one that leaves
	reason, message string
	// waits is why a put brings nothing there now, by the same decisions as a rollout's; kept is what it has until then.
	waits, kept string
}

// choose finds the clusters that are to be told of, and counts.
func (d *diff) choose(r store.Reader, only []string, plan *towlinev1.DiffPlan) error {
	d.holds = record.ReadHolds(r, d.a.now())
	if plan.Deleting == "" { // those of a module that is being deleted do not go over to the next one of its name
		d.pins = rollouts.StandingPins(r, d.module.Ref, d.a.now())
	}
	for _, rec := range record.Clusters(r) {
		plan.Total++
		c := record.Cluster(rec)
		if rec.GetRemoving() != "" {
			continue
		}
		asked, has := len(only) == 0 || slices.Contains(only, string(c.Name)), record.Has(r, c.Name, d.module.Ref)
		switch placed := record.Places(r, d.module.Placement, c, d.module.Ref); {
		case placed:
			plan.Selected++
			if asked {
				d.clusters = append(d.clusters, d.target(r, c))
			}
		case has && asked && !d.module.External: // another program takes from clusters, no put does
			t, _ := record.Track(r, c.Name, d.module.Ref, false)
			d.clusters = append(d.clusters, diffTarget{name: c.Name, has: t, reason: diffLeaves})
		}
	}
	for _, name := range only {
		if !slices.ContainsFunc(d.clusters, func(t diffTarget) bool { return string(t.name) == name }) {
			return fleet.Invalidf("clusters", "the placement does not select %q", name)
		}
	}
	plan.LeavingAsks = record.AsksToLeave(r, d.module)
	return nil
}

// Reasons why a cluster says nothing.
const (
	diffLeaves       = "Leaves"
	diffDisconnected = "Disconnected"
	diffUnsupported  = "Unsupported"
	diffNoSync       = "NoSync"
	diffUnanswered   = "Unanswered"
)

// diffExternal is why a put brings nothing to clusters of a module that another program assigns. The others are rollout.ReasonPinned,
// ReasonCordoned and ReasonHeld.
const diffExternal = "External"

// waits is why a cluster gets nothing of a put for now, and what it keeps; empty: it does.
func (d *diff) waits(r store.Reader, c fleet.Cluster) (why, kept string) {
	pinned := slices.ContainsFunc(d.pins, func(p rollout.Pin) bool { return p.Cluster == c.Name })
	switch {
	case d.module.External:
		return diffExternal, ""
	case pinned:
		if t, ok := record.Track(r, c.Name, d.module.Ref, false); ok && t.Revision() != 0 {
			kept = fmt.Sprintf("r%d", t.Revision())
		}
		return rollout.ReasonPinned, kept
	case c.Cordoned:
		return rollout.ReasonCordoned, ""
	case d.holds.KeepsBack(r, d.module.Ref, c.Name):
		return rollout.ReasonHeld, ""
	}
	return "", ""
}

func (d *diff) target(r store.Reader, c fleet.Cluster) diffTarget {
	t := diffTarget{name: c.Name}
	t.waits, t.kept = d.waits(r, c)
	s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(c.Name))
	values, err := assemble.Values(d.module.Bindings, c)
	var p record.Proposed
	if err == nil {
		p, err = d.proposal.In(d.module, c)
	}
	if err == nil {
		err = manifest.ResolveIDs(p.Entries, values)
	}
	if err == nil {
		_, err = assemble.Watched(d.module.Watch, p.Entries, values)
	}
	switch {
	case err != nil:
		t.reason, t.message = diffNoSync, err.Error()
	case !d.a.o.Sessions.Connected(c.Name):
		t.reason = diffDisconnected
		if rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c.Name)); ok && rec.GetJoined() == nil {
			t.message = "no agent of it has ever connected; to have one: towline cluster join " + string(c.Name) + " --reissue"
		}
	case !slices.Contains(s.GetFeatures(), wire.FeaturePreview):
		t.reason, t.message = diffUnsupported, "its agent is too old to say"
	}
	t.sync = &agentv1.Sync{Module: d.module.Ref.String(), Generation: 1, Bundle: p.Bundle.Bytes(), Values: values,
		Policies: p.Policies.Bytes(), Objects: uint32(len(p.Entries)), Watched: uint32(len(d.module.Watch))}
	return t
}

// ask asks one cluster. That it does not answer is told and ends nothing.
func (d *diff) ask(ctx context.Context, t diffTarget) error {
	out := &towlinev1.DiffCluster{Cluster: string(t.name), Reason: t.reason, Message: t.message}
	switch {
	case t.reason == diffLeaves:
		return d.leaves(ctx, t, out)
	case t.reason != "":
		return d.tellCluster(out, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	got, err := d.a.o.Sessions.Query(ctx, t.name, &agentv1.Query{Type: wire.QueryPreview, Sync: t.sync, MaxBytes: maxDiffBytes})
	if err == nil && got.GetPreview() == nil {
		err = errors.New("the agent's answer has no preview")
	}
	var said *towlinev1.DiffGroup
	if err == nil {
		said, err = wire.DiffOf(got.GetPreview(), maxDiffBytes)
	}
	out.Reason, out.Message = t.waits, t.kept
	if err != nil {
		out.Reason, out.Message = diffUnanswered, wire.CutText(err.Error())
	}
	return d.tellCluster(out, said)
}

// leaves tells what goes from a cluster that loses the module, by the policies of the revision that it has.
func (d *diff) leaves(ctx context.Context, t diffTarget, out *towlinev1.DiffCluster) error {
	goes, kept := &towlinev1.DeleteModuleResponse{}, map[string]int32{}
	if err := d.a.countDelete(ctx, &t.has, false, kept, goes); err != nil {
		return fmt.Errorf("cluster %s: %w", t.name, err)
	}
	out.Removes, out.Keeps = goes.GetObjects(), countsByKind(kept)
	return d.tellCluster(out, nil)
}

// tellCluster sends an answer, with its group if nobody has answered so before.
func (d *diff) tellCluster(c *towlinev1.DiffCluster, g *towlinev1.DiffGroup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g != nil {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
		if err != nil {
			return fmt.Errorf("cluster %s: %w", c.GetCluster(), err)
		}
		key := fleet.DigestOf(text)
		if c.Group = d.groups[key]; c.Group == 0 {
			c.Group = int32(len(d.groups) + 1)
			d.groups[key] = c.Group
			g.Number = c.Group
			if err := d.send(&towlinev1.DiffModuleResponse{Part: &towlinev1.DiffModuleResponse_Group{Group: g}}); err != nil {
				return err
			}
		}
	}
	return d.send(&towlinev1.DiffModuleResponse{Part: &towlinev1.DiffModuleResponse_Cluster{Cluster: c}})
}

func (d *diff) tell(m *towlinev1.DiffModuleResponse) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.send(m)
}
