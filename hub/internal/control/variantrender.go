package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

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
	able     *record.Able // what its clusters can do; nil: that is not known, or makes no difference
	clusters []fleet.ClusterName
}

// madeVariant is what a module renders to for some clusters.
type madeVariant struct {
	overrides []int32
	objects   []manifest.Object
	// capabilities are those that it is for; none: they make no difference.
	capabilities []*storev1.CapabilitiesSum
}

// forms are the variants that it is for.
func (v madeVariant) forms() []fleet.Variant {
	return record.FormsOf(&storev1.VariantRecord{Overrides: v.overrides, Capabilities: v.capabilities})
}

// asksCluster reports that the templates of a module may be told what the cluster can do.
func asksCluster(m *wire.Module) bool { return m.Package.Helm != nil && !m.Package.Helm.Declared() }

// wantedVariants are those of the clusters that the module selects now; without overrides it is one, unless templates may ask what clusters
// can do.
func (c *Controller) wantedVariants(ctx context.Context, m *wire.Module) ([]wantedVariant, error) {
	asks := asksCluster(m)
	if len(m.Overrides) == 0 && !asks {
		return []wantedVariant{{}}, nil
	}
	var clusters []fleet.Cluster
	able, of := record.Capable{}, map[fleet.ClusterName]fleet.Digest{}
	if err := c.view(ctx, func(r store.Reader) error {
		clusters = record.Selected(r, m)
		for _, cl := range clusters {
			if asks {
				of[cl.Name] = able.Add(r, cl.Name)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if _, err := assemble.Variants(m.Overrides, clusters); err != nil {
		return nil, err
	}
	var out []wantedVariant
	at := map[string]int{}
	for _, cl := range clusters {
		v := assemble.VariantOf(m.Overrides, cl)
		v.Capabilities = of[cl.Name]
		i, known := at[v.Key()]
		if !known {
			i, at[v.Key()] = len(out), len(out)
			out = append(out, wantedVariant{variant: v})
			if is, told := able[v.Capabilities]; told {
				out[i].able = &is
			}
		}
		out[i].clusters = append(out[i].clusters, cl.Name)
	}
	if len(out) == 0 {
		out = append(out, wantedVariant{})
	}
	slices.SortFunc(out, func(a, b wantedVariant) int { return a.variant.Compare(b.variant) })
	return out, nil
}

// renderer renders the variants of one revision. What a package renders to is shared by those that differ in patches only, and what is
// patched by those whose clusters answer alike what its templates ask.
type renderer struct {
	c     *Controller
	m     *wire.Module
	files map[string][]byte
	built map[string]builtPackage
	// distinct is what was built, once for all answers of clusters that come to the same.
	distinct map[fleet.Digest][]manifest.Object
	reads    map[string]render.Reads // of what was built, whatever for
	done     map[string][]manifest.Object
	seen     map[fleet.Digest]bool
	bytes    int
	work     patch.Work
	// several says that what is rendered is one of several, so that an error says which.
	several bool
}

// maxBuilds is how often a package is rendered for one revision: each takes its time, also where many come to the same.
const maxBuilds = 2000

// builtPackage is what a package renders to, and the key of that: equal for answers of clusters that come to the same.
type builtPackage struct {
	key     string
	objects []manifest.Object
}

// render makes the objects of a variant. What is wrong with one of several says which it is.
func (x *renderer) render(ctx context.Context, w wantedVariant) (madeVariant, error) {
	objects, err := x.whole(ctx, w)
	if err != nil && (len(x.m.Overrides) > 0 || x.several && w.able != nil) {
		err = ofVariant(err, w)
	}
	out := madeVariant{overrides: w.variant.Overrides, objects: objects, capabilities: []*storev1.CapabilitiesSum{{}}}
	if w.able != nil {
		out.capabilities[0] = w.able.Sum
	}
	return out, err
}

// whole are the objects of a variant, checked.
func (x *renderer) whole(ctx context.Context, w wantedVariant) ([]manifest.Object, error) {
	built, err := x.build(ctx, w)
	if err != nil {
		return nil, err
	}
	key := fleet.Variant{Overrides: w.variant.Overrides}.Key() + " of " + built.key
	if objects, known := x.done[key]; known {
		return objects, nil
	}
	objects, err := x.over(ctx, built, w.variant.Overrides)
	if err == nil {
		err = x.fits(objects)
	}
	if err == nil {
		err = assemble.WatchedApart(x.m.Watch, manifest.ToBundle(objects))
	}
	if err == nil {
		err = inOrder(x.m, objects)
	}
	if err != nil {
		return nil, err
	}
	if x.done == nil {
		x.done = map[string][]manifest.Object{}
	}
	x.done[key] = objects
	return objects, nil
}

// asks reports that what was rendered asks what clusters can do.
func (x *renderer) asks() bool {
	for _, r := range x.reads {
		if r.Any() {
			return true
		}
	}
	return false
}

// merged are variants without what makes no difference: what clusters can do if no template asks that, and else what is the same for
// those of several.
func (x *renderer) merged(all []madeVariant) (out []madeVariant) {
	asks, at := x.asks(), map[string]int{}
	for _, v := range all {
		if !asks {
			v.capabilities = nil
		}
		bundle, _ := assemble.BundleDigest(manifest.ToBundle(v.objects))
		key := fleet.Variant{Overrides: v.overrides}.Key() + " " + bundle.String()
		i, known := at[key]
		switch {
		case known:
			out[i].capabilities = append(out[i].capabilities, v.capabilities...)
		default:
			at[key] = len(out)
			out = append(out, v)
		}
	}
	return out
}

func (x *renderer) objects(ctx context.Context, w wantedVariant) ([]manifest.Object, error) {
	built, err := x.build(ctx, w)
	if err != nil {
		return nil, err
	}
	return x.over(ctx, built, w.variant.Overrides)
}

// build is what the package of a variant renders to, before its patches.
func (x *renderer) build(ctx context.Context, w wantedVariant) (builtPackage, error) {
	pkg, base := x.m.VariantPackage(w.variant), packageKey(x.m, w.variant.Overrides)
	if reads, known := x.reads[base]; known {
		if built, there := x.built[builtKey(base, reads, w.able)]; there {
			return built, nil
		}
	}
	if len(x.built) >= maxBuilds {
		return builtPackage{}, assemble.TooManyAnswers(maxBuilds)
	}
	if w.able != nil {
		h := *pkg.Helm
		h.Capabilities = &w.able.All
		pkg.Helm = &h
	}
	objects, reads, err := render.Render(ctx, x.c.o.Engine, x.files, pkg, render.Options{Options: x.m.Placeholders(), Path: x.m.Path, AllowEmpty: x.m.AllowEmpty})
	if err != nil {
		return builtPackage{}, err
	}
	if x.built == nil {
		x.built, x.reads, x.distinct = map[string]builtPackage{}, map[string]render.Reads{}, map[fleet.Digest][]manifest.Object{}
	}
	digest, _ := assemble.BundleDigest(manifest.ToBundle(objects))
	if same, known := x.distinct[digest]; known {
		objects = same
	} else if err := assemble.Bounded(len(x.distinct) + 1); err != nil {
		return builtPackage{}, err
	}
	x.reads[base], x.distinct[digest] = reads, objects
	key := builtKey(base, reads, w.able)
	x.built[key] = builtPackage{base + " as " + digest.String(), objects}
	return x.built[key], nil
}

// builtKey is equal for what renders to the same: of what a cluster can do only that counts which templates ask.
func builtKey(base string, reads render.Reads, able *record.Able) string {
	switch {
	case !reads.Any():
		return base
	case able == nil:
		return base + " for what Helm takes for a cluster"
	}
	return base + " for " + reads.Of(able.All).Digest().String()
}

// over are the objects of a package with the patches of overrides.
func (x *renderer) over(ctx context.Context, built builtPackage, overrides []int32) ([]manifest.Object, error) {
	if len(overrides) == 0 {
		return built.objects, nil
	}
	opts := x.m.Placeholders()
	opts.Chart = x.m.Package.Helm != nil
	return x.patched(ctx, built.objects, overrides, opts)
}

// patched are the objects of a package as the overrides of a variant change them.
func (x *renderer) patched(ctx context.Context, built []manifest.Object, v []int32, opts manifest.Options) ([]manifest.Object, error) {
	first, err := patch.Apply(ctx, &x.work, built, x.m.Overrides, v, opts)
	if err != nil {
		return nil, err
	}
	second, err := patch.Apply(ctx, &patch.Work{}, built, x.m.Overrides, v, opts)
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
func packageKey(m *wire.Module, overrides []int32) string {
	var of fleet.Variant
	for _, n := range overrides {
		if m.Overrides[n].Values != nil || m.Overrides[n].Components != nil {
			of.Overrides = append(of.Overrides, n)
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
	if w.able != nil && len(w.variant.Overrides) == 0 {
		where = fmt.Sprintf("for Kubernetes %s and %d APIs", w.able.Sum.GetKubernetesVersion(), w.able.Sum.GetApis())
	} else if w.able != nil {
		where += fmt.Sprintf(", for Kubernetes %s and %d APIs", w.able.Sum.GetKubernetesVersion(), w.able.Sum.GetApis())
	}
	if len(w.clusters) > 0 {
		const most = 3
		where += ", as in " + fleet.Some(w.clusters, most)
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
		bundle, _ := assemble.BundleDigest(manifest.ToBundle(v.objects))
		for _, form := range v.forms() {
			was, err := record.VariantIn(rev, form)
			if errors.Is(err, record.ErrNotRendered) {
				continue
			}
			if err != nil || bundle != record.Digest(was.GetBundle()) {
				return false
			}
			known = true
		}
	}
	return known
}

// sameUnseen reports that files come to what those of a revision do also by the overrides that none of the variants have: who joins later is
// given what they were rendered to, or is to be. What only patches change is in the objects of the others.
func (c *Controller) sameUnseen(ctx context.Context, m *wire.Module, rev *storev1.RevisionRecord, files map[string][]byte, variants []madeVariant) (bool, error) {
	then, now := renderer{c: c, m: m}, renderer{c: c, m: m, files: files}
	compared := func(n int32) bool {
		return slices.ContainsFunc(variants, func(x madeVariant) bool {
			return slices.Contains(x.overrides, n) && slices.ContainsFunc(x.forms(), func(v fleet.Variant) bool {
				_, err := record.VariantIn(rev, v)
				return err == nil
			})
		})
	}
	for n := range m.Overrides {
		v := wantedVariant{variant: fleet.Variant{Overrides: []int32{int32(n)}}}
		if packageKey(m, v.variant.Overrides) == "" || compared(int32(n)) {
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
