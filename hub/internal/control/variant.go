package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/patch"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/rollout"
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

// storedVariant is the same in the store.
type storedVariant struct {
	variant          fleet.Variant
	bundle, policies fleet.Digest
	objects          int
	needs            []string // features of agents
	problem          string   // why there is nothing of it
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
	out := make([]wantedVariant, len(variants))
	for i, v := range variants {
		out[i].variant = v
		for _, cl := range clusters {
			if slices.Equal(assemble.VariantOf(m.Overrides, cl), v) {
				out[i].clusters = append(out[i].clusters, cl.Name)
			}
		}
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
	opts.Chart = pkg.Helm != nil
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

// store puts what variants consist of into the blobs.
func (c *Controller) store(ctx context.Context, m *wire.Module, set fleet.PolicySet, variants []madeVariant) ([]storedVariant, error) {
	out := make([]storedVariant, len(variants))
	for i, v := range variants {
		contents := make([][]byte, 0, len(v.objects)+2)
		for _, o := range v.objects {
			contents = append(contents, o.Raw)
		}
		set := set
		var err error
		if set.Policies, err = render.Kept(set.Policies, v.objects); err != nil {
			return nil, err
		}
		set.Substitution, set.Bindings = substitution(m, v.objects), m.Late()
		policies, err := wire.PolicySetContent(set)
		if err != nil {
			return nil, err
		}
		digest, bundle := assemble.BundleDigest(manifest.ToBundle(v.objects))
		if err := c.put(ctx, m, append(contents, bundle, policies)); err != nil {
			return nil, err
		}
		out[i] = storedVariant{variant: v.variant, bundle: digest, policies: fleet.DigestOf(policies), objects: len(v.objects),
			needs: append(wire.Needs(set), wire.SyncNeeds(m)...)}
	}
	return out, nil
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

// agrees reports that a revision has no other bundle for a variant that was rendered again.
func (r rendered) agrees(rev *storev1.RevisionRecord) bool {
	for _, v := range r.variants {
		was, err := record.VariantIn(rev, v.variant)
		if err == nil && record.Digest(was.GetBundle()) != v.bundle || err != nil && !r.overrides {
			return false
		}
	}
	return true
}

func (r rendered) records() (out []*storev1.VariantRecord) {
	for _, v := range r.variants {
		out = append(out, v.record())
	}
	return out
}

func (v storedVariant) record() *storev1.VariantRecord {
	if v.problem != "" {
		return &storev1.VariantRecord{Overrides: v.variant, Problem: v.problem}
	}
	return &storev1.VariantRecord{Overrides: v.variant, Bundle: v.bundle.Bytes(), Policies: v.policies.Bytes(), Needs: v.needs, Objects: int32(v.objects)}
}

// withVariants is a revision with variants that it does not have, or has a problem with; nil: it has all, or has no overrides.
func withVariants(rev *storev1.RevisionRecord, more []*storev1.VariantRecord) *storev1.RevisionRecord {
	if !record.HasOverrides(rev) {
		return nil
	}
	var out *storev1.RevisionRecord
	for _, v := range more {
		_, err := record.VariantIn(rev, fleet.Variant(v.GetOverrides()))
		if err == nil {
			continue
		}
		if out == nil {
			out = proto.CloneOf(rev)
		}
		out.Variants = slices.DeleteFunc(out.Variants, func(x *storev1.VariantRecord) bool { return slices.Equal(x.GetOverrides(), v.GetOverrides()) })
		if len(out.Variants) < assemble.MaxVariants {
			out.Variants = append(out.Variants, v)
		}
	}
	if out == nil {
		return nil
	}
	showVariants(out)
	return out
}

// showVariants has what people see of a revision say what it renders to.
func showVariants(rev *storev1.RevisionRecord) {
	slices.SortFunc(rev.Variants, func(a, b *storev1.VariantRecord) int { return slices.Compare(a.GetOverrides(), b.GetOverrides()) })
	shown := rev.GetRevision()
	shown.Variants, shown.Objects = nil, 0
	for _, v := range rev.GetVariants() {
		x := &towlinev1.Variant{Overrides: v.GetOverrides(), Objects: v.GetObjects(), Problem: v.GetProblem()}
		if v.GetProblem() == "" {
			x.Bundle = record.Digest(v.GetBundle()).String()
		}
		shown.Variants, shown.Objects = append(shown.Variants, x), max(shown.Objects, v.GetObjects())
	}
}

// lacking has the variants rendered that clusters would be assigned by a decision and that are not, and reports whether there are such:
// the decision waits for them, so that no cluster counts as failed for want of a rendering.
func (c *Controller) lacking(r store.Reader, run *rollouts.Run, d rollout.Decision) bool {
	lacks := false
	for _, g := range assignGroups(run, d) {
		if g.revision != 0 && c.wantVariants(r, run.Module, g.revision, names(g.clusters)) {
			lacks = true
		}
	}
	return lacks
}

// wantVariants asks for the variants that clusters are to have of a revision and that are not rendered, and reports whether there are any.
func (c *Controller) wantVariants(r store.Reader, ref fleet.ModuleRef, revision int64, clusters []fleet.ClusterName) (lacks bool) {
	rev := record.Revision(store.Untracked(r), ref, revision)
	if !record.HasOverrides(rev) {
		return false
	}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
	if err != nil {
		return false
	}
	for _, name := range clusters {
		rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
		if ok && c.wantVariant(ref, rev, assemble.VariantOf(m.Overrides, record.Cluster(rec))) {
			lacks = true
		}
	}
	return lacks
}

// wantVariant asks for a variant of a revision if it is not rendered, and reports whether that is so.
func (c *Controller) wantVariant(ref fleet.ModuleRef, rev *storev1.RevisionRecord, v fleet.Variant) bool {
	if _, err := record.VariantIn(rev, v); !errors.Is(err, record.ErrNotRendered) {
		return false
	}
	c.state(ref).want(rev.GetRevision().GetNumber(), v)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.variants != nil {
		c.variants.ask(store.ModuleKey(ref))
	}
	return true
}

// keepRendered asks for the variants of clusters that have come to one, or are selected, since the revisions were rendered that the module
// is going to: whoever lets something go there has to know what the module is going to list.
func (c *Controller) keepRendered(ctx context.Context, ref fleet.ModuleRef, put *storev1.ModuleRecord, run *rollouts.Run, dirty map[fleet.ClusterName]struct{}, all bool) error {
	if len(dirty) == 0 && !all {
		return nil
	}
	return c.view(ctx, func(r store.Reader) error {
		revisions := map[int64]bool{}
		if run != nil {
			revisions[run.Record.GetRollout().GetRevision()], revisions[run.Record.GetRollout().GetFromRevision()] = true, true
		}
		if len(put.GetModule().GetSpec().GetOverrides()) > 0 {
			revisions[record.NewestRevision(store.Untracked(r), ref).GetRevision().GetNumber()] = true
		}
		for n := range revisions {
			rev := record.Revision(store.Untracked(r), ref, n)
			if !record.HasOverrides(rev) {
				continue
			}
			m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
			if err != nil {
				continue
			}
			for _, rec := range someClusters(r, dirty, all) {
				if cl := record.Cluster(rec); rec.GetRemoving() == "" && assemble.Places(m.Placement, cl, record.Has(r, cl.Name, ref)) {
					c.wantVariant(ref, rev, assemble.VariantOf(m.Overrides, cl))
				}
			}
		}
		return nil
	})
}

// renderWanted renders what was asked for of a module's revisions, and adds it to them.
func (c *Controller) renderWanted(ctx context.Context, ref fleet.ModuleRef) error {
	st := c.state(ref)
	for revision, variants := range st.wanted() {
		if err := c.addVariants(ctx, ref, revision, variants); err != nil {
			for _, v := range variants {
				st.want(revision, v)
			}
			return err
		}
	}
	st.markAll()
	c.modules.add(store.ModuleKey(ref))
	return nil
}

func (c *Controller) addVariants(ctx context.Context, ref fleet.ModuleRef, revision int64, variants []fleet.Variant) error {
	var rev *storev1.RevisionRecord
	if err := c.view(ctx, func(r store.Reader) error {
		rev = record.Revision(store.Untracked(r), ref, revision)
		return nil
	}); err != nil || !record.HasOverrides(rev) {
		return err
	}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
	if err != nil {
		return nil // it is said of every cluster that it cannot be assigned
	}
	epoch, err := c.o.Store.Blobs().Epoch(ctx)
	if err != nil {
		return &storeError{err}
	}
	made, err := c.renderAgain(ctx, m, rev, variants)
	if err != nil {
		return fmt.Errorf("module %s r%d: %w", ref.Display(), revision, err)
	}
	return c.update(ctx, func(w store.Writer) error {
		w.References(epoch)
		now, _, ok := store.Get[*storev1.RevisionRecord](w, store.RevisionKey(ref, revision))
		if !ok || now.GetRevision().GetMetadata().GetCreationTimestamp().AsTime() != rev.GetRevision().GetMetadata().GetCreationTimestamp().AsTime() {
			return nil
		}
		if next := withVariants(now, made); next != nil {
			w.Put(store.RevisionKey(ref, revision), next)
		}
		return nil
	})
}

// renderAgain renders variants of a revision from the files that it was cut from. What cannot be rendered is noted as that: it concerns the
// clusters that have come to it, and no others.
func (c *Controller) renderAgain(ctx context.Context, m *wire.Module, rev *storev1.RevisionRecord, variants []fleet.Variant) (out []*storev1.VariantRecord, err error) {
	archive, err := c.o.Store.Blobs().Get(ctx, record.Digest(rev.GetArtifact()))
	if err != nil && !errors.Is(err, fleet.ErrNotFound) && !errors.Is(err, fleet.ErrCorrupt) {
		return nil, err
	}
	var files map[string][]byte
	if err == nil {
		files, err = artifact.Decode(archive)
	}
	if err != nil {
		err = fmt.Errorf("the files that it was made from cannot be read: %w", err)
	}
	set, failed := c.policiesOf(ctx, m, rev)
	if failed != nil {
		return nil, failed
	}
	x := renderer{c: c, m: m, files: files}
	for _, v := range variants {
		var one madeVariant
		var stored []storedVariant
		problem := err
		if problem == nil {
			one, problem = x.render(ctx, wantedVariant{variant: v})
		}
		if problem == nil {
			stored, problem = c.store(ctx, m, set, []madeVariant{one})
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(problem, fleet.ErrUnavailable) || errors.As(problem, new(*storeError)):
			return nil, problem
		case problem != nil:
			stored = []storedVariant{{variant: v, problem: fleet.Clip(problem.Error(), 2000)}}
		}
		out = append(out, stored[0].record())
	}
	return out, nil
}

// policiesOf are those that a revision was cut with, whatever the project says now.
func (c *Controller) policiesOf(ctx context.Context, m *wire.Module, rev *storev1.RevisionRecord) (fleet.PolicySet, error) {
	content, err := c.o.Store.Blobs().Get(ctx, record.Digest(rev.GetPolicies()))
	if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) {
		return c.policySet(ctx, m)
	}
	if err != nil {
		return fleet.PolicySet{}, err
	}
	return wire.PolicySetFromContent(content)
}

// trimVariants drops from revisions the variants that no cluster has or would have, and those that could not be rendered, so that they
// are tried again.
func (c *Controller) trimVariants(ctx context.Context) error {
	var refs []fleet.ModuleRef
	err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.RevisionPrefix, func(rev *storev1.RevisionRecord, e store.Entry) bool {
			if ref, ok := store.SplitModule(e.Key); ok && record.HasOverrides(rev) && !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
			return true
		})
		return nil
	})
	if err != nil {
		return err
	}
	for _, ref := range refs {
		dropped := false
		if err := c.update(ctx, func(w store.Writer) error {
			dropped = dropVariants(w, ref)
			return nil
		}); err != nil {
			return err
		}
		if dropped {
			c.state(ref).markAll()
			c.modules.add(store.ModuleKey(ref))
		}
	}
	return nil
}

