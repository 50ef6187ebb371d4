package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// rolloutStream gives what is sent to a watch of a rollout.
type rolloutStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *towlinev1.WatchRolloutResponse
}

func (s rolloutStream) Context() context.Context { return s.ctx }

func (s rolloutStream) Send(r *towlinev1.WatchRolloutResponse) error {
	s.sent <- r
	return nil
}

// watch runs a watch of rollout shop/1; its error comes when it ends.
func (a *API) watch(ctx context.Context, req *towlinev1.WatchRolloutRequest) (<-chan *towlinev1.WatchRolloutResponse, <-chan error) {
	s, ended := rolloutStream{ctx: ctx, sent: make(chan *towlinev1.WatchRolloutResponse, 16)}, make(chan error, 1)
	req.Module, req.Number = "shop", 1
	go func() { ended <- a.WatchRollout(req, s) }()
	return s.sent, ended
}

// Numbers begin anew when a module is gone everywhere: another one under the name has a rollout 1, too. How that ends is
// not how the first one did.
func TestWatchIsOfOneModule(t *testing.T) {
	put := func(uid string, state rollout.RunState) func(w store.Writer) {
		return func(w store.Writer) {
			ref := putModule(w, "default", "shop", func(rec *storev1.ModuleRecord) { rec.Module.Metadata.Uid = uid })
			putRollout(w, ref, 1, 1, string(state))
		}
	}
	s := storetest.New(t)
	a := newAPIOn(t, s, put("one", rollout.Progressing))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent, ended := a.watch(ctx, &towlinev1.WatchRolloutRequest{ModuleUid: "one"})
	first := <-sent
	if _, err := s.Update(ctx, func(w store.Writer) error {
		put("two", rollout.Succeeded)(w)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "another module has its name") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a stream that was open", <-ended)
	_, ended = a.watch(ctx, &towlinev1.WatchRolloutRequest{ResumeToken: first.GetResumeToken()})
	refused("a stream that goes on", <-ended)
	_, ended = a.watch(ctx, &towlinev1.WatchRolloutRequest{ModuleUid: "one"})
	refused("a stream that begins late", <-ended)
	sent, ended = a.watch(ctx, &towlinev1.WatchRolloutRequest{ModuleUid: "two"})
	if err := <-ended; err != nil || (<-sent).GetRollout().GetStatus().GetState() != string(rollout.Succeeded) {
		t.Errorf("the other module's own: %v", err)
	}
}

// A deletion is of the module that somebody looked at, and not of another one that has its name by now.
func TestDeletionIsOfOneModule(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		putModule(w, "default", "shop", func(rec *storev1.ModuleRecord) { rec.Module.Metadata.Uid = "two" })
	})
	for _, dry := range []bool{true, false} {
		_, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Uid: "one", DryRun: dry})
		if !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("dry run %t: %v", dry, err)
		}
	}
	if _, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Uid: "two"}); err != nil {
		t.Error(err)
	}
}

// A store of an earlier version of the hub may have a rollout that was to wait for its revision where the leader's are: nobody makes
// one for it. Putting the module as it is, or retrying, begins another.
func TestWhatNobodyMakesARevisionForIsPutAgain(t *testing.T) {
	retry := &towlinev1.RetryRolloutRequest{Module: "shop"}
	for name, again := range map[string]func(*API) error{
		"put":   func(a *API) error { _, err := a.PutModule(t.Context(), putShop()); return err },
		"retry": func(a *API) error { _, err := a.RetryRollout(t.Context(), retry); return err },
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			a := newAPIOn(t, s, func(store.Writer) {})
			if _, err := a.PutModule(t.Context(), putShop()); err != nil {
				t.Fatal(err)
			}
			if put, err := a.PutModule(t.Context(), putShop()); err != nil || put.GetResult() != resultUnchanged {
				t.Fatalf("while it waits: %v, %v", put, err)
			}
			if _, err := s.Update(t.Context(), func(w store.Writer) error {
				ro, _, _ := store.Get[*storev1.RolloutRecord](w, store.StartKey(damagedShop, 1))
				w.Delete(store.StartKey(damagedShop, 1))
				w.Put(store.RolloutKey(damagedShop, 1), ro)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := again(a); err != nil {
				t.Fatal(err)
			}
			if ro, err := a.GetRollout(t.Context(), &towlinev1.GetRolloutRequest{Module: "shop"}); err != nil || ro.GetRollout().GetNumber() != 2 {
				t.Errorf("the newest rollout is %v, %v; want the second one", ro, err)
			}
		})
	}
}

