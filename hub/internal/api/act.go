package api

import (
	"context"
	"slices"
	"strings"
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

var verbs = []string{rollout.VerbPause, rollout.VerbResume, rollout.VerbApprove, rollout.VerbReject, rollout.VerbAbort, rollout.VerbRetry,
	rollout.VerbSkip, rollout.VerbPin, rollout.VerbUnpin, rollout.VerbPromote, rollout.VerbRollback, rollout.VerbOverride}

// answerWait is how long a verb waits for the leader to take it in.
const answerWait = 10 * time.Second

// ActOnRollout records a verb and waits until the rollout has answered it.
func (a *API) ActOnRollout(ctx context.Context, req *towlinev1.ActOnRolloutRequest) (*towlinev1.ActOnRolloutResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(verbs, req.GetVerb()) {
		return nil, fleet.Invalidf("verb", "%q is unknown; use %s", req.GetVerb(), strings.Join(verbs, ", "))
	}
	if err := wire.Choice("scope", req.GetScope(), "moved", "failed"); err != nil {
		return nil, err
	}
	if req.GetVerb() == rollout.VerbRetry && req.GetNumber() == 0 {
		if resp, err := a.retrySource(ctx, ref, req.GetReason()); resp != nil || err != nil {
			return resp, err
		}
	}
	if req.GetVerb() == rollout.VerbOverride && req.GetReason() == "" {
		return nil, fleet.Invalid("reason", "an override needs a reason; give one with -m")
	}
	var id fleet.RolloutID
	var key string
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		id, key, err = a.putVerb(ctx, w, ref, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.awaitOutcome(ctx, id, key, rev)
}

// retrySource starts a new rollout when the newest one failed before it had a revision; nil: it did not.
func (a *API) retrySource(ctx context.Context, ref fleet.ModuleRef, reason string) (*towlinev1.ActOnRolloutResponse, error) {
	var number int64
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		number = 0
		rec, _, ok := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
		if !ok || rec.GetDeleting() != "" || !sourceFailed(w, ref, rec) {
			return nil
		}
		m, err := wire.ModuleFromProto(rec.GetModule())
		if err != nil {
			return err
		}
		next := proto.CloneOf(rec)
		if err := a.startRollout(ctx, w, m, next, reason); err != nil {
			return err
		}
		number = next.GetLastRollout()
		w.Put(store.ModuleKey(ref), next)
		return nil
	})
	if err != nil || number == 0 {
		return nil, err
	}
	got, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Project: ref.Project, Module: ref.Name, Number: number, MinRevision: rev})
	return &towlinev1.ActOnRolloutResponse{Id: fleet.RolloutID{Module: ref, Number: number}.String(), Rollout: got.GetRollout(),
		Outcome: rollouts.Accepted, Notes: []string{"the source is fetched and rendered again"}, Revision: rev}, err
}

func (a *API) putVerb(ctx context.Context, w store.Writer, ref fleet.ModuleRef, req *towlinev1.ActOnRolloutRequest) (fleet.RolloutID, string, error) {
	ro, err := findRollout(w, ref, req.GetNumber())
	if err != nil {
		return fleet.RolloutID{}, "", err
	}
	if err := mayAct(w, ref); err != nil {
		return fleet.RolloutID{}, "", err
	}
	if damaged, what := rollouts.Damaged(w, ref); damaged != 0 {
		return fleet.RolloutID{}, "", fleet.Errorf(fleet.ErrCorrupt, "%s", what)
	}
	// The newest may have failed before it moved anything: the verb then means the one that still decides.
	decides := rollouts.Driven(w, ref)
	if req.GetNumber() == 0 && decides != nil {
		ro = decides
	}
	n := ro.GetRollout().GetNumber()
	id := fleet.RolloutID{Module: ref, Number: n}
	switch newest := decides.GetRollout().GetNumber(); {
	case ro.GetRollout().GetRevision() == 0:
		return id, "", fleet.Errorf(fleet.ErrPrecondition, "rollout %s has no revision yet: %s", id, ro.GetRollout().GetStatus().GetMessage())
	case n != newest:
		return id, "", fleet.Errorf(fleet.ErrPrecondition, "rollout %s decides nothing any more; %s does", id, fleet.RolloutID{Module: ref, Number: newest})
	}
	if to := req.GetRevision(); req.GetVerb() == rollout.VerbRollback && to != 0 {
		if err := (rollout.Module{Revisions: rollouts.Revisions(w, ref)}).UnknownRevision(ref, to); err != nil {
			return id, "", err
		}
	}
	if req.GetVerb() == rollout.VerbPin {
		if err := allRegistered(w, req.GetClusters()); err != nil {
			return id, "", err
		}
	}
	k := int64(1)
	w.Scan(store.VerbsOf(ref, n), func(store.Entry) bool { k++; return true })
	key := store.VerbKey(ref, n, k)
	if _, taken := w.Get(key); taken {
		return id, "", fleet.Errorf(fleet.ErrConflict, "rollout %s: another verb was faster; try again", id)
	}
	scope := rollout.ScopeMoved
	if req.GetScope() == "failed" {
		scope = rollout.ScopeFailed
	}
	w.Put(key, &storev1.VerbRecord{Scope: scope, Verb: &towlinev1.VerbRecord{Verb: req.GetVerb(), Clusters: req.GetClusters(), Stage: req.GetStage(),
		Gate: req.GetGate(), By: who(ctx), At: timestamppb.New(a.now()), Reason: req.GetReason(), Revision: req.GetRevision(), Until: req.GetUntil()}})
	return id, key, nil
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
func mayAct(w store.Writer, ref fleet.ModuleRef) error {
	rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
	switch {
	case rec.GetDeleting() != "":
		return fleet.Errorf(fleet.ErrPrecondition, "module %s is being deleted", ref.Display())
	case rec.GetModule().GetSpec().GetRollout().GetExternal() != nil:
		return fleet.Errorf(fleet.ErrPrecondition, "module %s: another program does its rollouts", ref.Display())
	}
	return nil
}

func (a *API) awaitOutcome(ctx context.Context, id fleet.RolloutID, key string, rev int64) (*towlinev1.ActOnRolloutResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	sub := a.o.Store.Subscribe(nil, store.RolloutPrefix+id.Module.String()+"/")
	defer sub.Stop()
	for {
		resp := &towlinev1.ActOnRolloutResponse{Id: id.String(), Revision: rev}
		var refused error
		err := a.o.Store.View(ctx, rev, func(r store.Reader) error {
			ro, err := findRollout(r, id.Module, id.Number)
			if err != nil {
				return err
			}
			run, err := rollouts.Load(r, id.Module, id.Number)
			if err != nil || run == nil {
				return err
			}
			for _, v := range run.State.Verbs {
				if v.ID != key {
					continue
				}
				resp.Outcome, resp.Notes = rollouts.Answer(v.Outcome), v.Outcome.Notes
				if !v.Outcome.Accepted {
					refused = fleet.Errorf(fleet.ErrPrecondition, "rollout %s: %s", id, v.Outcome.Sentence)
				}
			}
			resp.Rollout, err = a.showRollout(r, id.Module, ro)
			return err
		})
		if err != nil || refused != nil {
			return nil, firstOf(err, refused)
		}
		if resp.Outcome != "" {
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
