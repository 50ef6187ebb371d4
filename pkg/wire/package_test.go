package wire

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

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
	helm := func(change func(*towlinev1.HelmPackage)) *towlinev1.Package {
		h := &towlinev1.HelmPackage{}
		change(h)
		return &towlinev1.Package{Helm: h}
	}
	number := func(f float64) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNumberValue(f)}}
	}
	deep := structpb.NewNullValue()
	for range 200 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for want, p := range map[string]*towlinev1.Package{
		"spec.package: has helm and kustomize: keep one of them":                 {Helm: &towlinev1.HelmPackage{}, Kustomize: &towlinev1.KustomizePackage{}},
		`spec.package.helm.path: "../c" is no path in the source`:                helm(func(h *towlinev1.HelmPackage) { h.Path = "../c" }),
		`spec.package.helm.releaseName: "Shop" is no name of a release`:          helm(func(h *towlinev1.HelmPackage) { h.ReleaseName = "Shop" }),
		`spec.package.helm.valuesFiles[1]: "../p.yaml" is no file in the source`: helm(func(h *towlinev1.HelmPackage) { h.ValuesFiles = []string{"a.yaml", "../p.yaml"} }),
		`spec.package.helm.kubeVersion: "new" is no version of Kubernetes`:       helm(func(h *towlinev1.HelmPackage) { h.KubeVersion = "new" }),
		"spec.package.helm.apiVersions: has 1001 entries":                        helm(func(h *towlinev1.HelmPackage) { h.ApiVersions = make([]string, 1001) }),
		"spec.package.helm.values.a: is no number that JSON has":                 helm(func(h *towlinev1.HelmPackage) { h.Values = number(math.Inf(1)) }),
		"spec.package.helm.values.b: has no value": helm(func(h *towlinev1.HelmPackage) {
			h.Values = &structpb.Struct{Fields: map[string]*structpb.Value{"b": {}}}
		}),
		"spec.package.helm.values: are more than 100 levels deep": helm(func(h *towlinev1.HelmPackage) {
			h.Values = &structpb.Struct{Fields: map[string]*structpb.Value{"b": deep}}
		}),
		"spec.package.helm.values: have 1100008 bytes; at most 1048576": helm(func(h *towlinev1.HelmPackage) {
			h.Values = &structpb.Struct{Fields: map[string]*structpb.Value{"b": structpb.NewStringValue(strings.Repeat("x", 1100000))}}
		}),
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
	h, err := ModuleFromProto(packaged(helm(func(h *towlinev1.HelmPackage) {
		h.Values, h.IncludeCrds = number(12345678), new(bool)
	})))
	if err != nil || h.Package.Helm.ReleaseName != "shop" || h.Package.Helm.Namespace != "default" || string(h.Package.Helm.Values) != `{"a":12345678}` || !h.Package.Helm.SkipCRDs {
		t.Errorf("%+v, %v", h, err)
	}
	a, errA := SpecDigest(packaged(kustomize("a")).GetSpec())
	b, errB := SpecDigest(packaged(kustomize("b")).GetSpec())
	if errA != nil || errB != nil || a == b {
		t.Errorf("specs of two paths have the digests %s and %s", a, b)
	}
}
