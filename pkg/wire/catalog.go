package wire

import (
	"path"
	"strings"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// Catalog is the validated value of a Catalog message.
type Catalog struct {
	Ref    fleet.ModuleRef
	Source *towlinev1.Source
	Follow *follow.Plan // nil: the source is not followed
	// Folder is where the files are, in what the source has.
	Folder                    string
	Recursive, Prune, Suspend bool
}

// CatalogFromProto validates a catalog. Errors are fleet.FieldErrors below the catalog.
func CatalogFromProto(in *towlinev1.Catalog) (*Catalog, error) {
	ref, err := moduleRef(&towlinev1.Module{ApiVersion: in.GetApiVersion(), Metadata: in.GetMetadata()})
	if err != nil {
		return nil, err
	}
	spec := in.GetSpec()
	if spec == nil {
		return nil, fleet.Invalid("spec", "is required")
	}
	if err := validateSource(spec.GetSource()); err != nil {
		return nil, fleet.Join("spec.source", err)
	}
	switch {
	case spec.GetSource().GetHelm() != nil:
		return nil, fleet.Invalid("spec.source.helm", "is a chart, whose files are templates and no modules: use git, oci or http")
	case spec.GetSource().GetUpload() != nil:
		return nil, fleet.Invalid("spec.source.upload", "is for modules: to keep modules equal to a local folder, apply it as a set: towline apply -f DIR --set NAME --prune")
	}
	out := &Catalog{Ref: ref, Source: spec.GetSource(), Recursive: spec.GetRecursive(), Prune: spec.GetPrune(), Suspend: spec.GetSuspend()}
	if out.Follow, err = followed(spec.GetSource()); err != nil {
		return nil, fleet.Join("spec.source", err)
	}
	if err := validateFolder("spec.path", spec.GetPath()); err != nil {
		return nil, err
	}
	under := strings.Trim(spec.GetSource().GetGit().GetPath()+spec.GetSource().GetOci().GetPath(), "/") // a source is of one kind
	if out.Folder = path.Join(under, spec.GetPath()); out.Folder == "." {
		out.Folder = ""
	}
	return out, nil
}
