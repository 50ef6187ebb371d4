package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
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
	if v.GetVerb() == rollout.VerbRetry && req.GetNumber() == 0 {
		if answer, err := a.retrySource(ctx, ref, req); answer != nil || err != nil {
			return answer, err
		}
	}
	var id fleet.RolloutID
	var key string
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		verb := proto.CloneOf(v)
		verb.By, verb.At, verb.Reason = who(ctx), timestamppb.New(a.now()), req.GetReason()
		id, key, err = putVerb(w, ref, req, &storev1.VerbRecord{Verb: verb, Scope: scope, RequestId: req.GetRequestId()})
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.awaitOutcome(ctx, id, key, rev)
}

// retrySource starts a new rollout when the newest one failed before it had a revision; nil: it did not, nor did this request
// start it.
func (a *API) retrySource(ctx context.Context, ref fleet.ModuleRef, req word) (*towlinev1.RolloutAnswer, error) {
	var number int64
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		number = 0
		rec, err := meant(w, ref, req)
		if err != nil || rec == nil || rec.GetDeleting() != "" {
			return err
		}
		key := store.RolloutKey(ref, rec.GetLastRollout())
		if id := req.GetRequestId(); id != "" && store.DamageOf(w, key) == nil {
			if last, _, _ := store.Get[*storev1.RolloutRecord](w, key); last.GetRequestId() == id {
				number = rec.GetLastRollout()
				return nil
			}
		}
		if !sourceFailed(w, ref, rec) {
			return nil
		}
		number, err = a.startAgain(ctx, w, rec, req)
		return err
	})
	if err != nil || number == 0 {
		return nil, err
	}
	got, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Project: ref.Project, Module: ref.Name, Number: number, MinRevision: rev})
	return &towlinev1.RolloutAnswer{Id: fleet.RolloutID{Module: ref, Number: number}.String(), Rollout: got.GetRollout(),
		Notes: []string{"the source is fetched and rendered again"}, Revision: rev}, err
}

// startAgain starts the next rollout of a module as it is, and notes which request did.
func (a *API) startAgain(ctx context.Context, w store.Writer, rec *storev1.ModuleRecord, req word) (int64, error) {
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return 0, err
	}
	next := proto.CloneOf(rec)
	if err := a.startRollout(ctx, w, m, next, req.GetReason()); err != nil {
		return 0, err
	}
	w.Put(store.ModuleKey(m.Ref), next)
	key := store.RolloutKey(m.Ref, next.GetLastRollout())
	ro, _, _ := store.Get[*storev1.RolloutRecord](w, key)
	ro = proto.CloneOf(ro)
	ro.RequestId = req.GetRequestId()
	w.Put(key, ro)
	return next.GetLastRollout(), nil
}

// meant is the record of the module that a request names; nil: there is none.
func meant(r store.Reader, ref fleet.ModuleRef, req word) (*storev1.ModuleRecord, error) {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if uid := req.GetModuleUid(); uid != "" && ok && uid != rec.GetModule().GetMetadata().GetUid() {
		return nil, fleet.Errorf(fleet.ErrNotFound, "module %s is another one by now: it has the UID %s, not %s", ref.Display(), rec.GetModule().GetMetadata().GetUid(), uid)
	}
	return rec, nil
}

// putVerb records a verb of the rollout that a request means, unless the request was recorded already.
func putVerb(w store.Writer, ref fleet.ModuleRef, req word, v *storev1.VerbRecord) (fleet.RolloutID, string, error) {
	rec, err := meant(w, ref, req)
	if err != nil {
		return fleet.RolloutID{}, "", err
	}
	if id, key, err := recorded(w, ref, v); key != "" || err != nil {
		return id, key, err
	}
	id, err := steered(w, ref, req.GetNumber(), rec)
	if err != nil {
		return id, "", err
	}
	if to := v.GetVerb().GetRevision(); v.GetVerb().GetVerb() == rollout.VerbRollback && to != 0 {
		if err := (rollout.Module{Revisions: rollouts.Revisions(w, ref)}).UnknownRevision(ref, to); err != nil {
			return id, "", err
		}
	}
	if v.GetVerb().GetVerb() == rollout.VerbPin {
		if err := allRegistered(w, v.GetVerb().GetClusters()); err != nil {
			return id, "", err
		}
	}
	k := int64(1)
	w.Scan(store.VerbsOf(ref, id.Number), func(store.Entry) bool { k++; return true })
	key := store.VerbKey(ref, id.Number, k)
	if _, taken := w.Get(key); taken {
		return id, "", fleet.Errorf(fleet.ErrConflict, "rollout %s: another verb was faster; try again", id)
	}
	w.Put(key, v)
	return id, key, nil
}

