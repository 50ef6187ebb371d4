package wire

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// MaxDependencies bounds what one module may depend on.
const MaxDependencies = 64

// SetDependency is a module that comes first in a set of clusters.
type SetDependency struct {
	Module fleet.ModuleRef
	// Clusters are those with these labels; the empty selector matches all.
	Clusters *fleet.Selector
}

// dependencies reads what a module depends on in its own cluster, sorted by name, and in others, sorted by name and selector.
func dependencies(of fleet.ModuleRef, in []*towlinev1.Dependency) (own []fleet.ModuleRef, sets []SetDependency, err error) {
	if len(in) > MaxDependencies {
		return nil, nil, fleet.Invalidf("", "%d are too many; at most %d", len(in), MaxDependencies)
	}
	for i, d := range in {
		m, err := dependency(of, d)
		if err != nil {
			return nil, nil, fleet.Join(fmt.Sprintf("[%d]", i), err)
		}
		clusters, err := SelectorFromProto(d.GetClusters())
		if err != nil {
			return nil, nil, fleet.Join(fmt.Sprintf("[%d].clusters", i), err)
		}
		path := fmt.Sprintf("[%d].module", i)
		if clusters == nil {
			if slices.Contains(own, m) {
				return nil, nil, fleet.Invalidf(path, "%s is listed twice", m.Name)
			}
			own = append(own, m)
			continue
		}
		same := func(s SetDependency) bool { return s.Module == m && s.Clusters.String() == clusters.String() }
		if slices.ContainsFunc(sets, same) {
			return nil, nil, fleet.Invalidf(path, "%s is listed twice with the same clusters", m.Name)
		}
		sets = append(sets, SetDependency{Module: m, Clusters: clusters})
	}
	slices.SortFunc(own, func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) })
	slices.SortFunc(sets, func(a, b SetDependency) int {
		return cmp.Or(strings.Compare(a.Module.String(), b.Module.String()), strings.Compare(a.Clusters.String(), b.Clusters.String()))
	})
	return own, sets, nil
}

// dependency reads the module that comes first.
func dependency(of fleet.ModuleRef, d *towlinev1.Dependency) (fleet.ModuleRef, error) {
	m := fleet.ModuleRef{Project: of.Project, Name: d.GetModule()}
	if m.Name == "" {
		return m, fleet.Invalid("module", "is required: the name of a module of the same project")
	}
	if err := fleet.ValidateLabel(m.Name); err != nil {
		return m, fleet.Invalid("module", err.Error())
	}
	switch {
	case m == of && d.GetClusters() != nil:
		return m, fleet.Invalidf("module", "%s is the module itself, which would wait for itself; in which order its own clusters get a revision its stages say: spec.rollout.stages", m.Name)
	case m == of:
		return m, fleet.Invalidf("module", "%s is the module itself, which would wait for itself", m.Name)
	}
	return m, nil
}

// DependenciesOf reads on which modules the spec of a module depends, anywhere, each once; what cannot be read is none.
func DependenciesOf(of fleet.ModuleRef, spec *towlinev1.ModuleSpec) []fleet.ModuleRef {
	own, sets, _ := dependencies(of, spec.GetDependsOn())
	return allDependencies(own, sets)
}

// SetsOf reads on which modules in other clusters the spec of a module depends; what cannot be read is none.
func SetsOf(of fleet.ModuleRef, spec *towlinev1.ModuleSpec) []SetDependency {
	_, sets, _ := dependencies(of, spec.GetDependsOn())
	return sets
}

// Dependencies are the modules on which it depends, in its own clusters or in others, each once, in the order of their names.
func (m *Module) Dependencies() []fleet.ModuleRef {
	return allDependencies(m.DependsOn, m.DependsOnSets)
}

func allDependencies(own []fleet.ModuleRef, sets []SetDependency) []fleet.ModuleRef {
	all := slices.Clone(own)
	for _, s := range sets {
		all = append(all, s.Module)
	}
	slices.SortFunc(all, func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// SyncNeeds are the features that an agent must have for what a module says of its order. Of other clusters it knows nothing.
func SyncNeeds(m *Module) []string {
	if len(m.DependsOn) == 0 {
		return nil
	}
	return []string{FeatureDependsOn}
}
