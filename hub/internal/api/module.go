package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Results of a put.
const (
	resultCreated    = "created"
	resultConfigured = "configured"
	resultUnchanged  = "unchanged"
)

func putResult(created, changed bool) string {
	switch {
	case created:
		return resultCreated
	case changed:
		return resultConfigured
	}
	return resultUnchanged
}

// PutModule validates and commits the module with a new generation and a rollout in Pending, in one transaction. An
// equal spec changes nothing.
func (a *API) PutModule(ctx context.Context, req *towlinev1.PutModuleRequest) (*towlinev1.PutModuleResponse, error) {
	return a.putAs(ctx, req, nil)
}

// putAs puts a module for a catalog, or a person.
func (a *API) putAs(ctx context.Context, req *towlinev1.PutModuleRequest, by *author) (*towlinev1.PutModuleResponse, error) {
	if err := checkBatch(req); err != nil {
		return nil, err
	}
	if id := batchOf(ctx, req); id != "" {
		defer a.gathering(ctx, id)()
	}
	return a.put(ctx, req, by)
}

// readModule checks what a person wrote.
func readModule(in *towlinev1.Module) (*wire.Module, error) {
	if err := refuseMasked(in); err != nil {
		return nil, named("module", in.GetMetadata().GetName(), err)
	}
	m, err := wire.ModuleFromProto(in)
	if err != nil {
		return nil, named("module", in.GetMetadata().GetName(), err)
	}
	if err := source.CheckVerify(m.Source); err != nil {
		return nil, named("module", m.Ref.Display(), fleet.Join("spec.source", err))
	}
	if err := checkConditions(m.Strategy); err != nil {
		return nil, named("module", m.Ref.Display(), err)
	}
	return m, nil
}

// maxPutTries is how often a put looks again at uploaded files that others change or a collection touches.
const maxPutTries = 4

func (a *API) put(ctx context.Context, req *towlinev1.PutModuleRequest, by *author) (*towlinev1.PutModuleResponse, error) {
	ctx, traced := a.tracePut(ctx)
	for tries := 1; ; tries++ {
		resp, outdated, err := a.putOnce(ctx, req, by)
		if !outdated || tries == maxPutTries {
			traced(req, resp)
			return resp, err
		}
	}
}

// putOnce tells as well that the files which were uploaded have to be looked at again.
func (a *API) putOnce(ctx context.Context, req *towlinev1.PutModuleRequest, by *author) (_ *towlinev1.PutModuleResponse, outdated bool, _ error) {
	if err := a.wants(ctx, req, by); err != nil {
		return nil, false, err
	}
	m, req, files, err := a.readPut(ctx, req)
	if err != nil {
		return nil, false, err
	}
	if err := a.asPlanned(ctx, m, req); err != nil {
		return nil, false, named("module", m.Ref.Display(), err)
	}
	if err := a.render(ctx, m, req); err != nil {
		return nil, false, named("module", m.Ref.Display(), err)
	}
	resp := &towlinev1.PutModuleResponse{}
	put := func(w store.Writer) error {
		*resp = towlinev1.PutModuleResponse{}
		if err := files.refer(w); err != nil {
			return err
		}
		if err := unscoped(w, m.Ref.Project, m.Source); err != nil {
			return err
		}
		if err := a.putModule(ctx, w, m, req, by, resp); err != nil {
			return err
		}
		return a.gather(ctx, w, req, resp.GetRollout() != "")
	}
	if req.GetDryRun() {
		err = a.o.Store.View(ctx, 0, func(r store.Reader) error { return put(store.Dry(r)) })
	} else {
		resp.Revision, err = a.afterDeletion(ctx, m.Ref, put)
	}
	if err != nil {
		return nil, a.outdated(ctx, files, err), named("module", m.Ref.Display(), err)
	}
	rev := resp.Revision
	err = a.overview(ctx, rev, func(r overview) error { return a.describePut(r, m, req, resp) })
	resp.Revision = rev
	return resp, false, err
}

// readPut reads what is put, with the files that it means.
func (a *API) readPut(ctx context.Context, req *towlinev1.PutModuleRequest) (*wire.Module, *towlinev1.PutModuleRequest, *uploaded, error) {
	m, err := readModule(req.GetModule())
	if err != nil {
		return nil, nil, nil, err
	}
	in, files, err := a.settle(ctx, m, req.GetModule())
	if err != nil {
		return nil, nil, nil, named("module", m.Ref.Display(), err)
	}
	if in != req.GetModule() {
		req = proto.CloneOf(req)
		req.Module = in
	}
	return m, req, files, nil
}

