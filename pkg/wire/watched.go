package wire

import (
	"fmt"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// FeatureWatch names the feature of agents that watch objects which are somebody else's.
const FeatureWatch = "watch"

// MaxWatched is how many objects a module may watch that are somebody else's: each costs a watch of its own.
const MaxWatched = 64

// watched reads the objects that a module only watches.
func watched(in []*towlinev1.WatchedObject, m *Module) ([]fleet.WatchedObject, error) {
	if len(in) > MaxWatched {
		return nil, fleet.Invalidf("", "%d are too many; at most %d", len(in), MaxWatched)
	}
	declared, placeholders := map[string]string{}, m.Placeholders()
	for _, b := range m.Bindings {
		declared[b.Name] = "x"
	}
	seen := map[fleet.ObjectID]bool{}
	var out []fleet.WatchedObject
	for i, x := range in {
		o, err := watchedObject(x, m.Namespace, declared)
		if err != nil {
			return nil, fleet.Join(fmt.Sprintf("[%d]", i), err)
		}
		id := o.Entry().ID
		if err := manifest.CheckText(id.Namespace+"/"+id.Name, placeholders); err != nil {
			return nil, fleet.Invalidf(fmt.Sprintf("[%d]", i), "%v", err)
		}
		if seen[id] {
			return nil, fleet.Invalidf(fmt.Sprintf("[%d]", i), "%s is listed twice", id.Short())
		}
		for _, name := range manifest.Names(id.Namespace + "/" + id.Name) {
			if slices.Contains(placeholders.Late, name) {
				return nil, fleet.Invalidf(fmt.Sprintf("[%d]", i), "name and namespace cannot hold ${%s}, which only the agent evaluates", name)
			}
		}
		seen[id] = true
		out = append(out, o)
	}
	return out, nil
}

func watchedObject(in *towlinev1.WatchedObject, namespace string, declared map[string]string) (fleet.WatchedObject, error) {
	gv, err := namedKind(in, "/ ")
	o := fleet.WatchedObject{Group: gv.Group, Version: gv.Version, Kind: in.GetKind(), Name: in.GetName()}
	if err == nil {
		o.Namespace, err = namespaceIn(gv.Group, in, namespace)
	}
	if err != nil {
		return o, err
	}
	// Whatever the values will be, the rest of the name must do.
	if _, err := manifest.ResolveID(o.Entry().ID, declared); err != nil {
		return o, err
	}
	return o, nil
}
