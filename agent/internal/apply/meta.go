package apply

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Meta are labels and annotations of an object that is used and not ours, by their place: labels or annotations, and key.
type Meta map[MetaKey]string

// MetaKey is where a label or an annotation is.
type MetaKey struct{ In, Key string }

// Pointer is the JSON pointer of the field.
func (k MetaKey) Pointer() string { return "/metadata/" + k.In + "/" + pointerStep(k.Key) }

// Path is the field in the notation of the API server's conflict messages.
func (k MetaKey) Path() string { return ".metadata." + k.In + "." + k.Key }

// Keys are sorted.
func (m Meta) Keys() []MetaKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b MetaKey) int { return strings.Compare(a.Path(), b.Path()) })
}

// MetaOf reads the labels and annotations of an object.
func MetaOf(obj map[string]any) Meta {
	out := Meta{}
	for _, in := range []string{"labels", "annotations"} {
		values, _, _ := unstructured.NestedStringMap(obj, "metadata", in)
		for key, v := range values {
			out[MetaKey{in, key}] = v
		}
	}
	return out
}

// Differ lists what is not in live as m says; by has it so.
func (m Meta) Differ(live Meta, by string) []plan.Unmet {
	var out []plan.Unmet
	for _, k := range m.Keys() {
		if have, ok := live[k]; !ok || have != m[k] {
			out = append(out, m.Unmet(k, live, by))
		}
	}
	return out
}

// Unmet says that somebody has a label or an annotation otherwise.
func (m Meta) Unmet(k MetaKey, live Meta, by string) plan.Unmet {
	u := plan.Unmet{Pointer: k.Pointer(), By: by, Want: show(m[k], false)}
	if have, ok := live[k]; ok {
		u.Live = show(have, false)
	}
	return u
}

// Body is an apply of nothing but the labels and annotations, to exactly the object of the guard. Those that an earlier
// apply had and this one lacks go, unless another manager holds them, too.
func (m Meta) Body(id fleet.ObjectID, version string, g Guard) ([]byte, error) {
	metadata := map[string]any{"name": id.Name, "uid": g.UID}
	if g.ResourceVersion != "" {
		metadata["resourceVersion"] = g.ResourceVersion
	}
	for k, v := range m {
		in, _ := metadata[k.In].(map[string]string)
		if in == nil {
			in = map[string]string{}
			metadata[k.In] = in
		}
		in[k.Key] = v
	}
	body, err := json.Marshal(map[string]any{"apiVersion": fleet.BundleEntry{ID: id, Version: version}.APIVersion(), "kind": id.Kind, "metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return body, nil
}

// At finds the label or annotation that a conflict message names.
func (m Meta) At(path string) (MetaKey, bool) {
	for k := range m {
		if k.Path() == path {
			return k, true
		}
	}
	return MetaKey{}, false
}
