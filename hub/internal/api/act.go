package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// answerWait is how long a verb waits for the leader to take it in.
const answerWait = 10 * time.Second

// word is a request that steers a rollout.
type word interface {
	GetProject() string
	GetModule() string
	GetNumber() int64
	GetModuleUid() string
	GetReason() string
	GetRequestId() string
}

// steer records a verb and waits until the rollout has answered it. scope is that of a rollback.
func (a *API) steer(ctx context.Context, req word, v *towlinev1.VerbRecord, scope string) (*towlinev1.RolloutAnswer, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	pin, _ := req.(*towlinev1.PinClustersRequest) // nil: another verb
	var was said
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		verb := proto.CloneOf(v)
		verb.By, verb.At, verb.Reason = who(ctx), timestamppb.New(a.now()), req.GetReason()
		was, err = a.say(ctx, w, ref, req, &storev1.VerbRecord{Verb: verb, Scope: scope, RequestId: req.GetRequestId(), Shorten: pin.GetShorten()})
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case was.started != 0:
		return a.startedAgain(ctx, ref, was.started, rev)
	}
	return a.awaitOutcome(ctx, was.id, was.key, rev)
}

// said is a verb that is recorded: of which rollout, and under which key.
type said struct {
	id  fleet.RolloutID
	key string
	// started is the rollout that a retry of a failed source began; 0: the verb is the rollout's own to answer.
	started int64
}

// say records the verb of a request, or finds it recorded. A repeat is looked for before anything else: what the request did
// may have changed whatever decides what a new one does.
func (a *API) say(ctx context.Context, w store.Writer, ref fleet.ModuleRef, req word, v *storev1.VerbRecord) (said, error) {
	rec, err := meant(w, ref, req)
	if err != nil {
		return said{}, err
	}
	if was, found, err := recorded(w, ref, v); found || err != nil {
		return was, err
	}
	retry := v.GetVerb().GetVerb() == rollout.VerbRetry && req.GetNumber() == 0
	if retry && rec != nil && rec.GetDeleting() == "" && record.SourceFailed(w, ref) {
		return a.retrySource(ctx, w, rec, req, v)
	}
	return putVerb(w, ref, req, rec, v)
}

// retrySource starts a new rollout because the newest one failed before it had a revision, and records of that one who asked. What
// that was bound to, this is: nobody has looked at anything else.
func (a *API) retrySource(ctx context.Context, w store.Writer, rec *storev1.ModuleRecord, req word, v *storev1.VerbRecord) (said, error) {
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return said{}, err
	}
	bound := rollouts.Last(w, m.Ref).GetRollout().GetPlan()
	if v.Started, err = a.startRollout(w, m.Ref, rec, record.Ask{By: who(ctx), Reason: req.GetReason()}, bound, rollouts.How{}); err != nil {
		return said{}, err
	}
	was := said{id: fleet.RolloutID{Module: m.Ref, Number: v.GetStarted() - 1}, started: v.GetStarted()}
	was.key, err = appendVerb(w, was.id, v)
	return was, err
}

// startedAgain answers a retry that began another rollout.
func (a *API) startedAgain(ctx context.Context, ref fleet.ModuleRef, number, rev int64) (*towlinev1.RolloutAnswer, error) {
	got, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Project: ref.Project, Module: ref.Name, Number: number, MinRevision: rev})
	if err != nil {
		return nil, err
	}
	return &towlinev1.RolloutAnswer{Id: fleet.RolloutID{Module: ref, Number: number}.String(), Rollout: got.GetRollout(),
		Notes: []*towlinev1.Note{{Code: rollout.NoteSourceAgain}}, Revision: rev}, nil
}

// meant is the record of the module that a request names; nil: there is none.
func meant(r store.Reader, ref fleet.ModuleRef, req word) (*storev1.ModuleRecord, error) {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok {
		return nil, nil
	}
	return rec, fleet.SameUID(ref.Object(), rec.GetModule().GetMetadata().GetUid(), req.GetModuleUid())
}

