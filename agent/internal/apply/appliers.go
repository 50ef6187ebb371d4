package apply

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// AppliersOf are the managers beside ours that apply an object.
func AppliersOf(entries []metav1.ManagedFieldsEntry) (out []string) {
	for _, e := range entries {
		if keeps(e) {
			out = append(out, e.Manager)
		}
	}
	return out
}

// HoldersOf are the managers beside ours that apply any of an object but its metadata, and those of tools that are known, which write
// nothing but what they keep, however they write it.
func HoldersOf(entries []metav1.ManagedFieldsEntry) (out []string) {
	for _, e := range entries {
		if e.Manager == fleet.FieldManager || e.Subresource != "" || slices.Contains(out, e.Manager) {
			continue
		}
		paths := pathsOf(NewInterner(), e).Paths()
		if plan.ToolOf(e.Manager) != "" && !holdsReportsOnly(paths) || applies(e) && (len(paths) == 0 || holdsOther(paths)) {
			out = append(out, e.Manager)
		}
	}
	return out
}

// deploys reports that an entry is of a tool that writes nothing but what it keeps, however it writes. What it says of an object
// that it works on is no sign that it keeps the object: Argo CD writes the status of an Application as any other field.
func deploys(e metav1.ManagedFieldsEntry) bool {
	return plan.Deploys(e.Manager) && e.Subresource == "" && !holdsReportsOnly(pathsOf(NewInterner(), e).Paths())
}

// reported are the fields that a controller writes about an object which somebody else keeps.
var reported = []string{".status", ".operation", ".metadata.finalizers"}

// holdsReportsOnly reports that there are fields, and none but what a controller says of an object. An entry that cannot be
// read has no fields.
func holdsReportsOnly(paths map[string]bool) bool {
	for p := range paths {
		if !slices.ContainsFunc(reported, func(field string) bool {
			return p == field || strings.HasPrefix(p, field+".") || strings.HasPrefix(p, field+"[")
		}) {
			return false
		}
	}
	return len(paths) > 0
}

func applies(e metav1.ManagedFieldsEntry) bool {
	return e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}

// ours reports that an entry is of what this agent applies.
func ours(e metav1.ManagedFieldsEntry) bool { return e.Manager == fleet.FieldManager && applies(e) }

// keeps reports that an entry is of another manager that applies the object, or deploys it.
func keeps(e metav1.ManagedFieldsEntry) bool {
	return e.Manager != fleet.FieldManager && (applies(e) || deploys(e))
}

// AppliersOfAll are the managers beside ours that apply all of an object that ours does, and those that deploy it: all of the
// fields of our last write that are not metadata. Of an object that has nothing else its labels and annotations count, our marks aside. Without fields,
// as of an object that was found, those count that are noted for our manager; where these are our marks alone, whoever applies
// anything but metadata may have taken the rest.
func AppliersOfAll(entries []metav1.ManagedFieldsEntry, fields *PathSet) (out []string) {
	if len(AppliersOf(entries)) == 0 {
		return nil
	}
	in, found := NewInterner(), fields == nil
	if found {
		fields = oursOf(in, entries)
	}
	wanted := body(fields.Paths())
	for _, e := range entries {
		if !keeps(e) {
			continue
		}
		paths := pathsOf(in, e).Paths()
		if deploys(e) || len(wanted) > 0 && holdsAll(paths, wanted) || found && len(wanted) == 0 && holdsOther(paths) {
			out = append(out, e.Manager)
		}
	}
	return out
}

// oursOf are the fields that are noted for our manager; nil: none.
func oursOf(in *Interner, entries []metav1.ManagedFieldsEntry) *PathSet {
	for _, e := range entries {
		if ours(e) {
			return pathsOf(in, e)
		}
	}
	return nil
}

// pathsOf are the fields of an entry; nil if they cannot be read.
func pathsOf(in *Interner, e metav1.ManagedFieldsEntry) *PathSet {
	if e.FieldsV1 == nil {
		return nil
	}
	p, err := in.Parse(e.FieldsV1.GetRawBytes(), nil)
	if err != nil {
		return nil
	}
	return p
}

// body are the paths outside of the metadata or, where there are none, those inside that are no marks of ours.
func body(paths map[string]bool) map[string]bool {
	outside, inside := map[string]bool{}, map[string]bool{}
	for p := range paths {
		switch {
		case !isMetadata(p):
			outside[p] = true
		case !strings.Contains(p, fleet.HubLabel) && !strings.Contains(p, fleet.OwnerAnnotation):
			inside[p] = true
		}
	}
	if len(outside) > 0 {
		return outside
	}
	return inside
}

func isMetadata(path string) bool { return strings.HasPrefix(path, ".metadata.") }

// holdsOther reports that there are fields that are no metadata.
func holdsOther(paths map[string]bool) bool {
	for p := range paths {
		if !isMetadata(p) {
			return true
		}
	}
	return false
}

func holdsAll(paths, wanted map[string]bool) bool {
	for p := range wanted {
		if !paths[p] {
			return false
		}
	}
	return true
}

// ListedKeys are the keys of the labels and annotations that are noted for our manager.
func ListedKeys(entries []metav1.ManagedFieldsEntry) map[string]bool {
	out := map[string]bool{}
	for _, e := range entries {
		fields := metadataOf(e)
		for key := range fields.Labels {
			out[strings.TrimPrefix(key, "f:")] = true
		}
		for key := range fields.Annotations {
			out[strings.TrimPrefix(key, "f:")] = true
		}
	}
	return out
}
