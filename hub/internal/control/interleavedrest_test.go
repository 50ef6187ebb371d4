package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// rests ends all that keeps things from being as the last words say, and waits until they are.
func (w *interleaved) rests() {
	w.note("calm")
	w.quiet = true
	for _, k := range w.kubes {
		k.up = true
		clear(k.fails)
		w.ClusterChanged(k.name)
	}
	w.restRestore()
	for _, catalog := range []fleet.ModuleRef{wovenCatalog, otherCatalog} {
		w.call("delete the catalog "+catalog.Name, func(ctx context.Context) error {
			_, err := w.api.DeleteCatalog(ctx, &towlinev1.DeleteCatalogRequest{Project: catalog.Project, Name: catalog.Name})
			return err
		})
	}
	w.settles(false)
	for _, name := range wovenClusters {
		rec := clusterOf(w.last, name)
		if rec != nil && rec.GetUid() == "" { // somebody has put it, and no agent of it has come yet
			w.joinsAs(name, func() bool { return false })
		}
		if labels := rec.GetCluster().GetMetadata().GetLabels(); rec != nil && (labels["zone"] == "" || rec.GetCluster().GetSpec().GetCordoned()) {
			w.call(fmt.Sprintf("uncordon %s", name), func(ctx context.Context) error {
				labels = map[string]string{"named": string(name), "zone": cmp.Or(labels["zone"], "x")}
				_, err := w.api.PutCluster(ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(name), Labels: labels}, Spec: &towlinev1.ClusterSpec{Cordoned: new(false)}}})
				return err
			})
		}
	}
	for _, ref := range wovenModules {
		m, _, ok := store.Get[*storev1.ModuleRecord](w.last, store.ModuleKey(ref))
		if !ok {
			continue
		}
		for _, name := range wovenClusters {
			w.call(fmt.Sprintf("unpin %s in %s", ref.Name, name), func(ctx context.Context) error {
				_, err := w.api.UnpinClusters(ctx, &towlinev1.UnpinClustersRequest{Project: ref.Project, Module: ref.Name, Clusters: []string{string(name)}})
				return err
			})
		}
		w.call("abort "+ref.Name, func(ctx context.Context) error {
			_, err := w.api.AbortRollout(ctx, &towlinev1.AbortRolloutRequest{Project: ref.Project, Module: ref.Name})
			return err
		})
		w.settles(false)
		w.number++
		next := w.spec(ref, 1, m.GetModule().GetSpec().GetPlacement().GetSelector().GetMatchLabels()["zone"], "")
		w.call("put "+ref.Name+" once more", func(ctx context.Context) error {
			_, err := w.api.PutModule(ctx, &towlinev1.PutModuleRequest{Module: next})
			return err
		})
	}
	w.settles(true)
	if w.found == "" {
		w.restJudge()
	}
}

// settles has all go on until nothing is due any more; whatever is asked is confirmed, and what is held is let go.
func (w *interleaved) settles(last bool) {
	for range 200 {
		before := w.last.Revision()
		for range 100 {
			if w.found != "" || !w.leader() {
				break
			}
		}
		for _, name := range wovenClusters {
			w.acts(name)
		}
		got, err := w.api.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		w.must(err)
		for _, h := range got.GetHolds() {
			w.confirms(h)
		}
		w.follows()
		if w.found != "" {
			return
		}
		next := w.wakes()
		if w.last.Revision() == before && (next.IsZero() || time.Until(next) > time.Minute) {
			return
		}
		if d := time.Until(next); !next.IsZero() && d > 0 && d <= time.Minute {
			<-time.After(d)
		}
	}
	if last {
		w.finds("all: does not come to rest:\n%s", w.standing())
	}
}