// dropVariants drops variants of a module's revisions that nobody needs; one that is needed after all is rendered again.
func dropVariants(w store.Writer, ref fleet.ModuleRef) (dropped bool) {
	r := store.Untracked(w)
	used := map[fleet.Digest]bool{}
	clusters := record.Clusters(r)
	for _, rec := range clusters {
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(record.Cluster(rec).Name, ref))
		used[record.Digest(d.GetSync().GetBundle())] = true
	}
	store.Scan(r, store.RevisionPrefix+ref.String()+"/", func(rev *storev1.RevisionRecord, e store.Entry) bool {
		m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
		if err != nil || !record.HasOverrides(rev) {
			return true
		}
		had := map[string]bool{"": true}
		for _, rec := range clusters {
			had[assemble.VariantOf(m.Overrides, record.Cluster(rec)).Key()] = true
		}
		next := proto.CloneOf(rev)
		next.Variants = slices.DeleteFunc(next.Variants, func(v *storev1.VariantRecord) bool {
			return v.GetProblem() != "" || !had[fleet.Variant(v.GetOverrides()).Key()] && !used[record.Digest(v.GetBundle())]
		})
		if len(next.Variants) < len(rev.GetVariants()) {
			showVariants(next)
			w.Get(e.Key) // it is written as it was looked at, or not at all
			w.Put(e.Key, next)
			dropped = true
		}
		return true
	})
	return dropped
}
