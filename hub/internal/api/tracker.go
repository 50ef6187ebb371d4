package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
)

// tracked collects the trackers that the filter's project, module, cluster and cluster selector take, sorted by
// cluster, project and module.
func (a *API) tracked(ctx context.Context, f *towlinev1.ObjectFilter, minRevision int64) (rows []record.Tracked, rev int64, err error) {
	sel, err := selector(f.GetClusterSelector())
	if err != nil {
		return nil, 0, err
	}
	err = a.view(ctx, minRevision, func(r store.Reader) error {
		rev = r.Revision()
		for _, c := range record.Clusters(r) {
			meta := c.GetCluster().GetMetadata()
			name := fleet.ClusterName(meta.GetName())
			if (f.GetCluster() != "" && f.GetCluster() != meta.GetName()) || !sel.Matches(labels.Set(meta.GetLabels())) {
				continue
			}
			connected := a.o.Sessions.Connected(name)
			for _, ref := range modulesToRead(r, name, f) {
				if t, ok := record.Track(r, name, ref, connected); ok {
					rows = append(rows, t)
				}
			}
		}
		return nil
	})
	return rows, rev, err
}

func modulesToRead(r store.Reader, c fleet.ClusterName, f *towlinev1.ObjectFilter) []fleet.ModuleRef {
	if f.GetModule() != "" && f.GetProject() != "" {
		return []fleet.ModuleRef{{Project: f.GetProject(), Name: f.GetModule()}}
	}
	var out []fleet.ModuleRef
	for _, ref := range record.ModulesOf(r, c) {
		if (f.GetModule() == "" || ref.Name == f.GetModule()) && (f.GetProject() == "" || ref.Project == f.GetProject()) {
			out = append(out, ref)
		}
	}
	return out
}

func showTracker(t record.Tracked) *towlinev1.Tracker {
	out := &towlinev1.Tracker{ApiVersion: fleet.APIVersion, Kind: "Tracker", Project: t.Module.Project, Module: t.Module.Name,
		Cluster: string(t.Cluster), Revision: t.Revision(), Generation: t.Generation(), Sync: string(t.Tracker.Sync),
		Health: string(t.Tracker.Health), Ready: t.Tracker.Ready, Objects: int32(t.Tracker.Counts.Objects),
		Healthy: int32(t.Tracker.Counts.Healthy), Drifted: int32(t.Tracker.Counts.Drifted), Extra: int32(t.Tracker.Counts.Extra), Unjudged: int32(t.Tracker.Counts.Unjudged),
		Reason: t.Tracker.Reason, Message: t.Tracker.Message, Connected: t.Input.Connected, Removing: t.Tracker.Removing}
	if !t.Tracker.Since.IsZero() {
		out.Since = timestamppb.New(t.Tracker.Since)
	}
	out.LastHeard = lastHeard(t)
	if was := t.Tracker.Was; was != nil {
		out.WasSync, out.WasHealth = string(was.Sync), string(was.Health)
		out.WasHealthy, out.WasDrifted = int32(was.Counts.Healthy), int32(was.Counts.Drifted)
	}
	if hasExtras(t) {
		out.Revisions = showParts(t, t.Parts(0), nil)
	}
	if o := t.Input.Observed; o != nil {
		out.ObservedGeneration, out.Corrections = o.Generation, int64(o.Corrections)
	}
	return out
}

// standing says of a removal that somebody had stopped why it stands still now that nobody stops it: its agent was not told that, and speaks of the hold.
func (a *API) standing(r store.Reader, t record.Tracked, out *towlinev1.Tracker) *towlinev1.Tracker {
	o := t.Input.Observed
	if !record.StoppedRemoval(t.Desired) || t.Desired.GetProblem() != "" || o == nil || o.Phase != fleet.PhaseHeld || out.GetReason() != o.Reason {
		return out
	}
	r = store.Untracked(r)
	rec, _, _ := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(t.Cluster))
	if record.ReadHolds(r, a.now()).StopsRemoval(t.Module, t.Cluster, true) || !record.ExitInForce(r, t.Module).PlacesAgain(rec, t.Desired) {
		return out
	}
	out.Reason, out.Message = fleet.TrackerPlacedAgain, ""
	return out
}

