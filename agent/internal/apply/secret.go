package apply

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utiljson "k8s.io/apimachinery/pkg/util/json"

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

// Hidden are values that no text may show.
type Hidden struct {
	forms []string
}

const (
	// stretch is how much of a value may not stand together in a text, so that parts of long values are found, too.
	stretch = 8
	// boundedForm is the longest value that is hidden only where it stands by itself: "1" is in many words.
	boundedForm = 3
	// maxScrubbed is how much of a text is looked at; what follows is dropped.
	maxScrubbed = 4096
)

// HiddenOf gathers the values of the objects: what is not in metadata and does not say what kind of object it is, and the
// same of what kubectl applied.
func HiddenOf(objects ...map[string]any) Hidden {
	var h Hidden
	for _, obj := range objects {
		h.gatherObject(obj)
	}
	return h.sorted()
}

// HiddenValues are these values.
func HiddenValues(values []string) Hidden {
	var h Hidden
	for _, v := range values {
		h.add(v)
	}
	return h.sorted()
}

// With has the values of both hidden.
func (h Hidden) With(other Hidden) Hidden {
	return Hidden{forms: slices.Concat(h.forms, other.forms)}.sorted()
}

func (h Hidden) sorted() Hidden {
	slices.Sort(h.forms)
	h.forms = slices.Compact(h.forms)
	slices.SortStableFunc(h.forms, func(a, b string) int { return len(b) - len(a) })
	return h
}

func (h *Hidden) gatherObject(obj map[string]any) {
	for field, v := range obj {
		switch field {
		case "apiVersion", "kind", "type", "immutable", "metadata":
		default:
			h.gather(v)
		}
	}
	meta, _ := obj["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	text, _ := annotations[fleet.LastApplied].(string)
	var before map[string]any
	if text != "" && utiljson.Unmarshal([]byte(text), &before) == nil {
		h.gatherObject(before)
	}
}

func (h *Hidden) gather(v any) {
	switch x := v.(type) {
	case nil:
	case map[string]any:
		for _, v := range x {
			h.gather(v)
		}
	case []any:
		for _, v := range x {
			h.gather(v)
		}
	case string:
		h.add(x)
		if raw, err := base64.StdEncoding.DecodeString(x); err == nil {
			h.add(string(raw))
		}
	case bool: // says nothing without its field
	default:
		h.add(fmt.Sprint(x))
	}
}

// add takes a value as it is, without space around it, in base64, and as it looks in quotes.
func (h *Hidden) add(v string) {
	trimmed := strings.TrimSpace(v)
	quoted := fmt.Sprintf("%q", v)
	encoded := base64.StdEncoding.EncodeToString([]byte(v))
	for _, form := range []string{v, trimmed, quoted[1 : len(quoted)-1], encoded, strings.TrimRight(encoded, "=")} {
		if form != "" {
			h.forms = append(h.forms, form)
		}
	}
}

// Clean is an answer of the API server without the values.
func (h Hidden) Clean(err error) error { return reworded(err, h.Scrub) }

// Withheld is an answer of the API server about an object whose values are not known, without what might hold one.
func Withheld(err error) error {
	return reworded(err, func(string) string { return "the API server's words may hold values of the Secret and are not shown" })
}

// reworded is an answer of the API server in other words; other errors stay as they are.
func reworded(err error, words func(string) string) error {
	s := apiStatus(err)
	if s == nil {
		return err
	}
	out := *s
	out.Message = words(s.Message)
	if s.Details != nil {
		details := *s.Details
		details.Causes = slices.Clone(details.Causes)
		for i := range details.Causes {
			details.Causes[i].Message = words(details.Causes[i].Message)
		}
		out.Details = &details
	}
	return &apierrors.StatusError{ErrStatus: out}
}

// Scrub puts fleet.Masked in place of every value, and of every long part of one, in a text.
func (h Hidden) Scrub(text string) string {
	cut := len(text) > maxScrubbed
	if cut {
		text = text[:maxScrubbed]
	}
	hide := make([]bool, len(text))
	at := map[string][]int{}
	for i := 0; i+stretch <= len(text); i++ {
		at[text[i:i+stretch]] = append(at[text[i:i+stretch]], i)
	}
	for _, form := range h.forms {
		if len(form) < stretch {
			markWhole(text, form, hide)
			continue
		}
		for i := 0; i+stretch <= len(form); i++ {
			for _, from := range at[form[i:i+stretch]] {
				hideAt(hide, from, stretch)
			}
		}
	}
	if cut {
		text, hide = text[:maxScrubbed-stretch], hide[:maxScrubbed-stretch] // the rest may begin a value
	}
	return masked(text, hide)
}

// markWhole marks where a short value stands.
func markWhole(text, form string, hide []bool) {
	for from := 0; ; {
		i := strings.Index(text[from:], form)
		if i < 0 {
			return
		}
		i += from
		end := i + len(form)
		if len(form) > boundedForm || !inWord(text, i-1) && !inWord(text, end) {
			hideAt(hide, i, len(form))
		}
		from = i + 1
	}
}

func inWord(text string, i int) bool {
	if i < 0 || i >= len(text) {
		return false
	}
	c := text[i]
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c >= 0x80
}

func hideAt(hide []bool, from, n int) {
	for i := from; i < from+n; i++ {
		hide[i] = true
	}
}

// masked puts one mask in place of each stretch of hidden bytes.
func masked(text string, hide []bool) string {
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !hide[i]:
			out.WriteByte(text[i])
		case i == 0 || !hide[i-1]:
			out.WriteString(fleet.Masked)
		}
	}
	return strings.ToValidUTF8(out.String(), "")
}
