package fleet

import "strings"

// Masked stands for every value of a Secret where people may see it who may not read the Secret.
const Masked = "***"

// IsSecret reports that the object holds values that nobody must see elsewhere. Operators have kinds of that name, too,
// in groups of their own.
func (o ObjectID) IsSecret() bool { return o.Kind == "Secret" }

// LastApplied is the annotation in which kubectl keeps a copy of the whole object that it applied, values of a Secret
// included, and from which its next apply computes what to take away.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// MaskSecret puts Masked in place of the values of a Secret, and of kubectl's copy of them. What is written where no Secret has a field, or as
// what its field is not, may be values that somebody has misplaced.
func MaskSecret(object map[string]any) {
	version, _ := object["apiVersion"].(string)
	for field, value := range object {
		values, isMap := value.(map[string]any)
		switch field {
		case "apiVersion", "kind", "metadata", "type", "immutable", "status":
		case "data", "stringData":
			if !isMap && value != nil {
				object[field] = Masked
			}
			for name := range values {
				values[name] = Masked
			}
		default:
			if !strings.Contains(version, "/") { // else it is an operator's kind of that name
				object[field] = Masked
			}
		}
	}
	meta, _ := object["metadata"].(map[string]any)
	if notes, _ := meta["annotations"].(map[string]any); notes[LastApplied] != nil {
		notes[LastApplied] = Masked
	}
}
