package wire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/client-go/util/jsonpath"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

const (
	// maxFieldPath is how long the path of a field may be.
	maxFieldPath = 1024
	// maxDescents is how often a path may search all below, and maxUnions how many names and places it may list beside others: each takes what
	// the one before has found, and finds it as often as that did, so that a short path takes all memory with a deep object.
	maxDescents = 1
	maxUnions   = 3
)

// bindingObject reads what object of a workload cluster a binding reads; nil: none.
func bindingObject(in *towlinev1.BindingObject, namespace string) (*fleet.ObjectField, error) {
	if in == nil {
		return nil, nil
	}
	gv, err := namedKind(in, "/ $")
	if err != nil {
		return nil, err
	}
	if in.GetFieldPath() == "" {
		return nil, fleet.Invalid("fieldPath", "is required; write data.KEY, or a JSONPath such as status.loadBalancer.ingress[0].ip")
	}
	if namespace, err = namespaceIn(gv.Group, in, namespace); err != nil {
		return nil, err
	}
	return &fleet.ObjectField{Group: gv.Group, Version: gv.Version, Kind: in.GetKind(), Namespace: namespace, Name: in.GetName(), Path: in.GetFieldPath()}, nil
}

// FieldPath is where a value is in an object.
type FieldPath struct {
	text string
	key  string // of data; empty: path leads there
	path *jsonpath.JSONPath
	// decodes says that the value is base64.
	decodes bool
}

// ParseFieldPath reads the path of a field. It is evaluated by one goroutine at a time.
func ParseFieldPath(of fleet.ObjectField, path string) (*FieldPath, error) {
	if len(path) > maxFieldPath {
		return nil, fmt.Errorf("has %d characters; at most %d", len(path), maxFieldPath)
	}
	inner := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(path, "}"), "{"), ".")
	if braces := strings.HasPrefix(path, "{"); inner == "" || braces != strings.HasSuffix(path, "}") || strings.ContainsAny(inner, "{}") {
		return nil, fmt.Errorf("%.80q is no path of a field; write data.KEY, or a JSONPath such as status.loadBalancer.ingress[0].ip", path)
	}
	p := &FieldPath{text: inner}
	isSecret, isMap := of.Group == "" && of.Kind == "Secret", of.Group == "" && of.Kind == "ConfigMap"
	p.decodes = isSecret && (strings.HasPrefix(inner, "data.") || strings.HasPrefix(inner, "data["))
	if key, ok := strings.CutPrefix(inner, "data."); ok && (isSecret || isMap) && !strings.ContainsAny(key, `[\`) {
		p.key = key
		return p, nil
	}
	if strings.Count(inner, "..") > maxDescents || strings.Count(inner, ",") > maxUnions {
		return nil, fmt.Errorf("%.80q finds the same fields again and again: it may have .. once, and %d commas", path, maxUnions)
	}
	p.path = jsonpath.New("fieldPath").AllowMissingKeys(true)
	if err := p.path.Parse("{." + inner + "}"); err != nil {
		return nil, fmt.Errorf("%.80q is no JSONPath: %v", path, err)
	}
	return p, nil
}

// String is the path as people write it.
func (p *FieldPath) String() string { return p.text }

// errNoField is of an object that does not have the field.
var errNoField = fleet.Errorf(fleet.ErrNotFound, "is not there")

// Read is the value in an object, which is not changed. An error of the kind fleet.ErrNotFound says that there is none; no error tells a
// value.
func (p *FieldPath) Read(object map[string]any) (string, error) {
	v, err := p.find(object)
	if err != nil {
		return "", err
	}
	text, err := textOfScalar(v)
	if err != nil {
		return "", err
	}
	if p.decodes {
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", errors.New("is not base64")
		}
		text = string(raw)
	}
	switch {
	case !utf8.ValidString(text):
		return "", errors.New("is no text: a binding cannot hold other bytes")
	case len(text) > assemble.MaxValueBytes:
		return "", fmt.Errorf("has %d bytes; a binding holds at most %d", len(text), assemble.MaxValueBytes)
	}
	return text, nil
}

func (p *FieldPath) find(object map[string]any) (any, error) {
	if p.path == nil {
		data, _ := object["data"].(map[string]any)
		v, ok := data[p.key]
		if !ok || v == nil {
			return nil, errNoField
		}
		return v, nil
	}
	sets, err := p.path.FindResults(object)
	if err != nil { // an index that a list does not have is one, too
		return nil, errNoField
	}
	var found []any
	for _, set := range sets {
		for _, v := range set {
			if v.IsValid() && v.CanInterface() && v.Interface() != nil {
				found = append(found, v.Interface())
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, errNoField
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("leads to %d values: name one of them", len(found))
}

// textOfScalar is a value as text.
func textOfScalar(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	case map[string]any:
		return "", errors.New("is a map: name one of its fields")
	case []any:
		return "", errors.New("is a list: name one of its items, such as [0]")
	}
	return "", fmt.Errorf("is a %T, not a text or a number", v)
}
