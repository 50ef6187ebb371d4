package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/secrets"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Results of a resync.
const (
	resyncStarted   = "Started"
	resyncUnchanged = "Unchanged"
	resyncWaiting   = "Waiting"
)

// ResyncModule looks at the source of a module now.
func (a *API) ResyncModule(ctx context.Context, req *towlinev1.ResyncModuleRequest) (*towlinev1.ResyncModuleResponse, error) {
	ref, err := refOf(req.GetProject(), req.GetName())
	if err != nil {
		return nil, err
	}
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error { return mayResync(r, ref, req.GetUid()) }); err != nil {
		return nil, err
	}
	if a.o.Resync == nil {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "module %s: this hub looks at no sources", ref.Display())
	}
	with, err := a.together(ctx, ref, req.GetWith())
	if err != nil {
		return nil, err
	}
	came, err := a.o.Resync(ctx, ref, record.Ask{By: who(ctx), Reason: req.GetReason()}, with)
	if err != nil {
		return nil, named("module", ref.Display(), err)
	}
	resp := &towlinev1.ResyncModuleResponse{Result: resyncUnchanged, ResolvedRef: came.Ref}
	if came.Number != 0 {
		resp.Result, resp.Rollout = resyncStarted, fleet.RolloutID{Module: ref, Number: came.Number}.String()
	}
	if came.Waits {
		resp.Result = resyncWaiting
	}
	for _, m := range with {
		if number := came.Others[m]; number != 0 {
			resp.Others = append(resp.Others, fleet.RolloutID{Module: m, Number: number}.String())
		}
	}
	err = a.o.Store.View(ctx, 0, func(r store.Reader) error {
		resp.Revision = r.Revision()
		return nil
	})
	return resp, err
}

// maxResynced is how many modules may be looked at together on somebody's word.
const maxResynced = 1000

// together are the other modules that are to be looked at with one.
func (a *API) together(ctx context.Context, ref fleet.ModuleRef, names []string) (with []fleet.ModuleRef, err error) {
	if len(names) > maxResynced {
		return nil, fleet.Invalidf("with", "has %d modules; at most %d", len(names), maxResynced)
	}
	err = a.o.Store.View(ctx, 0, func(r store.Reader) error {
		for _, name := range names {
			m, err := refOf(ref.Project, name)
			if err != nil {
				return fleet.Join("with", err)
			}
			if m == ref || slices.Contains(with, m) {
				continue
			}
			if err := mayResync(r, m, ""); err != nil {
				return err
			}
			with = append(with, m)
		}
		return nil
	})
	return with, err
}

// mayResync refuses what there is nothing to look at again of.
func mayResync(r store.Reader, ref fleet.ModuleRef, uid string) error {
	rec, damaged, ok := moduleRecord(r, ref)
	switch {
	case !ok:
		return noModule(ref)
	case damaged:
		return fleet.Errorf(fleet.ErrCorrupt, "module %s: %s", ref.Display(), record.DamagedModule(ref))
	case rec.GetDeleting() != "":
		return fleet.Forbids(ref.Object(), "module %s is being deleted", ref.Display())
	}
	if err := fleet.SameUID(ref.Object(), rec.GetModule().GetMetadata().GetUid(), uid); err != nil {
		return err
	}
	if src := rec.GetModule().GetSpec().GetSource(); wire.Contained(src) {
		return fleet.Forbids(ref.Object(), "module %s: its source is %s, which a put alone changes: towline apply", ref.Display(), wire.SourceKinds(src)[0])
	}
	return nil
}

// maxTogether is how many rollouts start in one transaction. Each rests on three keys: the module, and those of the rollout that is not there
// yet. A transaction may rest on few more keys than it may change.
const maxTogether = store.MaxOps / 3

