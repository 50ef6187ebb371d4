package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// maxComponents bounds the components of a kustomization.
const maxComponents = 100

// packageFor is the package that a module sets; a chart is a helm package by itself.
func packageFor(spec *towlinev1.ModuleSpec) *towlinev1.Package {
	if spec.GetPackage() == nil && spec.GetSource().GetHelm() != nil {
		return &towlinev1.Package{Helm: &towlinev1.HelmPackage{}}
	}
	return spec.GetPackage()
}

// packageOf validates how files become objects; what is left out is plain. Its paths begin at the folder under of the source.
func packageOf(in *towlinev1.Package, ref fleet.ModuleRef, namespace, under string) (render.Package, error) {
	var kinds []string
	if in.GetPlain() != nil {
		kinds = append(kinds, "plain")
	}
	if in.GetHelm() != nil {
		kinds = append(kinds, "helm")
	}
	if in.GetKustomize() != nil {
		kinds = append(kinds, "kustomize")
	}
	switch {
	case in == nil:
		return render.Package{}, nil
	case len(kinds) == 0:
		return render.Package{}, fleet.Invalid("", "is empty; write plain: {}, helm: {} or kustomize: {}, or leave it out")
	case len(kinds) > 1:
		return render.Package{}, fleet.Invalidf("", "has %s: keep one of them", strings.Join(kinds, " and "))
	case in.GetHelm() != nil:
		h, err := helmOf(in.GetHelm(), ref, namespace, under)
		return render.Package{Helm: h}, fleet.Join("helm", err)
	case in.GetKustomize() != nil:
		k, err := kustomizeOf(in.GetKustomize(), under)
		return render.Package{Kustomize: k}, fleet.Join("kustomize", err)
	}
	return render.Package{}, nil
}

func kustomizeOf(in *towlinev1.KustomizePackage, under string) (*render.Kustomize, error) {
	if err := inSource("path", in.GetPath()); err != nil {
		return nil, err
	}
	at := path.Join(under, in.GetPath())
	if err := components(in.GetComponents(), at); err != nil {
		return nil, err
	}
	return &render.Kustomize{Path: at, Components: in.GetComponents()}, nil
}

// components validates folders that are relative to another one of the source.
func components(in []string, at string) error {
	if n := len(in); n > maxComponents {
		return fleet.Invalidf("components", "has %d entries; at most %d", n, maxComponents)
	}
	for i, c := range in {
		field := fmt.Sprintf("components[%d]", i)
		if c == "" {
			return fleet.Invalid(field, "is empty; write a folder, such as ../components/tls")
		}
		if err := inSource(field, path.Join(at, c)); err != nil || strings.HasPrefix(c, "/") {
			return fleet.Invalidf(field, "%q is no folder in the source, relative to path: write, for example, ../components/tls", c)
		}
	}
	return nil
}

// Limits of a chart's options.
const (
	maxValuesBytes  = 1 << 20
	maxValuesDepth  = 100
	maxValuesFiles  = 100
	maxAPIVersions  = 1000
	maxReleaseName  = 53 // as Helm has it
	defaultReleased = "default"
)

func helmOf(in *towlinev1.HelmPackage, ref fleet.ModuleRef, namespace, under string) (*render.Helm, error) {
	h := &render.Helm{Path: path.Join(under, in.GetPath()), ReleaseName: cmp.Or(in.GetReleaseName(), ref.Name), Namespace: cmp.Or(namespace, defaultReleased),
		SkipCRDs: in.IncludeCrds != nil && !in.GetIncludeCrds(), KubeVersion: in.GetKubeVersion(), APIVersions: in.GetApiVersions()}
	if err := inSource("path", in.GetPath()); err != nil {
		return nil, err
	}
	if msgs := validation.IsDNS1123Subdomain(h.ReleaseName); len(msgs) > 0 || len(h.ReleaseName) > maxReleaseName {
		return nil, fleet.Invalidf("releaseName", "%q is no name of a release: lower-case letters, digits and -, at most %d characters", fleet.Clip(h.ReleaseName, 80), maxReleaseName)
	}
	if n := len(in.GetValuesFiles()); n > maxValuesFiles {
		return nil, fleet.Invalidf("valuesFiles", "has %d entries; at most %d", n, maxValuesFiles)
	}
	for i, f := range in.GetValuesFiles() {
		if err := inSource(fmt.Sprintf("valuesFiles[%d]", i), f); err != nil || f == "" {
			return nil, fleet.Invalidf(fmt.Sprintf("valuesFiles[%d]", i), "%q is no file in the source: write one such as values/prod.yaml, without https:// and ..", f)
		}
		h.ValuesFiles = append(h.ValuesFiles, path.Join(under, f))
	}
	if v := in.GetKubeVersion(); v != "" {
		if _, err := version.ParseGeneric(v); err != nil {
			return nil, fleet.Invalidf("kubeVersion", "%q is no version of Kubernetes: write one such as 1.33.4", fleet.Clip(v, 80))
		}
	}
	if n := len(in.GetApiVersions()); n > maxAPIVersions {
		return nil, fleet.Invalidf("apiVersions", "has %d entries; at most %d", n, maxAPIVersions)
	}
	var err error
	h.Values, err = helmValues(in.GetValues())
	return h, fleet.Join("values", err)
}

// helmValues are values as JSON, which is how Helm reads its files, too.
func helmValues(in *structpb.Struct) (json.RawMessage, error) {
	if in == nil {
		return nil, nil
	}
	if err := checkValue("", structpb.NewStructValue(in), 0); err != nil {
		return nil, err
	}
	out, err := json.Marshal(in.AsMap())
	if err != nil {
		return nil, fleet.Invalid("", err.Error())
	}
	if len(out) > maxValuesBytes {
		return nil, fleet.Invalidf("", "have %d bytes; at most %d: put them into a file of the source, and that into valuesFiles", len(out), maxValuesBytes)
	}
	return out, nil
}

// checkValue finds what JSON cannot say.
func checkValue(at string, v *structpb.Value, depth int) error {
	if depth > maxValuesDepth {
		return fleet.Invalidf("", "are more than %d levels deep", maxValuesDepth)
	}
	switch kind := v.GetKind().(type) {
	case nil:
		return fleet.Invalid(at, "has no value; null is one")
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return fleet.Invalid(at, "is no number that JSON has")
		}
	case *structpb.Value_StructValue:
		for key, value := range kind.StructValue.GetFields() {
			if err := checkValue(strings.TrimPrefix(at+"."+key, "."), value, depth+1); err != nil {
				return err
			}
		}
	case *structpb.Value_ListValue:
		for i, value := range kind.ListValue.GetValues() {
			if err := checkValue(fmt.Sprintf("%s[%d]", at, i), value, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// inSource checks a path that a package names.
func inSource(field, p string) error {
	if strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00") || slices.Contains(strings.Split(path.Clean("./"+p), "/"), "..") {
		return fleet.Invalidf(field, "%q is no path in the source: write a folder, such as deploy/prod", p)
	}
	return nil
}
