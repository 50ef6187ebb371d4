package fleet

import (
	"cmp"
	"strings"
)

// ObjectID is the identity of an object in a cluster. The API version is no part of it: one object may be read in
// several versions.
type ObjectID struct{ Group, Kind, Namespace, Name string }

// String is Kind[.group] [namespace/]name, such as "Deployment.apps shop/web".
func (o ObjectID) String() string {
	kind := o.Kind
	if o.Group != "" {
		kind += "." + o.Group
	}
	return kind + " " + o.Path()
}

// Short is Kind [namespace/]name, for tables.
func (o ObjectID) Short() string { return o.Kind + " " + o.Path() }

// Path is [namespace/]name.
func (o ObjectID) Path() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// Compare orders identities by group, kind, namespace and name: the order of ordinals in a bundle.
func (o ObjectID) Compare(b ObjectID) int {
	return cmp.Or(strings.Compare(o.Group, b.Group), strings.Compare(o.Kind, b.Kind),
		strings.Compare(o.Namespace, b.Namespace), strings.Compare(o.Name, b.Name))
}

// BundleEntry is one object of a bundle: where its content is, who it is and when it is applied.
type BundleEntry struct {
	Digest  Digest
	ID      ObjectID
	Version string
	Wave    int32
}

// APIVersion is group/version, or version for the core group.
func (e BundleEntry) APIVersion() string {
	if e.ID.Group == "" {
		return e.Version
	}
	return e.ID.Group + "/" + e.Version
}

// SplitAPIVersion is the inverse of APIVersion; the core group is empty.
func SplitAPIVersion(s string) (group, version string) {
	group, version, found := strings.Cut(s, "/")
	if !found {
		return "", s
	}
	return group, version
}

// Bundle is the rendered objects of a revision in the order of their identity. An index into it is an ordinal.
type Bundle struct {
	Digest  Digest
	Entries []BundleEntry
}
