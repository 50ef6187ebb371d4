package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// ListHolds reads what waits for a person or is frozen.
func (a *API) ListHolds(ctx context.Context, req *towlinev1.ListHoldsRequest) (*towlinev1.ListHoldsResponse, error) {
	var lines []line[*towlinev1.Hold]
	err := a.overview(ctx, req.GetMinRevision(), func(o overview) error {
		record.EachHold(o, func(h *towlinev1.Hold, e store.Entry) {
			if (req.GetProject() == "" || h.GetProject() == req.GetProject() || h.GetModule() == "" && h.GetCatalog() == "") &&
				(req.GetModule() == "" || h.GetModule() == req.GetModule()) && (req.GetCluster() == "" || concerns(h, req.GetCluster())) {
				lines = append(lines, shown(showHold(h, e), oldestFirst))
			}
		})
		of := &towlinev1.ObjectFilter{Project: req.GetProject(), Module: req.GetModule(), Cluster: req.GetCluster()}
		eachAnnotation(o, o.sums, of, a.now(), func(h *towlinev1.Hold) { lines = append(lines, shown(h, oldestFirst)) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	sortLines(lines)
	resp := &towlinev1.ListHoldsResponse{}
	resp.Holds, resp.NextPageToken, resp.Total, err = paginate(req, lines)
	return resp, err
}

// concerns reports that a hold is of this cluster, or asks whether it may lose a module.
func concerns(h *towlinev1.Hold, cluster string) bool {
	return h.GetCluster() == cluster || h.GetCode() == fleet.HoldLeaves && slices.Contains(h.GetItems(), cluster)
}

// eachAnnotation calls fn for the holds that annotations in clusters put on objects, in the order of clusters and modules. Only where
// there are any is a record read, and a module of which nothing is held costs one look: each row of a list of modules asks.
func eachAnnotation(r store.Reader, sums *counts.View, of *towlinev1.ObjectFilter, now time.Time, fn func(*towlinev1.Hold)) {
	if of.GetProject() != "" && of.GetModule() != "" {
		if m, _ := sums.Module(fleet.ModuleRef{Project: of.GetProject(), Name: of.GetModule()}); m.Held == 0 {
			return
		}
	}
	for _, c := range sums.Clusters() {
		if of.GetCluster() != "" && of.GetCluster() != string(c) || sums.Cluster(c).Held == 0 {
			continue
		}
		for _, ref := range sums.ModulesIn(c) {
			if of.GetProject() != "" && of.GetProject() != ref.Project || of.GetModule() != "" && of.GetModule() != ref.Name {
				continue
			}
			if cell, _ := sums.Cell(c, ref); cell.Held == 0 {
				continue
			}
			t, _ := record.Track(store.Untracked(r), c, ref, true)
			for _, h := range t.AnnotationHolds() {
				if record.Lasts(h, now) {
					fn(h)
				}
			}
		}
	}
}

func showHold(h *towlinev1.Hold, e store.Entry) *towlinev1.Hold {
	out := proto.CloneOf(h)
	out.ResourceVersion = e.ModRevision
	out.Count = max(out.Count, int32(len(out.Items)))
	return out
}

// oldestFirst is the key of a hold in a list that has the oldest first.
func oldestFirst(h *towlinev1.Hold) string {
	return fmt.Sprintf("%020d/%s", max(h.GetSince().AsTime().UnixNano(), 0), h.GetId())
}

// ConfirmHold releases exactly what a hold lists, or ends a freeze.
func (a *API) ConfirmHold(ctx context.Context, req *towlinev1.ConfirmHoldRequest) (*towlinev1.ConfirmHoldResponse, error) {
	resp := &towlinev1.ConfirmHoldResponse{}
	var err error
	resp.Revision, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		key := store.HoldPrefix + req.GetId()
		rec, e, ok := store.Get[*storev1.HoldRecord](w, key)
		if !ok && record.IsAnnotation(req.GetId()) {
			return fleet.Forbids(holdObject(req.GetId()), "hold %s is the annotation %s on the object in its cluster: take it away there", req.GetId(), fleet.HoldAnnotation)
		}
		if !ok {
			return fleet.NotFound(holdObject(req.GetId()), "hold %s not found: it was confirmed or has ended, or what it listed has changed, and has another id then; see: towline get holds -A", req.GetId())
		}
		if d := req.GetDigest(); d != "" && d != rec.GetHold().GetDigest() {
			return fleet.Errorf(fleet.ErrConflict, "hold %s lists something else by now; look at it again: towline describe hold %s", req.GetId(), req.GetId())
		}
		if err := fleet.SameVersion(holdObject(req.GetId()), e.ModRevision, req.GetResourceVersion()); err != nil {
			return err
		}
		resp.Hold = showHold(rec.GetHold(), e)
		if rec.GetHold().GetKind() == record.HoldFreeze {
			w.Delete(key)
			return nil
		}
		w.Put(store.ConfirmPrefix+req.GetId(), &storev1.ConfirmRecord{Digest: rec.GetHold().GetDigest(), By: who(ctx), At: timestamppb.New(a.now())})
		return nil
	})
	return resp, err
}

// PutHold freezes a module, a cluster, a module in a cluster, or an object of it.
func (a *API) PutHold(ctx context.Context, req *towlinev1.PutHoldRequest) (*towlinev1.PutHoldResponse, error) {
	if req.GetModule() == "" && req.GetCluster() == "" {
		return nil, fleet.Invalid("", "name a module or a cluster to hold")
	}
	if err := lasts(req.GetUntil(), a.now()); err != nil {
		return nil, err
	}
	h := &towlinev1.Hold{Kind: record.HoldFreeze, Module: req.GetModule(), Cluster: req.GetCluster(), Reason: req.GetReason(),
		By: who(ctx), Since: timestamppb.New(a.now()), Until: req.GetUntil()}
	if h.Module != "" {
		h.Project = project(req.GetProject())
	}
	if req.GetObject() != nil {
		if err := a.speakOf(ctx, req, h); err != nil {
			return nil, err
		}
	}
	h.Digest = record.DigestOfFreeze(h).String()
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		if err := isThere(w, h, req); err != nil {
			return err
		}
		h.Id = freezeID(w, h, a.now())
		if err := endsSooner(w, h, a.now()); err != nil && !req.GetShorten() {
			return err
		}
		record.PutFreeze(w, proto.CloneOf(h))
		return nil
	})
	h.ResourceVersion = rev
	return &towlinev1.PutHoldResponse{Hold: h, Revision: rev}, err
}

