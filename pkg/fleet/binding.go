package fleet

import (
	"errors"
	"math"
	"strconv"
)

// Binding is a named value for ${NAME}; exactly one of Value, Field, Label, Annotation, Object and Secret is set.
type Binding struct {
	Name       string
	Value      *string
	Field      string
	Label      string
	Annotation string
	// Object and Secret are evaluated by the agent.
	Object  *ObjectField
	Secret  *SecretKey
	Default *string
	// Optional lets a cluster have no value: it is empty there, and only a placeholder that says what stands in for it may use it.
	Optional bool
	Type     BindingType
}

// ObjectField is a field of an object in the workload cluster. All but its group, version and kind may hold ${NAME}.
type ObjectField struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Path leads to the field: data.KEY, or a JSONPath as kubectl's.
	Path string `json:"path"`
}

// ID is the identity of the object.
func (f ObjectField) ID() ObjectID {
	return ObjectID{Group: f.Group, Kind: f.Kind, Namespace: f.Namespace, Name: f.Name}
}

// SecretKey is a value in the hub's store.
type SecretKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// LateBinding is a binding that only the agent can evaluate: it reads an object in the cluster, or a secret that the hub has sealed for it, or
// is a literal that refers to such a one. Exactly one of Value, Object and Secret is set.
type LateBinding struct {
	Name     string       `json:"name"`
	Value    *string      `json:"value,omitempty"`
	Object   *ObjectField `json:"object,omitempty"`
	Secret   *SecretKey   `json:"secret,omitempty"`
	Default  *string      `json:"default,omitempty"`
	Optional bool         `json:"optional,omitempty"`
	Type     BindingType  `json:"type,omitempty"`
}

// Texts are what may refer to other bindings.
func (b LateBinding) Texts() (out []string) {
	for _, text := range []*string{b.Value, b.Default} {
		if text != nil {
			out = append(out, *text)
		}
	}
	if b.Object != nil {
		out = append(out, b.Object.Namespace, b.Object.Name, b.Object.Path)
	}
	return out
}

// BindingType is what a value becomes where the placeholder is all of a scalar. Within a text, in metadata, and in the data of
// ConfigMaps and Secrets, which is text always, it counts for nothing.
type BindingType string

// Types of bindings; empty is text.
const (
	BindingString  BindingType = "String"
	BindingInteger BindingType = "Integer"
	BindingNumber  BindingType = "Number"
	BindingBoolean BindingType = "Boolean"
)

// Parse reads a value. The error continues a sentence that begins with what the value is of, and does not tell the value.
func (t BindingType) Parse(value string) (any, error) {
	switch t {
	case BindingInteger:
		i, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, errors.New("is no whole number, as its type Integer wants")
		}
		return i, nil
	case BindingNumber:
		if i, err := strconv.ParseInt(value, 10, 64); err == nil {
			return i, nil
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, errors.New("is no number, as its type Number wants")
		}
		return f, nil
	case BindingBoolean:
		if value != "true" && value != "false" {
			return nil, errors.New("is neither true nor false, as its type Boolean wants")
		}
		return value == "true", nil
	}
	return value, nil
}

// Substitution is how placeholders are read that are more than ${NAME}: ${NAME:-TEXT}, $${NAME}, typed ones, and objects that are not to be
// substituted.
type Substitution struct {
	// Strict has $${NAME} be text for names that are not declared, too: there, every ${NAME} is one that is.
	Strict bool `json:"strict,omitempty"`
	// Types of the bindings that are more than text.
	Types map[string]BindingType `json:"types,omitempty"`
}