// A rollout that waits for its revision has moved nothing: another put takes its place, whatever its strategy says. A running one keeps
// it out.
func TestPutTakesThePlaceOfOneThatWaits(t *testing.T) {
	reject := &towlinev1.RolloutStrategy{OnSupersede: rollout.SupersedeReject}
	for state, refused := range map[rollout.RunState]bool{rollout.Pending: false, rollout.Progressing: true, rollout.Succeeded: false} {
		a := newAPI(t, func(w store.Writer) {
			ref := putModule(w, "default", "shop", nil)
			ro := &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Module: "shop", Number: 1, Id: "shop/1", Strategy: reject, Status: &towlinev1.RolloutStatus{State: string(state)}}}
			key := store.StartKey(ref, 1)
			if state != rollout.Pending {
				key, ro.Rollout.Revision = store.RolloutKey(ref, 1), 1
			}
			w.Put(key, ro)
		})
		if _, err := a.PutModule(t.Context(), putShop()); errors.Is(err, fleet.ErrPrecondition) != refused || err != nil && !refused {
			t.Errorf("after one that is %s: %v", state, err)
		}
	}
}

// A put that waited for the end of a rollout waits for its source from then on, and says so.
func TestQueueEndsWithTheRolloutAhead(t *testing.T) {
	for state, want := range map[rollout.RunState]string{rollout.Progressing: rollout.ReasonQueued, rollout.Succeeded: rollout.ReasonResolving, rollout.Aborted: rollout.ReasonResolving} {
		a := newAPI(t, func(w store.Writer) {
			ref := putModule(w, "default", "shop", nil)
			w.Put(store.RolloutKey(ref, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Module: "shop", Number: 1, Id: "shop/1", Revision: 1,
				Strategy: &towlinev1.RolloutStrategy{OnSupersede: rollout.SupersedeQueue}, Status: &towlinev1.RolloutStatus{State: string(state)}}})
			w.Put(store.StartKey(ref, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Module: "shop", Number: 2, Id: "shop/2", Status: &towlinev1.RolloutStatus{
				State: string(rollout.Pending), Reason: rollout.ReasonQueued, Facts: &towlinev1.Facts{Rollout: "shop/1"}}}})
		})
		one, err := a.GetRollout(t.Context(), &towlinev1.GetRolloutRequest{Module: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		list, err := a.ListRollouts(t.Context(), &towlinev1.ListRolloutsRequest{Module: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		m, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		for where, got := range map[string]string{"rollout": one.GetRollout().GetStatus().GetReason(), "list": list.GetRollouts()[0].GetStatus().GetReason(),
			"module": m.GetModule().GetStatus().GetRolloutReason()} {
			if got != want {
				t.Errorf("%s, while shop/1 is %s: %s, want %s", where, state, got, want)
			}
		}
	}
}

// A word that was recorded in the moment before its module is deleted is answered when that happens, though no rollout changes by it.
func TestWordIsAnsweredWhenItsModuleIsDeleted(t *testing.T) {
	s := storetest.New(t)
	a := newAPIOn(t, s, func(w store.Writer) {
		putRollout(w, putModule(w, "default", "shop", nil), 1, 1, string(rollout.Succeeded))
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	looked, times, now := make(chan struct{}), 0, a.now
	a.now = func() time.Time {
		if times++; times == 2 { // the first is when the word was said
			close(looked)
		}
		return now()
	}
	answered := make(chan error, 1)
	go func() {
		_, err := a.PinClusters(ctx, &towlinev1.PinClustersRequest{Module: "shop"})
		answered <- err
	}()
	<-looked
	if _, err := s.Update(ctx, func(w store.Writer) error {
		putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.Deleting = fleet.DeleteDelete })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "is being deleted") {
		t.Error(err)
	}
}
