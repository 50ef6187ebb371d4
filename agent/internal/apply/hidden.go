package apply

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Hidden are values that no text may show.
type Hidden struct {
	forms []string
}

const (
	// stretch is how much of a value may not stand together in a text, so that parts of long values are found, too.
	stretch = 8
	// boundedForm is the longest value that is hidden only where it stands by itself: "1" is in many words.
	boundedForm = 3
	// LongValue is the shortest value that is found in what others say, too: shorter ones are ordinary words.
	LongValue = stretch
	// maxScrubbed is how much of a text is looked at; what follows is dropped.
	maxScrubbed = 4096
)

// HiddenOf gathers the values of all Secrets in the objects, and of the copies that tools keep of them: what is not in metadata and does not
// say what kind of object it is.
func HiddenOf(objects ...map[string]any) Hidden {
	var h Hidden
	for _, obj := range objects {
		for _, secret := range manifest.Secrets(obj) {
			h.gatherObject(secret)
		}
	}
	return h.sorted()
}

// Any reports that there are some.
func (h Hidden) Any() bool { return len(h.forms) > 0 }

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

// add takes a value as it is, without space around it, in base64, and as it looks in quotes and in an address.
func (h *Hidden) add(v string) {
	trimmed := strings.TrimSpace(v)
	quoted := fmt.Sprintf("%q", v)
	encoded := base64.StdEncoding.EncodeToString([]byte(v))
	for _, form := range []string{v, trimmed, quoted[1 : len(quoted)-1], inJSON(v), encoded, strings.TrimRight(encoded, "="),
		base64.RawURLEncoding.EncodeToString([]byte(v)), url.QueryEscape(trimmed), url.PathEscape(trimmed), amid(v, 0), amid(v, 1), amid(v, 2)} {
		if form != "" {
			h.forms = append(h.forms, form)
		}
	}
}

// inJSON is a text as it looks between the quotes of JSON, which escapes otherwise than Go.
func inJSON(v string) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text[1 : len(text)-1])
}

// amid is what of a value's base64 is the same with any text around it, if so many bytes stand over before it: a password after a user's
// name. What is too short for that could stand anywhere.
func amid(v string, over int) string {
	v = strings.TrimSpace(v)
	if len(v) < stretch {
		return ""
	}
	from, to := []int{0, 2, 3}[over], (over+len(v))/3*4
	return base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", over) + v))[from:to]
}

// In reports that a text has one of the values, whole, in one of its forms, also in base64 with what stands beside it.
func (h Hidden) In(text string) bool {
	return !unpacked(text, func(text string) bool { return !h.in(text) })
}

func (h Hidden) in(text string) bool {
	return slices.ContainsFunc(h.forms, func(form string) bool {
		return text == form || len(form) > boundedForm && strings.Contains(text, form)
	})
}

// Clean is an answer of the API server without the values.
func (h Hidden) Clean(err error) error { return reworded(err, h.Scrub) }

// Clean is an answer of the API server as the function leaves its words. Of a long text only the beginning is left.
func Clean(err error, scrub func(string) string) error {
	return reworded(err, func(text string) string {
		text = scrub(text)
		return strings.ToValidUTF8(text[:min(len(text), maxScrubbed)], "")
	})
}

// Withheld is an answer of the API server about an object whose values are not known, without what might hold one.
func Withheld(err error) error {
	return reworded(err, func(string) string { return "the API server's words may hold values of the Secret and are not shown" })
}

// reworded is an answer of the API server in other words; other errors stay as they are.
func reworded(err error, words func(string) string) error {
	s := kube.StatusOf(err)
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

// Scrub puts fleet.Masked in place of every value, and of every long part of one, in a text. Of a long text only the beginning is left.
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
