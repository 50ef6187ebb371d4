package apply

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// clientSide are programs that write what a person or a manifest says, without server-side apply.
var clientSide = []string{"kubectl*", "oc", "k9s", "before-first-apply", "helm", "Helm", "helm-controller", "kustomize-controller",
	"argocd-controller", "argocd-application-controller", "fleetagent", "kapp", "kapp-controller", "Terraform", "HashiCorp",
	"terraform-provider*", "pulumi*"}

func isClientSide(manager string) bool { return among(clientSide, manager) }

// among reports that a list names a manager. Names that end in a star are prefixes.
func among(list []string, manager string) bool {
	return slices.ContainsFunc(list, func(name string) bool {
		prefix, isPrefix := strings.CutSuffix(name, "*")
		return name == manager || isPrefix && strings.HasPrefix(manager, prefix)
	})
}

// TakeOver is the JSON patch that makes the fields of our applies ours alone, where others hold them, too, who would never let go
// of one, so that it would stay for ever when a later revision drops it: whoever does not use server-side apply and, of what was
// just taken over (adopted), who applied it before. It changes no value but kubectl's own note of what it applied and, of what was
// adopted, the marks of the instance of a tool that had it. Managers to whom a policy leaves what they hold go on to hold it. It is
// nil if there is nothing to take.
func TakeOver(live map[string]any, adopted bool, left *plan.Exempt) ([]byte, error) {
	ours := ownFields(live)
	meta, _ := live["metadata"].(map[string]any)
	list := entriesOf(live)
	entries := make([]any, 0, len(list))
	taken, kubectl := false, false
	for _, x := range list {
		entry, _ := x.(map[string]any)
		m := managerOf(entry)
		if !m.yields(adopted) || left != nil && slices.Contains(left.Managers, m.Manager) {
			entries = append(entries, x)
			continue
		}
		rest, took := without(m.Fields, ours, m.Operation == "Update" && (adopted || isClientSide(m.Manager)))
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

// yields reports that what a manager holds beside us becomes ours alone. Who applies an object after it became ours holds what he
// wants, and lets it go himself; so does another agent.
func (m Manager) yields(adopted bool) bool {
	switch {
	case m.Subresource != "":
		return false
	case m.Operation == "Update":
		return true
	}
	return adopted && m.Operation == "Apply" && m.Manager != fleet.FieldManager && !strings.HasPrefix(m.Manager, fleet.FieldManager+"/")
}

// without is what is left of a manager's fields when ours are taken from them, in the form of fieldsV1, and whether any
// were. With deep, what is below a field of ours goes with it, and so does what is in a list item of ours that the manager made: a
// container that is dropped cannot leave its defaults behind. What somebody put into an item that he did not make stays his: it would
// be nobody's, and go with the last field of ours beside it.
func without(theirs, ours map[string]any, deep bool) (rest map[string]any, took bool) {
	rest = make(map[string]any, len(theirs))
	_, item := ours["."]
	for element, x := range theirs {
		mine, both := ours[element].(map[string]any)
		_, whole := mine["."]
		below, _ := x.(map[string]any)
		_, made := below["."]
		switch {
		case element == "." && item:
			took = true
			continue
		case element == "." || !both:
			rest[element] = x
			continue
		case len(below) == 0, deep && (whole && made || len(mine) == 0):
			took = true
			continue
		}
		left, some := without(below, mine, deep)
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