// render refuses a source that cannot be rendered, unless the module has it already: one that is all in the module, and of a dry run one
// that is elsewhere, too.
func (a *API) render(ctx context.Context, m *wire.Module, req *towlinev1.PutModuleRequest) error {
	if a.o.Render == nil {
		return nil
	}
	digest, err := wire.SpecDigest(req.GetModule().GetSpec())
	if err != nil {
		return err
	}
	same, failed := false, false
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		old, _, exists := moduleRecord(r, m.Ref)
		same = exists && old.GetDeleting() == "" && fleet.Digest(digest) == record.Digest(old.GetSpecDigest())
		failed = same && record.SourceFailed(r, m.Ref)
		return nil
	}); err != nil || same && !failed {
		return err
	}
	if req.GetDryRun() && !wire.Contained(m.Source) {
		if failed { // it is tried again by each put, and keeps nothing else from being put
			return nil
		}
		return a.fetchable(ctx, m, digest)
	}
	keep, err := a.o.Render(ctx, m, digest)
	if err == nil && !req.GetDryRun() {
		keep()
	}
	return err
}

// fetchWait is how long a dry run waits for a source.
const fetchWait = 30 * time.Second

// fetchable refuses a source that cannot be fetched and rendered now. Of one that takes long it says nothing: a rollout waits for it.
func (a *API) fetchable(ctx context.Context, m *wire.Module, spec fleet.Digest) error {
	if a.o.Propose == nil {
		return nil
	}
	waits, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	if _, err := a.o.Propose(waits, m, spec); err != nil && (waits.Err() == nil || ctx.Err() != nil) {
		return err
	}
	return nil
}

// named puts the object's name in front of an error that does not name it.
func named(kind, name string, err error) error {
	if name == "" || strings.HasPrefix(err.Error(), kind+" "+name) {
		return err
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}

func (a *API) putModule(ctx context.Context, w store.Writer, m *wire.Module, req *towlinev1.PutModuleRequest, by *author, resp *towlinev1.PutModuleResponse) error {
	if err := by.may(w); err != nil {
		return err
	}
	key := store.ModuleKey(m.Ref)
	digest, err := wire.SpecDigest(req.GetModule().GetSpec())
	if err != nil {
		return err
	}
	project, _, ok := store.Get[*storev1.ProjectRecord](w, store.ProjectPrefix+m.Ref.Project)
	if !ok && m.Ref.Project != fleet.DefaultProject {
		return fleet.NotFound(projectObject(m.Ref.Project), "project %s does not exist; apply a Project of that name first", m.Ref.Project)
	}
	old, damaged, exists := moduleRecord(w, m.Ref)
	if err := by.mayWrite(m.Ref, damaged); err != nil {
		return err
	}
	if damaged {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnDamaged, nil))
	}
	var deleted *storev1.ModuleRecord
	if exists && old.GetDeleting() != "" {
		// That the removal is ordered is a matter of moments; what somebody holds is not, and a dry run is refused, too.
		if err := mayTakeName(w, m.Ref); err != nil && (!req.GetDryRun() || errors.Is(err, fleet.ErrPrecondition)) {
			return err
		}
		deleted, old, exists = old, nil, false
	}
	meta := req.GetModule().GetMetadata()
	if err := record.AsSeen(w, key, m.Ref.Object(), old.GetModule().GetMetadata(), meta); err != nil {
		return err
	}
	had := record.OwnerOf(w, m.Ref, old)
	from, err := originOf(m, req, by, had, old)
	if err != nil {
		return err
	}
	same := exists && fleet.Digest(digest) == record.Digest(old.GetSpecDigest())
	again := same && a.triesAgain(ctx, w, m.Ref, req, by)
	unchanged := same && !again && sameWords(old.GetModule().GetMetadata(), meta) && had == from.name
	if unchanged && !by.notes(old) {
		resp.Result, resp.Module = resultUnchanged, proto.CloneOf(old.GetModule())
		warnOwner(had, from, req, by, resp)
		return nil
	}
	if exists && (!same || again) {
		if err := by.mayBegin(w, m.Ref); err != nil {
			return err
		}
	}
	if exists {
		resp.Leaving = leaving(store.Untracked(w), m)
		resp.LeavingAsks = resp.Leaving > 0 && record.AsksToLeave(w, m)
	}
	if err := checkOrder(w, m, req); err != nil {
		return err
	}
	rec := a.nextModule(ctx, m, req, old, same)
	rec.SpecDigest, rec.OriginUid = digest.Bytes(), from.uid
	rec.Module.Metadata.Origin, rec.Module.Metadata.OriginRef = from.name, from.ref
	rec.PutGeneration, rec.PutDigest = putOf(by, from, rec, old)
	if deleted != nil {
		succeedDeleted(w, rec, deleted, m.Ref)
	}
	resp.Result = putResult(!exists, !unchanged)
	warnOwner(had, from, req, by, resp)
	if !exists && ok {
		putNewest(w, project, rec.GetModule().GetMetadata())
	}
	if !same || again {
		how := rollouts.How{Unasked: by != nil && !by.again, Batch: batchOf(ctx, req)}
		number, err := a.startRollout(w, m.Ref, rec, record.Ask{By: who(ctx), Reason: req.GetReason()}, req.GetPlan(), how)
		if err != nil {
			return err
		}
		resp.Rollout = fleet.RolloutID{Module: m.Ref, Number: number}.String()
	}
	if exists && had != from.name {
		record.DropWant(w, m.Ref, from.name)
	}
	w.Put(key, rec)
	resp.Module = proto.CloneOf(rec.GetModule())
	return nil
}

