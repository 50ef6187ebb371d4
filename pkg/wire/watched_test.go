package wire

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// What a module watches is checked where it is written, with its place.
func TestWatchedObjectsAreChecked(t *testing.T) {
	m := &Module{Namespace: "shop", Bindings: []fleet.Binding{{Name: "REGION"}}}
	object := func(apiVersion, kind, namespace, name string) *towlinev1.WatchedObject {
		return &towlinev1.WatchedObject{ApiVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
	}
	fine := object("v1", "ConfigMap", "", "a")
	for want, list := range map[string][]*towlinev1.WatchedObject{
		"[1].apiVersion: is required":                       {fine, object("", "ConfigMap", "", "b")},
		"[0].apiVersion: \"a/b/c\" is no group and version": {object("a/b/c", "ConfigMap", "", "b")},
		"[0].kind: is required":                             {object("v1", "", "", "b")},
		"[0].kind: \"a/b\" is no kind":                      {object("v1", "a/b", "", "b")},
		"[0].name: is required":                             {object("v1", "ConfigMap", "", "")},
		"[0].namespace: Node has no namespaces":             {object("v1", "Node", "x", "n")},
		"[0].ConfigMap shop/A_B: metadata.name":             {object("v1", "ConfigMap", "", "A_B")},
		"ZONE":                                              {object("v1", "ConfigMap", "", "${ZONE}")},
		"[1]: ConfigMap shop/a is listed twice":             {fine, object("v1", "ConfigMap", "shop", "a")},
		"65 are too many; at most 64":                       slices.Repeat([]*towlinev1.WatchedObject{fine}, 65),
	} {
		if _, err := watched(list, m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := watched([]*towlinev1.WatchedObject{fine}, &Module{}); err == nil || !strings.Contains(err.Error(), "[0].namespace: is required") {
		t.Errorf("%v", err)
	}
	got, err := watched([]*towlinev1.WatchedObject{fine, object("db.example.com/v1", "Database", "", "db-${REGION}"), object("v1", "Node", "", "n")}, m)
	want := []fleet.WatchedObject{{Version: "v1", Kind: "ConfigMap", Namespace: "shop", Name: "a"},
		{Group: "db.example.com", Version: "v1", Kind: "Database", Namespace: "shop", Name: "db-${REGION}"}, {Version: "v1", Kind: "Node", Name: "n"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := Needs(fleet.PolicySet{Watch: want}); !slices.Equal(got, []string{FeatureWatch}) {
		t.Errorf("an agent needs %v", got)
	}
}

func TestWatchedStatesTravel(t *testing.T) {
	state := func(i int) fleet.ObjectState {
		if i%2 == 0 {
			return fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync, Unjudged: fleet.NoStatus}
		}
		return fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}
	}
	for _, n := range []int{0, 1, 100} { // the last ones travel compressed
		s := fleet.SyncStatus{Module: fleet.ModuleRef{Project: "p", Name: "m"}, Generation: 1, Phase: fleet.PhaseApplied}
		for i := range n {
			s.States = append(s.States, state(i))
		}
		s.Watched = []fleet.ObjectState{state(1), state(0)}
		s.Exceptions = []fleet.ObjectException{{Ordinal: n, Reason: "Missing"}}
		out := SyncStatusToProto(s)
		got, err := SyncStatusFromProto(out)
		if err != nil || !slices.Equal(got.States, s.States) || !slices.Equal(got.Watched, s.Watched) || got.Exceptions[0].Ordinal != n {
			t.Errorf("%d: %+v, %v", n, got, err)
		}
		out.Watched = uint32(n) + 3
		if _, err := SyncStatusFromProto(out); err == nil {
			t.Error("more are watched than there are, and that was taken")
		}
	}
}