// hasExtras reports that the agent has said of objects that the sync does not list.
func hasExtras(t record.Tracked) bool { return t.Input.Observed != nil && t.Input.Observed.Extra() > 0 }

// lastHeard is when a cluster that cannot be seen was heard of last.
func lastHeard(t record.Tracked) *timestamppb.Timestamp {
	if t.Input.LastHeard.IsZero() || !t.Tracker.Away && t.Tracker.Was == nil && !t.Input.Regressed {
		return nil
	}
	return timestamppb.New(t.Input.LastHeard)
}

// trackerKey sorts trackers.
func trackerKey(ref fleet.ModuleRef, c fleet.ClusterName) string {
	return ref.Project + "\x00" + ref.Name + "\x00" + string(c)
}

// scope is which modules and clusters a filter takes.
type scope struct {
	filter *towlinev1.ObjectFilter
	chosen map[fleet.ClusterName]bool // nil: all
}

func scopeOf(r store.Reader, f *towlinev1.ObjectFilter) (scope, error) {
	sel, err := selector(f.GetClusterSelector())
	if err != nil || f.GetCluster() == "" && sel.Empty() {
		return scope{filter: f}, err
	}
	s := scope{filter: f, chosen: map[fleet.ClusterName]bool{}}
	store.Scan(r, store.ClusterPrefix, func(rec *storev1.ClusterRecord, _ store.Entry) bool {
		meta := rec.GetCluster().GetMetadata()
		if (f.GetCluster() == "" || f.GetCluster() == meta.GetName()) && sel.Matches(labels.Set(meta.GetLabels())) {
			s.chosen[fleet.ClusterName(meta.GetName())] = true
		}
		return true
	})
	return s, nil
}

func (s scope) cluster(c fleet.ClusterName) bool { return s.chosen == nil || s.chosen[c] }

func (s scope) module(ref fleet.ModuleRef) bool {
	return (s.filter.GetModule() == "" || s.filter.GetModule() == ref.Name) && (s.filter.GetProject() == "" || s.filter.GetProject() == ref.Project)
}

// everyModule reports that no module is left out.
func (s scope) everyModule() bool { return s.filter.GetModule() == "" && s.filter.GetProject() == "" }

// ListTrackers reads one row for each module and cluster.
func (a *API) ListTrackers(ctx context.Context, req *towlinev1.ListTrackersRequest) (*towlinev1.ListTrackersResponse, error) {
	after, err := tokenOf(req)
	if err != nil {
		return nil, err
	}
	if req.GetFilter().GetExpression() != "" {
		return nil, fleet.Invalid("filter.expression", "is for objects, not for trackers")
	}
	resp, p, health := &towlinev1.ListTrackersResponse{}, newPager[*towlinev1.Tracker](req), req.GetFilter().GetHealth()
	away := map[fleet.ClusterName]bool{}
	err = a.overview(ctx, req.GetMinRevision(), func(o overview) error {
		in, err := scopeOf(o, req.GetFilter())
		if err != nil {
			return err
		}
		for _, ref := range o.sums.Modules() {
			clusters := o.sums.ClustersOf(ref)
			switch whole := in.chosen == nil && health == ""; {
			case !in.module(ref):
				continue
			case whole:
				if resp.Total += int32(len(clusters)); p.full() || trackerKey(ref, clusters[len(clusters)-1]) <= after {
					continue
				}
			}
			for _, c := range clusters {
				cell, _ := o.sums.Cell(c, ref)
				if health != "" && !cell.Seen && in.cluster(c) {
					away[c] = true
				}
				if !in.cluster(c) || health != "" && !strings.EqualFold(health, string(cell.Health)) {
					continue
				}
				if in.chosen != nil || health != "" {
					resp.Total++
				}
				if key := trackerKey(ref, c); key > after && !p.full() {
					if t, ok := record.Track(o, c, ref, a.o.Sessions.Connected(c)); ok {
						p.add(key, a.standing(o, t, showTracker(t)))
					}
				}
			}
		}
		return nil
	})
	resp.Trackers, resp.NextPageToken, resp.Total, resp.Away = p.rows, p.next, totalOf(req, int(resp.Total)), int32(len(away))
	return resp, err
}

