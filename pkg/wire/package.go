package wire

import (
	"fmt"
	"path"
	"slices"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// maxComponents bounds the components of a kustomization.
const maxComponents = 100

// packageOf validates how files become objects; what is left out is plain. Its paths begin at the folder under of the source.
func packageOf(in *towlinev1.Package, under string) (render.Package, error) {
	var kinds []string
	if in.GetPlain() != nil {
		kinds = append(kinds, "plain")
	}
	if in.GetKustomize() != nil {
		kinds = append(kinds, "kustomize")
	}
	switch {
	case in == nil:
		return render.Package{}, nil
	case len(kinds) == 0:
		return render.Package{}, fleet.Invalid("", "is empty; write plain: {}, or kustomize: {}, or leave it out")
	case len(kinds) > 1:
		return render.Package{}, fleet.Invalidf("", "has %s: keep one of them", strings.Join(kinds, " and "))
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
	if n := len(in.GetComponents()); n > maxComponents {
		return nil, fleet.Invalidf("components", "has %d entries; at most %d", n, maxComponents)
	}
	for i, c := range in.GetComponents() {
		field := fmt.Sprintf("components[%d]", i)
		if c == "" {
			return nil, fleet.Invalid(field, "is empty; write a folder, such as ../components/tls")
		}
		if err := inSource(field, path.Join(under, in.GetPath(), c)); err != nil || strings.HasPrefix(c, "/") {
			return nil, fleet.Invalidf(field, "%q is no folder in the source, relative to path: write, for example, ../components/tls", c)
		}
	}
	return &render.Kustomize{Path: path.Join(under, in.GetPath()), Components: in.GetComponents()}, nil
}

// inSource checks a path that a package names.
func inSource(field, p string) error {
	if strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00") || slices.Contains(strings.Split(path.Clean("./"+p), "/"), "..") {
		return fleet.Invalidf(field, "%q is no path in the source: write a folder, such as deploy/prod", p)
	}
	return nil
}