// triesAgain reports that a put of what a module is already begins another rollout. A catalog has that done by a person, but for what did not begin
// because a look before did not come to put all.
func (a *API) triesAgain(ctx context.Context, r store.Reader, ref fleet.ModuleRef, req *towlinev1.PutModuleRequest, by *author) bool {
	switch {
	case record.SourceFailed(r, ref):
		return by == nil || by.again || rollouts.PutsMissing(rollouts.Last(r, ref))
	case by != nil:
		return false
	}
	return req.GetPlan() != "" && !isPlanned(r, ref, req.GetPlan()) || outgrown(r, ref) || leftWaiting(r, ref, who(ctx), batchOf(ctx, req))
}

// leftWaiting reports that a module waits for the rest of what somebody put with it, who puts it with others anew.
func leftWaiting(r store.Reader, ref fleet.ModuleRef, by, batch string) bool {
	ro := rollouts.Unresolved(r, ref).GetRollout()
	waits := record.AwaitsPuts(r, ref, ro.GetNumber())
	return batch != "" && waits != "" && waits != batch && ro.GetStatus().GetStartedBy() == by
}

// outgrown reports that clusters can do something else than when the module's newest revision was chosen for them, and nothing is under way:
// a put of the same comes to what they can do now.
func outgrown(r store.Reader, ref fleet.ModuleRef) bool {
	last := rollouts.Last(r, ref)
	return rollouts.Ended(last) && !rollouts.RolledBack(r, ref, last) && len(record.OutgrownBy(r, ref, record.NewestRevision(r, ref))) > 0
}

// putNewest notes the module that was created last in a project.
func putNewest(w store.Writer, project *storev1.ProjectRecord, created *towlinev1.Metadata) {
	next := proto.CloneOf(project)
	next.NewestModule = created.GetUid()
	w.Put(store.ProjectPrefix+created.GetProject(), next)
}

// sameWords reports that two metadata have the same labels and annotations.
func sameWords(a, b *towlinev1.Metadata) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

// leaving counts the clusters that have a module and would not by the placement of a put.
func leaving(r store.Reader, m *wire.Module) (n int32) {
	for _, rec := range record.ClustersOf(r, m.Ref) {
		c := record.Cluster(rec)
		if !m.External && rec.GetRemoving() == "" && record.Has(r, c.Name, m.Ref) && !assemble.Places(m.Placement, c, true) {
			n++
		}
	}
	return n
}

func (a *API) nextModule(ctx context.Context, m *wire.Module, req *towlinev1.PutModuleRequest, old *storev1.ModuleRecord, sameSpec bool) *storev1.ModuleRecord {
	in := req.GetModule().GetMetadata()
	prev := old.GetModule().GetMetadata()
	meta := &towlinev1.Metadata{Name: m.Ref.Name, Project: m.Ref.Project, Labels: in.GetLabels(), Annotations: in.GetAnnotations(),
		Uid: prev.GetUid(), Generation: prev.GetGeneration(), CreationTimestamp: prev.GetCreationTimestamp(),
		ChangedBy: prev.GetChangedBy(), ChangeReason: prev.GetChangeReason()}
	if old == nil {
		meta.Uid, meta.CreationTimestamp = string(uuid.NewUUID()), timestamppb.New(a.now())
	}
	if !sameSpec {
		meta.Generation++
		meta.ChangedBy, meta.ChangeReason = who(ctx), req.GetReason()
	}
	return &storev1.ModuleRecord{FirstRollout: old.GetFirstRollout(), FirstRevision: old.GetFirstRevision(),
		Module: &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: meta, Spec: req.GetModule().GetSpec()}}
}

