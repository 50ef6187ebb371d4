package apply

import (
	"encoding/json"
	"maps"
)

// Redefine is the JSON patch that notes in another version what the API server notes of a live object in one that its kind is
// not defined in any more, whoever's it is; nil if nothing is noted in that. With such a note the API server refuses every
// server-side apply to the object, and nobody's write takes the note away.
func Redefine(live map[string]any, from, to string) ([]byte, error) {
	entries, of, found := []any{}, map[[3]string]map[string]any{}, false
	for _, x := range entriesOf(live) {
		entry, _ := x.(map[string]any)
		version, _ := entry["apiVersion"].(string)
		if version == from {
			entry, version, found = maps.Clone(entry), to, true
			entry["apiVersion"] = to
		}
		if version != to {
			entries = append(entries, x)
			continue
		}
		m := managerOf(entry)
		key := [3]string{m.Manager, m.Operation, m.Subresource}
		if before := of[key]; before != nil { // the API server keeps one of each manager in a version
			fields, _ := before["fieldsV1"].(map[string]any)
			before["fieldsV1"] = union(fields, m.Fields)
			continue
		}
		of[key] = maps.Clone(entry)
		entries = append(entries, of[key])
	}
	if !found {
		return nil, nil
	}
	meta, _ := live["metadata"].(map[string]any)
	return json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	})
}

// union is all that is in one of two sets in the form of fieldsV1.
func union(a, b map[string]any) map[string]any {
	out := make(map[string]any, len(a)+len(b))
	maps.Copy(out, a)
	for element, x := range b {
		below, _ := x.(map[string]any)
		before, both := out[element].(map[string]any)
		if !both {
			out[element] = x
			continue
		}
		sub := union(before, below)
		if element != "." && len(sub) > 0 && (len(before) == 0 || len(below) == 0) {
			sub["."] = map[string]any{} // one of them has the field itself, too
		}
		out[element] = sub
	}
	return out
}