// objects lists every row that the filter takes, exact also with agents away.
func (a *API) objects(ctx context.Context, f *towlinev1.ObjectFilter, minRevision int64) ([]*towlinev1.Object, int64, error) {
	return a.objectsWhere(ctx, f, nil, minRevision)
}

// objectsWhere lists those of them that meet the condition.
func (a *API) objectsWhere(ctx context.Context, f *towlinev1.ObjectFilter, c *condition, minRevision int64) ([]*towlinev1.Object, int64, error) {
	all, rev, err := a.tracked(ctx, f, minRevision)
	if err != nil {
		return nil, 0, err
	}
	rows, err := a.objectsOf(ctx, f, c, all)
	return rows, rev, err
}

// objectsNamed are those of objects whose names can be read. Where others may be the ones that are asked for that is the error, and not that there are
// none.
func (a *API) objectsNamed(ctx context.Context, f *towlinev1.ObjectFilter, minRevision int64) ([]*towlinev1.Object, error) {
	all, _, err := a.objects(ctx, f, minRevision)
	if err != nil {
		return nil, err
	}
	named := slices.DeleteFunc(slices.Clone(all), isUnread)
	if len(named) == 0 && len(all) > 0 {
		return nil, errUnread(all[0])
	}
	return named, nil
}

func errUnread(row *towlinev1.Object) error {
	return fleet.Errorf(fleet.ErrCorrupt, "module %s in cluster %s: %s", row.GetModule(), row.GetCluster(), row.GetMessage())
}

func (a *API) objectsOf(ctx context.Context, f *towlinev1.ObjectFilter, c *condition, all []record.Tracked) ([]*towlinev1.Object, error) {
	var rows []*towlinev1.Object
	for i := range all {
		t := &all[i]
		if f.GetRevision() != 0 && f.GetRevision() != t.Revision() && !hasExtras(*t) {
			continue
		}
		found, err := a.rowsIn(ctx, t, f)
		if err != nil {
			return nil, err
		}
		for _, row := range found {
			shown := showObject(*t, row)
			ok, err := c.holds(ctx, shown)
			if err != nil {
				return nil, err
			}
			if ok {
				rows = append(rows, shown)
			}
		}
	}
	return rows, nil
}

