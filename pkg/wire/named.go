package wire

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// named is a message that names an object of a workload cluster.
type named interface {
	GetApiVersion() string
	GetKind() string
	GetNamespace() string
	GetName() string
}

// namedKind is the group and version of what a message names, with all that is required; forbidden are characters that no kind has.
func namedKind(in named, forbidden string) (schema.GroupVersion, error) {
	gv, err := schema.ParseGroupVersion(in.GetApiVersion())
	switch {
	case in.GetApiVersion() == "":
		return gv, fleet.Invalid("apiVersion", "is required")
	case err != nil || gv.Version == "":
		return gv, fleet.Invalidf("apiVersion", "%q is no group and version; write v1 or apps/v1", in.GetApiVersion())
	case in.GetKind() == "":
		return gv, fleet.Invalid("kind", "is required")
	case strings.ContainsAny(in.GetKind(), forbidden):
		return gv, fleet.Invalidf("kind", "%q is no kind", in.GetKind())
	case in.GetName() == "":
		return gv, fleet.Invalid("name", "is required")
	}
	return gv, nil
}

// namespaceIn is the namespace of what a message names; where it names none, that of the module, unless the kind has no namespaces.
func namespaceIn(group string, in named, module string) (string, error) {
	namespaced, known := manifest.Namespaced(group, in.GetKind())
	namespace := in.GetNamespace()
	switch {
	case known && !namespaced && namespace != "":
		return "", fleet.Invalidf("namespace", "%s has no namespaces", in.GetKind())
	case namespace == "" && (namespaced || !known):
		namespace = module
	}
	if namespaced && namespace == "" {
		return "", fleet.Invalidf("namespace", "is required: %s has namespaces, and the module names none", in.GetKind())
	}
	return namespace, nil
}
