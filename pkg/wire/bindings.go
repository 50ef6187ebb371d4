package wire

import (
	"fmt"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

func bindings(in []*towlinev1.Binding) ([]fleet.Binding, error) {
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
		got, err := binding(b)
		if err != nil {
			return nil, fleet.Join(path, err)
		}
		out = append(out, got)
	}
	return out, checkReferences(out)
}

func binding(b *towlinev1.Binding) (fleet.Binding, error) {
	set := 0
	for _, is := range []bool{b.Value != nil, b.GetClusterField() != "", b.GetClusterLabel() != "", b.GetClusterAnnotation() != ""} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fleet.Binding{}, fleet.Invalidf("", "%s: set exactly one of value, clusterField, clusterLabel and clusterAnnotation", b.GetName())
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

func strict(mode string) (bool, error) {
	return mode == "Strict", Choice("spec.bindingsMode", mode, "Declared", "Strict")
}
