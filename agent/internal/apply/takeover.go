package apply

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// clientSide are programs that write what a person or a manifest says, without server-side apply. Those that end in a
// star are prefixes.
var clientSide = []string{"kubectl*", "oc", "k9s", "before-first-apply", "helm", "Helm", "helm-controller", "kustomize-controller",
	"argocd-controller", "argocd-application-controller", "fleetagent", "kapp", "kapp-controller", "Terraform", "HashiCorp",
	"terraform-provider*", "pulumi*"}

func isClientSide(manager string) bool {
	return slices.ContainsFunc(clientSide, func(name string) bool {
		prefix, isPrefix := strings.CutSuffix(name, "*")
		return name == manager || isPrefix && strings.HasPrefix(manager, prefix)
	})
}

// TakeOver is the JSON patch that makes the fields of our applies ours alone, where programs that do not use server-side
// apply hold them, too: those never let go of a field, so that it would stay for ever when a later revision drops it. It
// changes no value but kubectl's own note of what it applied. adopted says that the object was just taken over, so that
// every program without server-side apply counts, and not only the known ones, and that the marks go of the instance of a tool that
// had it. It is nil if there is nothing to take.
func TakeOver(live map[string]any, adopted bool) ([]byte, error) {
	ours := ownFields(live)
	meta, _ := live["metadata"].(map[string]any)
	list := entriesOf(live)
	entries := make([]any, 0, len(list))
	taken, kubectl := false, false
	for _, x := range list {
		entry, _ := x.(map[string]any)
		m := managerOf(entry)
		if m.Operation != "Update" || m.Subresource != "" || !adopted && !isClientSide(m.Manager) {
			entries = append(entries, x)
			continue
		}
		rest, took := without(m.Fields, ours)
		if took {
			taken, kubectl = true, kubectl || strings.HasPrefix(m.Manager, "kubectl")
			entry = maps.Clone(entry)
			entry["fieldsV1"] = rest
		}
		if len(rest) > 0 || !took {
			entries = append(entries, entry)
		}
	}
	var gone []map[string]any
	if adopted {
		gone = withoutMarks(meta, ours)
	}
	if !taken && len(gone) == 0 {
		return nil, nil
	}
	patch := append([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	}, gone...)
	annotations, _ := meta["annotations"].(map[string]any)
	if _, noted := annotations[fleet.LastApplied]; noted && kubectl && !holds(ours, "annotations", fleet.LastApplied) {
		patch = append(patch, map[string]any{"op": "remove", "path": "/metadata/annotations/" + pointerStep(fleet.LastApplied)})
	}
	return json.Marshal(patch)
}

// without is what is left of a manager's fields when ours are taken from them, in the form of fieldsV1, and whether any
// were. What is below a list item of ours goes with it: a container that is dropped cannot leave its defaults behind.
func without(theirs, ours map[string]any) (rest map[string]any, took bool) {
	rest = make(map[string]any, len(theirs))
	for element, x := range theirs {
		mine, both := ours[element].(map[string]any)
		_, whole := mine["."]
		below, _ := x.(map[string]any)
		switch {
		case element == "." || !both:
			rest[element] = x
			continue
		case whole || len(mine) == 0:
			took = true
			continue
		}
		left, some := without(below, mine)
		if some {
			took = true
			delete(left, ".")
		}
		if len(left) > 0 || !some {
			rest[element] = left
		}
	}
	return rest, took
}

// withoutMarks takes the marks of an instance of a tool away that are not ours.
func withoutMarks(meta, ours map[string]any) (patch []map[string]any) {
	for _, in := range []string{"labels", "annotations"} {
		there, _ := meta[in].(map[string]any)
		for _, key := range plan.InstanceMarks {
			if _, has := there[key]; has && !holds(ours, in, key) {
				patch = append(patch, map[string]any{"op": "remove", "path": "/metadata/" + in + "/" + pointerStep(key)})
			}
		}
	}
	return patch
}

// holds reports that a label or an annotation is among the fields.
func holds(fields map[string]any, in, key string) bool {
	meta, _ := fields["f:metadata"].(map[string]any)
	list, _ := meta["f:"+in].(map[string]any)
	_, has := list["f:"+key]
	return has
}
