package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// findRollout reads a rollout's record; number 0 is the newest.
func findRollout(r store.Reader, ref fleet.ModuleRef, number int64) (*storev1.RolloutRecord, error) {
	if _, ok := r.Get(store.ModuleKey(ref)); !ok {
		return nil, noModule(ref)
	}
	if damaged, what := rollouts.Damaged(r, ref); damaged != 0 && (number == 0 || number == damaged) {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s", what) // an older one is not taken for it
	}
	all := rollouts.List(r, ref)
	for _, ro := range slices.Backward(all) {
		if number == 0 || ro.GetRollout().GetNumber() == number {
			return ro, nil
		}
	}
	if number == 0 {
		return nil, fleet.NotFound(rolloutObject(fleet.RolloutID{Module: ref}), "module %s has no rollout yet", ref.Display())
	}
	id := fleet.RolloutID{Module: ref, Number: number}
	return nil, fleet.NotFound(rolloutObject(id), "rollout %s not found; see: towline rollout history %s", id, ref.Display())
}

// observedRun reads the run of a record with everything observed; nil when it has no plan yet.
func (a *API) observedRun(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) (*rollouts.Run, error) {
	run, err := rollouts.Load(r, ref, ro.GetRollout().GetNumber())
	if err != nil || run == nil {
		return nil, err
	}
	view, err := a.presence().Over(r, a.now(), run, nil)
	if err != nil {
		return nil, err
	}
	view.All(r, run)
	return run, nil
}

func (a *API) showRollout(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) (*towlinev1.Rollout, error) {
	out := proto.CloneOf(a.awaited(r, ref, ro))
	out.Status.RevisionRead = r.Revision()
	run, err := a.observedRun(r, ref, ro)
	if err != nil {
		return nil, err
	}
	var of rollout.Module
	if run != nil {
		of = run.Facts(r)
	}
	rollouts.Describe(out.Status, run, of, rollouts.Verbs(r, ref, ro.GetRollout().GetNumber()), a.now())
	if rollouts.Ended(ro) && len(out.Status.WaitingFor) > 0 && !takesWords(r, ref, ro) {
		offerNothing(out.Status.WaitingFor)
	}
	return out, nil
}

// takesWords reports that a word to a rollout, by its number, is taken in. One that has ended takes some as long as it is the one that
// decides.
func takesWords(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) bool {
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	_, err := steered(r, ref, ro.GetRollout().GetNumber(), rec)
	return err == nil
}

// offerNothing takes out of reasons what can be done: whoever did it would be refused, or would do it to another rollout.
func offerNothing(reasons []*towlinev1.Reason) {
	for _, x := range reasons {
		x.Actions = nil
		offerNothing(x.GetCauses())
	}
}

// awaited is the rollout with what it waits for now, while it has no revision: the end of the one ahead, its source, or the end of a
// trouble of the hub itself.
func (a *API) awaited(r store.Reader, ref fleet.ModuleRef, rec *storev1.RolloutRecord) *towlinev1.Rollout {
	ro := rec.GetRollout()
	if ro.GetRevision() != 0 || rollouts.StateOf(rec) != rollout.Pending {
		return ro
	}
	if a.o.Trouble != nil {
		if err := a.o.Trouble(ref); err != nil {
			return waitsFor(ro, troubleOf(err), a.troubleFacts(err))
		}
	}
	switch first := rollouts.Ahead(r, ref, rec); {
	case first != "" && rec.GetUnasked() && first == rollouts.PausedRollout(r, ref):
		return waitsFor(ro, rollout.ReasonBehindPause, &towlinev1.Facts{Rollout: first})
	case first != "" && ro.GetStatus().GetReason() != rollout.ReasonQueued:
		return waitsFor(ro, rollout.ReasonQueued, &towlinev1.Facts{Rollout: first})
	case first != "":
		return ro
	case ro.GetStatus().GetReason() == rollout.ReasonQueued:
		return waitsFor(ro, rollout.ReasonResolving, nil)
	}
	if record.AwaitsPuts(r, ref, ro.GetNumber()) != "" {
		return waitsFor(ro, rollout.ReasonPutsAhead, &towlinev1.Facts{For: durationpb.New(record.BatchPatience)})
	}
	if ahead := record.SourcesAhead(r, ref); len(ahead) > 0 {
		names := make([]string, len(ahead))
		for i, m := range ahead {
			names[i] = m.Name
		}
		return waitsFor(ro, rollout.ReasonSourcesAhead, &towlinev1.Facts{Names: names})
	}
	return ro
}

