package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// storedVariant is the same in the store.
type storedVariant struct {
	overrides        []int32
	capabilities     []*storev1.CapabilitiesSum // those that it is for; none: they make no difference
	bundle, policies fleet.Digest
	objects          int
	needs            []string // features of agents
	problem          string   // why there is nothing of it
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
		if set.Policies, err = render.ChartPolicies(set.Policies, v.objects); err != nil {
			return nil, err
		}
		set.Substitution, set.Bindings = substitution(m, v.objects), m.Late()
		set.Waves, set.Uncounted = m.WavesOf(v.objects), render.Uncounted(v.objects)
		policies, err := wire.PolicySetContent(set)
		if err != nil {
			return nil, err
		}
		digest, bundle := assemble.BundleDigest(manifest.ToBundle(v.objects))
		if err := c.put(ctx, m, append(contents, bundle, policies)); err != nil {
			return nil, err
		}
		out[i] = storedVariant{overrides: v.overrides, capabilities: v.capabilities, bundle: digest, policies: fleet.DigestOf(policies), objects: len(v.objects),
			needs: append(wire.Needs(set), wire.SyncNeeds(m)...)}
	}
	return out, nil
}

// agrees reports that a revision has no other bundle for a variant that was rendered again.
func (r rendered) agrees(rev *storev1.RevisionRecord) bool {
	for _, v := range r.variants {
		for _, form := range record.FormsOf(v.record()) {
			was, err := record.VariantIn(rev, form)
			if err == nil && record.Digest(was.GetBundle()) != v.bundle || err != nil && !r.varies() {
				return false
			}
		}
	}
	return true
}

// alike reports that a revision was made as this is.
func (r rendered) alike(rev *storev1.RevisionRecord) bool {
	return record.HasVariants(rev) == r.varies() && rev.GetByCapabilities() == r.asks && r.agrees(rev)
}

// outgrows reports that a cluster which has a revision would have something else of it for what it can do now.
func (r rendered) outgrows(reader store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord) bool {
	return slices.ContainsFunc(record.OutgrownBy(reader, ref, rev), func(x record.Outgrown) bool {
		return slices.ContainsFunc(r.variants, func(v storedVariant) bool {
			return v.bundle != x.Bundle && slices.ContainsFunc(record.FormsOf(v.record()), x.Now.Equal)
		})
	})
}

func (r rendered) records() (out []*storev1.VariantRecord) {
	for _, v := range r.variants {
		out = append(out, v.record())
	}
	return out
}

func (v storedVariant) record() *storev1.VariantRecord {
	if v.problem != "" {
		return &storev1.VariantRecord{Overrides: v.overrides, Problem: v.problem, Capabilities: v.capabilities}
	}
	return &storev1.VariantRecord{Overrides: v.overrides, Capabilities: v.capabilities, Bundle: v.bundle.Bytes(), Policies: v.policies.Bytes(), Needs: v.needs, Objects: int32(v.objects)}
}

// withVariants is a revision with variants that it does not have, or has a problem with; nil: it has all, or has no variants.
func withVariants(rev *storev1.RevisionRecord, more []*storev1.VariantRecord) *storev1.RevisionRecord {
	if !record.HasVariants(rev) {
		return nil
	}
	var out *storev1.RevisionRecord
	for _, v := range more {
		lacks := slices.DeleteFunc(record.FormsOf(v), func(form fleet.Variant) bool {
			_, err := record.VariantIn(rev, form)
			return err == nil
		})
		if len(lacks) == 0 {
			continue
		}
		if out == nil {
			out = proto.CloneOf(rev)
		}
		keepForms(out, func(_ *storev1.VariantRecord, form fleet.Variant) bool {
			return !slices.ContainsFunc(lacks, form.Equal)
		})
		addVariant(out, v, lacks)
	}
	if out == nil {
		return nil
	}
	showVariants(out)
	return out
}

// keepForms drops from a revision what its variants are for and need not be, and those that are for nothing then.
func keepForms(rev *storev1.RevisionRecord, keep func(*storev1.VariantRecord, fleet.Variant) bool) {
	rev.Variants = slices.DeleteFunc(rev.Variants, func(x *storev1.VariantRecord) bool {
		if len(x.GetCapabilities()) == 0 {
			return !keep(x, record.FormsOf(x)[0])
		}
		i := 0
		forms := record.FormsOf(x)
		x.Capabilities = slices.DeleteFunc(x.Capabilities, func(*storev1.CapabilitiesSum) bool {
			i++
			return !keep(x, forms[i-1])
		})
		return len(x.Capabilities) == 0
	})
}

// addVariant adds a variant to a revision, for what that lacks: to one with the same bundle, or the same problem, if there is one.
func addVariant(rev *storev1.RevisionRecord, v *storev1.VariantRecord, lacks []fleet.Variant) {
	v = proto.CloneOf(v)
	v.Capabilities = slices.DeleteFunc(v.Capabilities, func(s *storev1.CapabilitiesSum) bool {
		return !slices.ContainsFunc(lacks, fleet.Variant{Overrides: v.GetOverrides(), Capabilities: record.Digest(s.GetDigest())}.Equal)
	})
	i := slices.IndexFunc(rev.Variants, func(x *storev1.VariantRecord) bool {
		return len(v.Capabilities) > 0 && v.GetProblem() == x.GetProblem() && slices.Equal(x.GetOverrides(), v.GetOverrides()) && bytes.Equal(x.GetBundle(), v.GetBundle()) && bytes.Equal(x.GetPolicies(), v.GetPolicies())
	})
	switch {
	case i >= 0:
		rev.Variants[i].Capabilities = append(rev.Variants[i].Capabilities, v.GetCapabilities()...)
	case len(rev.Variants) < assemble.MaxVariants:
		rev.Variants = append(rev.Variants, v)
	}
}

