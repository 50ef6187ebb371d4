package api

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// some are the clusters that are connected.
type some struct {
	away
	names map[fleet.ClusterName]bool
}

func (s some) Connected(c fleet.ClusterName) bool { return s.names[c] }

// drawFleet makes clusters and modules whose agents have reported this and that, or nothing.
func drawFleet(t *testing.T, x *rand.Rand) *API {
	connected := some{names: map[fleet.ClusterName]bool{}}
	var contents [][]byte
	a := newAPI(t, func(w store.Writer) {
		for i := range 4 {
			c := fleet.ClusterName(strings.Repeat("c-", x.IntN(2)) + fmt.Sprint("c", i))
			connected.names[c] = x.IntN(3) > 0
			w.Put(store.ClusterKey(c), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(c), Labels: map[string]string{"n": fmt.Sprint(i % 2)}}}})
			w.Put(store.SessionKey(c), &storev1.SessionRecord{Epoch: 2, WordFrom: uint64(x.IntN(3))})
			busy := x.IntN(2)
			for _, name := range []string{"shop", "shop-eu", "web"} {
				if ref := (fleet.ModuleRef{Project: "default", Name: name}); x.IntN(4) > 0 {
					contents = append(contents, drawModule(w, x, c, ref, busy))
				}
			}
		}
	})
	if _, err := a.o.Store.Blobs().Put(t.Context(), contents...); err != nil {
		t.Fatal(err)
	}
	a.o.Sessions = connected
	return a
}

// drawModule makes a module in a cluster. Where it is not busy, nothing of older revisions is reported, and no correction.
func drawModule(w store.Writer, x *rand.Rand, c fleet.ClusterName, ref fleet.ModuleRef, busy int) []byte {
	var entries []fleet.BundleEntry
	for i := range x.IntN(4) {
		entries = append(entries, fleet.BundleEntry{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprint("o", i)}, Version: "v1", Digest: fleet.DigestOf([]byte{byte(i)})})
	}
	digest, content := assemble.BundleDigest(entries)
	generation := uint64(1 + x.IntN(2))
	d := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: generation, Revision: int64(generation), Bundle: digest, Objects: len(entries)})}
	if x.IntN(4) == 0 {
		d = &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: ref, Generation: generation, Policy: fleet.DeleteDelete})}
	}
	switch x.IntN(9) {
	case 8: // deleted, and put again before it is gone there
		d = &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: ref, Generation: generation, Policy: fleet.DeleteDelete}), NextRevision: 100 + int64(x.IntN(10000)), NextGeneration: 3}
		w.Put(store.RevisionKey(ref, d.GetNextRevision()), &storev1.RevisionRecord{Bundle: digest.Bytes(), Revision: &towlinev1.Revision{Number: d.GetNextRevision(), Objects: int32(len(entries))}})
	case 0:
		d.Problem, d.ProblemRevision, d.ProblemGeneration = "a binding has no value", 3, 3
	case 1:
		standIn, _ := record.StandIn(store.DesiredKey(c, ref), errors.New("a bit is flipped"))
		d = standIn.(*storev1.DesiredRecord)
	}
	w.Put(store.DesiredKey(c, ref), d)
	if x.IntN(5) == 0 {
		return content
	}
	state := func() fleet.ObjectState {
		return fleet.ObjectState{Sync: fleet.SyncSynced, Health: []fleet.Health{fleet.HealthHealthy, fleet.HealthDegraded}[x.IntN(2)],
			Drift: []fleet.Drift{fleet.DriftInSync, fleet.DriftDrifted, fleet.DriftConflict}[x.IntN(3)]}
	}
	st := fleet.SyncStatus{Module: ref, Generation: 1, Bundle: digest, Phase: fleet.PhaseApplied}
	for range entries {
		st.States = append(st.States, state())
	}
	for i := range x.IntN(3) * busy {
		st.Extras = append(st.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprint("o", i+2)}, Version: "v1", State: state()})
		st.ExtraCount = len(st.Extras) + x.IntN(3)
	}
	o := &storev1.ObservedRecord{Epoch: uint64(1 + x.IntN(2)), Status: wire.SyncStatusToProto(st)}
	if x.IntN(2)*busy > 0 {
		o.Corrections = []*storev1.HourCount{{Hour: 1 << 30, Count: uint64(x.IntN(5))}}
	}
	w.Put(store.ObservedKey(c, ref), o)
	return content
}