func waitsFor(ro *towlinev1.Rollout, reason string, facts *towlinev1.Facts) *towlinev1.Rollout {
	out := proto.CloneOf(ro)
	out.Status.Reason, out.Status.Facts = reason, facts
	return out
}

// troubleFacts are what people are told of a trouble.
func (a *API) troubleFacts(err error) *towlinev1.Facts {
	f := &towlinev1.Facts{Detail: err.Error()}
	var away *source.AwayError
	if errors.As(err, &away) {
		f.Names = []string{away.Host}
		if !away.Since.IsZero() {
			f.For = durationpb.New(a.now().Sub(away.Since))
		}
	}
	return f
}

func troubleOf(err error) (reason string) {
	if errors.As(err, new(*source.AwayError)) {
		return rollout.ReasonSourceAway
	}
	if errors.As(err, new(*source.SecretError)) {
		return rollout.ReasonNeedsSecret
	}
	if errors.Is(err, fleet.ErrExhausted) {
		return rollout.ReasonStoreFull
	}
	return rollout.ReasonHubTrouble
}

// GetRollout reads one.
func (a *API) GetRollout(ctx context.Context, req *towlinev1.GetRolloutRequest) (*towlinev1.GetRolloutResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return nil, err
	}
	resp := &towlinev1.GetRolloutResponse{}
	err = a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		ro, err := findRollout(r, ref, req.GetNumber())
		if err != nil {
			return err
		}
		resp.Rollout, err = a.showRollout(r, ref, ro)
		return err
	})
	return resp, err
}

