package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/patch"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/wire"
)

// maxVariantBytes is how many bytes all variants of a module may have together, what they share counted once: a hub holds them while it
// renders.
const maxVariantBytes = 256 << 20

// wantedVariant is what is to be rendered, and for whom, for messages.
type wantedVariant struct {
	variant  fleet.Variant
	clusters []fleet.ClusterName
}

// madeVariant is what a module renders to for some clusters.
type madeVariant struct {
	variant fleet.Variant
	objects []manifest.Object
}

// wantedVariants are those of the clusters that the module selects now; without overrides it is one.
func (c *Controller) wantedVariants(ctx context.Context, m *wire.Module) ([]wantedVariant, error) {
	if len(m.Overrides) == 0 {
		return []wantedVariant{{}}, nil
	}
	var clusters []fleet.Cluster
	if err := c.view(ctx, func(r store.Reader) error {
		clusters = record.Selected(r, m)
		return nil
	}); err != nil {
		return nil, err
	}
	variants, err := assemble.Variants(m.Overrides, clusters)
	if err != nil {
		return nil, err
	}
	names := map[string][]fleet.ClusterName{}
	for _, cl := range clusters {
		key := assemble.VariantOf(m.Overrides, cl).Key()
		names[key] = append(names[key], cl.Name)
	}
	out := make([]wantedVariant, len(variants))
	for i, v := range variants {
		out[i] = wantedVariant{variant: v, clusters: names[v.Key()]}
	}
	return out, nil
}

// renderer renders the variants of one revision. What a package renders to is shared by those that differ in patches only.
type renderer struct {
	c     *Controller
	m     *wire.Module
	files map[string][]byte
	built map[string][]manifest.Object
	seen  map[fleet.Digest]bool
	bytes int
}

// render makes the objects of a variant. What is wrong with one of several says which it is.
func (x *renderer) render(ctx context.Context, w wantedVariant) (madeVariant, error) {
	objects, err := x.objects(ctx, w.variant)
	if err == nil {
		err = x.fits(objects)
	}
	if err == nil {
		err = assemble.WatchedApart(x.m.Watch, manifest.ToBundle(objects))
	}
	if err == nil {
		err = inOrder(x.m, objects)
	}
	if err != nil && len(x.m.Overrides) > 0 {
		err = ofVariant(err, w)
	}
	return madeVariant{variant: w.variant, objects: objects}, err
}

func (x *renderer) objects(ctx context.Context, v fleet.Variant) ([]manifest.Object, error) {
	opts := x.m.Placeholders()
	pkg := x.m.VariantPackage(v)
	key := packageKey(x.m, v)
	built, known := x.built[key]
	if !known {
		var err error
		if built, err = render.Render(ctx, x.c.o.Engine, x.files, pkg, render.Options{Options: opts, Path: x.m.Path, AllowEmpty: x.m.AllowEmpty}); err != nil {
			return nil, err
		}
		if x.built == nil {
			x.built = map[string][]manifest.Object{}
		}
		x.built[key] = built
	}
	if len(v) == 0 {
		return built, nil
	}
	opts.Chart = pkg.Helm != nil
	return x.patched(built, v, opts)
}

// patched are the objects of a package as the overrides of a variant change them.
func (x *renderer) patched(built []manifest.Object, v fleet.Variant, opts manifest.Options) ([]manifest.Object, error) {
	first, err := patch.Apply(built, x.m.Overrides, v, opts)
	if err != nil {
		return nil, err
	}
	second, err := patch.Apply(built, x.m.Overrides, v, opts)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(manifest.ToBundle(first), manifest.ToBundle(second)) {
		return nil, fleet.Errorf(fleet.ErrInvalid, "overrides: applying the same patches twice gave different objects")
	}
	if len(first) == 0 && !x.m.AllowEmpty {
		return nil, fleet.Invalid("overrides", "leave no object; set allowEmpty if the module is to have none in these clusters")
	}
	return first, nil
}

