package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// answering are agents that answer a preview each in its own way; one that is in none of them is away.
type answering struct {
	away
	previews map[fleet.ClusterName]fleet.Preview
	fails    map[fleet.ClusterName]error
}

func (x answering) Connected(c fleet.ClusterName) bool {
	_, answers := x.previews[c]
	return answers || x.fails[c] != nil
}

func (x answering) Query(_ context.Context, c fleet.ClusterName, q *agentv1.Query) (*agentv1.QueryResult, error) {
	if err := x.fails[c]; err != nil {
		return nil, err
	}
	if q.GetType() != wire.QueryPreview || q.GetSync().GetValues()["REGION"] == "" {
		return nil, fmt.Errorf("the question is %v", q)
	}
	return &agentv1.QueryResult{Preview: wire.PreviewToProto(x.previews[c], int(q.GetMaxBytes()))}, nil
}

// heard gathers what a stream is sent.
type heard struct {
	grpc.ServerStream
	ctx   context.Context
	parts []*towlinev1.DiffModuleResponse
}

func (h *heard) Context() context.Context { return h.ctx }

func (h *heard) Send(m *towlinev1.DiffModuleResponse) error {
	h.parts = append(h.parts, m)
	return nil
}

func regional(value string) *towlinev1.Module {
	return &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": value}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}},
		Bindings:  []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}}}
}

// proposing renders anything to one object, and to a plan by its source.
func proposing(_ context.Context, _ *wire.Module, spec fleet.Digest) (record.Proposal, error) {
	e := fleet.BundleEntry{Digest: fleet.DigestOf([]byte("o")), ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1"}
	return record.Proposal{Plan: spec, Variants: []record.Proposed{{Bundle: fleet.DigestOf([]byte("b")), Policies: fleet.DigestOf([]byte("p")), Entries: []fleet.BundleEntry{e}}}}, nil
}

func diffAPI(t *testing.T) *API {
	t.Helper()
	a := newAPI(t, func(w store.Writer) {
		for _, name := range []string{"away", "fails", "odd", "old", "one", "two", "unlabeled"} {
			c := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"region": "eu"}}}
			if name == "unlabeled" {
				c.Metadata.Labels = nil
			}
			w.Put(store.ClusterKey(fleet.ClusterName(name)), &storev1.ClusterRecord{Cluster: c})
			s := &storev1.SessionRecord{Epoch: 1, Features: wire.Features()}
			if name == "old" {
				s.Features = nil
			}
			w.Put(store.SessionKey(fleet.ClusterName(name)), s)
		}
	})
	a.o.Propose = proposing
	changes := fleet.Preview{Unchanged: 3, Objects: []fleet.PreviewedObject{{ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "shop", Name: "web"}, Version: "v1",
		Action: fleet.PreviewChange, Fields: []fleet.FieldChange{{Field: "/spec/replicas", Live: "1", Want: "2"}}}}}
	a.o.Sessions = answering{previews: map[fleet.ClusterName]fleet.Preview{"one": changes, "two": changes, "odd": {Unchanged: 4}, "old": changes, "unlabeled": changes},
		fails: map[fleet.ClusterName]error{"fails": errors.New("cluster fails: no answer")}}
	return a
}

