package session

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// taker is an agent that writes down the frames.
type taker struct {
	grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]
	frames []string
	sees   func(*agentv1.Index) string
}

func (s *taker) Send(m *agentv1.ConnectResponse) error {
	switch f := m.GetFrame().(type) {
	case *agentv1.ConnectResponse_BundleDelta:
		var texts []string
		for _, o := range f.BundleDelta.GetObjects() {
			b, err := wire.Decompress(o.GetData(), 1<<20)
			if err != nil {
				return err
			}
			texts = append(texts, string(b[:min(len(b), 8)]))
		}
		s.frames = append(s.frames, "contents "+strings.Join(texts, ","))
	case *agentv1.ConnectResponse_Move:
		s.frames = append(s.frames, fmt.Sprintf("move %d", f.Move.GetGeneration()))
	case *agentv1.ConnectResponse_Index:
		if s.sees == nil {
			s.sees = func(ix *agentv1.Index) string { return fmt.Sprintf("index %d", ix.GetGeneration()) }
		}
		s.frames = append(s.frames, s.sees(f.Index))
	}
	return nil
}

func (s *taker) take() string {
	out := strings.Join(s.frames, "; ")
	s.frames = nil
	return out
}

// assign makes a cluster run a module with objects of these contents.
func assign(t *testing.T, s *Server, module string, generation uint64, policies string, contents ...string) {
	t.Helper()
	var entries []fleet.BundleEntry
	raw := [][]byte{[]byte(policies)}
	for i, text := range contents {
		entries = append(entries, fleet.BundleEntry{Digest: fleet.DigestOf([]byte(text)), Version: "v1", ID: fleet.ObjectID{Kind: "ConfigMap", Name: fmt.Sprintf("%s-%d", module, i)}})
		raw = append(raw, []byte(text))
	}
	digest, content := assemble.BundleDigest(entries)
	if _, err := s.o.Store.Blobs().Put(t.Context(), append(raw, content)...); err != nil {
		t.Fatal(err)
	}
	ref := fleet.ModuleRef{Project: "default", Name: module}
	sync := &agentv1.Sync{Module: ref.String(), Generation: generation, Revision: 1, Bundle: digest.Bytes(), Policies: fleet.DigestOf([]byte(policies)).Bytes(), Objects: uint32(len(entries))}
	set(t, s, module, &storev1.DesiredRecord{Sync: sync})
}

func TestSmallContentsGoAheadOfTheIndex(t *testing.T) {
	s := newServer(t, &gates{})
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	x.machine = machine{fresh: true}
	agent := &taker{}
	step := func(want string) {
		t.Helper()
		if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
			t.Fatal(err)
		}
		x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes()})
		if got := agent.take(); got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
	assign(t, s, "web", 1, "[]", "one", "two")
	step("contents []; contents one,two; index 1")
	assign(t, s, "web", 2, "[]", "one", "three")
	step("contents three; index 2")
	step("")
	large := make([]string, 4)
	for i := range large { // compresses badly
		var b strings.Builder
		for n := range 4000 {
			d := fleet.DigestOf(fmt.Append(nil, i, n))
			b.WriteString(d.String()[:16])
		}
		large[i] = b.String()
	}
	assign(t, s, "web", 3, "[]", large...)
	step("index 3")
	assign(t, s, "api", 4, "[1]", "four")
	step("contents [1]; contents four; index 4")
}

// What an agent has from an earlier session is not known, so nothing goes ahead to one that resumes.
func TestNothingGoesAheadToAnAgentThatResumes(t *testing.T) {
	s := newServer(t, &gates{})
	x := newSession(s, "a", registry.Opened{Epoch: 2}, &agentv1.Hello{Generation: 7})
	agent := &taker{}
	assign(t, s, "web", 8, "[]", "one")
	if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
		t.Fatal(err)
	}
	if got := agent.take(); got != "index 8" {
		t.Errorf("sent %q", got)
	}
	x.acked(&agentv1.Ack{Digest: x.machine.sent.assemblage.Digest.Bytes()})
	assign(t, s, "web", 9, "[]", "two")
	if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
		t.Fatal(err)
	}
	if got := agent.take(); got != "contents two; index 9" {
		t.Errorf("sent %q", got)
	}
}

// TestLostContentKeepsNoIndexBack: of what is new to an agent that has nothing yet, the content of one module cannot be read, or its policies.
func TestLostContentKeepsNoIndexBack(t *testing.T) {
	s := newServer(t, &gates{})
	assign(t, s, "app", 1, "[]", "one")
	assign(t, s, "web", 2, "[]", "two")
	lost := fleet.DigestOf([]byte("never put"))
	set(t, s, "gone", &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: "default/gone", Generation: 3, Revision: 1, Bundle: lost.Bytes(), Policies: lost.Bytes(), Objects: 1}})
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	x.machine = machine{fresh: true}
	agent := &taker{}
	if err := x.sync(t.Context(), agent, dirtyDesired); err != nil {
		t.Errorf("the session ends: %v", err)
	}
	if got, want := agent.take(), "contents []; contents one; contents two; index 3"; got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}