// Pages of objects together are what a look at everything finds, and so are the totals.
func TestPagesAreTheWhole(t *testing.T) {
	for seed := range uint64(150) {
		x := rand.New(rand.NewPCG(seed, 1))
		a := drawFleet(t, x)
		for _, f := range []*towlinev1.ObjectFilter{{}, {Drift: "*"}, {Drift: "Conflict"}, {Drift: "InSync"}, {Health: "degraded"}, {Reason: "CrashLoopBackOff"}, {Name: "o1", Health: "Degraded"}, {Health: "Unknown"}, {Name: "o2"}, {Name: "o0", Drift: "*"}, {Namespace: "shop", Name: "o3"}, {Kind: "secret"}, {Kind: "configmap.v1", ClusterSelector: "n=1"}, {Name: "o1", Module: "web", Health: "Unknown"}, {Module: "shop"},
			{Module: "shop", Project: "default", Drift: "*"}, {Cluster: "c1"}, {ClusterSelector: "n=1"}, {Revision: 1}, {Cluster: "nowhere"}, {Expression: `health != "Healthy" || extra`}, {Drift: "*", Expression: `name.endsWith("2") || away`}, {Cluster: "c1", Expression: "false"}} {
			want, total, away := everyObject(t, a, f)
			var got []*towlinev1.Object
			for page := (&towlinev1.ListObjectsRequest{Filter: f, PageSize: int32(1 + x.IntN(5)), Total: true}); ; {
				r, err := a.ListObjects(t.Context(), page)
				if err != nil {
					t.Fatal(err)
				}
				if int(r.GetTotal()) != total || int(r.GetAway()) != away {
					t.Fatalf("seed %d, %v: total %d, %d away; want %d and %d", seed, f, r.GetTotal(), r.GetAway(), total, away)
				}
				got = append(got, r.GetObjects()...)
				if page.PageToken = r.GetNextPageToken(); page.PageToken == "" {
					break
				}
			}
			if !slices.EqualFunc(got, want, func(a, b *towlinev1.Object) bool { return proto.Equal(a, b) }) {
				t.Fatalf("seed %d, %v: %d rows %v, want %d %v", seed, f, len(got), got, len(want), want)
			}
		}
		pagesOfTrackers(t, a, x)
	}
}

// everyObject looks at every module in every cluster.
func everyObject(t *testing.T, a *API, f *towlinev1.ObjectFilter) (rows []*towlinev1.Object, total, away int) {
	t.Helper()
	where, err := a.conditionOf(f, listedRows)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := a.tracked(t.Context(), f, 0)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err = a.objectsOf(t.Context(), f, where, all); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(rows, func(a, b *towlinev1.Object) int { return strings.Compare(objectKey(a), objectKey(b)) })
	total = len(rows)
	listed := map[string]bool{}
	for _, o := range rows {
		listed[o.GetCluster()+o.GetModule()] = true
	}
	unseen, asks := map[fleet.ClusterName]bool{}, f.GetDrift() != "" || f.GetHealth() != "" || f.GetReason() != "" || f.GetExpression() != ""
	for _, x := range all {
		x.ListExtras()
		if everything(f) {
			total += x.Unlisted()
		}
		everyRow, err := a.objectsOf(t.Context(), &towlinev1.ObjectFilter{}, nil, []record.Tracked{x})
		if err != nil {
			t.Fatal(err)
		}
		has := listed[string(x.Cluster)+x.Module.Name] || asks && len(everyRow)+x.Unlisted() > 0
		if !x.Input.Seen() && (has || everything(f) && x.Unlisted() > 0) {
			unseen[x.Cluster] = true
		}
	}
	return rows, total, len(unseen)
}

func pagesOfTrackers(t *testing.T, a *API, x *rand.Rand) {
	t.Helper()
	for _, f := range []*towlinev1.ObjectFilter{{}, {Health: "Unknown"}, {Health: "Degraded"}, {Module: "shop-eu"}, {ClusterSelector: "n=0"}, {Cluster: "c2"}} {
		all, _, err := a.tracked(t.Context(), f, 0)
		if err != nil {
			t.Fatal(err)
		}
		var want []*towlinev1.Tracker
		away := map[fleet.ClusterName]bool{}
		for _, tr := range all {
			if f.GetHealth() != "" && !tr.Input.Seen() {
				away[tr.Cluster] = true
			}
			if f.GetHealth() == "" || f.GetHealth() == string(tr.Tracker.Health) {
				want = append(want, showTracker(tr))
			}
		}
		slices.SortFunc(want, func(a, b *towlinev1.Tracker) int {
			return strings.Compare(a.GetModule()+"\x00"+a.GetCluster(), b.GetModule()+"\x00"+b.GetCluster())
		})
		var got []*towlinev1.Tracker
		for page := (&towlinev1.ListTrackersRequest{Filter: f, PageSize: int32(1 + x.IntN(4)), Total: true}); ; {
			r, err := a.ListTrackers(t.Context(), page)
			if err != nil || int(r.GetTotal()) != len(want) || int(r.GetAway()) != len(away) {
				t.Fatalf("%v: total %d, want %d; %d away, want %d: %v", f, r.GetTotal(), len(want), r.GetAway(), len(away), err)
			}
			got = append(got, r.GetTrackers()...)
			if page.PageToken = r.GetNextPageToken(); page.PageToken == "" {
				break
			}
		}
		if !slices.EqualFunc(got, want, func(a, b *towlinev1.Tracker) bool { return proto.Equal(a, b) }) {
			t.Fatalf("%v: %v, want %v", f, got, want)
		}
	}
}