// showVariants has what people see of a revision say what it renders to.
func showVariants(rev *storev1.RevisionRecord) {
	slices.SortFunc(rev.Variants, func(a, b *storev1.VariantRecord) int { return record.FormsOf(a)[0].Compare(record.FormsOf(b)[0]) })
	shown := rev.GetRevision()
	shown.Variants, shown.Objects = nil, 0
	for _, v := range rev.GetVariants() {
		x := &towlinev1.Variant{Overrides: v.GetOverrides(), Objects: v.GetObjects(), Problem: v.GetProblem(), Capabilities: record.CapabilitiesShown(v.GetCapabilities())}
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
	if !record.HasVariants(rev) {
		return false
	}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
	if err != nil {
		return false
	}
	for _, name := range clusters {
		rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
		if ok && c.wantVariant(ref, rev, record.VariantFor(r, ref, rev, m.Overrides, record.Cluster(rec))) {
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
		if m := put.GetModule().GetSpec(); len(m.GetOverrides()) > 0 || m.GetPackage().GetHelm() != nil || m.GetSource().GetHelm() != nil {
			revisions[record.NewestRevision(store.Untracked(r), ref).GetRevision().GetNumber()] = true
		}
		for n := range revisions {
			rev := record.Revision(store.Untracked(r), ref, n)
			if !record.HasVariants(rev) {
				continue
			}
			m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev))
			if err != nil {
				continue
			}
			for _, rec := range someClusters(r, dirty, all) {
				if cl := record.Cluster(rec); rec.GetRemoving() == "" && record.Places(r, m.Placement, cl, ref) {
					c.wantVariant(ref, rev, record.VariantFor(r, ref, rev, m.Overrides, cl))
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
	}); err != nil || !record.HasVariants(rev) {
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
	files, err := c.filesOf(ctx, rev)
	if err != nil && !isLost(err) {
		return nil, err
	}
	if err != nil {
		err = fmt.Errorf("the files that it was made from cannot be read: %w", err)
	}
	set, failed := c.policiesOf(ctx, m, rev)
	if failed != nil {
		return nil, failed
	}
	wanted, failed := c.again(ctx, rev, variants)
	if failed != nil {
		return nil, failed
	}
	x := renderer{c: c, m: m, files: files}
	for _, v := range wanted {
		one := madeVariant{overrides: v.variant.Overrides, capabilities: v.sums(rev)}
		var stored []storedVariant
		problem := err
		if problem == nil {
			one, problem = x.render(ctx, v)
			one.capabilities = v.sums(rev)
		}
		if errors.Is(problem, fleet.ErrStopped) {
			problem = c.state(m.Ref).stoppedAgain(fmt.Sprintf("r%d %s", rev.GetRevision().GetNumber(), v.variant.Key()), problem)
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
			stored = []storedVariant{{overrides: v.variant.Overrides, capabilities: v.sums(rev), problem: fleet.Clip(problem.Error(), 2000)}}
		}
		out = append(out, stored[0].record())
	}
	return out, nil
}

// again are variants of a revision that are to be rendered, with what their clusters can do. Where no cluster can do that any more, nobody
// needs them.
func (c *Controller) again(ctx context.Context, rev *storev1.RevisionRecord, variants []fleet.Variant) (out []wantedVariant, err error) {
	able := record.Capable{}
	return out, c.view(ctx, func(r store.Reader) error {
		for _, v := range variants {
			w := wantedVariant{variant: v}
			is, told := able.Find(r, v.Capabilities)
			switch {
			case rev.GetByCapabilities() && told:
				w.able = &is
			case !v.Capabilities.IsZero():
				continue
			}
			out = append(out, w)
		}
		return nil
	})
}

// sums are the capabilities that a variant of a revision is for.
func (w wantedVariant) sums(rev *storev1.RevisionRecord) []*storev1.CapabilitiesSum {
	switch {
	case !rev.GetByCapabilities():
		return nil
	case w.able == nil:
		return []*storev1.CapabilitiesSum{{}}
	}
	return []*storev1.CapabilitiesSum{w.able.Sum}
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
			if ref, ok := store.SplitModule(e.Key); ok && record.HasVariants(rev) && !slices.Contains(refs, ref) {
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
		if err != nil || !record.HasVariants(rev) {
			return true
		}
		had := map[string]bool{"": true}
		for _, rec := range clusters {
			had[record.VariantFor(r, ref, rev, m.Overrides, record.Cluster(rec)).Key()] = true
		}
		next := proto.CloneOf(rev)
		keepForms(next, func(v *storev1.VariantRecord, form fleet.Variant) bool {
			// What only some may still have by its bundle is kept for the first that it is for.
			return v.GetProblem() == "" && (had[form.Key()] || used[record.Digest(v.GetBundle())] && form.Equal(record.FormsOf(v)[0]))
		})
		if !proto.Equal(next, rev) {
			showVariants(next)
			w.Get(e.Key) // it is written as it was looked at, or not at all
			w.Put(e.Key, next)
			dropped = true
		}
		return true
	})
	return dropped
}