// ListRollouts reads many, newest first for each module.
func (a *API) ListRollouts(ctx context.Context, req *towlinev1.ListRolloutsRequest) (*towlinev1.ListRolloutsResponse, error) {
	var rows []*towlinev1.Rollout
	err := a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		rollouts.All(r, "", func(ro *storev1.RolloutRecord, e store.Entry) {
			ref, ok := store.SplitModule(e.Key)
			if !ok || (req.GetProject() != "" && ref.Project != req.GetProject()) || (req.GetModule() != "" && ref.Name != req.GetModule()) ||
				(req.GetActive() && rollouts.Ended(ro)) {
				return
			}
			if first, _ := rollouts.First(r, ref); ro.GetRollout().GetNumber() >= first {
				rows = append(rows, proto.CloneOf(a.awaited(r, ref, ro)))
			}
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	lines := shownAll(rows, rolloutKey)
	sortLines(lines)
	part, next, total, err := paginate(req, lines)
	return &towlinev1.ListRolloutsResponse{Rollouts: part, NextPageToken: next, Total: total}, err
}

// rolloutKey sorts by module, the newest rollout first.
func rolloutKey(ro *towlinev1.Rollout) string {
	return newestFirst(fleet.ModuleRef{Project: ro.GetMetadata().GetProject(), Name: ro.GetModule()}, ro.GetNumber())
}

// WatchRollout sends the status and each change until the rollout ends. The token carries the store revision and the
// digest of the status that was sent last: what is the same is not sent again, what is not is sent whole.
func (a *API) WatchRollout(req *towlinev1.WatchRolloutRequest, st grpc.ServerStreamingServer[towlinev1.WatchRolloutResponse]) error {
	ref, err := refOf(req.GetProject(), req.GetModule())
	if err != nil {
		return err
	}
	last, err := readToken(req.GetResumeToken())
	if err != nil {
		return err
	}
	number := cmp.Or(last.number, req.GetNumber())
	of := module{ref, cmp.Or(last.module, req.GetModuleUid())}
	if err := a.reach(st.Context(), req.GetMinRevision()); err != nil {
		return err
	}
	sub := a.o.Store.Subscribe(nil, store.StartPrefix+ref.String()+"/", store.RolloutPrefix+ref.String()+"/", store.ChunkPrefix+ref.String()+"/", store.ObservedPrefix, store.ConditionPrefix,
		store.DesiredPrefix, store.ClusterPrefix, store.VerbPrefix+ref.String()+"/")
	defer sub.Stop()
	var shown *towlinev1.Rollout
	p := a.watchers.join()
	defer p.leave()
	for {
		touched, began := a.touches.wait(), time.Now()
		sub.Take()
		var ro *towlinev1.Rollout
		err := a.o.Store.View(st.Context(), 0, func(r store.Reader) error {
			if err := of.stands(r); err != nil {
				return err
			}
			rec, err := findRollout(r, ref, number)
			if err != nil {
				return err
			}
			number = rec.GetRollout().GetNumber()
			ro, err = a.showRollout(r, ref, rec)
			return err
		})
		if err != nil {
			return err
		}
		ended := rollout.RunState(ro.GetStatus().GetState()).Ended()
		next := token{number: number, digest: statusDigest(ro), module: of.uid}
		if next.digest != last.digest || ended {
			resp := &towlinev1.WatchRolloutResponse{Rollout: ro, ResumeToken: next.String(), Ended: ended, Events: eventsBetween(shown, ro, a.now())}
			if err := st.Send(resp); err != nil {
				return err
			}
			last, shown = next, ro
		}
		if ended {
			return nil
		}
		p.looked(began)
		if err := p.wait(st.Context(), sub, touched, func(key string) weight { return a.concerns(st.Context(), key, ref, shown) }); err != nil {
			return err
		}
	}
}

// concerns says what a changed key means to a watch of a rollout of the module that has shown this.
func (a *API) concerns(ctx context.Context, key string, ref fleet.ModuleRef, shown *towlinev1.Rollout) weight {
	switch {
	case strings.HasPrefix(key, store.RolloutPrefix):
		if a.turned(ctx, key, shown) {
			return important
		}
	case strings.HasPrefix(key, store.ObservedPrefix), strings.HasPrefix(key, store.DesiredPrefix):
		if _, of, ok := store.SplitClusterModule(key); !ok || of != ref {
			return irrelevant
		}
	}
	return relevant
}

// turned reports that the rollout has another state, reason or stage than was shown. That it moved more clusters is seen
// soon enough at the pace of the watch.
func (a *API) turned(ctx context.Context, key string, shown *towlinev1.Rollout) bool {
	turned := true
	_ = a.o.Store.View(ctx, 0, func(r store.Reader) error {
		rec, _, ok := store.Get[*storev1.RolloutRecord](r, key)
		now, then := rec.GetRollout().GetStatus(), shown.GetStatus()
		turned = !ok || now.GetState() != then.GetState() || now.GetReason() != then.GetReason() || now.GetCurrentStage().GetStage() != then.GetCurrentStage().GetStage()
		return nil
	})
	return turned
}

// module is one module of all that had its name, one after the other: numbers begin anew with each. The UID is empty while
// it is not known which one is meant.
type module struct {
	ref fleet.ModuleRef
	uid string
}

// stands checks that the module still has its name. The first that is seen is the one that is meant.
func (m *module) stands(r store.Reader) error {
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(m.ref))
	uid := rec.GetModule().GetMetadata().GetUid()
	if ok && m.uid != "" && uid != m.uid {
		return fleet.NotFound(m.ref.Object(), "module %s was deleted; another module has its name now", m.ref.Display())
	}
	if m.uid == "" {
		m.uid = uid
	}
	return nil
}

type token struct {
	number int64
	digest fleet.Digest
	module string // the UID of the rollout's module
}

func (t token) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(t.number, 10) + "." + string(t.digest.Bytes()) + t.module))
}

