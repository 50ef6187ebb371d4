package session

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// An agent that takes moves gets one where nothing but the contents of objects is new, and an index where more is, or where it
// could not take the last; any other agent gets an index, as ever.
func TestWhoGetsAMove(t *testing.T) {
	s := newServer(t, &gates{})
	old := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	able := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{Features: []string{wire.FeatureMoves, wire.FeatureDictionaries}})
	old.machine, able.machine = machine{fresh: true}, machine{fresh: true}
	step := func(want, wantOld, code string) {
		t.Helper()
		for x, want := range map[*session]string{old: wantOld, able: want} {
			agent := &taker{}
			if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
				t.Fatal(err)
			}
			if got := agent.take(); got != want {
				t.Errorf("agent with %v: sent %q, want %q", x.hello.GetFeatures(), got, want)
			}
			x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes(), Code: code})
		}
	}
	assign(t, s, "web", 1, "[]", "one", "two")
	step("contents []; contents one,two; index 1", "contents []; contents one,two; index 1", "")
	assign(t, s, "web", 2, "[]", "one", "three")
	step("move 2", "contents three; index 2", "")
	assign(t, s, "web", 3, "[]", "one", "three", "four")
	step("contents four; index 3", "contents four; index 3", "")
	assign(t, s, "web", 4, "[1]", "one", "three", "five")
	step("contents [1]; contents five; index 4", "contents [1]; contents five; index 4", "")
	assign(t, s, "web", 5, "[1]", "one", "three", "six")
	step("move 5", "contents six; index 5", "DIGEST_MISMATCH")
	// What was refused comes as a complete index; the agent asks for what it lacks of the contents.
	step("index 5", "index 5", "")
	assign(t, s, "web", 6, "[1]", "one", "three", "seven")
	step("move 6", "contents seven; index 6", "")
	values(t, s, "web", 7)
	step("index 7", "index 7", "")
}

// values has a module get another value of a binding.
func values(t *testing.T, s *Server, module string, generation uint64) {
	t.Helper()
	var sync *agentv1.Sync
	if err := s.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: module}))
		sync = d.GetSync()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	next := proto.CloneOf(sync)
	next.Generation, next.Values = generation, map[string]string{"A": "b"}
	set(t, s, module, &storev1.DesiredRecord{Sync: next})
}