// isThere checks that what is to be held is there, and is what was meant. One whose record cannot be read is there: it runs on, and may have to be
// stopped.
func isThere(r store.Reader, h *towlinev1.Hold, req *towlinev1.PutHoldRequest) error {
	if ref := (fleet.ModuleRef{Project: h.Project, Name: h.Module}); h.Module != "" {
		if _, _, ok := moduleRecord(r, ref); !ok {
			return noModule(ref)
		}
		if err := sameModule(r, ref, req.GetModuleUid()); err != nil {
			return err
		}
	}
	if c := fleet.ClusterName(h.Cluster); c != "" && store.DamageOf(r, store.ClusterKey(c)) == nil {
		if _, ok := r.Get(store.ClusterKey(c)); !ok {
			return noCluster(c)
		}
		return sameCluster(r, c, req.GetClusterUid())
	}
	return nil
}

// endsSooner refuses a hold that would take the place of one which lasts longer: writes would begin in the middle of what that is for, and whoever
// put it may be another person, or job, by the same name.
func endsSooner(r store.Reader, h *towlinev1.Hold, now time.Time) error {
	rec, _, there := store.Get[*storev1.HoldRecord](r, store.HoldPrefix+h.GetId())
	old := rec.GetHold()
	if !there || h.GetUntil() == nil || !record.Lasts(old, now) {
		return nil
	}
	end := "without an end"
	switch {
	case old.GetUntil() == nil:
	case old.GetUntil().AsTime().After(h.GetUntil().AsTime()):
		end = "until " + old.GetUntil().AsTime().UTC().Format(time.RFC3339)
	default:
		return nil
	}
	return fleet.Forbids(holdObject(old.GetId()), "hold %s: %s holds that for the same reason already, %s, and it would end at %s; to have it end sooner: --shorten (shorten in the API); to hold it for another reason beside that: -m REASON",
		old.GetId(), cmp.Or(old.GetBy(), "somebody"), end, h.GetUntil().AsTime().UTC().Format(time.RFC3339))
}

// lasts checks the end of something that begins now. One that is over already, as by a clock that is behind, would be taken and do
// nothing.
func lasts(until *timestamppb.Timestamp, now time.Time) error {
	switch {
	case until == nil:
		return nil
	case until.CheckValid() != nil:
		return fleet.Invalid("until", "is no time")
	case !until.AsTime().After(now):
		return fleet.Invalidf("until", "%s is over already: by the hub's clock it is %s", until.AsTime().UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// speakOf has a hold speak of one object, which the module must have that is named, if any is.
func (a *API) speakOf(ctx context.Context, req *towlinev1.PutHoldRequest, h *towlinev1.Hold) error {
	row, err := a.oneObject(ctx, &towlinev1.ExplainObjectRequest{Cluster: req.GetCluster(), Object: req.GetObject()})
	if err != nil {
		return err
	}
	id := record.ObjectOf(row.GetObject())
	if h.Module != "" && (h.Module != row.GetModule() || h.Project != row.GetProject()) {
		return fleet.Invalidf("module", "%s is of module %s in cluster %s", id, fleet.ModuleRef{Project: row.GetProject(), Name: row.GetModule()}.Display(), h.Cluster)
	}
	h.Project, h.Module, h.Object, h.Items = row.GetProject(), row.GetModule(), row.GetObject(), []string{id.String()}
	return nil
}

// freezeID is the id of a hold: of the same, whoever puts it again for the same reason has one, and others have one of their own beside it, as
// has whoever puts another for another reason: several people may go by one name. None of them ends with another, for each counts on its own.
func freezeID(r store.Reader, h *towlinev1.Hold, now time.Time) string {
	first, own := record.HoldID(record.FreezeID, record.DigestOfFreeze(h)), record.HoldID(record.FreezeID, record.DigestOfFreezeBy(h))
	if _, there := r.Get(store.HoldPrefix + own); there {
		return own
	}
	old, _, there := store.Get[*storev1.HoldRecord](r, store.HoldPrefix+first)
	if x := old.GetHold(); there && (x.GetBy() != h.GetBy() || x.GetReason() != h.GetReason()) && record.Lasts(x, now) {
		return own
	}
	return first
}
