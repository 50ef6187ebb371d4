package session

import (
	"context"
	"errors"
	"runtime"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
)

// An agent may read what its last two indexes refer to, and nothing else of the hub's contents.
func TestContentsOfTwoIndexesAreGranted(t *testing.T) {
	s := newServer(t, &gates{})
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	agent := &taker{}
	may := func(text string) bool {
		t.Helper()
		ok, err := x.grants.finder(s.o.Bundles).find(t.Context(), fleet.DigestOf([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	step := func() {
		t.Helper()
		if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
			t.Fatal(err)
		}
		x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes()})
	}
	assign(t, s, "other", 1, "[]", "zero")
	assign(t, s, "web", 2, "[]", "one", "two")
	step()
	if !may("zero") || !may("one") || !may("two") || !may("[]") || may("three") {
		t.Error("the first index does not grant what it refers to, and no more")
	}
	assign(t, s, "web", 3, "[]", "three")
	step()
	if !may("zero") || !may("one") || !may("three") {
		t.Error("what the agent may still be fetching is not granted")
	}
	assign(t, s, "web", 4, "[]", "four")
	step()
	if may("one") || !may("three") || !may("four") {
		t.Error("what two indexes do not refer to is still granted")
	}
}

// What a question is about may be read while it is open, and no longer.
func TestContentsOfAQuestionAreLent(t *testing.T) {
	s := newServer(t, &gates{})
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	may := func() bool {
		t.Helper()
		ok, err := x.grants.finder(s.o.Bundles).find(t.Context(), fleet.DigestOf([]byte("policies")))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	bundle := fleet.DigestOf([]byte("bundle"))
	q := &agentv1.Query{Type: "preview", Sync: &agentv1.Sync{Module: "default/web", Generation: 1, Bundle: bundle.Bytes(), Policies: fleet.DigestOf([]byte("policies")).Bytes()}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := x.query(ctx, q)
		done <- err
	}()
	for !x.asks() {
		runtime.Gosched()
	}
	if !may() {
		t.Error("what the question is about cannot be read")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("there is an answer")
	}
	if may() {
		t.Error("what the question was about can be read after its end")
	}
}

// asks reports that a question is open.
func (x *session) asks() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.queries) > 0
}

// A question ends with the session that it was asked in: the next one knows nothing of it.
func TestQuestionEndsWithItsSession(t *testing.T) {
	s := newServer(t, &gates{})
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	done := make(chan error, 1)
	go func() {
		_, err := x.query(t.Context(), &agentv1.Query{Type: "get"})
		done <- err
	}()
	for !x.asks() {
		runtime.Gosched()
	}
	s.close(x)
	if err := <-done; !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("the answer is %v", err)
	}
}
