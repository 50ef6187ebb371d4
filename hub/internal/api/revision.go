package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// assignments are in how many clusters each bundle of each revision is, by the revision's key.
type assignments struct {
	bundles map[string]map[fleet.Digest]int32
	shared  map[string]*sharedBundles
}

// sharedBundles are a revision of which variants have the same bundle, and in how many clusters each variant is.
type sharedBundles struct {
	rec       *storev1.RevisionRecord
	overrides []fleet.Override
	clusters  []int32
}

// add counts a cluster that has a bundle of the revision: by the overrides that match it, if they have that one. One whose labels changed,
// and that has not followed yet, is in the first variant that has it.
func (x *sharedBundles) add(r store.Reader, name fleet.ClusterName, bundle fleet.Digest) {
	has := func(v *storev1.VariantRecord) bool { return record.Digest(v.GetBundle()) == bundle }
	all := x.rec.GetVariants()
	i := slices.IndexFunc(all, has)
	if rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name)); ok {
		of := assemble.VariantOf(x.overrides, record.Cluster(rec))
		if j := slices.IndexFunc(all, func(v *storev1.VariantRecord) bool { return slices.Equal(v.GetOverrides(), of.Overrides) && has(v) }); j >= 0 {
			i = j
		}
	}
	if i >= 0 {
		x.clusters[i]++
	}
}

// sharing are the revisions of which variants have the same bundle, by key.
func sharing(r store.Reader) map[string]*sharedBundles {
	out := map[string]*sharedBundles{}
	store.Scan(r, store.RevisionPrefix, func(rec *storev1.RevisionRecord, e store.Entry) bool {
		seen := map[fleet.Digest]bool{}
		for _, v := range rec.GetVariants() {
			seen[record.Digest(v.GetBundle())] = true
		}
		if ref, ok := store.SplitModule(e.Key); ok && len(seen) < len(rec.GetVariants()) {
			if m, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rec)); err == nil {
				out[e.Key] = &sharedBundles{rec: rec, overrides: m.Overrides, clusters: make([]int32, len(rec.GetVariants()))}
			}
		}
		return true
	})
	return out
}

// assignedTo counts in how many clusters each revision is.
func assignedTo(r store.Reader) assignments {
	out := assignments{bundles: map[string]map[fleet.Digest]int32{}, shared: sharing(r)}
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		if name, ref, ok := store.SplitClusterModule(e.Key); ok && (d.GetSync() != nil || d.GetNextRevision() != 0) {
			key, bundle := store.RevisionKey(ref, max(d.GetSync().GetRevision(), d.GetNextRevision())), record.Digest(d.GetSync().GetBundle())
			if out.bundles[key] == nil {
				out.bundles[key] = map[fleet.Digest]int32{}
			}
			out.bundles[key][bundle]++
			if x := out.shared[key]; x != nil {
				x.add(r, name, bundle)
			}
		}
		return true
	})
	return out
}

// count has a revision and its variants say in how many clusters they are.
func (x assignments) count(key string, rec *storev1.RevisionRecord, out *towlinev1.Revision) {
	for _, n := range x.bundles[key] {
		out.Clusters += n
	}
	shared := x.shared[key]
	for i, v := range rec.GetVariants() {
		switch {
		case i >= len(out.GetVariants()):
		case shared != nil:
			out.Variants[i].Clusters = shared.clusters[i]
		default:
			out.Variants[i].Clusters = x.bundles[key][record.Digest(v.GetBundle())]
		}
	}
}

