package wire

import (
	"fmt"
	"path"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// Limits of overrides.
const (
	maxOverrides   = 200
	maxPatches     = 200
	maxPatchBytes  = 64 << 10
	maxPatchesText = 512 << 10
)

// overrides validates what is different in some clusters, but for what patches say. Paths of components begin at the folder under of the
// source.
func overrides(in []*towlinev1.Override, pkg render.Package, spec *towlinev1.ModuleSpec, under string) ([]fleet.Override, error) {
	if len(in) > maxOverrides {
		return nil, fleet.Invalidf("", "has %d entries; at most %d", len(in), maxOverrides)
	}
	out, bytes := make([]fleet.Override, 0, len(in)), 0
	for i, x := range in {
		v, err := override(x, pkg, path.Join(under, spec.GetPackage().GetKustomize().GetPath()))
		if err != nil {
			return nil, fleet.Join(fmt.Sprintf("[%d]", i), err)
		}
		for _, p := range v.Patches {
			bytes += len(p.Text)
		}
		out = append(out, v)
	}
	if bytes > maxPatchesText {
		return nil, fleet.Invalidf("", "have patches of %d bytes; at most %d", bytes, maxPatchesText)
	}
	return out, nil
}

func override(in *towlinev1.Override, pkg render.Package, under string) (out fleet.Override, err error) {
	if in.GetSelector() == nil {
		return out, fleet.Invalid("selector", "is required: the labels of the clusters that are different; {} matches every cluster")
	}
	if out.Selector, err = SelectorFromProto(in.GetSelector()); err != nil {
		return out, fleet.Join("selector", err)
	}
	out.AllowEmpty = in.GetAllowEmpty()
	if len(in.GetPatches()) == 0 && in.GetHelm() == nil && in.GetKustomize() == nil {
		return out, fleet.Invalid("", "changes nothing: write patches, helm or kustomize")
	}
	if out.Patches, err = patches(in.GetPatches()); err != nil {
		return out, err
	}
	if h := in.GetHelm(); h != nil {
		if pkg.Helm == nil {
			return out, fleet.Invalid("helm", "is for a chart, and the package is none")
		}
		if h.GetValues() == nil {
			return out, fleet.Invalid("helm.values", "is required")
		}
		if out.Values, err = helmValues(h.GetValues()); err != nil {
			return out, fleet.Join("helm.values", err)
		}
	}
	if k := in.GetKustomize(); k != nil {
		if pkg.Kustomize == nil {
			return out, fleet.Invalid("kustomize", "is for a kustomization, and the package is none")
		}
		if len(k.GetComponents()) == 0 {
			return out, fleet.Invalid("kustomize.components", "is required")
		}
		if err := components(k.GetComponents(), under); err != nil {
			return out, fleet.Join("kustomize", err)
		}
		out.Components = k.GetComponents()
	}
	return out, nil
}

func patches(in []*towlinev1.Patch) ([]fleet.Patch, error) {
	if len(in) > maxPatches {
		return nil, fleet.Invalidf("patches", "has %d entries; at most %d", len(in), maxPatches)
	}
	out := make([]fleet.Patch, len(in))
	for i, p := range in {
		field := fmt.Sprintf("patches[%d]", i)
		switch n := len(p.GetPatch()); {
		case strings.TrimSpace(p.GetPatch()) == "":
			return nil, fleet.Invalid(field+".patch", "is required: a list of operations (a JSON patch), or what is to be merged into the object")
		case n > maxPatchBytes:
			return nil, fleet.Invalidf(field+".patch", "has %d bytes; at most %d", n, maxPatchBytes)
		}
		out[i].Text = p.GetPatch()
		t := p.GetTarget()
		if t == nil {
			continue
		}
		sel, err := SelectorFromProto(t.GetLabelSelector())
		if err != nil {
			return nil, fleet.Join(field+".target.labelSelector", err)
		}
		out[i].Target = &fleet.PatchTarget{Group: t.GetGroup(), Version: t.GetVersion(), Kind: t.GetKind(), Namespace: t.GetNamespace(), Name: t.GetName(), Labels: sel}
	}
	return out, nil
}

// VariantPackage is how files become objects for a variant, its patches aside.
func (m *Module) VariantPackage(v fleet.Variant) render.Package {
	pkg := m.Package
	var more render.Package
	for _, n := range v.Overrides {
		o := m.Overrides[n]
		if o.Values != nil {
			if more.Helm == nil {
				h := *m.Package.Helm
				more.Helm = &h
			}
			more.Helm.Overlays = append(more.Helm.Overlays, render.Overlay{Field: fmt.Sprintf("overrides[%d].helm.values", n), Values: o.Values})
		}
		if o.Components != nil {
			if more.Kustomize == nil {
				k := *m.Package.Kustomize
				k.Components = append([]string(nil), k.Components...)
				more.Kustomize = &k
			}
			more.Kustomize.Components = append(more.Kustomize.Components, o.Components...)
		}
	}
	if more.Helm != nil {
		pkg.Helm = more.Helm
	}
	if more.Kustomize != nil {
		pkg.Kustomize = more.Kustomize
	}
	return pkg
}
