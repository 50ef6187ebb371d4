package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// assignments are in how many clusters each bundle of each revision is, by the revision's key.
type assignments map[string]map[fleet.Digest]int32

// assignedTo counts in how many clusters each revision is.
func assignedTo(r store.Reader) assignments {
	out := assignments{}
	store.Scan(r, store.DesiredPrefix, func(d *storev1.DesiredRecord, e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok && (d.GetSync() != nil || d.GetNextRevision() != 0) {
			key := store.RevisionKey(ref, max(d.GetSync().GetRevision(), d.GetNextRevision()))
			if out[key] == nil {
				out[key] = map[fleet.Digest]int32{}
			}
			out[key][record.Digest(d.GetSync().GetBundle())]++
		}
		return true
	})
	return out
}

// count has a revision and its variants say in how many clusters they are.
func (x assignments) count(key string, rec *storev1.RevisionRecord, out *towlinev1.Revision) {
	for _, n := range x[key] {
		out.Clusters += n
	}
	for i, v := range rec.GetVariants() {
		if i < len(out.GetVariants()) {
			out.Variants[i].Clusters = x[key][record.Digest(v.GetBundle())]
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
	v, err := chooseVariant(rev, req.GetOverrides())
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
func chooseVariant(rev *storev1.RevisionRecord, overrides []int32) (*storev1.VariantRecord, error) {
	all := record.Variants(rev)
	if len(overrides) == 0 && len(all) == 1 && all[0].GetProblem() == "" {
		return all[0], nil
	}
	v, err := record.VariantIn(rev, overrides)
	if err == nil || !errors.Is(err, record.ErrNotRendered) {
		return v, err
	}
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = fleet.Variant(x.GetOverrides()).String()
	}
	return nil, fleet.Invalidf("overrides", "r%d is not rendered with %s; it is with: %s", rev.GetRevision().GetNumber(), fleet.Variant(overrides), strings.Join(names, "; "))
}