// lines of a diff, sorted, with the groups in place of their numbers.
func (h *heard) lines(t *testing.T) (plan string, out []string) {
	t.Helper()
	groups := map[int32]string{}
	for i, p := range h.parts {
		switch x := p.GetPart().(type) {
		case *towlinev1.DiffModuleResponse_Plan:
			if i != 0 {
				t.Errorf("the plan is part %d", i)
			}
			plan = x.Plan.GetDigest()
			out = append(out, fmt.Sprintf("%d of %d, %d objects", x.Plan.GetSelected(), x.Plan.GetTotal(), x.Plan.GetObjects()))
		case *towlinev1.DiffModuleResponse_Group:
			text := fmt.Sprintf("%d unchanged", x.Group.GetUnchanged())
			for _, o := range x.Group.GetObjects() {
				text += fmt.Sprintf(", %s %s %s/%s/%s", o.GetAction(), o.GetObject().GetApiVersion(), o.GetObject().GetKind(), o.GetObject().GetNamespace(), o.GetObject().GetName())
				for _, f := range o.GetFields() {
					text += fmt.Sprintf(" %s %s %s", f.GetField(), f.GetLive(), f.GetWant())
				}
			}
			for _, said := range groups {
				if said == text {
					t.Errorf("said twice: %s", text)
				}
			}
			groups[x.Group.GetNumber()] = text
		case *towlinev1.DiffModuleResponse_Cluster:
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s%s %s", x.Cluster.GetCluster(), groups[x.Cluster.GetGroup()], x.Cluster.GetReason(), x.Cluster.GetMessage())))
		}
	}
	slices.Sort(out)
	return plan, out
}

func TestDiffModule(t *testing.T) {
	a := diffAPI(t)
	h := &heard{ctx: t.Context()}
	if err := a.DiffModule(&towlinev1.DiffModuleRequest{Module: regional("x")}, h); err != nil {
		t.Fatal(err)
	}
	_, got := h.lines(t)
	want := []string{
		"7 of 7, 1 objects",
		"away Disconnected no agent of it has ever connected; to have one: towline cluster join away --reissue",
		"fails Unanswered cluster fails: no answer",
		"odd 4 unchanged",
		"old Unsupported its agent is too old to say",
		"one 3 unchanged, Change apps/v1 Deployment/shop/web /spec/replicas 1 2",
		"two 3 unchanged, Change apps/v1 Deployment/shop/web /spec/replicas 1 2",
		`unlabeled NoSync bindings: REGION has no value in cluster unlabeled: it has no label "region"; set the label or a default`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	h = &heard{ctx: t.Context()}
	if err := a.DiffModule(&towlinev1.DiffModuleRequest{Module: regional("x"), Clusters: []string{"odd"}}, h); err != nil {
		t.Fatal(err)
	}
	if _, got := h.lines(t); !slices.Equal(got, []string{"7 of 7, 1 objects", "odd 4 unchanged"}) {
		t.Errorf("of one cluster it says %q", got)
	}
	err := a.DiffModule(&towlinev1.DiffModuleRequest{Module: regional("x"), Clusters: []string{"nowhere"}}, &heard{ctx: t.Context()})
	if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("of a cluster that is not selected: %v", err)
	}
}

// TestPutByPlan: a put that is bound to a plan is made if it comes to that, and its rollout knows the plan.
func TestPutByPlan(t *testing.T) {
	a := diffAPI(t)
	h := &heard{ctx: t.Context()}
	if err := a.DiffModule(&towlinev1.DiffModuleRequest{Module: regional("x")}, h); err != nil {
		t.Fatal(err)
	}
	plan, _ := h.lines(t)
	for name, put := range map[string]*towlinev1.PutModuleRequest{
		"another source": {Module: regional("y"), Plan: plan},
		"no plan at all": {Module: regional("x"), Plan: "v1.2"},
	} {
		if _, err := a.PutModule(t.Context(), put); err == nil || !strings.Contains(err.Error(), "towline diff") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a refused put has made the module: %v", err)
	}
	put, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: proto.CloneOf(regional("x")), Plan: plan})
	if err != nil || put.GetResult() != "created" {
		t.Fatalf("the put of the plan: %v, %v", put, err)
	}
	ro, err := a.GetRollout(t.Context(), &towlinev1.GetRolloutRequest{Module: "shop"})
	if err != nil || ro.GetRollout().GetPlan() != plan {
		t.Errorf("the rollout has the plan %q, want %q: %v", ro.GetRollout().GetPlan(), plan, err)
	}
}