// putVerb records a verb of the rollout that a request means.
func putVerb(w store.Writer, ref fleet.ModuleRef, req word, rec *storev1.ModuleRecord, v *storev1.VerbRecord) (said, error) {
	if v.GetVerb().GetVerb() == rollout.VerbAbort {
		if n := withoutRevision(w, ref, req.GetNumber()); n != 0 {
			return abortWaiting(w, fleet.RolloutID{Module: ref, Number: n}, rec, v)
		}
	}
	if v.GetVerb().GetVerb() == rollout.VerbRollback && req.GetNumber() == 0 {
		if err := plainly(w, ref); err != nil {
			return said{}, err
		}
	}
	id, err := steered(w, ref, req.GetNumber(), rec)
	if err != nil {
		return said{}, err
	}
	w.Get(store.StartKey(ref, rollouts.Newest(w, ref))) // one that decides by the commit would not know of it
	if to := v.GetVerb().GetRevision(); v.GetVerb().GetVerb() == rollout.VerbRollback && to != 0 {
		if err := (rollout.Module{Revisions: rollouts.Revisions(w, ref)}).UnknownRevision(ref, to); err != nil {
			return said{}, err
		}
	}
	if v.GetVerb().GetVerb() == rollout.VerbPin {
		if err := lasts(v.GetVerb().GetUntil(), v.GetVerb().GetAt().AsTime()); err != nil {
			return said{}, err
		}
		if err := allRegistered(w, v.GetVerb().GetClusters()); err != nil {
			return said{}, err
		}
	}
	key, err := appendVerb(w, id, v)
	return said{id: id, key: key}, err
}

// plainly refuses a rollback that does not say of which rollout where the newest one has moved nothing: the one before it may run well,
// and is not what anybody looked at who means the newest.
func plainly(r store.Reader, ref fleet.ModuleRef) error {
	newest, err := findRollout(r, ref, 0)
	if err != nil {
		return err
	}
	driven := rollouts.Driven(r, ref)
	decides := driven.GetRollout()
	n := newest.GetRollout().GetNumber()
	if decides == nil || decides.GetNumber() == n || !rollouts.Ended(driven) { // who moves clusters, or waits in it, is meant
		return nil
	}
	id, before := fleet.RolloutID{Module: ref, Number: n}, fleet.RolloutID{Module: ref, Number: decides.GetNumber()}
	flag := ""
	if ref.Project != fleet.DefaultProject {
		flag = " -p " + ref.Project
	}
	return fleet.Forbids(rolloutObject(id), "rollout %s is %s and has moved nothing, so there is nothing to roll back; to take back r%d of %s, which is %s: towline rollout rollback %s/%d%s",
		id, rollouts.StateOf(newest), decides.GetRevision(), before, decides.GetStatus().GetState(), ref.Name, before.Number, flag)
}

// withoutRevision is the rollout that an abort means if that waits for its revision; 0: it has one. Without a number the one that moves
// clusters comes first.
func withoutRevision(r store.Reader, ref fleet.ModuleRef, number int64) int64 {
	n := rollouts.Unresolved(r, ref).GetRollout().GetNumber()
	if number != 0 && number != n {
		return 0
	}
	if driven := rollouts.Driven(r, ref); number == 0 && driven != nil && !rollouts.Ended(driven) {
		return 0
	}
	return n
}

// abortWaiting records that a rollout which has no revision yet is to end: the leader ends it without a run.
func abortWaiting(w store.Writer, id fleet.RolloutID, rec *storev1.ModuleRecord, v *storev1.VerbRecord) (said, error) {
	if err := mayAct(w, id.Module, rec); err != nil {
		return said{}, err
	}
	if damaged, what := rollouts.Damaged(w, id.Module); damaged != 0 {
		return said{}, fleet.Errorf(fleet.ErrCorrupt, "%s", what)
	}
	key, err := appendVerb(w, id, v)
	return said{id: id, key: key}, err
}

