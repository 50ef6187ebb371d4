package record

import (
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// SourcesAhead are the modules on which a module depends and whose newest put has no revision yet: until it has, or has come to nothing, it
// is not known at which revision they are to be ready. What is queued behind a running rollout is not ahead, and in a circle nobody is. No
// commit depends on what it reads.
func SourcesAhead(r store.Reader, ref fleet.ModuleRef) []fleet.ModuleRef {
	r = store.Untracked(r)
	dependsOn := func(m fleet.ModuleRef) []fleet.ModuleRef {
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(m))
		if rec.GetDeleting() != "" {
			return nil
		}
		return wire.DependenciesOf(m, rec.GetModule().GetSpec())
	}
	return slices.DeleteFunc(slices.Clone(dependsOn(ref)), func(m fleet.ModuleRef) bool {
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(m))
		ro := rollouts.Unresolved(r, m)
		return rec == nil || rec.GetDeleting() != "" || ro == nil || rollouts.Queued(r, m, ro) || assemble.Reaches(m, ref, dependsOn)
	})
}
