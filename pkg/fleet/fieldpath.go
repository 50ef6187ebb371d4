package fleet

import (
	"slices"
	"strconv"
	"strings"
)

// FieldPath says where a field is in a manifest: a JSON pointer (RFC 6901) whose steps into lists may be KEY=VALUE as well as
// an index, and * for all.
type FieldPath []FieldStep

// FieldStep is one step of a FieldPath.
type FieldStep string

// maxFieldSteps bounds a path: no field of Kubernetes is deeper.
const maxFieldSteps = 64

// ParseFieldPath reads a path that may be left to others.
func ParseFieldPath(text string) (FieldPath, error) {
	rest, ok := strings.CutPrefix(text, "/")
	switch {
	case !ok:
		return nil, Errorf(ErrInvalid, "%.80q is no JSON pointer; it begins with /, as in /spec/replicas", text)
	case rest == "":
		return nil, Errorf(ErrInvalid, "%q names no field", text)
	}
	var out FieldPath
	for _, token := range strings.Split(rest, "/") {
		if token == "" {
			return nil, Errorf(ErrInvalid, "%.80q has an empty step", text)
		}
		if strings.Contains(strings.ReplaceAll(strings.ReplaceAll(token, "~0", ""), "~1", ""), "~") {
			return nil, Errorf(ErrInvalid, "%.80q: ~ stands before 0 or 1 only: ~1 is a slash, ~0 is ~", text)
		}
		out = append(out, FieldStep(strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")))
	}
	if len(out) > maxFieldSteps {
		return nil, Errorf(ErrInvalid, "%.80q has more than %d steps", text, maxFieldSteps)
	}
	if held := out.identity(); held != "" {
		return nil, Errorf(ErrInvalid, "%.80q holds %s, by which the object is known", text, held)
	}
	return out, nil
}

// identities are what an object is known by, as its own or as Towline's.
var identities = []FieldPath{{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "uid"},
	{"metadata", "resourceVersion"}, {"metadata", "generation"}, {"metadata", "creationTimestamp"}, {"metadata", "deletionTimestamp"},
	{"metadata", "managedFields"}, {"metadata", "labels", HubLabel}, {"metadata", "annotations", OwnerAnnotation}}

// identity is what a path holds, or is a part of, that an object is known by; empty: nothing.
func (p FieldPath) identity() string {
	for _, held := range identities {
		n := min(len(p), len(held))
		if slices.EqualFunc(p[:n], held[:n], func(a, b FieldStep) bool { return a == "*" || a == b }) {
			names := make([]string, len(held))
			for i, step := range held {
				names[i] = string(step)
			}
			return strings.Join(names, ".")
		}
	}
	return ""
}

// Key reports that the step leads to a key of a map.
func (s FieldStep) Key(key string) bool { return s == "*" || string(s) == key }

// Item reports that the step leads to an item of a list, by its place or by what it holds. place is -1 where it is not known.
func (s FieldStep) Item(place int, holds func(key, value string) bool) bool {
	if s == "*" {
		return true
	}
	if n, err := strconv.Atoi(string(s)); err == nil {
		return n == place
	}
	for pair := range strings.SplitSeq(string(s), ",") {
		key, value, isPair := strings.Cut(pair, "=")
		if !isPair || !holds(key, value) {
			return false
		}
	}
	return true
}
