package wire

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// packaged is a module with a package.
func packaged(p *towlinev1.Package) *towlinev1.Module {
	return &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{Package: p,
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": ""}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
}

// TestPackages: exactly one, and paths that stay in the source; each error names the field.
func TestPackages(t *testing.T) {
	kustomize := func(path string, components ...string) *towlinev1.Package {
		return &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{Path: path, Components: components}}
	}
	for want, p := range map[string]*towlinev1.Package{
		"spec.package: is empty":                                          {},
		"spec.package: has plain and kustomize: keep one of them":         {Plain: &towlinev1.PlainPackage{}, Kustomize: &towlinev1.KustomizePackage{}},
		`spec.package.kustomize.path: "/prod" is no path in the source`:   kustomize("/prod"),
		`spec.package.kustomize.path: "a/../.." is no path in the source`: kustomize("a/../.."),
		`spec.package.kustomize.components[1]: "../../tls" is no folder`:  kustomize("prod", "../tls", "../../tls"),
		`spec.package.kustomize.components[0]: "/tls" is no folder`:       kustomize("prod", "/tls"),
		"spec.package.kustomize.components[0]: is empty":                  kustomize("prod", ""),
		"spec.package.kustomize.components: has 101 entries; at most 100": kustomize("", make([]string, 101)...),
	} {
		if _, err := ModuleFromProto(packaged(p)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, p := range []*towlinev1.Package{nil, {Plain: &towlinev1.PlainPackage{}}} {
		if m, err := ModuleFromProto(packaged(p)); err != nil || m.Package.Kustomize != nil {
			t.Errorf("%v: %+v, %v", p, m, err)
		}
	}
	m, err := ModuleFromProto(packaged(kustomize("overlays/prod", "../../components/tls")))
	if err != nil || m.Package.Kustomize.Path != "overlays/prod" || len(m.Package.Kustomize.Components) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	a, errA := SpecDigest(packaged(kustomize("a")).GetSpec())
	b, errB := SpecDigest(packaged(kustomize("b")).GetSpec())
	if errA != nil || errB != nil || a == b {
		t.Errorf("specs of two paths have the digests %s and %s", a, b)
	}
}
