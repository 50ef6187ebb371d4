package wire

import (
	"fmt"
	"slices"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// MaxDependencies bounds what one module may depend on.
const MaxDependencies = 64

// dependencies reads what a module depends on, sorted by name.
func dependencies(of fleet.ModuleRef, in []*towlinev1.Dependency) ([]fleet.ModuleRef, error) {
	if len(in) > MaxDependencies {
		return nil, fleet.Invalidf("", "%d are too many; at most %d", len(in), MaxDependencies)
	}
	var out []fleet.ModuleRef
	for i, d := range in {
		path := fmt.Sprintf("[%d].module", i)
		m := fleet.ModuleRef{Project: of.Project, Name: d.GetModule()}
		if m.Name == "" {
			return nil, fleet.Invalid(path, "is required: the name of a module of the same project")
		}
		if err := fleet.ValidateLabel(m.Name); err != nil {
			return nil, fleet.Invalid(path, err.Error())
		}
		switch {
		case m == of:
			return nil, fleet.Invalidf(path, "%s is the module itself, which would wait for itself", m.Name)
		case slices.Contains(out, m):
			return nil, fleet.Invalidf(path, "%s is listed twice", m.Name)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

// DependenciesOf reads what the spec of a module depends on; what cannot be read is none.
func DependenciesOf(of fleet.ModuleRef, spec *towlinev1.ModuleSpec) []fleet.ModuleRef {
	out, _ := dependencies(of, spec.GetDependsOn())
	return out
}

// SyncNeeds are the features that an agent must have for what a module says of its order.
func SyncNeeds(m *Module) []string {
	if len(m.DependsOn) == 0 {
		return nil
	}
	return []string{FeatureDependsOn}
}