// appendVerb puts a verb behind those of its rollout.
func appendVerb(w store.Writer, id fleet.RolloutID, v *storev1.VerbRecord) (key string, err error) {
	key = rollouts.NextVerb(w, id.Module, id.Number)
	if _, taken := w.Get(key); taken {
		return "", later(fleet.Errorf(fleet.ErrConflict, "rollout %s: another verb was faster; try again", id))
	}
	w.Put(key, v)
	return key, nil
}

// recorded finds the verb that was recorded for the same request. One whose rollout is not kept any more is refused: nobody knows
// what was answered, and it is not carried out again.
func recorded(r store.Reader, ref fleet.ModuleRef, v *storev1.VerbRecord) (was said, found bool, err error) {
	if v.GetRequestId() == "" {
		return said{}, false, nil
	}
	store.Scan(r, store.VerbPrefix+ref.String()+"/", func(old *storev1.VerbRecord, e store.Entry) bool {
		if old.GetRequestId() != v.GetRequestId() {
			return true
		}
		n, _ := store.SplitNumber(e.Key)
		was, found = said{id: fleet.RolloutID{Module: ref, Number: n}, key: e.Key, started: old.GetStarted()}, true
		same := proto.CloneOf(v)
		same.Verb.At, same.Started = old.GetVerb().GetAt(), old.GetStarted()
		answers := max(n, old.GetStarted())
		switch {
		case !proto.Equal(same, old):
			err = fleet.Invalidf("request_id", "%q was another request for module %s: %s", v.GetRequestId(), ref.Display(), old.GetVerb().GetVerb())
		case !rollouts.Kept(r, ref, answers):
			err = fleet.Errorf(fleet.ErrPrecondition, "request_id %q was taken in at %s by rollout %s, which is not kept any more; it is not carried out again",
				v.GetRequestId(), old.GetVerb().GetAt().AsTime().Format(time.RFC3339), fleet.RolloutID{Module: ref, Number: answers})
		}
		return false
	})
	return was, found, err
}

// steered is the rollout that a verb is for: the one of the number, or the one that decides.
func steered(r store.Reader, ref fleet.ModuleRef, number int64, rec *storev1.ModuleRecord) (fleet.RolloutID, error) {
	ro, err := findRollout(r, ref, number)
	if err != nil {
		return fleet.RolloutID{}, err
	}
	if err := mayAct(r, ref, rec); err != nil {
		return fleet.RolloutID{}, err
	}
	if damaged, what := rollouts.Damaged(r, ref); damaged != 0 {
		return fleet.RolloutID{}, fleet.Errorf(fleet.ErrCorrupt, "%s", what)
	}
	// The newest may have failed before it moved anything: the verb then means the one that still decides.
	decides := rollouts.Driven(r, ref)
	if number == 0 && decides != nil {
		ro = decides
	}
	n := ro.GetRollout().GetNumber()
	id := fleet.RolloutID{Module: ref, Number: n}
	switch newest := decides.GetRollout().GetNumber(); {
	case ro.GetRollout().GetRevision() == 0:
		return id, fleet.Forbids(rolloutObject(id), "rollout %s has no revision yet: %s", id, ro.GetRollout().GetStatus().GetReason())
	case ro.GetRollout().GetStrategy().GetExternal() != nil:
		return id, fleet.Forbids(rolloutObject(id), "rollout %s: another program assigned its revision; what was put since has none yet, so nothing can be told to it", id)
	case n != newest:
		return id, fleet.Forbids(rolloutObject(id), "rollout %s decides nothing any more; %s does", id, fleet.RolloutID{Module: ref, Number: newest})
	}
	return id, nil
}