func readToken(s string) (token, error) {
	if s == "" {
		return token{}, nil
	}
	bad := fleet.Invalidf("resume_token", "%.40q is no token of WatchRollout", s)
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return token{}, bad
	}
	i := slices.Index(raw, '.')
	if i < 0 {
		return token{}, bad
	}
	n, err := strconv.ParseInt(string(raw[:i]), 10, 64)
	if err != nil {
		return token{}, bad
	}
	digest := raw[i+1:]
	at := min(len(digest), len(fleet.Digest{}))
	d, err := fleet.DigestFromBytes(digest[:at])
	if err != nil {
		return token{}, bad
	}
	return token{number: n, digest: d, module: string(digest[at:])}, nil
}

// statusDigest is equal for statuses that a person would call the same.
func statusDigest(ro *towlinev1.Rollout) fleet.Digest {
	c := proto.CloneOf(ro)
	c.Status.RevisionRead = 0
	c.Status.NextLook = nil
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		return fleet.Digest{}
	}
	return fleet.DigestOf(b)
}

// eventsBetween says what changed from one status to the next; everything on the first.
func eventsBetween(old, ro *towlinev1.Rollout, now time.Time) []*towlinev1.RolloutEvent {
	var out []*towlinev1.RolloutEvent
	s := ro.GetStatus()
	add := func(at *timestamppb.Timestamp, about *towlinev1.Subject, from, to, reason string, facts *towlinev1.Facts) {
		if from == to {
			return
		}
		out = append(out, &towlinev1.RolloutEvent{At: at, Subject: about, From: from, To: to, Reason: reason, Facts: facts})
	}
	since := func(began, ended *timestamppb.Timestamp) *timestamppb.Timestamp {
		switch {
		case ended != nil:
			return ended
		case old != nil:
			return timestamppb.New(now) // in between only the change itself says when
		}
		return began
	}
	add(since(s.GetStarted(), s.GetEnded()), &towlinev1.Subject{Kind: rollout.AboutRollout, Name: ro.GetId()}, old.GetStatus().GetState(), s.GetState(), s.GetReason(), s.GetFacts())
	stages := map[string]*towlinev1.StageStatus{}
	for _, x := range old.GetStatus().GetStages() {
		stages[x.GetName()] = x
	}
	for _, x := range s.GetStages() {
		was := stages[x.GetName()]
		add(since(x.GetStarted(), x.GetEnded()), &towlinev1.Subject{Kind: rollout.AboutStage, Name: x.GetName()}, was.GetState(), x.GetState(), x.GetReason(), x.GetFacts())
		gates := map[string]string{}
		for _, g := range was.GetGates() {
			gates[g.GetPosition()+g.GetName()] = g.GetState()
		}
		for _, g := range x.GetGates() {
			about := &towlinev1.Subject{Kind: rollout.AboutGate, Name: g.GetName(), Stage: x.GetName(), Position: g.GetPosition()}
			add(g.GetSince(), about, gates[g.GetPosition()+g.GetName()], g.GetState(), g.GetFacts().GetCode(), g.GetFacts())
		}
	}
	clusters := map[string]string{}
	for _, x := range old.GetStatus().GetClusters() {
		clusters[x.GetCluster()] = x.GetState()
	}
	for _, x := range s.GetClusters() {
		about := &towlinev1.Subject{Kind: rollout.AboutCluster, Name: x.GetCluster()}
		add(x.GetSince(), about, clusters[x.GetCluster()], x.GetState(), x.GetReason(), x.GetFacts())
	}
	return out
}
