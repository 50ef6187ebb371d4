package apply

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// isCoreSecret reports that the object is a Secret of Kubernetes itself, which takes values as text, too.
func isCoreSecret(id fleet.ObjectID) bool { return id.Group == "" && id.Kind == "Secret" }

// foldStringData moves the values of stringData into data, as the API server does. If the server did it, it would count
// nothing in data as ours: changes would not be drift, and keys could not be taken away.
func foldStringData(id fleet.ObjectID, obj map[string]any) error {
	text, has := obj["stringData"]
	if !has {
		return nil
	}
	delete(obj, "stringData")
	from, isMap := text.(map[string]any)
	if text != nil && !isMap {
		return fleet.Errorf(fleet.ErrInvalid, "%s: stringData is no map", id)
	}
	if len(from) == 0 {
		return nil
	}
	into, isMap := obj["data"].(map[string]any)
	if obj["data"] != nil && !isMap {
		return fleet.Errorf(fleet.ErrInvalid, "%s: data is no map", id)
	}
	data := make(map[string]any, len(into)+len(from))
	maps.Copy(data, into)
	for _, key := range slices.Sorted(maps.Keys(from)) {
		switch value := from[key].(type) {
		case nil:
			data[key] = ""
		case string:
			data[key] = base64.StdEncoding.EncodeToString([]byte(value))
		default:
			return fleet.Errorf(fleet.ErrInvalid, "%s: stringData: the value of %s is no string: quote it", id, key)
		}
	}
	obj["data"] = data
	return nil
}

// StringData lists the keys of stringData that are in a set.
func (p *PathSet) StringData() []string {
	var out []string
	if p == nil {
		return nil
	}
	for _, e := range p.edges {
		if e.elem.text != stringDataField || e.kid == nil {
			continue
		}
		for _, key := range e.kid.edges {
			out = append(out, key.elem.field)
		}
	}
	return out
}

// OwnStringData lists the keys of stringData that the API server notes as ours in a live object.
func OwnStringData(live map[string]any) []string {
	keys, _ := ownFields(live)[stringDataField].(map[string]any)
	var out []string
	for key := range keys {
		if name, ok := strings.CutPrefix(key, "f:"); ok {
			out = append(out, name)
		}
	}
	return out
}

const stringDataField = "f:stringData"

// DropOwnerless is the JSON patch that takes those of the keys out of the data of a live Secret that no manager holds
// there; nil if there are none.
func DropOwnerless(live map[string]any, keys []string) ([]byte, error) {
	data, _ := live["data"].(map[string]any)
	drop := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, has := data[key]; return !has })
	for _, m := range Managers(live) {
		held, _ := m.Fields["f:data"].(map[string]any)
		drop = slices.DeleteFunc(drop, func(key string) bool { _, has := held["f:"+key]; return has })
	}
	if len(drop) == 0 {
		return nil, nil
	}
	slices.Sort(drop)
	meta, _ := live["metadata"].(map[string]any)
	patch := []map[string]any{{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}}
	for _, key := range slices.Compact(drop) {
		patch = append(patch, map[string]any{"op": "remove", "path": "/data/" + pointerStep(key)})
	}
	return json.Marshal(patch)
}