// packageKey is equal for variants whose package renders to the same.
func packageKey(m *wire.Module, v fleet.Variant) string {
	var of fleet.Variant
	for _, n := range v {
		if m.Overrides[n].Values != nil || m.Overrides[n].Components != nil {
			of = append(of, n)
		}
	}
	return of.Key()
}

// fits counts what the objects add to those of other variants.
func (x *renderer) fits(objects []manifest.Object) error {
	if x.seen == nil {
		x.seen = map[fleet.Digest]bool{}
	}
	for _, o := range objects {
		if d := o.Digest(); !x.seen[d] {
			x.seen[d] = true
			x.bytes += len(o.Raw)
		}
	}
	if x.bytes > maxVariantBytes {
		return fleet.Invalidf("overrides", "bring the objects of all variants to more than %d MiB: split the module", maxVariantBytes>>20)
	}
	return nil
}

// ofVariant has an error say which variant it is of, and which clusters have that.
func ofVariant(err error, w wantedVariant) error {
	where := "with " + w.variant.String()
	if n := len(w.clusters); n > 0 {
		const most = 3
		names := make([]string, min(n, most))
		for i := range names {
			names[i] = string(w.clusters[i])
		}
		where += ", as in " + strings.Join(names, ", ")
		if n > most {
			where += fmt.Sprintf(" and %d more", n-most)
		}
	}
	var of *fleet.FieldError
	if errors.As(err, &of) {
		return fleet.Invalidf(of.Path, "%s (%s)", of.Message, where)
	}
	return fmt.Errorf("%s: %w", where, err)
}

// sameAs reports that a revision has the same bundles; a variant that it has not been rendered for says nothing.
func sameAs(rev *storev1.RevisionRecord, variants []madeVariant) bool {
	known := false
	for _, v := range variants {
		was, err := record.VariantIn(rev, v.variant)
		if errors.Is(err, record.ErrNotRendered) {
			continue
		}
		bundle, _ := assemble.BundleDigest(manifest.ToBundle(v.objects))
		if err != nil || bundle != record.Digest(was.GetBundle()) {
			return false
		}
		known = true
	}
	return known
}

// sameUnseen reports that files come to what those of a revision do also by the overrides that none of the variants have: who joins later is
// given what they were rendered to, or is to be. What only patches change is in the objects of the others.
func (c *Controller) sameUnseen(ctx context.Context, m *wire.Module, rev *storev1.RevisionRecord, files map[string][]byte, variants []madeVariant) (bool, error) {
	then, now := renderer{c: c, m: m}, renderer{c: c, m: m, files: files}
	compared := func(n int32) bool {
		return slices.ContainsFunc(variants, func(x madeVariant) bool {
			_, err := record.VariantIn(rev, x.variant)
			return err == nil && slices.Contains(x.variant, n)
		})
	}
	for n := range m.Overrides {
		v := fleet.Variant{int32(n)}
		if packageKey(m, v) == "" || compared(int32(n)) {
			continue
		}
		var a, b []manifest.Object
		var before, after error
		if then.files == nil {
			then.files, before = c.filesOf(ctx, rev)
		}
		if before == nil {
			a, before = then.objects(ctx, v)
			b, after = now.objects(ctx, v)
		}
		if err := cmp.Or(ctx.Err(), errors.Join(before, after)); ctx.Err() != nil || errors.Is(err, fleet.ErrUnavailable) {
			return false, err
		}
		if fmt.Sprint(before) != fmt.Sprint(after) || !slices.Equal(manifest.ToBundle(a), manifest.ToBundle(b)) {
			return false, nil
		}
	}
	return true, nil
}

// filesOf are those that a revision was cut from.
func (c *Controller) filesOf(ctx context.Context, rev *storev1.RevisionRecord) (map[string][]byte, error) {
	archive, err := c.o.Store.Blobs().Get(ctx, record.Digest(rev.GetArtifact()))
	if err != nil {
		return nil, err
	}
	return artifact.Decode(archive)
}