// startRollout makes the rollout of what the module's record says.
func (a *API) startRollout(w store.Writer, ref fleet.ModuleRef, rec *storev1.ModuleRecord, by record.Ask, plan string, how rollouts.How) (number int64, err error) {
	how.ModuleUID = rec.GetModule().GetMetadata().GetUid()
	return rollouts.Start(w, ref, &towlinev1.Rollout{ModuleGeneration: rec.GetModule().GetMetadata().GetGeneration(), Plan: plan,
		Strategy: rec.GetModule().GetSpec().GetRollout(), Status: &towlinev1.RolloutStatus{StartedBy: by.By, StartReason: by.Reason}}, how, a.now())
}

// describePut counts what the module selects, and warns of what a person would want to know before.
func (a *API) describePut(r overview, m *wire.Module, req *towlinev1.PutModuleRequest, resp *towlinev1.PutModuleResponse) error {
	if err := warnMissing(r, m, req, resp); err != nil {
		return err
	}
	var selected []fleet.Cluster
	for _, rec := range record.Clusters(r) {
		resp.Total++
		if c := record.Cluster(rec); rec.GetRemoving() == "" && record.Places(r, m.Placement, c, m.Ref) {
			selected = append(selected, c)
		}
	}
	resp.Selected = int32(len(selected))
	for _, c := range m.Placement.Clusters {
		if _, ok := store.Untracked(r).Get(store.ClusterKey(c)); !ok && store.DamageOf(r, store.ClusterKey(c)) == nil {
			resp.Warnings = append(resp.Warnings, note(fleet.WarnNoSuchCluster, &towlinev1.Facts{Clusters: []string{string(c)}}))
		}
	}
	if record.Stands(r) {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnRestored, nil))
	}
	resp.Warnings = append(resp.Warnings, missingSecrets(r, m)...)
	resp.Warnings = append(resp.Warnings, a.warnHooks(r, m)...)
	if len(selected) == 0 {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnNoCluster, nil))
	}
	if len(resp.GetModule().GetSpec().GetRollout().GetStages()) == 0 && !m.External && len(selected) > 1 {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnNoStages, &towlinev1.Facts{Count: int32(len(selected))}))
	}
	if err := countStages(m, selected, resp); err != nil {
		return err
	}
	if warning := describeDeleted(r, m.Ref, a.o.Sessions.Connected); warning != nil {
		resp.Warnings = append(resp.Warnings, warning)
	}
	if attention := a.usage().GetAttention(); attention != nil {
		resp.Warnings = append(resp.Warnings, attention)
	}
	status := a.moduleStatus(r, m.Ref)
	if resp.Module != nil {
		resp.Module.Status = status
	}
	if to, failed := rollouts.WentBack(r, m.Ref, rollouts.Last(r, m.Ref)); to != 0 && resp.GetResult() == resultUnchanged {
		stays := note(fleet.WarnStaysBack, &towlinev1.Facts{Revision: to, Rollout: status.GetRollout()})
		if failed {
			stays.Facts.Code = string(rollout.ScopeFailed)
		}
		stays.Actions = []*towlinev1.Action{{Method: rollout.DoRetry, Project: m.Ref.Project, Module: m.Ref.Name}}
		resp.Warnings = append(resp.Warnings, stays)
	}
	return nil
}

func countStages(m *wire.Module, selected []fleet.Cluster, resp *towlinev1.PutModuleResponse) error {
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: m.Ref}}
	for _, c := range selected {
		in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: c, Selected: true})
	}
	plan, _, err := rollout.NewPlan(m.Strategy, in)
	if err != nil {
		return err
	}
	for _, s := range plan.Stages {
		resp.Stages = append(resp.Stages, &towlinev1.StageCount{Name: s.Name, Clusters: int32(s.Total)})
		if s.Total == 0 && s.Selector != nil && !s.AllowEmpty && len(selected) > 0 {
			resp.Warnings = append(resp.Warnings, note(fleet.WarnEmptyStage, &towlinev1.Facts{Stage: s.Name}))
		}
	}
	if empty := assemble.Unmatched(m.Overrides, selected); len(empty) > 0 {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnEmptyOverride, &towlinev1.Facts{Names: empty}))
	}
	if len(plan.Unmatched) > 0 {
		resp.Warnings = append(resp.Warnings, note(fleet.WarnUnmatched, &towlinev1.Facts{Count: int32(len(plan.Unmatched))}))
	}
	return nil
}

