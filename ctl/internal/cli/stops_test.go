package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

// annotated is a hold by an annotation.
func annotated(by string) *v1.Hold {
	return &v1.Hold{Id: "annotation-1", Kind: "Freeze", Source: "Annotation", Project: "default", Module: "shop", Cluster: "c1", By: by, Reason: "INC-42",
		Object: &v1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}}
}

// TestAnnotationIsEndedThere: what an annotation holds is not ended at the hub, and whoever tries is told how it ends.
func TestAnnotationIsEndedThere(t *testing.T) {
	const how = "kubectl -n shop annotate deployment.apps/web towline.dev/hold-"
	hub := fullHub()
	hub.holds = []*v1.Hold{annotated("kubectl-annotate")}
	for _, args := range []string{"unhold Deployment/shop/web --cluster c1", "unhold annotation-1", "confirm annotation-1 --yes"} {
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, how) || asked[*v1.ConfirmHoldRequest](hub) != nil {
			t.Errorf("towline %s: exit %d, %s", args, got.code, got.err)
		}
	}
	hub.holds[0].Code = "UnreadEnd"
	if got := hub.run(t, run{}, "get", "holds", "--no-headers").out; !strings.Contains(got, "annotation  kubectl-annotate") || !strings.Contains(got, "INC-42; its annotation towline.dev/hold-until is no time") {
		t.Error(got)
	}
	if got := hub.run(t, run{}, "describe", "hold", "annotation-1").out; !strings.Contains(got, how) {
		t.Error(got)
	}
	ordered := annotated("ana")
	ordered.Id, ordered.Source = "freeze-1", ""
	hub.holds = append(hub.holds, ordered)
	got := hub.run(t, run{}, strings.Fields("unhold Deployment/shop/web --cluster c1")...)
	if got.code != 0 || asked[*v1.ConfirmHoldRequest](hub).GetId() != "freeze-1" || !strings.Contains(got.err, how) {
		t.Errorf("exit %d, %s", got.code, got.err)
	}
	config := annotated("")
	config.Object = &v1.ObjectReference{ApiVersion: "v1", Kind: "Namespace", Name: "shop"}
	if got := holdEnd(config); got != "kubectl annotate namespace/shop towline.dev/hold-" {
		t.Error(got)
	}
}

// TestWhatStopsIsShown: who looks at modules or clusters sees that nothing is written there, by whose word and how long.
func TestWhatStopsIsShown(t *testing.T) {
	freeze := func(module, cluster string) *v1.Hold {
		h := &v1.Hold{Id: "freeze-1", Kind: "Freeze", Module: module, Cluster: cluster, By: "ana", Since: ago(day), Until: in(2 * 60 * 60e9)}
		if module != "" {
			h.Project = "default"
		}
		return h
	}
	confirm := &v1.Hold{Id: "h-1", Kind: "Confirm", Project: "default", Module: "base", Cluster: "prod-eu-01"}
	hub := &fakeHub{modules: surfaceModules()[:1], clusters: surfaceClusters()[3:]}
	for name, tc := range map[string]struct {
		clusters int32
		holds    []*v1.Hold
		want     string
	}{
		"everywhere":           {300, []*v1.Hold{freeze("base", "")}, "Succeeded, 3 deferred; held by ana until 05:14  2d"},
		"in one cluster":       {1, []*v1.Hold{freeze("base", "prod-eu-01")}, "Succeeded, 3 deferred; held in 1 cluster  2d"},
		"with whole clusters":  {3, nil, "Succeeded, 3 deferred; held in 3 clusters  2d"},
		"a confirm":            {0, []*v1.Hold{confirm}, "Succeeded, 3 deferred; waits for a confirm  2d"},
		"a hold and a confirm": {300, []*v1.Hold{freeze("base", ""), confirm, confirm}, "held by ana until 05:14; waits for 2 confirms  2d"},
	} {
		hub.modules[0].Status.HeldClusters, hub.modules[0].Status.Holds = tc.clusters, tc.holds
		for _, cmd := range [][]string{{"get", "modules", "--no-headers"}, {"describe", "module", "base"}} {
			if got := hub.run(t, run{}, cmd...).out; !strings.Contains(got, strings.TrimSuffix(tc.want, "  2d")) {
				t.Errorf("%s: %s: %s", name, strings.Join(cmd, " "), got)
			}
		}
	}
	s := hub.clusters[0].Status
	for name, tc := range map[string]struct {
		holds     []*v1.Hold
		pins      []*v1.Pin
		attention *v1.Note
		want      string
	}{
		"the cluster":     {[]*v1.Hold{freeze("", "prod-eu-11")}, nil, nil, "held by ana until 05:14"},
		"a module":        {[]*v1.Hold{freeze("shop", "")}, nil, nil, "shop held by ana until 05:14"},
		"a confirm":       {[]*v1.Hold{confirm}, nil, nil, "base waits for a confirm"},
		"an annotation":   {[]*v1.Hold{annotated("kubectl-annotate")}, nil, nil, "shop Deployment shop/web held by its annotation (kubectl-annotate)"},
		"a pin":           {nil, []*v1.Pin{{Project: "default", Module: "shop", Revision: 41}}, nil, "shop pinned r41"},
		"pins and a hold": {[]*v1.Hold{freeze("", "prod-eu-11")}, []*v1.Pin{{Module: "shop", Until: in(365 * day)}}, nil, "held by ana until 05:14; shop pinned until 2027-07-01"},
		"what is wrong":   {[]*v1.Hold{freeze("", "prod-eu-11")}, nil, &v1.Note{Code: "StraySyncs", Facts: &v1.Facts{Count: 2}}, "2 stray syncs; held by ana until 05:14"},
	} {
		s.Holds, s.Pins, s.Attention = tc.holds, tc.pins, tc.attention
		if got := hub.run(t, run{}, "get", "clusters", "--no-headers").out; !strings.Contains(got, "  "+tc.want+"  ") {
			t.Errorf("%s: %s", name, got)
		}
	}
	s.Attention, s.Holds = nil, []*v1.Hold{freeze("", "prod-eu-11")}
	s.Pins = []*v1.Pin{{Project: "default", Module: "shop", Revision: 41, By: "ana"}}
	got := hub.run(t, run{}, "explain", "cluster", "prod-eu-11").out
	for _, want := range []string{"towline unhold freeze-1", "shop pinned r41", "towline rollout unpin shop --cluster prod-eu-11"} {
		if !strings.Contains(got, want) {
			t.Errorf("explain does not say %q: %s", want, got)
		}
	}
}
