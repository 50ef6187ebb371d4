package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// follower is an agent that takes indexes as the real one does.
type follower struct {
	taker
	t    *testing.T
	held fleet.Assemblage
	last *agentv1.Index
}

func newFollower(t *testing.T) *follower {
	f := &follower{t: t}
	f.sees = func(ix *agentv1.Index) string {
		var parts []string
		for _, s := range ix.GetSyncs() {
			parts = append(parts, fmt.Sprintf("%s@%d", strings.TrimPrefix(s.GetModule(), "default/"), s.GetGeneration()))
		}
		for _, s := range ix.GetTombstones() {
			parts = append(parts, fmt.Sprintf("-%s@%d", strings.TrimPrefix(s.GetModule(), "default/"), s.GetGeneration()))
		}
		for _, m := range ix.GetForgotten() {
			parts = append(parts, "forget "+strings.TrimPrefix(m, "default/"))
		}
		kind := "delta"
		if ix.GetComplete() {
			kind = "complete"
		}
		f.last = ix
		return strings.TrimSpace(kind + " " + strings.Join(parts, " "))
	}
	return f
}

// step has the hub send what it has to, and the agent accept it.
func (f *follower) step(x *session, want string) {
	f.t.Helper()
	f.offer(x, want)
	a, err := wire.AssemblageFromIndex(f.last, f.held)
	if err != nil {
		f.t.Fatalf("the index does not apply: %v", err)
	}
	f.held = a
	x.acked(&agentv1.Ack{Digest: a.Digest.Bytes()})
}

func (f *follower) offer(x *session, want string) {
	f.t.Helper()
	if err := x.sync(f.t.Context(), f, dirtyDesired); err != nil {
		f.t.Fatal(err)
	}
	var frames []string
	for _, frame := range f.frames {
		if !strings.HasPrefix(frame, "contents") {
			frames = append(frames, frame)
		}
	}
	f.frames = nil
	if got := strings.Join(frames, "; "); got != want {
		f.t.Errorf("sent %q, want %q", got, want)
	}
}

func set(t *testing.T, s *Server, module string, d *storev1.DesiredRecord) {
	t.Helper()
	if _, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{})
		key := store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: module})
		if d == nil {
			w.Delete(key)
			return nil
		}
		w.Put(key, d)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// bundled makes syncs of one stored bundle.
func bundled(t *testing.T, s *Server) func(module string, generation uint64) *storev1.DesiredRecord {
	t.Helper()
	assign(t, s, "first", 1, "[]", "content")
	bundle := fleet.Digest{}
	if err := s.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: "first"}))
		var err error
		bundle, err = fleet.DigestFromBytes(d.GetSync().GetBundle())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return func(module string, generation uint64) *storev1.DesiredRecord {
		return &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: "default/" + module, Generation: generation, Bundle: bundle.Bytes(), Objects: 1}}
	}
}

func dead(module string, generation uint64) *storev1.DesiredRecord {
	return &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: "default/" + module, Generation: generation, Policy: fleet.DeleteDelete}}
}

func TestIndexIsADeltaOfWhatTheAgentTook(t *testing.T) {
	s := newServer(t, &gates{})
	sync := bundled(t, s)
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	f := newFollower(t)
	f.step(x, "complete first@1")
	set(t, s, "web", sync("web", 2))
	f.step(x, "delta web@2")
	set(t, s, "web", sync("web", 3))
	set(t, s, "api", sync("api", 4))
	f.step(x, "delta api@4 web@3")
	set(t, s, "web", dead("web", 5))
	f.step(x, "delta -web@5")
	set(t, s, "web", nil)
	set(t, s, "api", sync("api", 6))
	f.step(x, "delta api@6 forget web")
	set(t, s, "first", nil) // without a tombstone: no delta can say that
	set(t, s, "api", sync("api", 7))
	f.step(x, "complete api@7")
	f.offer(x, "")
}

func TestIndexWaitsForTheAnswerToTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &gates{})
		sync := bundled(t, s)
		x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
		f := newFollower(t)
		f.offer(x, "complete first@1")
		for n := range uint64(3) {
			set(t, s, "web", sync("web", 2+n))
			f.offer(x, "") // the agent is still busy with the first
		}
		x.takeDirty()
		f.held, _ = wire.AssemblageFromIndex(f.last, f.held)
		x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes()})
		if x.takeDirty()&dirtyAnswer == 0 {
			t.Error("nobody looks at the answer")
		}
		f.step(x, "delta web@4")

		set(t, s, "web", sync("web", 5))
		f.offer(x, "delta web@5")
		set(t, s, "web", sync("web", 6))
		f.offer(x, "")
		due, waits := x.machine.wake()
		if !waits {
			t.Fatal("an agent that does not answer gets no other index")
		}
		<-time.After(due - x.age())
		if err := x.tell(t.Context(), f, x.machine.tick(x.age())); err != nil {
			t.Fatal(err)
		}
		f.offer(x, "complete first@1 web@6")
	})
}

func TestDeltaThatIsRefusedIsFollowedByAll(t *testing.T) {
	s := newServer(t, &gates{})
	sync := bundled(t, s)
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	f := newFollower(t)
	f.step(x, "complete first@1")
	set(t, s, "web", sync("web", 2))
	f.offer(x, "delta web@2")
	x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes(), Code: "DIGEST_MISMATCH"})
	f.offer(x, "complete first@1 web@2")
	x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes(), Code: "DIGEST_MISMATCH"})
	f.offer(x, "") // the same again would not help
	x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes(), Refused: []*agentv1.Refusal{{Module: "default/web"}}})
	set(t, s, "web", sync("web", 3))
	f.offer(x, "complete first@1 web@3") // what was refused is not held
}

// TestLeaveSaysWhatIsHeld: a hold stands also for an agent that leaves the fleet: of the cluster, of what it has, and of what
// is being removed.
func TestLeaveSaysWhatIsHeld(t *testing.T) {
	ref := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }
	sn := snapshot{cluster: &storev1.ClusterRecord{Removing: "delete"}}
	sn.target.assemblage = assemble.Listed{
		Syncs:      []*fleet.Sync{{Module: ref("b"), Hold: true}, {Module: ref("c")}},
		Tombstones: []*fleet.Tombstone{{Module: ref("a"), Hold: true}, {Module: ref("d")}}}
	if got := leaveOf(sn); got.GetObjects() != "delete" || got.GetHold() || !slices.Equal(got.GetHeld(), []string{"default/a", "default/b"}) {
		t.Errorf("%v", got)
	}
	sn.target.assemblage.Hold = true
	if got := leaveOf(sn); !got.GetHold() {
		t.Errorf("of the cluster: %v", got)
	}
}
