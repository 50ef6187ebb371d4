package api

import (
	"fmt"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// putOrder is what modules depend on as it is when all that is put together is put.
type putOrder struct {
	r    store.Reader
	with map[fleet.ModuleRef][]fleet.ModuleRef
}

func newPutOrder(r store.Reader, m *wire.Module, with []*towlinev1.ModuleOrder) (putOrder, error) {
	x := putOrder{r: r, with: map[fleet.ModuleRef][]fleet.ModuleRef{}}
	if len(with) > maxWith {
		return x, fleet.Invalidf("with", "%d are too many; at most %d", len(with), maxWith)
	}
	for i, o := range with {
		ref, err := refOf(o.GetProject(), o.GetModule())
		if err != nil {
			return x, fleet.Join(fmt.Sprintf("with[%d]", i), err)
		}
		x.with[ref] = wire.DependenciesOf(ref, &towlinev1.ModuleSpec{DependsOn: o.GetDependsOn()})
	}
	x.with[m.Ref] = m.Dependencies()
	return x, nil
}

// maxWith bounds the modules that are put together.
const maxWith = 10_000

// of is what a module depends on.
func (x putOrder) of(ref fleet.ModuleRef) []fleet.ModuleRef {
	if list, together := x.with[ref]; together {
		return list
	}
	rec, _, ok := moduleRecord(x.r, ref)
	if !ok || rec.GetDeleting() != "" {
		return nil
	}
	return wire.DependenciesOf(ref, rec.GetModule().GetSpec())
}

// check refuses a module that would wait for itself.
func (x putOrder) check(m *wire.Module) error {
	circle := assemble.Circle(m.Ref, x.of)
	if circle == nil {
		return nil
	}
	names := make([]string, len(circle))
	for i, c := range circle {
		names[i] = c.Name
	}
	return fleet.Invalidf("spec.dependsOn", "goes in a circle, in which each would wait for the next: %s; take one of these dependencies out", strings.Join(names, " → "))
}

// checkOrder refuses a put by which a module would wait for itself.
func checkOrder(r store.Reader, m *wire.Module, req *towlinev1.PutModuleRequest) error {
	x, err := newPutOrder(r, m, req.GetWith())
	if err != nil {
		return err
	}
	return x.check(m)
}

// missing are what a module depends on and that is no module yet.
func (x putOrder) missing(m *wire.Module) (names []string) {
	for _, ref := range m.Dependencies() {
		if _, together := x.with[ref]; together {
			continue
		}
		if rec, _, ok := moduleRecord(x.r, ref); !ok || rec.GetDeleting() != "" {
			names = append(names, ref.Name)
		}
	}
	return names
}

// warnMissing says what a module depends on and nobody has put yet.
func warnMissing(r store.Reader, m *wire.Module, req *towlinev1.PutModuleRequest, resp *towlinev1.PutModuleResponse) error {
	x, err := newPutOrder(r, m, req.GetWith())
	if err != nil {
		return err
	}
	names := x.missing(m)
	if len(names) > 0 {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnNoDependency, &towlinev1.Facts{Names: names}))
	}
	for _, d := range m.DependsOnSets {
		if code := x.empty(d); code != "" && !slices.Contains(names, d.Module.Name) {
			resp.Warnings = append(resp.Warnings, note(fleet.WarnEmptySet, &towlinev1.Facts{Code: code, Names: []string{d.Module.Name}, Selector: d.Clusters.String()}))
		}
	}
	return nil
}

// empty says why a set of clusters in which a module is to be ready first has none; of a module that is put, too, only the labels are known.
func (x putOrder) empty(d wire.SetDependency) (code string) {
	rec, _, _ := moduleRecord(x.r, d.Module)
	placement, err := wire.PlacementFromProto(rec.GetModule().GetSpec().GetPlacement())
	_, together := x.with[d.Module]
	code = rollout.SetNoCluster
	for _, cl := range record.Clusters(x.r) {
		c := record.Cluster(cl)
		if cl.GetRemoving() != "" || !d.Clusters.Matches(c.Labels) {
			continue
		}
		if together || err == nil && record.Places(store.Untracked(x.r), placement, c, d.Module) {
			return ""
		}
		code = rollout.SetNotPlaced
	}
	return code
}

// dependents are the modules that depend on one, and stay.
func dependents(r store.Reader, ref fleet.ModuleRef) (names []string) {
	store.Scan(store.Untracked(r), store.ModulePrefix+ref.Project+"/", func(rec *storev1.ModuleRecord, e store.Entry) bool {
		other, ok := store.SplitModule(e.Key)
		if ok && rec.GetDeleting() == "" && slices.Contains(wire.DependenciesOf(other, rec.GetModule().GetSpec()), ref) {
			names = append(names, other.Name)
		}
		return true
	})
	return names
}

// deletedDependents are the modules that depend on a deleted one in other clusters, are deleted, too, and are not gone yet.
func deletedDependents(r store.Reader, ref fleet.ModuleRef) (names []string) {
	store.Scan(store.Untracked(r), store.ModulePrefix+ref.Project+"/", func(rec *storev1.ModuleRecord, e store.Entry) bool {
		other, ok := store.SplitModule(e.Key)
		if ok && rec.GetDeleting() != "" && slices.ContainsFunc(wire.SetsOf(other, rec.GetModule().GetSpec()), func(d wire.SetDependency) bool { return d.Module == ref }) {
			names = append(names, other.Name)
		}
		return true
	})
	return names
}

// mayGo refuses the deletion of a module that others depend on, unless a person insists. One that is being deleted already goes.
func mayGo(r store.Reader, ref fleet.ModuleRef, force bool) error {
	rec, _, _ := moduleRecord(r, ref)
	if force || rec.GetDeleting() != "" {
		return nil
	}
	if names := dependents(r, ref); len(names) > 0 {
		return fleet.Errorf(fleet.ErrPrecondition, "module %s: %s; delete what depends on it first or in the same command, take it out of their dependsOn, or insist: --force",
			ref.Display(), dependText(names))
	}
	if names := dependentsInUse(r, ref); len(names) > 0 {
		return fleet.Errorf(fleet.ErrPrecondition, "module %s: a revision of %s that clusters have, or may go back to, depends on it, though what was put since does not; delete it when that is rolled out everywhere, or insist: --force (a module that takes its place, as when it is renamed, is in conflict while it is there)",
			ref.Display(), plan.Names(names))
	}
	return nil
}

// dependentsInUse are the modules of which a revision that is in use depends on one.
func dependentsInUse(r store.Reader, ref fleet.ModuleRef) (names []string) {
	record.InUse(r, ref.Project, func(other fleet.ModuleRef, rev *storev1.RevisionRecord) {
		if slices.Contains(wire.DependenciesOf(other, rev.GetRevision().GetSpec()), ref) && !slices.Contains(names, other.Name) {
			names = append(names, other.Name)
		}
	})
	return names
}

func dependText(names []string) string {
	if len(names) == 1 {
		return names[0] + " depends on it"
	}
	return plan.Names(names) + " depend on it"
}
