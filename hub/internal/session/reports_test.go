package session

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// lagging is a store whose read model is behind: it shows what was there before, until somebody waits for more.
type lagging struct {
	store.Store
	shown store.Reader
}

func (l lagging) View(ctx context.Context, min int64, fn func(store.Reader) error) error {
	if min <= l.shown.Revision() {
		return fn(l.shown)
	}
	return l.Store.View(ctx, min, fn)
}

// lag has the session read from now on what the store had before, as long as it does not ask for more.
func (x *session) lag(t *testing.T) {
	t.Helper()
	if err := x.server.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		x.server.o.Store = lagging{x.server.o.Store, r}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func (x *session) commit(t *testing.T) {
	t.Helper()
	if err := x.reports.commit(t.Context(), x.reports.take()); err != nil {
		t.Fatal(err)
	}
}

// A condition that is over is over, however soon that is said: a commit is done before it can be read.
func TestConditionThatIsSoonOverIsOver(t *testing.T) {
	x := reporter(t, 0)
	x.lag(t)
	blind := &agentv1.Condition{Type: string(fleet.ConditionAPIServerReachable), Status: "False", Reason: "Timeout"}
	for _, all := range [][]*agentv1.Condition{{blind}, {}} {
		if err := x.reports.conditions(all); err != nil {
			t.Fatal(err)
		}
		x.commit(t)
	}
	rev, err := x.server.o.Store.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.server.o.Store.View(t.Context(), rev, func(r store.Reader) error {
		if rec, _, ok := store.Get[*storev1.ConditionsRecord](r, store.ConditionKey("a")); ok {
			t.Errorf("the hub has still: %v", rec)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The first commit of a session goes on from what those before it have committed.
func TestSessionGoesOnFromTheLastCommit(t *testing.T) {
	x := reporter(t, 1)
	x.lag(t)
	rev, err := storetest.All(x.server.o.Store.(lagging).Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 1, StatusDigest: []byte("newer")})
		w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 2})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	x.epoch, x.opened.Fence.ModRevision = 2, rev
	x.reports.ack(&agentv1.Ack{Epoch: 2, Generation: 1})
	x.commit(t)
	if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.server.o.Store = x.server.o.Store.(lagging).Store
	if _, _, ack := x.stored(t); string(ack.GetStatusDigest()) != "newer" {
		t.Errorf("the acknowledgement is of status %q", ack.GetStatusDigest())
	}
}

// failing is a store that takes a number of batches, and then no more.
type failing struct {
	store.Store
	left *int
}

func (f failing) Batch(ctx context.Context, fence store.Fence, ops []store.Op) (int64, error) {
	if *f.left == 0 {
		return 0, fleet.Errorf(fleet.ErrUnavailable, "the hub is killed")
	}
	*f.left--
	return f.Store.Batch(ctx, fence, ops)
}

// A commit of several batches that ends in its middle leaves reports of two times. They are not what any digest names, neither that of
// before, to which the agent may come back, nor the next one.
func TestCommitThatEndsInItsMiddleHasNoName(t *testing.T) {
	const modules = 2*store.MaxOps + 1
	for done := range 5 {
		x := reporter(t, modules)
		left := -1
		x.server.o.Store = failing{x.server.o.Store, &left}
		say := func(seq uint64, phase fleet.SyncPhase) error {
			t.Helper()
			all := &agentv1.Status{Epoch: 1, Sequence: seq, Digest: []byte(phase), FullBegin: true, FullEnd: true}
			for n := range modules {
				all.Syncs = append(all.Syncs, &agentv1.SyncStatus{Module: fmt.Sprintf("default/m%d", n), Generation: 1, Bundle: make([]byte, 32), Phase: string(phase)})
			}
			if err := x.reports.add(all); err != nil {
				t.Fatal(err)
			}
			err := x.reports.commit(t.Context(), x.reports.take())
			if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			return err
		}
		if err := say(1, fleet.PhaseApplied); err != nil {
			t.Fatal(err)
		}
		left = done
		err := say(2, fleet.PhaseFailed)
		records, _, ack := x.stored(t)
		failed := 0
		for _, o := range records {
			if o.GetStatus().GetPhase() == string(fleet.PhaseFailed) {
				failed++
			}
		}
		want := map[int]string{0: string(fleet.PhaseApplied), 4: string(fleet.PhaseFailed)}[done]
		if got := string(ack.GetStatusDigest()); got != want {
			t.Errorf("after %d batches, %v, %d of %d have failed: the hub has status %q, want %q", done, err, failed, modules, got, want)
		}
	}
}

// The answer with which an agent takes what it had refused may be lost, and it is sent no index any more when it has all. That it has is
// its answer then.
func TestLostAnswerIsMadeUpForByWhatTheAgentHolds(t *testing.T) {
	x := reporter(t, 0)
	assign(t, x.server, "web", 3, "", "object")
	refused := &storev1.AckRecord{Epoch: 1, Generation: 3, Digest: []byte("before"), StatusDigest: []byte("status"), Code: "DIGEST_MISMATCH",
		Refused: []*agentv1.Refusal{{Module: "default/web", Generation: 3, Code: "UNDECODABLE"}}}
	if _, err := storetest.All(x.server.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.AckKey("a"), refused)
		w.Put(store.GenerationKey, &storev1.Counter{Value: 3})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	welcomed := func(digest []byte) *storev1.AckRecord {
		t.Helper()
		if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.hello = &agentv1.Hello{Generation: 3, Digest: digest}
		if _, err := x.welcome(t.Context(), &beating{}); err != nil {
			t.Fatal(err)
		}
		x.commit(t)
		if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, _, ack := x.stored(t)
		return ack
	}
	if ack := welcomed(fleet.DigestOf([]byte("another")).Bytes()); len(ack.GetRefused()) != 1 {
		t.Errorf("the agent holds something else, and the hub has: %v", ack)
	}
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := sn.target.assemblage.Digest.Bytes()
	ack := welcomed(all)
	if len(ack.GetRefused()) != 0 || ack.GetCode() != "" || ack.GetGeneration() != 3 || !bytes.Equal(ack.GetDigest(), all) || string(ack.GetStatusDigest()) != "status" {
		t.Errorf("the agent holds all, and the hub has: %v", ack)
	}
}