// GetModule reads one.
func (a *API) GetModule(ctx context.Context, req *towlinev1.GetModuleRequest) (*towlinev1.GetModuleResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetModuleResponse{}
	err = a.overview(ctx, req.GetMinRevision(), func(r overview) error {
		if why := store.DamageOf(r, store.ModuleKey(ref)); why != nil {
			return fmt.Errorf("module %s: %s (%w)", ref.Display(), record.DamagedModule(ref), why)
		}
		rec, e, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		if !ok {
			return noModule(ref)
		}
		resp.Module = a.showModule(r, rec, e)
		return nil
	})
	return resp, err
}

func (a *API) showModule(r overview, rec *storev1.ModuleRecord, e store.Entry) *towlinev1.Module {
	m := proto.CloneOf(rec.GetModule())
	m.Metadata.ResourceVersion = e.ModRevision
	ref := fleet.ModuleRef{Project: m.GetMetadata().GetProject(), Name: m.GetMetadata().GetName()}
	showOrigin(r, ref, rec, m)
	m.Status = a.moduleStatus(r, ref)
	return m
}

// ListModules reads many.
func (a *API) ListModules(ctx context.Context, req *towlinev1.ListModulesRequest) (*towlinev1.ListModulesResponse, error) {
	resp := &towlinev1.ListModulesResponse{}
	return resp, a.modules(ctx, req.GetProject(), "", req.GetLabelSelector(), req.GetMinRevision(), func(lines []line[*towlinev1.Module], rev int64) (err error) {
		resp.Revision = rev
		resp.Modules, resp.NextPageToken, resp.Total, err = paginate(req, lines)
		return err
	})
}

func moduleKey(m *towlinev1.Module) string {
	return m.GetMetadata().GetProject() + "\x00" + m.GetMetadata().GetName()
}

// modules calls fn with the modules of a project and a name, or of all, sorted.
func (a *API) modules(ctx context.Context, proj, name, labelSelector string, minRevision int64, fn func([]line[*towlinev1.Module], int64) error) error {
	sel, err := selector(labelSelector)
	if err != nil {
		return err
	}
	return a.overview(ctx, minRevision, func(r overview) error {
		var lines []line[*towlinev1.Module]
		store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
			meta := rec.GetModule().GetMetadata()
			if (proj != "" && meta.GetProject() != proj) || (name != "" && meta.GetName() != name) || !sel.Matches(labels.Set(meta.GetLabels())) {
				return true
			}
			lines = append(lines, line[*towlinev1.Module]{key: moduleKey(rec.GetModule()), show: func() *towlinev1.Module { return a.showModule(r, rec, e) }})
			return true
		})
		if sel.Empty() {
			lines = append(lines, shownAll(damagedModules(r, proj, name), moduleKey)...)
		}
		sortLines(lines)
		return fn(lines, r.Revision())
	})
}

// watchedForModules are the prefixes that a module's status depends on.
var watchedForModules = []string{store.ModulePrefix, store.CatalogPrefix, store.FollowPrefix, store.StartPrefix, store.RolloutPrefix, store.DesiredPrefix, store.ObservedPrefix, store.ClusterPrefix, store.ConditionPrefix, store.HoldPrefix, store.ConfirmPrefix, store.AckPrefix, store.SessionPrefix,
	store.AcceptedKey, store.AcceptedPrefix, store.ResumedKey, store.SettledKey}

// WatchModules sends modules and their changes.
func (a *API) WatchModules(req *towlinev1.WatchModulesRequest, st grpc.ServerStreamingServer[towlinev1.WatchModulesResponse]) error {
	sel, err := selector(req.GetLabelSelector())
	if err != nil {
		return err
	}
	name := req.GetName()
	return a.moduleBoards.watch(st.Context(), watching[*towlinev1.Module]{question: name, from: req,
		look: func(ctx context.Context, s *board[*towlinev1.Module]) error {
			return a.watchModules(ctx, name, s)
		},
		match: func(m *towlinev1.Module) bool {
			return (req.GetProject() == "" || req.GetProject() == m.GetMetadata().GetProject()) && selects(sel, m.GetMetadata())
		},
		send: func(x told[*towlinev1.Module]) error {
			return st.Send(&towlinev1.WatchModulesResponse{Type: x.kind, Module: x.row, Revision: x.revision, ResumeToken: x.token})
		}})
}

// watchModules keeps the board of the module of a name; empty: all.
func (a *API) watchModules(ctx context.Context, name string, s *board[*towlinev1.Module]) error {
	list := func(ctx context.Context) (rows []*towlinev1.Module, rev int64, err error) {
		err = a.modules(ctx, "", name, "", 0, func(lines []line[*towlinev1.Module], at int64) error {
			rows, rev = showAll(lines), at
			return nil
		})
		return rows, rev, err
	}
	return watchRows(ctx, a, watchedForModules, list, s)
}
