package wire

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
	gv, err := schema.ParseGroupVersion(in.GetApiVersion())
	o := fleet.WatchedObject{Group: gv.Group, Version: gv.Version, Kind: in.GetKind(), Namespace: in.GetNamespace(), Name: in.GetName()}
	switch {
	case in.GetApiVersion() == "":
		return o, fleet.Invalid("apiVersion", "is required")
	case err != nil || gv.Version == "":
		return o, fleet.Invalidf("apiVersion", "%q is no group and version; write v1 or apps/v1", in.GetApiVersion())
	case o.Kind == "":
		return o, fleet.Invalid("kind", "is required")
	case strings.ContainsAny(o.Kind, "/ "):
		return o, fleet.Invalidf("kind", "%q is no kind", o.Kind)
	case o.Name == "":
		return o, fleet.Invalid("name", "is required")
	}
	namespaced, known := manifest.Namespaced(o.Group, o.Kind)
	switch {
	case known && !namespaced && o.Namespace != "":
		return o, fleet.Invalidf("namespace", "%s has no namespaces", o.Kind)
	case o.Namespace == "" && (namespaced || !known):
		o.Namespace = namespace
	}
	if namespaced && o.Namespace == "" {
		return o, fleet.Invalidf("namespace", "is required: %s has namespaces, and the module names none", o.Kind)
	}
	// Whatever the values will be, the rest of the name must do.
	if _, err := manifest.ResolveID(o.Entry().ID, declared); err != nil {
		return o, err
	}
	return o, nil
}
