package record

import (
	"errors"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// ErrNotRendered is that a revision has not been rendered for a variant yet.
var ErrNotRendered = errors.New("the revision is being rendered for the overrides that match the cluster, and for what it can do")

// HasVariants reports that a revision has a bundle for each variant, and none of its own.
func HasVariants(rev *storev1.RevisionRecord) bool {
	return len(rev.GetRevision().GetSpec().GetOverrides()) > 0 || rev.GetByCapabilities()
}

// Variants are what a revision renders to, as far as it is rendered. Without overrides, and where what clusters can do makes no difference, it is one.
func Variants(rev *storev1.RevisionRecord) []*storev1.VariantRecord {
	if HasVariants(rev) {
		return rev.GetVariants()
	}
	return []*storev1.VariantRecord{{Bundle: rev.GetBundle(), Policies: rev.GetPolicies(), Needs: rev.GetNeeds(), Objects: rev.GetRevision().GetObjects()}}
}

// VariantIn is what a revision renders to for a variant, or why it does not: ErrNotRendered, or what is wrong with it.
func VariantIn(rev *storev1.RevisionRecord, v fleet.Variant) (*storev1.VariantRecord, error) {
	all := Variants(rev)
	i := slices.IndexFunc(all, func(x *storev1.VariantRecord) bool { return isFor(x, v) })
	switch {
	case i >= 0 && all[i].GetProblem() != "":
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s", all[i].GetProblem())
	case i >= 0:
		return all[i], nil
	case len(all) >= assemble.MaxVariants:
		return nil, fleet.Errorf(fleet.ErrInvalid, "overrides: the revision is rendered for %d variants already, which are as many as there may be; %s would be another one: merge overrides, put what differs into bindings, or say in package.helm.kubeVersion and apiVersions what the chart is to see",
			len(all), v)
	}
	return nil, ErrNotRendered
}

// Selected are the clusters that a module is to be in.
func Selected(r store.Reader, m *wire.Module) []fleet.Cluster {
	var out []fleet.Cluster
	for _, rec := range Clusters(r) {
		if c := Cluster(rec); rec.GetRemoving() == "" && Places(r, m.Placement, c, m.Ref) {
			out = append(out, c)
		}
	}
	return out
}

// nextVariant is what a cluster is to have of a revision; nil: that is not known.
func nextVariant(r store.Reader, name fleet.ClusterName, ref fleet.ModuleRef, rev *storev1.RevisionRecord) *storev1.VariantRecord {
	if !HasVariants(rev) {
		return Variants(rev)[0]
	}
	m, err := wire.ModuleFromProto(ModuleOfRevision(ref, rev))
	if err != nil {
		return nil
	}
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
	if !ok {
		return nil
	}
	v, _ := VariantIn(rev, VariantFor(r, ref, rev, m.Overrides, Cluster(rec)))
	return v
}
