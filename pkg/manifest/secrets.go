package manifest

import (
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// What is secret in an object is decided here, for whatever shows one: the values of a Secret, wherever it stands in the object. Other kinds
// carry Secrets to where they are made (a Template, a ManifestWork, a SyncSet), some as text (the ConfigMap of a ClusterResourceSet), and tools
// keep copies in annotations.

// hiddenText takes the place of a text that holds a Secret and cannot be written without its values.
const hiddenText = "*** not shown: it holds values of a Secret ***"

// Mask is an object as somebody may see it who may not read Secrets: fleet.Masked stands for their values. masked: there are some. The object
// itself is not changed; what has nothing to mask is shared with it.
func Mask(object map[string]any) (out map[string]any, masked bool) {
	return newWalk().object(object, 0)
}

// MaskValue is Mask for a part of an object.
func MaskValue(v any) any {
	out, _ := newWalk().value(v, 0)
	return out
}

// Secrets are those in an object, the object itself among them if it is one, and the copies of them.
func Secrets(object map[string]any) []map[string]any {
	w := newWalk()
	w.object(object, 0)
	return w.found
}

// Hides reports that nobody may be shown what is below a field of a map: the map is a Secret, a list of them, or a Template, whose parameters
// go into those in it.
func Hides(m map[string]any, field string) bool {
	if field == "items" && isSecretList(m) || field == "parameters" && isTemplate(m) {
		return true
	}
	if !isSecret(m) || field == "apiVersion" || field == "kind" {
		return false
	}
	return field == "metadata" || hasValues(field) || !isField(field) && isWhole(m)
}

// isSecret goes by the kind, however it is spelled: a manifest that is refused for that is seen all the same.
func isSecret(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	return strings.EqualFold(kind, "Secret")
}

func isSecretList(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	return strings.EqualFold(kind, "SecretList")
}

// isTemplate is of OpenShift.
func isTemplate(object map[string]any) bool { return object["kind"] == "Template" }

// isWhole tells a Secret from what names one, in which any field may be, and from an operator's kind of that name.
func isWhole(m map[string]any) bool {
	_, has := m["metadata"]
	version, _ := m["apiVersion"].(string)
	return has && !strings.Contains(version, "/")
}

// isField reports that a Secret has a field that holds no values.
func isField(name string) bool {
	return slices.Contains([]string{"apiVersion", "kind", "metadata", "type", "immutable", "status"}, name)
}

// hasValues reports that a field holds the values of a Secret.
func hasValues(field string) bool {
	return strings.EqualFold(field, "data") || strings.EqualFold(field, "stringData")
}

// secretWalk goes through an object to all Secrets in it.
type secretWalk struct {
	found []map[string]any
	texts []textOf
	// The bounds are of the whole walk, for texts stand in texts, and what an alias repeats is read again: room is for what texts unpack to, are
	// read and are written; repeats is what aliases may add; compared is how much of annotations is searched for values.
	room     int
	repeats  *expansion
	compared int
}

// textOf is a text of the object itself, and which of the Secrets that were found are in it.
type textOf struct {
	text     string
	from, to int
}

func newWalk() *secretWalk {
	return &secretWalk{room: maxUnpacked, repeats: &expansion{lastCounts: true, limit: maxRepeated}, compared: maxCompared}
}

// value is a value with what is secret in it masked; texts is inside how many texts it stands.
func (w *secretWalk) value(v any, texts int) (any, bool) {
	switch x := v.(type) {
	case map[string]any:
		if isSecret(x) {
			return w.secret(x, isWhole(x), texts)
		}
		return w.fields(x, texts)
	case []any:
		return w.list(x, texts)
	case string:
		return w.text(x, texts)
	}
	return v, false
}

// object is value for what is an object by itself, so that a Secret without metadata is one, too.
func (w *secretWalk) object(m map[string]any, texts int) (map[string]any, bool) {
	if !isSecret(m) {
		return w.fields(m, texts)
	}
	version, _ := m["apiVersion"].(string)
	whole := !strings.Contains(version, "/")
	if !whole {
		w.found = append(w.found, m)
	}
	return w.secret(m, whole, texts)
}

func (w *secretWalk) list(list []any, texts int) (any, bool) {
	out, masked := list, false
	for i, v := range list {
		if x, is := w.value(v, texts); is {
			if !masked {
				out, masked = slices.Clone(list), true
			}
			out[i] = x
		}
	}
	return out, masked
}

func (w *secretWalk) fields(m map[string]any, texts int) (map[string]any, bool) {
	out, masked := m, false
	set := func(field string, v any) {
		if !masked {
			out, masked = maps.Clone(m), true
		}
		out[field] = v
	}
	for field, v := range m {
		if x, is := w.value(v, texts); is {
			set(field, x)
		}
	}
	if items, isList := m["items"].([]any); isList && isSecretList(m) {
		set("items", w.items(items, texts))
	}
	if parameters, isList := m["parameters"].([]any); isList && masked && isTemplate(m) {
		set("parameters", w.parameters(parameters))
	}
	return out, masked
}

// items are those of a SecretList, which need not say what they are.
func (w *secretWalk) items(items []any, texts int) []any {
	out := slices.Clone(items)
	for i, item := range items {
		if m, isMap := item.(map[string]any); isMap {
			out[i], _ = w.secret(m, true, texts)
		}
	}
	return out
}

// parameters are those of a Template that holds Secrets: their values go there.
func (w *secretWalk) parameters(parameters []any) []any {
	out := slices.Clone(parameters)
	for i, p := range parameters {
		if m, _ := p.(map[string]any); m["value"] != nil {
			w.found = append(w.found, map[string]any{"value": m["value"]})
			m = maps.Clone(m)
			m["value"] = fleet.Masked
			out[i] = m
		}
	}
	return out
}

// secret masks a Secret. whole: what is written where no Secret has a field, or as what its field is not, may be values that somebody has
// misplaced.
func (w *secretWalk) secret(m map[string]any, whole bool, texts int) (map[string]any, bool) {
	w.note(m, whole)
	out, masked := maps.Clone(m), false
	for field, v := range m {
		var x any
		var is bool
		switch {
		case hasValues(field):
			x, is = maskedData(v)
		case field == "metadata":
			x, is = w.metadata(v, valuesOf(m), texts)
		case whole && !isField(field):
			x, is = fleet.Masked, true
		default:
			x, is = w.value(v, texts)
		}
		if is {
			out[field], masked = x, true
		}
	}
	return out, masked
}

// note keeps a Secret; of what may only name one, its values.
func (w *secretWalk) note(m map[string]any, whole bool) {
	if !whole {
		m = maps.Clone(m)
		maps.DeleteFunc(m, func(field string, _ any) bool { return !hasValues(field) })
	}
	if len(m) > 0 {
		w.found = append(w.found, m)
	}
}

func maskedData(v any) (any, bool) {
	values, isMap := v.(map[string]any)
	if !isMap {
		return fleet.Masked, v != nil
	}
	out := make(map[string]any, len(values))
	for name := range values {
		out[name] = fleet.Masked
	}
	return out, len(out) > 0
}

// metadata masks the annotations of a Secret that have its values.
func (w *secretWalk) metadata(v any, values []string, texts int) (any, bool) {
	m, _ := v.(map[string]any)
	annotations, isMap := m["annotations"].(map[string]any)
	if !isMap {
		return v, false
	}
	out, masked := maps.Clone(annotations), false
	for name, v := range annotations {
		x, is := w.annotation(name, v, values, texts)
		if is {
			out[name], masked = x, true
		}
	}
	m = maps.Clone(m)
	m["annotations"] = out
	return m, masked
}

func (w *secretWalk) annotation(name string, v any, values []string, texts int) (any, bool) {
	text, isText := v.(string)
	if !isText {
		return w.value(v, texts)
	}
	plain, packed := w.unpack(text)
	w.gather(plain, texts)
	repeats := func(value string) bool { return strings.Contains(text, value) || strings.Contains(plain, value) }
	w.compared -= len(values) * (len(text) + len(plain))
	if name == fleet.LastApplied || packed || isJSONText(plain) || w.compared < 0 || slices.ContainsFunc(values, repeats) {
		return fleet.Masked, true
	}
	return w.text(text, texts)
}

// minRepeated is how long a value is that is looked for in annotations: shorter ones are in many words.
const minRepeated = 8

// valuesOf are the values of a Secret as text and in base64, as they are looked for in other places of it.
func valuesOf(m map[string]any) (out []string) {
	for field, v := range m {
		values, _ := v.(map[string]any)
		for _, value := range values {
			text, _ := value.(string)
			if !hasValues(field) || len(text) < minRepeated {
				continue
			}
			out = append(out, text)
			if plain, err := decoded(text); err == nil && len(plain) >= minRepeated {
				out = append(out, plain)
			}
		}
	}
	return out
}
