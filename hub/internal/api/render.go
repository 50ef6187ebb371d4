package api

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/labels"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// RenderModule renders a module as a put of it would, and sends its objects.
func (a *API) RenderModule(req *towlinev1.RenderModuleRequest, st grpc.ServerStreamingServer[towlinev1.RenderModuleResponse]) error {
	ctx := st.Context()
	m, err := readModule(req.GetModule())
	if err != nil {
		return err
	}
	in, _, err := a.settle(ctx, m, req.GetModule())
	if err != nil {
		return named("module", m.Ref.Display(), err)
	}
	if err := a.renderModule(ctx, m, in, req, st.Send); err != nil {
		return named("module", m.Ref.Display(), err)
	}
	return nil
}

func (a *API) renderModule(ctx context.Context, m *wire.Module, in *towlinev1.Module, req *towlinev1.RenderModuleRequest, send func(*towlinev1.RenderModuleResponse) error) error {
	p, err := a.propose(ctx, m, in)
	if err != nil {
		return err
	}
	groups, err := a.renderings(ctx, m, p, req)
	if err != nil {
		return err
	}
	told := len(m.Overrides) > 0 || len(p.Variants) > 1 || req.GetAll() || req.GetLabelSelector() != ""
	for _, g := range groups {
		if g.problem != nil && !told {
			return g.problem
		}
		if told {
			head := &towlinev1.RenderGroup{Overrides: g.Overrides, Clusters: g.clusters, Capabilities: record.CapabilitiesShown(g.Capabilities)}
			if g.problem != nil {
				head.Problem = g.problem.Error()
			}
			if err := send(&towlinev1.RenderModuleResponse{Group: head}); err != nil {
				return err
			}
		}
		if g.problem == nil {
			if err := a.sendRendering(ctx, g, send); err != nil {
				return err
			}
		}
	}
	return nil
}

// rendering is what some clusters would have.
type rendering struct {
	record.Proposed
	clusters []string
	put      bool // values are put in
	values   map[string]string
	problem  error // why they would have nothing
}

// renderings are the variants of a proposal, or with the values of clusters what they would have; those that would have the same are one.
func (a *API) renderings(ctx context.Context, m *wire.Module, p record.Proposal, req *towlinev1.RenderModuleRequest) ([]rendering, error) {
	sel, err := selector(req.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	var clusters []fleet.Cluster
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		clusters = record.Selected(r, m)
		if name := req.GetCluster(); name != "" {
			clusters = slices.DeleteFunc(clusters, func(c fleet.Cluster) bool { return string(c.Name) != name })
			if _, known := r.Get(store.ClusterKey(fleet.ClusterName(name))); len(clusters) == 0 && known {
				return fleet.Invalidf("cluster", "the placement does not select %q", name)
			}
			if len(clusters) == 0 {
				return fleet.Errorf(fleet.ErrNotFound, "cluster %s: does not exist", name)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	some := req.GetLabelSelector() != ""
	if some {
		clusters = slices.DeleteFunc(clusters, func(c fleet.Cluster) bool { return !sel.Matches(labels.Set(c.Labels)) })
	}
	var out []rendering
	if !some && req.GetCluster() == "" && !req.GetAll() {
		for _, v := range p.Variants { // also where the module is in no cluster
			out = append(out, rendering{Proposed: v})
		}
	}
	put := req.GetAll() || req.GetCluster() != ""
	for _, c := range clusters {
		out = withCluster(out, renderingFor(m, p, c, put))
	}
	return out, nil
}

// renderingFor is what one cluster would have.
func renderingFor(m *wire.Module, p record.Proposal, c fleet.Cluster, put bool) rendering {
	out := rendering{clusters: []string{string(c.Name)}, put: put}
	if out.Proposed, out.problem = p.In(m, c); out.problem == nil && put {
		out.values, out.problem = assemble.Values(m.Bindings, c)
	}
	if out.problem == nil && put {
		out.problem = manifest.ResolveIDs(out.Entries, out.values)
	}
	return out
}

// withCluster adds what a cluster would have, to those that would have the same.
func withCluster(list []rendering, x rendering) []rendering {
	for i, g := range list {
		if x.problem == nil && g.problem == nil && slices.Equal(g.Overrides, x.Overrides) && g.Bundle == x.Bundle && maps.Equal(g.values, x.values) {
			list[i].clusters = append(list[i].clusters, x.clusters...)
			return list
		}
	}
	return append(list, x)
}

func (a *API) sendRendering(ctx context.Context, g rendering, send func(*towlinev1.RenderModuleResponse) error) error {
	var how *fleet.Substitution
	if g.put {
		content, err := a.o.Store.Blobs().Get(ctx, g.Policies)
		if err != nil {
			return err
		}
		set, err := wire.PolicySetFromContent(content)
		if err != nil {
			return err
		}
		how = set.Substitution
	}
	for _, e := range g.Entries {
		raw, err := a.o.Store.Blobs().Get(ctx, e.Digest)
		if err == nil {
			raw, err = masked(e.ID, raw)
		}
		if err == nil && g.put {
			raw, err = substituted(raw, g.values, how)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.ID, err)
		}
		if err := send(&towlinev1.RenderModuleResponse{Object: raw}); err != nil {
			return err
		}
	}
	return nil
}

// substituted is an object with values put in.
func substituted(raw []byte, values map[string]string, how *fleet.Substitution) ([]byte, error) {
	obj, err := manifest.Decode(raw)
	if err != nil {
		return nil, err
	}
	if err := manifest.Substitute(obj, values, how, manifest.MaxObjectBytes-len(raw)); err != nil {
		return nil, err
	}
	return manifest.Canonical(obj), nil
}
