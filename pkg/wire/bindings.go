package wire

import (
	"fmt"
	"regexp"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

func bindings(in []*towlinev1.Binding, namespace string) ([]fleet.Binding, error) {
	if len(in) > assemble.MaxValues {
		return nil, fleet.Invalidf("", "%d are too many; at most %d", len(in), assemble.MaxValues)
	}
	seen := map[string]bool{}
	out := make([]fleet.Binding, 0, len(in))
	for i, b := range in {
		path := fmt.Sprintf("[%d]", i)
		if err := fleet.ValidateBindingName(b.GetName()); err != nil {
			return nil, fleet.Invalid(path+".name", err.Error())
		}
		if seen[b.GetName()] {
			return nil, fleet.Invalidf(path+".name", "%s is declared twice", b.GetName())
		}
		seen[b.GetName()] = true
		got, err := binding(b, namespace)
		if err != nil {
			return nil, fleet.Join(path, err)
		}
		out = append(out, got)
	}
	if err := checkReferences(out); err != nil {
		return nil, err
	}
	return out, checkLate(out)
}

func binding(b *towlinev1.Binding, namespace string) (fleet.Binding, error) {
	set := 0
	for _, is := range []bool{b.Value != nil, b.GetClusterField() != "", b.GetClusterLabel() != "", b.GetClusterAnnotation() != "", b.GetObject() != nil, b.GetSecret() != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fleet.Binding{}, fleet.Invalidf("", "%s: set exactly one of value, clusterField, clusterLabel, clusterAnnotation, object and secret", b.GetName())
	}
	if n := max(len(b.GetValue()), len(b.GetDefault())); n > assemble.MaxValueBytes {
		return fleet.Binding{}, fleet.Invalidf("", "%s has %d bytes; at most %d", b.GetName(), n, assemble.MaxValueBytes)
	}
	if f := b.GetClusterField(); f != "" && f != "metadata.name" {
		return fleet.Binding{}, fleet.Invalidf("clusterField", "%q is unknown; use metadata.name", f)
	}
	if b.GetOptional() && (b.Value != nil || b.GetClusterField() != "") {
		return fleet.Binding{}, fleet.Invalidf("optional", "%s has a value in every cluster: remove optional", b.GetName())
	}
	out := fleet.Binding{Name: b.GetName(), Value: b.Value, Field: b.GetClusterField(), Label: b.GetClusterLabel(), Annotation: b.GetClusterAnnotation(),
		Default: b.Default, Optional: b.GetOptional()}
	var err error
	if out.Object, err = bindingObject(b.GetObject(), namespace); err != nil {
		return out, fleet.Join("object", err)
	}
	if out.Secret, err = bindingSecret(b.GetSecret()); err != nil {
		return out, fleet.Join("secret", err)
	}
	kind := fleet.BindingType(b.GetType())
	if err := Choice("type", b.GetType(), string(fleet.BindingString), string(fleet.BindingInteger), string(fleet.BindingNumber), string(fleet.BindingBoolean)); err != nil {
		return out, err
	}
	if kind != fleet.BindingString {
		out.Type = kind
	}
	return out, nil
}

// checkReferences refuses what no value of a cluster could mend. That they go in no circle is found where they are evaluated.
func checkReferences(list []fleet.Binding) error {
	declared := (&Module{Bindings: list}).Placeholders()
	for i, b := range list {
		for field, text := range map[string]*string{"value": b.Value, "default": b.Default} {
			if text == nil {
				continue
			}
			if err := manifest.CheckText(*text, declared); err != nil {
				return fleet.Invalidf(fmt.Sprintf("[%d].%s", i, field), "%s: %v", b.Name, err)
			}
		}
	}
	return nil
}

var keyOfSecret = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)

// bindingSecret reads what secret a binding uses; nil: none.
func bindingSecret(in *towlinev1.BindingSecret) (*fleet.SecretKey, error) {
	if in == nil {
		return nil, nil
	}
	if err := fleet.ValidateLabel(in.GetName()); err != nil {
		return nil, fleet.Invalid("name", err.Error())
	}
	if !keyOfSecret.MatchString(in.GetKey()) {
		return nil, fleet.Invalidf("key", "%.40q is no key of a secret", in.GetKey())
	}
	return &fleet.SecretKey{Name: in.GetName(), Key: in.GetKey()}, nil
}

// checkLate checks the bindings that agents evaluate, as far as that does not depend on the cluster.
func checkLate(list []fleet.Binding) error {
	late, err := assemble.Late(list)
	if err != nil {
		return err
	}
	objects := 0
	declared := someValues(list, func(b fleet.Binding) string { return b.Name })
	for i, b := range list {
		if b.Object == nil {
			continue
		}
		if objects++; objects > MaxWatched {
			return fleet.Invalidf("", "%d bindings read objects; at most %d", objects, MaxWatched)
		}
		path := fmt.Sprintf("[%d].object", i)
		// Whatever the values will be, the rest of the name must do.
		if _, err := manifest.ResolveID(b.Object.ID(), declared); err != nil {
			return fleet.Join(path, err)
		}
		if err := checkPath(b.Name, *b.Object, declared); err != nil {
			return fleet.Join(path, err)
		}
	}
	return checkLateTexts(late, (&Module{Bindings: list}).Placeholders())
}

// CheckFieldPaths finds what is wrong by now with the paths of fields in a spec, which a hub of before may have taken. Agents take none of these, so
// that it is to be said before one fails by it.
func CheckFieldPaths(spec *towlinev1.ModuleSpec) error {
	if !slices.ContainsFunc(spec.GetBindings(), func(b *towlinev1.Binding) bool { return b.GetObject() != nil }) {
		return nil
	}
	declared := someValues(spec.GetBindings(), (*towlinev1.Binding).GetName)
	for i, b := range spec.GetBindings() {
		object, err := bindingObject(b.GetObject(), spec.GetNamespace())
		if err == nil && object != nil {
			err = checkPath(b.GetName(), *object, declared)
		}
		if err != nil {
			return fleet.Join(fmt.Sprintf("spec.bindings[%d].object", i), err)
		}
	}
	return nil
}

// someValues stand for the values of bindings where only their names matter.
func someValues[B any](list []B, name func(B) string) map[string]string {
	out := map[string]string{}
	for _, b := range list {
		out[name(b)] = "x"
	}
	return out
}

func checkPath(name string, object fleet.ObjectField, declared map[string]string) error {
	if _, err := ParseFieldPath(object, manifest.Expand(object.Path, declared)); err != nil {
		return fleet.Invalidf("fieldPath", "%s: %v", name, err)
	}
	return nil
}

// checkLateTexts refuses references that no value could mend.
func checkLateTexts(late []fleet.LateBinding, placeholders manifest.Options) error {
	for _, b := range late {
		for _, text := range b.Texts() {
			if err := manifest.CheckText(text, placeholders); err != nil {
				return fleet.Invalidf("", "%s: %v", b.Name, err)
			}
		}
	}
	return nil
}

func strict(mode string) (bool, error) {
	return mode == "Strict", Choice("spec.bindingsMode", mode, "Declared", "Strict")
}
