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
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
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
	d := &diff{a: a, module: m, send: st.Send, groups: map[string]int32{}}
	if d.proposal, err = a.propose(st.Context(), m, req.GetModule()); err != nil {
		return named("module", m.Ref.Display(), err)
	}
	var total int
	if err := a.o.Store.View(st.Context(), 0, func(r store.Reader) (err error) {
		total, err = d.choose(r, req.GetClusters())
		return err
	}); err != nil {
		return named("module", m.Ref.Display(), err)
	}
	plan := &towlinev1.DiffPlan{Digest: d.proposal.Plan.String(), Selected: int32(d.selected), Total: int32(total), Objects: int32(len(d.proposal.Entries))}
	if err := d.tell(&towlinev1.DiffModuleResponse{Part: &towlinev1.DiffModuleResponse_Plan{Plan: plan}}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(st.Context())
	g.SetLimit(askedAtOnce)
	for _, c := range d.clusters {
		g.Go(func() error { return d.ask(ctx, c) })
	}
	return g.Wait()
}

// diff is one question to many clusters.
type diff struct {
	a        *API
	module   *wire.Module
	proposal record.Proposal
	selected int
	clusters []diffTarget

	mu     sync.Mutex // of send and groups
	send   func(*towlinev1.DiffModuleResponse) error
	groups map[string]int32
}

// diffTarget is a cluster to ask, or why there is nothing to ask it.
type diffTarget struct {
	name            fleet.ClusterName
	sync            *agentv1.Sync
	reason, message string
}

// choose finds the clusters that are to be asked, and says how many there are.
func (d *diff) choose(r store.Reader, only []string) (total int, err error) {
	for _, rec := range record.Clusters(r) {
		total++
		c := record.Cluster(rec)
		if rec.GetRemoving() != "" || !assemble.Places(d.module.Placement, c, record.Has(r, c.Name, d.module.Ref)) {
			continue
		}
		d.selected++
		if len(only) == 0 || slices.Contains(only, string(c.Name)) {
			d.clusters = append(d.clusters, d.target(r, c))
		}
	}
	for _, name := range only {
		if !slices.ContainsFunc(d.clusters, func(t diffTarget) bool { return string(t.name) == name }) {
			return 0, fleet.Invalidf("clusters", "the placement does not select %q", name)
		}
	}
	return total, nil
}

// Reasons why a cluster says nothing.
const (
	diffDisconnected = "Disconnected"
	diffUnsupported  = "Unsupported"
	diffNoSync       = "NoSync"
	diffUnanswered   = "Unanswered"
)

func (d *diff) target(r store.Reader, c fleet.Cluster) diffTarget {
	t := diffTarget{name: c.Name}
	s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(c.Name))
	values, err := assemble.Values(d.module.Bindings, c)
	if err == nil {
		err = manifest.ResolveIDs(d.proposal.Entries, values)
	}
	switch {
	case err != nil:
		t.reason, t.message = diffNoSync, err.Error()
	case !d.a.o.Sessions.Connected(c.Name):
		t.reason = diffDisconnected
	case !slices.Contains(s.GetFeatures(), wire.FeaturePreview):
		t.reason, t.message = diffUnsupported, "its agent is too old to say"
	}
	t.sync = &agentv1.Sync{Module: d.module.Ref.String(), Generation: 1, Bundle: d.proposal.Bundle.Bytes(), Values: values,
		Policies: d.proposal.Policies.Bytes(), Objects: uint32(len(d.proposal.Entries))}
	return t
}

// ask asks one cluster. That it does not answer is told and ends nothing.
func (d *diff) ask(ctx context.Context, t diffTarget) error {
	out := &towlinev1.DiffCluster{Cluster: string(t.name), Reason: t.reason, Message: t.message}
	if t.reason != "" {
		return d.tellCluster(out, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	got, err := d.a.o.Sessions.Query(ctx, t.name, &agentv1.Query{Type: wire.QueryPreview, Sync: t.sync, MaxBytes: maxDiffBytes})
	if err == nil && got.GetPreview() == nil {
		err = errors.New("the agent's answer has no preview")
	}
	if err != nil {
		out.Reason, out.Message = diffUnanswered, err.Error()
		return d.tellCluster(out, nil)
	}
	return d.tellCluster(out, wire.DiffOf(got.GetPreview()))
}

// tellCluster sends an answer, with its group if nobody has answered so before.
func (d *diff) tellCluster(c *towlinev1.DiffCluster, g *towlinev1.DiffGroup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g != nil {
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
		if err != nil {
			return fmt.Errorf("cluster %s: %w", c.GetCluster(), err)
		}
		if c.Group = d.groups[string(key)]; c.Group == 0 {
			c.Group = int32(len(d.groups) + 1)
			d.groups[string(key)] = c.Group
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
