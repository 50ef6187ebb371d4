package fleet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// DefaultProject is the project of a module that names none.
const DefaultProject = "default"

// APIVersion is the apiVersion of every resource of the public API.
const APIVersion = "towline.dev/v1"

// MaxModuleName is the longest project and name may be together, so that PROJECT-NAME fits a DNS label.
const MaxModuleName = 63

// ClusterName names a registered workload cluster. It is a DNS label.
type ClusterName string

// Object is the cluster in errors.
func (c ClusterName) Object() Object { return Object{Kind: "Cluster", Name: string(c)} }

// ModuleRef names a module.
type ModuleRef struct{ Project, Name string }

// String is project/name, the form used on the wire and in keys.
func (m ModuleRef) String() string { return m.Project + "/" + m.Name }

// Object is the module in errors.
func (m ModuleRef) Object() Object { return Object{Kind: "Module", Name: m.String()} }

// Display is the name alone in the default project, else project/name.
func (m ModuleRef) Display() string {
	if m.Project == DefaultProject {
		return m.Name
	}
	return m.String()
}

// ParseModuleRef reads project/name, or a name of the default project.
func ParseModuleRef(s string) (ModuleRef, error) {
	project, name, found := strings.Cut(s, "/")
	if !found {
		project, name = DefaultProject, s
	}
	if err := ValidateLabel(project); err != nil {
		return ModuleRef{}, Invalid("project", err.Error())
	}
	if err := ValidateLabel(name); err != nil {
		return ModuleRef{}, Invalid("module", err.Error())
	}
	return ModuleRef{Project: project, Name: name}, nil
}

// RolloutID names a rollout: MODULE/N.
type RolloutID struct {
	Module ModuleRef
	Number int64
}

// String is the form that people write, such as shop/57, or team/shop/57 outside the default project.
func (r RolloutID) String() string { return fmt.Sprintf("%s/%d", r.Module.Display(), r.Number) }

// ParseRolloutID reads MODULE/N or PROJECT/MODULE/N.
func ParseRolloutID(s string) (RolloutID, error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return RolloutID{}, Invalid("rollout", fmt.Sprintf("%q is no rollout id; write MODULE/N, such as shop/57", s))
	}
	n, err := strconv.ParseInt(s[i+1:], 10, 64)
	if err != nil || n < 1 {
		return RolloutID{}, Invalid("rollout", fmt.Sprintf("%q is no rollout id; write MODULE/N, such as shop/57", s))
	}
	m, err := ParseModuleRef(s[:i])
	if err != nil {
		return RolloutID{}, err
	}
	return RolloutID{Module: m, Number: n}, nil
}

// isLabel is ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$, written out because every report of every agent is checked by it.
func isLabel(s string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alphanumeric && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != ""
}

// ValidateLabel reports why s is no DNS label.
func ValidateLabel(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is required")
	case len(s) > 63:
		return fmt.Errorf("%.20q… has %d characters; at most 63", s, len(s))
	case !isLabel(s):
		return fmt.Errorf("%q is no DNS label: use lower-case letters, digits and '-', begin and end with a letter or digit", s)
	}
	return nil
}

var bindingName = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

// ValidateBindingName reports why s cannot name a binding.
func ValidateBindingName(s string) error {
	if !bindingName.MatchString(s) {
		return fmt.Errorf("%q is no binding name: use [A-Z][A-Z0-9_]*", s)
	}
	return nil
}

// SetOrigin is the origin of the modules of a set.
func SetOrigin(set string) string { return "set/" + set }

// catalogOrigin begins the origin of the modules of a catalog.
const catalogOrigin = "catalog/"

// CatalogOrigin is the origin of the modules of a catalog, and who writes them.
func CatalogOrigin(name string) string { return catalogOrigin + name }

// OfSet reads the name of the set out of an origin.
func OfSet(origin string) (name string, is bool) { return strings.CutPrefix(origin, "set/") }

// OfCatalog reads the name of the catalog out of an origin.
func OfCatalog(origin string) (name string, is bool) { return strings.CutPrefix(origin, catalogOrigin) }
