package sim

import (
	"bytes"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/yaml"
)

// kinds is what the API server knows of its kinds: as much as makes it note managers of fields as a real one does for kinds without
// lists. What it does not name is of any form, and a list in it is one value.
const kinds = `types:
- name: object
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: metadata}
    - name: data
      type: {map: {elementType: {scalar: string}}}
    elementType: {namedType: any}
- name: metadata
  map:
    fields:
    - name: labels
      type: {map: {elementType: {scalar: string}}}
    - name: annotations
      type: {map: {elementType: {scalar: string}}}
    - name: finalizers
      type: {list: {elementType: {scalar: string}, elementRelationship: associative}}
    elementType: {namedType: any}
- name: any
  scalar: untyped
  list: {elementType: {namedType: any}, elementRelationship: atomic}
  map: {elementType: {namedType: any}, elementRelationship: separable}
`

// converter converts objects by the schema.
type converter struct{ object typed.ParseableType }

func newTypes() converter {
	p, err := typed.NewParser(typed.YAMLObject(kinds))
	if err != nil {
		panic(fmt.Sprintf("the schema of the simulated API server: %v", err))
	}
	return converter{p.Type("object")}
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t converter) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return t.object.FromUnstructured(o.(*unstructured.Unstructured).UnstructuredContent(), opts...)
}

// TypedToObject implements managedfields.TypeConverter.
func (t converter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	m, ok := v.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%T is no object", v.AsValue().Unstructured())
	}
	return &unstructured.Unstructured{Object: m}, nil
}

// parsed is the object of a request's body.
func parsed(body []byte) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	read := yaml.Unmarshal
	if bytes.HasPrefix(body, []byte("{")) { // JSON is read sooner as such
		read = func(b []byte, into any, _ ...yaml.JSONOpt) error { return utiljson.Unmarshal(b, into) }
	}
	if err := read(body, &u.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return u, nil
}