// allRegistered refuses names that no cluster has: whoever misspelt one would count on what does not hold anywhere.
func allRegistered(r store.Reader, clusters []string) error {
	r = store.Untracked(r) // there may be more than a commit may compare
	for _, c := range clusters {
		if err := record.ReadableCluster(r, fleet.ClusterName(c)); err != nil {
			return err
		}
		if _, found := r.Get(store.ClusterKey(fleet.ClusterName(c))); !found {
			return noCluster(fleet.ClusterName(c))
		}
	}
	return nil
}

// mayAct refuses verbs that nobody would ever answer.
func mayAct(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) error {
	switch {
	case rec.GetDeleting() != "":
		return fleet.Forbids(ref.Object(), "module %s is being deleted", ref.Display())
	case rollouts.External(r, ref, rec):
		return fleet.Forbids(ref.Object(), "module %s: another program does its rollouts", ref.Display())
	}
	return nil
}

// unheard refuses a verb that was recorded, and that nobody is going to answer any more.
func unheard(r store.Reader, id fleet.RolloutID) error {
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(id.Module))
	switch {
	case rec.GetDeleting() != "":
		return mayAct(r, id.Module, rec)
	case rollouts.Driven(r, id.Module).GetRollout().GetNumber() > id.Number:
		return fleet.Forbids(rolloutObject(id), "rollout %s: a newer one took its place before it had taken this in; say it again", id)
	}
	return nil
}

func (a *API) awaitOutcome(ctx context.Context, id fleet.RolloutID, key string, rev int64) (*towlinev1.RolloutAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	sub := a.o.Store.Subscribe(nil, store.RolloutPrefix+id.Module.String()+"/", store.ModuleKey(id.Module))
	defer sub.Stop()
	for {
		resp := &towlinev1.RolloutAnswer{Id: id.String(), Revision: rev}
		answered := false
		var refused error
		err := a.o.Store.View(ctx, rev, func(r store.Reader) error {
			ro, err := findRollout(r, id.Module, id.Number)
			if err != nil {
				return err
			}
			run, err := rollouts.Load(r, id.Module, id.Number)
			if err != nil {
				return err
			}
			if v := verbOf(run, key); v != nil {
				answered, resp.Notes = true, wire.NotesToProto(id.Module, v.Outcome.Notes)
				if !v.Outcome.Accepted {
					refused = fleet.Forbids(rolloutObject(id), "rollout %s: %s", id, v.Outcome.Sentence)
				}
			}
			if ro.GetRollout().GetRevision() == 0 && rollouts.Ended(ro) {
				answered = true // it ended by the word itself
			}
			if !answered && refused == nil {
				refused = unheard(r, id)
			}
			resp.Rollout, err = a.showRollout(r, id.Module, ro)
			return err
		})
		if err != nil || refused != nil {
			return nil, firstOf(err, refused)
		}
		if answered {
			return resp, nil
		}
		select {
		case <-ctx.Done():
			return nil, later(fleet.Errorf(fleet.ErrUnavailable, "rollout %s: recorded, but not taken in within %s; see: towline rollout status %s",
				id, answerWait, id.Module.Display()))
		case <-sub.C():
			sub.Take()
		}
	}
}

// verbOf is the verb of a key, if the run has taken it in; nil: it has not, or there is no run yet.
func verbOf(run *rollouts.Run, key string) *rollout.VerbRecord {
	if run == nil {
		return nil
	}
	for i := range run.State.Verbs {
		if run.State.Verbs[i].ID == key {
			return &run.State.Verbs[i]
		}
	}
	return nil
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// ExplainRollout returns the chain of reasons.
func (a *API) ExplainRollout(ctx context.Context, req *towlinev1.ExplainRolloutRequest) (*towlinev1.ExplainRolloutResponse, error) {
	got, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Project: req.GetProject(), Module: req.GetModule(), Number: req.GetNumber(), MinRevision: req.GetMinRevision()})
	if err != nil {
		return nil, err
	}
	return &towlinev1.ExplainRolloutResponse{Rollout: got.GetRollout(), Reasons: got.GetRollout().GetStatus().GetWaitingFor()}, nil
}
