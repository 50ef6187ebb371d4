package control

import (
	"context"
	"fmt"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// against is a word that counts against what is about to be ordered of a module in a cluster, or said of it: what that rests on is so no more.
func (w *interleaved) against(ref fleet.ModuleRef, name fleet.ClusterName) {
	rec := clusterOf(w.last, name)
	words := []func(){
		func() { w.turnsLabel(ref, name) },
		func() {
			w.putsHold(&towlinev1.PutHoldRequest{Project: ref.Project, Module: ref.Name, Cluster: string(name)})
		},
		func() { w.joins(name) },
		w.answers,
		func() { w.leader() }, // another part of it
	}
	switch {
	case !w.near.orders:
		words = append(words[:1], func() { w.putsIt(ref, true) }, func() { w.deletesIt(ref, true) }, func() { w.catalogs(ref) })
		if catalogOf(w.last) != nil {
			words = append(words, func() { w.putsCatalog(false, false) })
		}
	case w.near.goes:
		words = append(words, func() { w.deletesIt(wovenModules[1-slices.Index(wovenModules, ref)], false) }, func() { w.deletesIt(ref, true) })
	default:
		words = append(words, func() { w.isIn(name, rec.GetCluster().GetMetadata().GetLabels()["zone"], true) }, func() { w.removes(name, "delete", true) }, func() { w.deletesIt(ref, false) })
	}
	one(w.tape, words...)()
}

// turnsLabel takes a cluster out of the placement of a module by its label, or into it.
func (w *interleaved) turnsLabel(ref fleet.ModuleRef, name fleet.ClusterName) {
	rec := clusterOf(w.last, name)
	zone, wants := rec.GetCluster().GetMetadata().GetLabels()["zone"], moduleOf(w.last, ref).GetModule().GetSpec().GetPlacement().GetSelector().GetMatchLabels()["zone"]
	switch {
	case rec == nil:
		return
	case wants != "" && zone != wants:
		zone = wants
	case zone == "x":
		zone = "y"
	default:
		zone = "x"
	}
	w.isIn(name, zone, rec.GetCluster().GetSpec().GetCordoned())
}

func (w *interleaved) isIn(name fleet.ClusterName, zone string, cordoned bool) {
	c := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(name), Labels: map[string]string{"named": string(name)}}, Spec: &towlinev1.ClusterSpec{Cordoned: new(cordoned)}}
	if zone != "" {
		c.Metadata.Labels["zone"] = zone
	}
	w.call(fmt.Sprintf("%s is in %q, cordoned %t", name, zone, cordoned), func(ctx context.Context) error {
		_, err := w.api.PutCluster(ctx, &towlinev1.PutClusterRequest{Cluster: c})
		return err
	})
}