// rowsIn are the rows of a tracker that the filter takes. One of which the content that names its objects cannot be read has a row of its own that
// says so, and keeps nobody from the others' (DESIGN §1.8).
func (a *API) rowsIn(ctx context.Context, t *record.Tracked, f *towlinev1.ObjectFilter) ([]tracker.Row, error) {
	listed, err := a.listedOf(ctx, *t)
	if isLost(err) {
		if row := unread(t, err); f.GetRevision() == 0 || f.GetRevision() == revisionOf(t, row) { // how its objects are nobody can tell
			return []tracker.Row{row}, nil
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.ListExtras()
	return slices.DeleteFunc(tracker.Rows(t.Input, listed), func(row tracker.Row) bool { return !matches(f, t, row) }), nil
}

// isLost reports that a content cannot be had from the store.
func isLost(err error) bool {
	return errors.Is(err, fleet.ErrCorrupt) || errors.Is(err, fleet.ErrNotFound)
}

// moduleID stands for all objects of a module whose names cannot be read.
func moduleID(name string) fleet.ObjectID {
	group, _ := fleet.SplitAPIVersion(fleet.APIVersion)
	return fleet.ObjectID{Group: group, Kind: "Module", Name: name}
}

func unread(t *record.Tracked, err error) tracker.Row {
	_, version := fleet.SplitAPIVersion(fleet.APIVersion)
	return tracker.Row{ID: moduleID(t.Module.Name), Version: version, Reason: fleet.AttentionDamaged, Message: fmt.Sprintf("its %d objects cannot be listed: %v", t.Tracker.Counts.Objects, err),
		State: fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Drift: fleet.DriftUnknown}}
}

// isUnread reports that a row is such a one.
func isUnread(o *towlinev1.Object) bool {
	return o.GetReason() == fleet.AttentionDamaged && record.ObjectOf(o.GetObject()) == moduleID(o.GetModule())
}

// listedOf are the names of the objects of a tracker.
func (a *API) listedOf(ctx context.Context, t record.Tracked) (l tracker.Listed, err error) {
	if l.Entries, err = a.entriesOf(ctx, t); err != nil {
		return l, err
	}
	if l.Watched, err = a.watchedOf(ctx, t, l.Entries); err != nil || !t.Input.Leaving() {
		return l, err
	}
	l.Left, err = a.reportedOf(ctx, t)
	return l, err
}

// entriesOf are the objects of the sync, or of what comes when one of its name has gone, whose values are not known before that. Where the
// assignment is damaged they are those of the bundle that the agent reported on last.
func (a *API) entriesOf(ctx context.Context, t record.Tracked) ([]fleet.BundleEntry, error) {
	if record.Damaged(t.Desired) {
		return a.reportedOf(ctx, t)
	}
	digest := record.Digest(t.Desired.GetSync().GetBundle())
	if t.Input.Before != nil {
		digest = t.Input.Desired.Bundle
	}
	if digest.IsZero() && t.Desired.GetSync() == nil {
		return nil, nil
	}
	b, err := a.o.Bundles.Get(ctx, digest)
	return assemble.Resolved(b.Entries, t.Desired.GetSync().GetValues()), err
}

// reportedOf are the objects of the bundle that the agent reported on last. That is the agent's word: it need not be there, nor be a bundle.
func (a *API) reportedOf(ctx context.Context, t record.Tracked) ([]fleet.BundleEntry, error) {
	o := t.Input.Observed
	if o == nil || o.Bundle.IsZero() {
		return nil, nil
	}
	b, err := a.o.Bundles.Get(ctx, o.Bundle)
	if errors.Is(err, fleet.ErrUnavailable) {
		return nil, err
	}
	return assemble.Resolved(b.Entries, record.ValuesGiven(t.Desired, o.Bundle)), nil
}

// watchedOf are the objects that the sync only watches.
func (a *API) watchedOf(ctx context.Context, t record.Tracked, own []fleet.BundleEntry) ([]fleet.BundleEntry, error) {
	s := t.Desired.GetSync()
	if s.GetWatched() == 0 || record.Damaged(t.Desired) {
		return nil, nil
	}
	set, err := a.policySet(ctx, t.Module, record.Digest(s.GetPolicies()))
	if err != nil {
		return nil, err
	}
	return assemble.Watched(set.Watch, own, s.GetValues())
}

func showObject(t record.Tracked, row tracker.Row) *towlinev1.Object {
	e := fleet.BundleEntry{ID: row.ID, Version: row.Version}
	id := row.ID
	out := &towlinev1.Object{ApiVersion: fleet.APIVersion, Kind: "Object", Cluster: string(t.Cluster), Project: t.Module.Project,
		Module: t.Module.Name, Revision: t.Revision(), Extra: row.Extra, Sync: string(row.State.Sync), Health: string(row.State.Health),
		Drift: string(row.State.Drift), Reason: row.Reason, Message: row.Message, Field: row.Field, ChangedBy: row.ChangedBy,
		Want: row.Want, Live: row.Live, Seen: int32(row.Seen), Watched: row.Watched,
		Object: &towlinev1.ObjectReference{ApiVersion: e.APIVersion(), Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}}
	if row.Extra {
		out.Revision = row.Revision
	}
	if !row.Last.IsZero() {
		out.FirstChanged, out.LastChanged = timestamppb.New(row.First), timestamppb.New(row.Last)
	}
	if !row.Since.IsZero() {
		out.Since = timestamppb.New(row.Since)
	}
	out.LastHeard = lastHeard(t)
	if was := row.Was; was != nil {
		out.WasSync, out.WasHealth, out.WasDrift = string(was.Sync), string(was.Health), string(was.Drift)
	}
	return out
}

// driftingNow are the states in which an object drifts, as trackers count it. One that an autoscaler or a policy is left to
// is Ignored.
var driftingNow = []fleet.Drift{fleet.DriftDrifted, fleet.DriftConflict, fleet.DriftHeld}

// matches reports that the filter takes a row, before it is shown: most are not.
func matches(f *towlinev1.ObjectFilter, t *record.Tracked, row tracker.Row) bool {
	return takes(f, row.ID, row.Version) &&
		(f.GetDrift() == "" || strings.EqualFold(f.GetDrift(), string(row.State.Drift)) ||
			f.GetDrift() == "*" && slices.Contains(driftingNow, row.State.Drift)) &&
		(f.GetHealth() == "" || strings.EqualFold(f.GetHealth(), string(row.State.Health))) &&
		(f.GetReason() == "" || strings.EqualFold(f.GetReason(), row.Reason)) &&
		(f.GetRevision() == 0 || f.GetRevision() == revisionOf(t, row))
}

// revisionOf is the revision that lists a row, or that was the last that did; 0: it is not known.
func revisionOf(t *record.Tracked, row tracker.Row) int64 {
	if row.Extra {
		return row.Revision
	}
	return t.Revision()
}

// takes reports that the filter takes what a bundle says of an object.
func takes(f *towlinev1.ObjectFilter, id fleet.ObjectID, version string) bool {
	return (f.GetName() == "" || f.GetName() == id.Name) &&
		(f.GetNamespace() == "" || f.GetNamespace() == id.Namespace) &&
		(f.GetKind() == "" || strings.EqualFold(f.GetKind(), id.Kind) || strings.EqualFold(f.GetKind(), id.Kind+"."+cmp.Or(id.Group, version)))
}

// byIdentity reports that it takes objects by that.
func byIdentity(f *towlinev1.ObjectFilter) bool {
	return f.GetName() != "" || f.GetNamespace() != "" || f.GetKind() != ""
}

func objectKey(o *towlinev1.Object) string {
	r := o.GetObject()
	return strings.Join([]string{o.GetCluster(), o.GetProject(), o.GetModule(), r.GetApiVersion(), r.GetKind(), r.GetNamespace(), r.GetName()}, "\x00")
}

// everything reports that the filter takes every object of a module in a cluster.
func everything(f *towlinev1.ObjectFilter) bool {
	return f.GetKind() == "" && f.GetNamespace() == "" && f.GetName() == "" && f.GetReason() == "" && f.GetHealth() == "" &&
		f.GetDrift() == "" && f.GetRevision() == 0 && f.GetExpression() == ""
}

// WatchObjects sends rows and their changes. Those who ask the same share one look.
func (a *API) WatchObjects(req *towlinev1.WatchObjectsRequest, st grpc.ServerStreamingServer[towlinev1.WatchObjectsResponse]) error {
	question, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.GetFilter())
	if err != nil {
		return err
	}
	filter := proto.CloneOf(req.GetFilter())
	if _, err := a.conditionOf(filter, watchedRows); err != nil {
		return err
	}
	return a.objectBoards.watch(st.Context(), watching[*towlinev1.Object]{question: string(question), from: req,
		look: func(ctx context.Context, s *board[*towlinev1.Object]) error {
			return a.watchObjects(ctx, filter, s)
		},
		match: func(*towlinev1.Object) bool { return true },
		send: func(x told[*towlinev1.Object]) error {
			return st.Send(&towlinev1.WatchObjectsResponse{Type: x.kind, Object: x.row, Revision: x.revision, ResumeToken: x.token})
		}})
}

func (a *API) watchObjects(ctx context.Context, f *towlinev1.ObjectFilter, s *board[*towlinev1.Object]) error {
	list := func(ctx context.Context) ([]*towlinev1.Object, int64, error) {
		c, err := a.conditionOf(f, watchedRows)
		if err != nil {
			return nil, 0, err
		}
		return a.objectsWhere(ctx, f, c, 0)
	}
	prefixes := []string{store.DesiredPrefix, store.ObservedPrefix, store.SessionPrefix, store.AckPrefix, store.ClusterPrefix, store.ConditionPrefix}
	return watchRows(ctx, a, prefixes, list, s)
}