// standing is how all stands.
func (w *interleaved) standing() string {
	var out []string
	for _, ref := range wovenModules {
		got, err := w.api.GetModule(w.ctx, &towlinev1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
		out = append(out, fmt.Sprintf("%s: %v %v", ref.Name, got.GetModule().GetStatus(), err))
		for _, name := range wovenClusters {
			d, _, _ := store.Get[*storev1.DesiredRecord](w.last, store.DesiredKey(name, ref))
			o, _, _ := store.Get[*storev1.ObservedRecord](w.last, store.ObservedKey(name, ref))
			out = append(out, fmt.Sprintf("  %s: %s; %v", name, brieflyOf(d), o.GetStatus()))
		}
	}
	for _, name := range wovenClusters {
		out = append(out, fmt.Sprintf("%s: %v", name, clusterOf(w.last, name).GetCluster()))
	}
	return strings.Join(out, "\n")
}

// restJudge says whether all is as the last words say.
func (w *interleaved) restJudge() {
	trackers := 0
	for _, ref := range wovenModules {
		trackers += w.restModule(ref)
	}
	for _, name := range wovenClusters {
		rec := clusterOf(w.last, name)
		if rec.GetRemoving() != "" {
			w.finds("%s: is not forgotten", name)
		}
		if rec == nil {
			w.leftOf(name)
		}
		if held(w.last, name) {
			w.finds("%s: is held, and nobody holds it", name)
		}
	}
	w.restCatalog()
	holds, err := w.api.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
	w.must(err)
	if len(holds.GetHolds()) > 0 {
		w.finds("all: asked or held at the end: %v", holds)
	}
	for key := range all[*storev1.ConfirmRecord](w.last, store.ConfirmPrefix) {
		w.finds("all: an answer is left, and nothing is asked: %s", key)
	}
	got, err := w.api.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{})
	w.must(err)
	if len(got.GetTrackers()) != trackers {
		w.finds("all: %d modules in clusters are listed, want %d", len(got.GetTrackers()), trackers)
	}
	for _, t := range got.GetTrackers() {
		if !t.GetReady() {
			w.finds("%s in %s: is not ready: %v", t.GetModule(), t.GetCluster(), t)
		}
	}
}

// restModule says in how many clusters a module is that is everywhere where it is placed.
func (w *interleaved) restModule(ref fleet.ModuleRef) (clusters int) {
	m, _, ok := store.Get[*storev1.ModuleRecord](w.last, store.ModuleKey(ref))
	if m.GetDeleting() != "" {
		w.finds("%s: is not gone\n%s", ref.Name, w.standing())
		return 0
	}
	newest := record.NewestNumber(w.last, ref)
	for _, name := range wovenClusters {
		rec := clusterOf(w.last, name)
		d, _, is := store.Get[*storev1.DesiredRecord](w.last, store.DesiredKey(name, ref))
		placed := false
		if ok && rec != nil {
			of, err := wire.ModuleFromProto(m.GetModule())
			w.must(err)
			placed = assemble.Places(of.Placement, record.Cluster(rec), false)
		}
		switch {
		case placed && (d.GetSync() == nil || d.GetTombstone() != nil || d.GetProblem() != "" || d.GetSync().GetHold() || d.GetSync().GetRevision() != newest):
			w.finds("%s in %s: has not r%d\n%s", ref.Name, name, newest, w.standing())
		case !placed && is:
			w.finds("%s in %s: is there still\n%s", ref.Name, name, w.standing())
		}
		if placed {
			clusters++
		}
	}
	if !ok {
		return 0
	}
	got, err := w.api.GetModule(w.ctx, &towlinev1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	w.must(err)
	if s := got.GetModule().GetStatus(); int(s.GetClusters()) != clusters || int(s.GetHealthy()) != clusters || int(s.GetUpdated()) != clusters {
		w.finds("%s: is shown as %v, and is in %d clusters", ref.Name, s, clusters)
	}
	if s := got.GetModule().GetStatus(); s.GetRolloutState() != "Succeeded" {
		w.finds("%s: its rollout is %s at the end: %v", ref.Name, s.GetRolloutState(), s)
	}
	return clusters
}

// leftOf looks for what is left of a cluster that is not there.
func (w *interleaved) leftOf(name fleet.ClusterName) {
	for _, prefix := range []string{store.DesiredPrefix, store.ObservedPrefix, store.RecyclePrefix, store.SessionPrefix, store.FloorPrefix, store.AckPrefix} {
		w.last.Scan(prefix+string(name), func(e store.Entry) bool {
			w.finds("%s: is not there, and has left %s", name, strings.TrimSuffix(e.Key, "/"))
			return false
		})
	}
	if i := slices.IndexFunc(mapped(all[*storev1.HoldRecord](w.last, store.HoldPrefix)), func(h *storev1.HoldRecord) bool { return h.GetHold().GetCluster() == string(name) }); i >= 0 {
		w.finds("%s: is not there, and is held", name)
	}
}

func mapped[T any](in map[string]T) (out []T) {
	for _, v := range in {
		out = append(out, v)
	}
	return out
}