// StartFollowed starts rollouts of modules whose sources have something else, as puts do: together, so that none has its revision before all
// have started. A *record.StartError says which may not begin; then none did. Of more than one transaction takes, one that comes to be
// refused when others have started is left out, with the number 0.
func (a *API) StartFollowed(ctx context.Context, list []record.News) (numbers []int64, err error) {
	batch := ""
	if len(list) > maxTogether {
		batch = record.BatchID(list[0].Ask.By, rand.Text())
		if err := a.mayStart(ctx, list); err != nil {
			return nil, err
		}
	}
	for chunk := range slices.Chunk(list, maxTogether) {
		some, err := a.startSome(ctx, chunk, batch, len(numbers) == 0, len(numbers)+len(chunk) < len(list))
		if err != nil {
			return nil, err
		}
		a.auditStarted(ctx, chunk, some)
		numbers = append(numbers, some...)
	}
	return numbers, nil
}

// errMayStart ends a transaction that writes nothing.
var errMayStart = errors.New("all may start")

// mayStart refuses what one of the starts would be refused for now, before any is written.
func (a *API) mayStart(ctx context.Context, list []record.News) error {
	for chunk := range slices.Chunk(list, maxTogether) {
		_, err := a.o.Store.Update(ctx, func(w store.Writer) error {
			for _, n := range chunk {
				if _, err := a.startFollowed(w, n, ""); err != nil {
					return &record.StartError{Module: n.Module, Err: err}
				}
			}
			return errMayStart
		})
		if !errors.Is(err, errMayStart) {
			return err
		}
	}
	return nil
}

func (a *API) auditStarted(ctx context.Context, list []record.News, numbers []int64) {
	for i, n := range list {
		if numbers[i] != 0 {
			a.audit(ctx, &towlinev1.AuditEntry{Caller: n.Ask.By, Method: "FollowSource", Subject: n.Module.String(), Reason: n.Ask.Reason,
				Detail: strings.TrimSpace(n.Ref + " rollout " + fleet.RolloutID{Module: n.Module, Number: numbers[i]}.String())}, nil)
		}
	}
}

// startSome starts some of a batch, the first, or of which more are to come; an empty batch: these are all. When others have started none
// holds up the rest.
func (a *API) startSome(ctx context.Context, list []record.News, batch string, first, more bool) (numbers []int64, err error) {
	_, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		numbers = nil
		if !first && !record.Gathers(w, batch) { // those before did not begin without the rest
			return fleet.Errorf(fleet.ErrConflict, "module %s begins too late for others that were to begin with it; try again", list[0].Module.Display())
		}
		for _, n := range list {
			number, err := a.startFollowed(w, n, batch)
			if !first && (errors.Is(err, fleet.ErrPrecondition) || errors.Is(err, fleet.ErrConflict)) {
				number, err = 0, nil // it has written nothing
			}
			if err != nil {
				return &record.StartError{Module: n.Module, Err: err}
			}
			numbers = append(numbers, number)
		}
		switch {
		case more:
			w.Put(store.BatchKey(batch), &storev1.BatchRecord{Last: timestamppb.New(a.now())})
		case batch != "":
			w.Delete(store.BatchKey(batch))
		}
		return nil
	})
	return numbers, err
}

func (a *API) startFollowed(w store.Writer, n record.News, batch string) (number int64, err error) {
	rec, damaged, ok := moduleRecord(w, n.Module)
	meta := rec.GetModule().GetMetadata()
	if !ok || damaged || rec.GetDeleting() != "" || meta.GetUid() != n.UID || meta.GetGeneration() != n.Generation || rollouts.Newest(w, n.Module) != n.Rollout {
		return 0, later(fleet.Errorf(fleet.ErrConflict, "module %s was put meanwhile; try again", n.Module.Display()))
	}
	if !n.Person && rollouts.PausedByPerson(w, n.Module) {
		return 0, record.IsPaused(n.Module)
	}
	return a.startRollout(w, n.Module, rec, record.Ask{By: n.Ask.By, Reason: cmp.Or(n.Ask.Reason, n.Ref)}, "",
		rollouts.How{Unasked: !n.Person, Fetched: n.Fetched, Batch: batch})
}

// HookKey is what calls are signed with that ask for a look at the source of a module; empty: it takes none, or has no secret that
// can be read, or there is no such module.
func (a *API) HookKey(ctx context.Context, ref fleet.ModuleRef) (key []byte) {
	_ = a.o.Store.View(ctx, 0, func(r store.Reader) error {
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		if rec == nil || rec.GetDeleting() != "" {
			return nil
		}
		m, err := wire.ModuleFromProto(rec.GetModule())
		if err != nil || m.Follow == nil || m.Follow.Webhook == "" {
			return nil
		}
		key = a.hookKey(r, ref.Project, m.Follow.Webhook)
		return nil
	})
	return key
}