// ListRevisions reads the revisions of modules, newest first for each, without the files of inline sources.
func (a *API) ListRevisions(ctx context.Context, req *towlinev1.ListRevisionsRequest) (*towlinev1.ListRevisionsResponse, error) {
	var lines []line[*towlinev1.Revision]
	resp := &towlinev1.ListRevisionsResponse{}
	err := a.view(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		assigned := assignedTo(r)
		store.Scan(r, store.RevisionPrefix, func(rec *storev1.RevisionRecord, e store.Entry) bool {
			ref, ok := store.SplitModule(e.Key)
			if !ok || (req.GetProject() != "" && ref.Project != req.GetProject()) || (req.GetModule() != "" && ref.Name != req.GetModule()) {
				return true
			}
			if _, first := rollouts.First(r, ref); rec.GetRevision().GetNumber() < first {
				return true
			}
			lines = append(lines, line[*towlinev1.Revision]{key: newestFirst(ref, rec.GetRevision().GetNumber()), show: func() *towlinev1.Revision {
				rev := proto.CloneOf(rec.GetRevision())
				assigned.count(e.Key, rec, rev)
				if inline := rev.GetSpec().GetSource().GetInline(); inline != nil {
					inline.Files = nil
				}
				return rev
			}})
			return true
		})
		sortLines(lines)
		resp.Revisions, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
	return resp, err
}

// newestFirst is the key of a module's revision or rollout in a list that has the newest of each module first.
func newestFirst(ref fleet.ModuleRef, number int64) string {
	return fmt.Sprintf("%s\x00%s\x00%019d", ref.Project, ref.Name, math.MaxInt64-number)
}

// GetRevision reads one, whole.
func (a *API) GetRevision(ctx context.Context, req *towlinev1.GetRevisionRequest) (*towlinev1.GetRevisionResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetRevisionResponse{}
	return resp, a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		rec, err := findRevision(r, ref, req.GetNumber())
		if err != nil {
			return err
		}
		resp.Revision = proto.CloneOf(rec.GetRevision())
		assignedTo(r).count(store.RevisionKey(ref, rec.GetRevision().GetNumber()), rec, resp.Revision)
		return nil
	})
}

// findRevision reads the revision of a number; 0: the newest.
func findRevision(r store.Reader, ref fleet.ModuleRef, number int64) (*storev1.RevisionRecord, error) {
	if _, found := r.Get(store.ModuleKey(ref)); !found {
		return nil, noModule(ref)
	}
	rec := record.NewestRevision(r, ref)
	if number != 0 {
		if err := record.DamagedRevision(r, ref, number); err != nil {
			return nil, err
		}
		rec = record.Revision(r, ref, number)
	}
	if rec == nil {
		return nil, record.NoRevision(ref, number)
	}
	return rec, nil
}

// GetRevisionObjects returns the rendered manifests, Secret values masked.
func (a *API) GetRevisionObjects(ctx context.Context, req *towlinev1.GetRevisionObjectsRequest) (*towlinev1.GetRevisionObjectsResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	var rev *storev1.RevisionRecord
	err = a.view(ctx, req.GetMinRevision(), func(r store.Reader) (err error) {
		rev, err = findRevision(r, ref, req.GetNumber())
		return err
	})
	if err != nil {
		return nil, err
	}
	v, err := chooseVariant(rev, req.GetOverrides(), req.GetBundle())
	if err != nil {
		return nil, named("module", ref.Display(), err)
	}
	b, err := a.o.Bundles.Get(ctx, record.Digest(v.GetBundle()))
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetRevisionObjectsResponse{}
	for _, e := range b.Entries {
		raw, err := a.o.Store.Blobs().Get(ctx, e.Digest)
		if err != nil {
			return nil, err
		}
		if raw, err = masked(e.ID, raw); err != nil {
			return nil, err
		}
		resp.Objects = append(resp.Objects, raw)
	}
	return resp, nil
}

// chooseVariant is the variant of a revision that somebody asks for; without overrides there is one.
func chooseVariant(rev *storev1.RevisionRecord, overrides []int32, bundle string) (*storev1.VariantRecord, error) {
	all := record.Variants(rev)
	if rev.GetByCapabilities() || bundle != "" {
		i := slices.IndexFunc(all, func(v *storev1.VariantRecord) bool {
			return slices.Equal(v.GetOverrides(), overrides) && v.GetProblem() == "" && (bundle == "" || record.Digest(v.GetBundle()).String() == bundle)
		})
		if i >= 0 {
			return all[i], nil
		}
	}
	if len(overrides) == 0 && len(all) == 1 && all[0].GetProblem() == "" {
		return all[0], nil
	}
	v, err := record.VariantIn(rev, fleet.Variant{Overrides: overrides})
	if err == nil || !errors.Is(err, record.ErrNotRendered) {
		return v, err
	}
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = fleet.Variant{Overrides: x.GetOverrides()}.String()
	}
	return nil, fleet.Invalidf("overrides", "r%d is not rendered with %s; it is with: %s", rev.GetRevision().GetNumber(), fleet.Variant{Overrides: overrides}, strings.Join(names, "; "))
}
