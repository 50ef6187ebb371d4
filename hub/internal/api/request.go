package api

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/uuid"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// asking is a call that asks the leader for something in clusters.
type asking interface {
	proto.Message
	GetProject() string
	GetModule() string
	GetModuleUid() string
	GetClusters() []string
	GetRequestId() string
}

// answer is what the leader did of a request.
type answer struct {
	generation uint64
	revision   int64 // of the store, when it did it
}

// pending is a request that is recorded, or was: by its ID the leader answers it.
type pending struct {
	ref  fleet.ModuleRef
	id   string
	said fleet.Digest
	name string // what the caller named it
	uid  string // of the module
}

// ask records a request and waits until the leader has answered it. The API refuses what is refused for good; all that may change
// is judged by the leader alone, so that a repeat is answered as the request was. What is not answered in time is taken back.
func (a *API) ask(ctx context.Context, ref fleet.ModuleRef, req asking, q *storev1.RequestRecord) (answer, error) {
	p, err := pend(ctx, ref, req)
	if err != nil {
		return answer{}, err
	}
	q.Expires = timestamppb.New(a.now().Add(answerWait))
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) error { return putRequest(w, &p, req.GetModuleUid(), q) })
	if err != nil {
		return answer{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	got, err := a.awaitAnswer(waiting, p, rev)
	if waiting.Err() == nil {
		return got, err
	}
	return a.takeBack(ctx, p)
}

// pend names a request: one that the caller named is the same when it comes again.
func pend(ctx context.Context, ref fleet.ModuleRef, req asking) (pending, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return pending{}, fmt.Errorf("module %s: request: %w", ref.Display(), err)
	}
	kind := string(req.ProtoReflect().Descriptor().Name())
	p := pending{ref: ref, name: req.GetRequestId(), id: string(uuid.NewUUID()), said: fleet.DigestOf(fmt.Appendf(b, "\x00%s\x00%s", kind, who(ctx)))}
	if p.name != "" {
		p.id = fmt.Sprintf("%x", fleet.DigestOf([]byte(p.name)).Bytes())
	}
	return p, nil
}

// putRequest records a request, unless it is recorded, or was answered.
func putRequest(w store.Writer, p *pending, uid string, q *storev1.RequestRecord) error {
	m, _, found := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(p.ref))
	if !found {
		return noModule(p.ref)
	}
	p.uid = m.GetModule().GetMetadata().GetUid()
	if err := fleet.SameUID(p.ref.Object(), p.uid, uid); err != nil {
		return err
	}
	if old, _, found := store.Get[*storev1.AnswerRecord](w, store.AnswerKey(p.ref, p.id)); found {
		return p.same(old.GetSaid())
	}
	key := store.RequestKey(p.ref, p.id)
	if old, _, found := store.Get[*storev1.RequestRecord](w, key); found {
		return p.same(old.GetSaid())
	}
	if m.GetDeleting() != "" {
		return fleet.Forbids(p.ref.Object(), "module %s is being deleted", p.ref.Display())
	}
	if !q.GetLeave() {
		w.Grows()
	}
	next := proto.CloneOf(q)
	next.ModuleUid, next.RequestId, next.Said = p.uid, p.name, p.said.Bytes()
	w.Put(key, next)
	return nil
}

// same refuses a request that has the name of another one.
func (p *pending) same(said []byte) error {
	if bytes.Equal(said, p.said.Bytes()) {
		return nil
	}
	return fleet.Invalidf("request_id", "%q was another request for module %s", p.name, p.ref.Display())
}

func (a *API) awaitAnswer(ctx context.Context, p pending, rev int64) (got answer, err error) {
	sub := a.o.Store.Subscribe(nil, store.RequestKey(p.ref, p.id), store.AnswerKey(p.ref, p.id))
	defer sub.Stop()
	for {
		var done bool
		if err := a.o.Store.View(ctx, rev, func(r store.Reader) (err error) {
			got, done, err = p.ended(r)
			return err
		}); err != nil || done {
			return got, err
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-sub.C():
			sub.Take()
		}
	}
}

// ended is what came of a request; not done: it is still there. One that went without an answer was not carried out: it was taken back by
// a repeat, could not be read, or its module is gone.
func (p *pending) ended(r store.Reader) (got answer, done bool, err error) {
	if old, e, found := store.Get[*storev1.AnswerRecord](r, store.AnswerKey(p.ref, p.id)); found {
		if len(old.GetRefusal()) > 0 {
			return got, true, rpc.Unpack(old.GetRefusal())
		}
		return answer{generation: old.GetGeneration(), revision: e.ModRevision}, true, nil
	}
	if _, found := store.Untracked(r).Get(store.RequestKey(p.ref, p.id)); found {
		return got, false, nil
	}
	m, _, found := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(p.ref))
	if !found {
		return got, true, noModule(p.ref)
	}
	if err := fleet.SameUID(p.ref.Object(), m.GetModule().GetMetadata().GetUid(), p.uid); err != nil {
		return got, true, err
	}
	return got, true, p.notDone()
}

func (p *pending) notDone() error {
	return later(fleet.Errorf(fleet.ErrUnavailable, "module %s: not taken in within %s; nothing was done, and nothing will be: try again", p.ref.Display(), answerWait))
}

// takeBackWait is how long it may take to take a request back.
const takeBackWait = 2 * time.Second

// takeBack ends a request that nobody has answered, so that it is not carried out when its caller does not count on it any more. It
// does so for a caller that is gone, too.
func (a *API) takeBack(ctx context.Context, p pending) (got answer, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWait)
	defer cancel()
	done := false
	rev, err := a.o.Store.Update(ctx, func(w store.Writer) (err error) {
		if _, found := w.Get(store.AnswerKey(p.ref, p.id)); !found {
			w.Delete(store.RequestKey(p.ref, p.id))
		}
		return nil
	})
	if err == nil {
		err = a.o.Store.View(ctx, rev, func(r store.Reader) (err error) {
			got, done, err = p.ended(r)
			return err
		})
	}
	if done {
		return got, err
	}
	return got, later(fleet.Errorf(fleet.ErrUnavailable, "module %s: not taken in within %s; whether it is done in this moment is not known: look at what is assigned, "+
		"or try again with the same request_id (%v)", p.ref.Display(), answerWait, err))
}