// hookKey is what a secret of a project has for the signing of calls; empty: nothing, or it cannot be read.
func (a *API) hookKey(r store.Reader, project, name string) []byte {
	secret := fleet.ModuleRef{Project: project, Name: name}
	values, _, ok := store.Get[*storev1.SecretRecord](r, store.SecretKey(project, name))
	if !ok || name == "" {
		return nil
	}
	open, err := a.valuesOf(secret, record.SecretPart{Secret: values.GetSecret(), Values: values.GetValues()})
	if err != nil {
		return nil
	}
	return bytes.TrimRight(open[webhookKey], "\r\n")
}

// webhookKey is the key of a secret that has what calls are signed with.
const webhookKey = "webhook"

// warnHooks warns of a webhook that nobody can call.
func (a *API) warnHooks(r store.Reader, m *wire.Module) []*towlinev1.Note {
	if m.Follow == nil || m.Follow.Webhook == "" {
		return nil
	}
	if !a.o.Hooks {
		return []*towlinev1.Note{note(fleet.WarnNoHooks, nil)}
	}
	rec, _, ok := store.Get[*storev1.SecretRecord](store.Untracked(r), store.SecretKey(m.Ref.Project, m.Follow.Webhook))
	if !ok || !slices.Contains(rec.GetSecret().GetKeys(), webhookKey) {
		return []*towlinev1.Note{note(fleet.WarnNoWebhookKey, &towlinev1.Facts{Names: []string{secrets.Display(m.Ref.Project, m.Follow.Webhook)}})}
	}
	return nil
}

// followStatus is how the source of a module is followed; nil: it is not.
func (a *API) followStatus(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord, s *towlinev1.ModuleStatus) *towlinev1.FollowStatus {
	if rec.GetModule().GetSpec().GetSource().GetFollow() == nil {
		return nil
	}
	out, memory := &towlinev1.FollowStatus{}, record.Followed(r, ref, rec)
	if a.o.Followed != nil {
		known, next := a.o.Followed(ref)
		if record.SpeaksOf(known, rec) {
			memory = known
		}
		if !next.IsZero() {
			out.Next = timestamppb.New(next)
		}
	}
	if record.Stands(r) { // no source is looked at by itself
		out.Next = nil
	}
	newest := record.NewestRevision(r, ref)
	out.Looked, out.ResolvedRef = memory.GetLooked(), memory.GetResolvedRef()
	if cut := newest.GetRevision().GetMetadata().GetCreationTimestamp(); out.Looked == nil || cut.AsTime().After(out.Looked.AsTime()) {
		out.Looked, out.ResolvedRef = cut, newest.GetRevision().GetResolvedRef()
	}
	if !record.Mended(r, ref, memory) {
		out.Reason, out.Message, out.Since = memory.GetReason(), memory.GetMessage(), memory.GetSince()
	}
	if rollouts.RolledBack(r, ref, rollouts.Last(r, ref)) {
		out.SuspendedRevision = s.GetRevision()
	}
	return out
}

// followingCondition states whether the source of a module is followed.
func followingCondition(r store.Reader, s *towlinev1.ModuleStatus) *towlinev1.Condition {
	f := s.GetFollow()
	c := &towlinev1.Condition{Type: follow.Condition, Status: fleet.ConditionTrue, Reason: follow.ReasonFollows, ObservedGeneration: s.GetObservedGeneration()}
	switch {
	case f.GetReason() != "":
		c.Status, c.Reason, c.Message, c.LastTransitionTime = fleet.ConditionFalse, f.GetReason(), f.GetMessage(), f.GetSince()
	case f.GetSuspendedRevision() != 0:
		c.Status, c.Reason, c.LastTransitionTime = fleet.ConditionFalse, follow.ReasonRolledBack, s.GetSince()
	case record.Stands(r):
		c.Status, c.Reason = fleet.ConditionFalse, rollout.ReasonRestored
	}
	return c
}
