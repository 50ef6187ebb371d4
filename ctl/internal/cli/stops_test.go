package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

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