// recorded finds the verb that was recorded for the same request; no key: none was.
func recorded(r store.Reader, ref fleet.ModuleRef, v *storev1.VerbRecord) (id fleet.RolloutID, key string, err error) {
	if v.GetRequestId() == "" {
		return id, "", nil
	}
	store.Scan(r, store.VerbPrefix+ref.String()+"/", func(old *storev1.VerbRecord, e store.Entry) bool {
		if old.GetRequestId() != v.GetRequestId() {
			return true
		}
		n, _ := store.SplitNumber(e.Key)
		id, key = fleet.RolloutID{Module: ref, Number: n}, e.Key
		same := proto.CloneOf(v)
		same.Verb.At = old.GetVerb().GetAt()
		if !proto.Equal(same, old) {
			err = fleet.Invalidf("request_id", "%q was another request for module %s: %s", v.GetRequestId(), ref.Display(), old.GetVerb().GetVerb())
		}
		return false
	})
	return id, key, err
}

// steered is the rollout that a verb is for: the one of the number, or the one that decides.
func steered(w store.Writer, ref fleet.ModuleRef, number int64, rec *storev1.ModuleRecord) (fleet.RolloutID, error) {
	ro, err := findRollout(w, ref, number)
	if err != nil {
		return fleet.RolloutID{}, err
	}
	if err := mayAct(ref, rec); err != nil {
		return fleet.RolloutID{}, err
	}
	if damaged, what := rollouts.Damaged(w, ref); damaged != 0 {
		return fleet.RolloutID{}, fleet.Errorf(fleet.ErrCorrupt, "%s", what)
	}
	// The newest may have failed before it moved anything: the verb then means the one that still decides.
	decides := rollouts.Driven(w, ref)
	if number == 0 && decides != nil {
		ro = decides
	}
	n := ro.GetRollout().GetNumber()
	id := fleet.RolloutID{Module: ref, Number: n}
	switch newest := decides.GetRollout().GetNumber(); {
	case ro.GetRollout().GetRevision() == 0:
		return id, fleet.Errorf(fleet.ErrPrecondition, "rollout %s has no revision yet: %s", id, ro.GetRollout().GetStatus().GetMessage())
	case n != newest:
		return id, fleet.Errorf(fleet.ErrPrecondition, "rollout %s decides nothing any more; %s does", id, fleet.RolloutID{Module: ref, Number: newest})
	}
	return id, nil
}

// allRegistered refuses names that no cluster has: whoever misspelt one would count on what does not hold anywhere.
func allRegistered(r store.Reader, clusters []string) error {
	r = store.Untracked(r) // there may be more than a commit may compare
	for _, c := range clusters {
		if err := readableCluster(r, fleet.ClusterName(c)); err != nil {
			return err
		}
		if _, found := r.Get(store.ClusterKey(fleet.ClusterName(c))); !found {
			return fleet.Errorf(fleet.ErrNotFound, "cluster %s not found", c)
		}
	}
	return nil
}

// mayAct refuses verbs that nobody would ever answer.
func mayAct(ref fleet.ModuleRef, rec *storev1.ModuleRecord) error {
	switch {
	case rec.GetDeleting() != "":
		return fleet.Errorf(fleet.ErrPrecondition, "module %s is being deleted", ref.Display())
	case rec.GetModule().GetSpec().GetRollout().GetExternal() != nil:
		return fleet.Errorf(fleet.ErrPrecondition, "module %s: another program does its rollouts", ref.Display())
	}
	return nil
}

func (a *API) awaitOutcome(ctx context.Context, id fleet.RolloutID, key string, rev int64) (*towlinev1.RolloutAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	sub := a.o.Store.Subscribe(nil, store.RolloutPrefix+id.Module.String()+"/")
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
				answered, resp.Notes = true, v.Outcome.Notes
				if !v.Outcome.Accepted {
					refused = fleet.Errorf(fleet.ErrPrecondition, "rollout %s: %s", id, v.Outcome.Sentence)
				}
			}
			if !answered && rollouts.StateOf(ro) == rollout.Superseded {
				refused = fleet.Errorf(fleet.ErrPrecondition, "rollout %s: a newer one took its place before it had taken this in; say it again", id)
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
			return nil, fleet.Errorf(fleet.ErrUnavailable, "rollout %s: recorded, but not taken in within %s; see: towline rollout status %s", id, answerWait, id.Module.Display())
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
	got, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Project: req.GetProject(), Module: req.GetModule(), Number: req.GetNumber()})
	if err != nil {
		return nil, err
	}
	return &towlinev1.ExplainRolloutResponse{Rollout: got.GetRollout(), Reasons: got.GetRollout().GetStatus().GetWaitingFor()}, nil
}
