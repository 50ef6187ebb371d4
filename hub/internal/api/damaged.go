package api

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// What cannot be read is listed as damaged, so that nobody takes it for gone, and a person can put something in its place.
// The hub does nothing of that by itself: what such a record said is not known, and absence is never intent.

// stateDamaged is shown of a module, a rollout, a cluster or a catalog whose record cannot be read.
const stateDamaged = "Damaged"

// moduleRecord is the module's record. In the place of one that is damaged it gives what can be told from the rollouts:
// that there is a module, and which numbers are taken.
func moduleRecord(r store.Reader, ref fleet.ModuleRef) (rec *storev1.ModuleRecord, damaged, ok bool) {
	if store.DamageOf(r, store.ModuleKey(ref)) == nil {
		rec, _, ok = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		return rec, false, ok
	}
	meta := &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: string(uuid.NewUUID())}
	rec = &storev1.ModuleRecord{Module: &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: meta, Spec: &towlinev1.ModuleSpec{}}}
	for _, ro := range rollouts.List(r, ref) {
		x := ro.GetRollout()
		if meta.Generation = max(meta.Generation, x.GetModuleGeneration()); meta.CreationTimestamp == nil {
			meta.CreationTimestamp = x.GetMetadata().GetCreationTimestamp()
		}
	}
	return rec, true, true
}

func damagedModules(r overview, project, name string) []*towlinev1.Module {
	var out []*towlinev1.Module
	for _, d := range r.Damaged(store.ModulePrefix) {
		ref, ok := store.SplitModule(d.Key)
		if !ok || project != "" && project != ref.Project || name != "" && name != ref.Name {
			continue
		}
		s := &towlinev1.ModuleStatus{RolloutState: stateDamaged, RolloutReason: fleet.ReasonDamagedModule}
		s.Conditions = []*towlinev1.Condition{{Type: "Ready", Status: fleet.ConditionUnknown, Reason: stateDamaged}}
		countClusters(r, ref, s)
		out = append(out, &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Status: s,
			Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project}})
	}
	return out
}

func damagedCatalogs(r store.Reader, prefix string, modules map[fleet.ModuleRef]int32) (out []*towlinev1.Catalog) {
	for _, d := range r.Damaged(prefix) {
		if ref, ok := store.SplitCatalog(d.Key); ok {
			out = append(out, &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: catalogKind, Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: record.LastCatalogUID(store.Untracked(r), ref)},
				Status: &towlinev1.CatalogStatus{State: stateDamaged, Modules: modules[ref]}})
		}
	}
	return out
}

func damagedClusters(r store.Reader, name string) []*towlinev1.Cluster {
	var out []*towlinev1.Cluster
	for _, d := range r.Damaged(store.ClusterPrefix) {
		c := fleet.ClusterName(strings.TrimPrefix(d.Key, store.ClusterPrefix))
		if name != "" && name != string(c) {
			continue
		}
		s := &towlinev1.ClusterStatus{State: stateDamaged, Modules: int32(len(record.ModulesOf(r, c))), Attention: note(fleet.AttentionDamaged, nil)}
		session, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(c))
		if at := record.LastWord(r, c, session); !at.IsZero() {
			s.LastSeen = timestamppb.New(at)
		}
		out = append(out, &towlinev1.Cluster{ApiVersion: fleet.APIVersion, Kind: "Cluster", Metadata: &towlinev1.Metadata{Name: string(c)}, Status: s})
	}
	return out
}
