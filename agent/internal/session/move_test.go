package session

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/desired"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// text is what a hub has of a digest.
func (h *hub) text(t *testing.T, d fleet.Digest) []byte {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	b, err := wire.Decompress(h.contents[d], wire.MaxContentBytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// move is one from a sync to the next of the same module, which is alone in the cluster.
func (h *hub) move(t *testing.T, from, to fleet.Sync) *agentv1.Move {
	t.Helper()
	var objects [][]byte
	for _, s := range []fleet.Sync{from, to} {
		b, err := assemble.DecodeBundle(h.text(t, s.Bundle))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, h.text(t, b.Entries[0].Digest))
	}
	p, err := wire.PackPatch([]int{0}, objects[1:], objects[0])
	if err != nil {
		t.Fatal(err)
	}
	base := assemble.Build([]fleet.Sync{from}, nil, false, 0)
	return &agentv1.Move{AppliesTo: wire.AppliesTo(base.Digest), ResultsIn: index(to).GetResultsIn(), Generation: to.Generation,
		Syncs: []*agentv1.MovedSync{{Revision: to.Revision, Patch: p}}}
}

func (s *hubSession) move(m *agentv1.Move) {
	s.t.Helper()
	s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Move{Move: m}})
}

// A move stands for its index and contents: nothing is asked for, and what is held is what the index would have led to, also
// after a restart.
func TestMoveIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		if !slices.Contains(s.hello.GetFeatures(), wire.FeatureMoves) || !slices.Contains(s.hello.GetFeatures(), wire.FeatureDictionaries) {
			t.Errorf("hello has features %v", s.hello.GetFeatures())
		}
		s.welcome(1)
		before, after := h.sync("web", 5, "a"), h.sync("web", 6, "b")
		s.index(index(before))
		s.ack()
		asked := h.asked
		s.move(h.move(t, before, after))
		if ack := s.ack(); string(ack.GetDigest()) != string(index(after).GetResultsIn()) || ack.GetCode() != "" || len(ack.GetRefused()) > 0 {
			t.Errorf("ack %v", ack)
		}
		s.status(time.Second)
		expect(t, "worker", a.settle(), "set ", "set web@5", "set web@6")
		if h.asked != asked {
			t.Errorf("%d contents were asked for", h.asked-asked)
		}
		a.stop()
		held := openDesired(t, state)
		b, err := held.Bundle(after.Bundle)
		if err != nil {
			t.Fatal(err)
		}
		if object, err := held.Object(b.Entries[0].Digest); err != nil || string(object) != string(h.text(t, b.Entries[0].Digest)) {
			t.Errorf("after a restart: %s, %v", object, err)
		}
	})
}

// An agent that cannot make the index of a move says so, keeps what it has, and takes the complete index with contents from the
// hub.
func TestMoveThatIsNotTaken(t *testing.T) {
	for name, damage := range map[string]func(*agentv1.Move){
		"of another assemblage": func(m *agentv1.Move) { m.AppliesTo++ },
		"cut off":               func(m *agentv1.Move) { p := m.Syncs[0].Patch; p.Contents = p.Contents[:len(p.Contents)-1] },
		"another bit":           func(m *agentv1.Move) { p := m.Syncs[0].Patch; p.Contents[len(p.Contents)-3] ^= 4 },
		"no dictionary":         func(m *agentv1.Move) { m.Syncs[0].Patch.Dictionary = false },
		"bomb": func(m *agentv1.Move) {
			p := m.Syncs[0].Patch
			p.Contents, p.Sizes[0] = wire.Compress(make([]byte, 15<<20)), wire.MaxPatchBytes
		},
		"nothing": func(m *agentv1.Move) { m.Syncs = nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *hub) {
				a := start(t, h, newState())
				defer a.stop()
				s := h.next()
				s.welcome(1)
				before, after := h.sync("web", 5, "a"), h.sync("web", 6, "b")
				s.index(index(before))
				s.ack()
				m := h.move(t, before, after)
				damage(m)
				s.move(m)
				if ack := s.ack(); ack.GetCode() != desired.CodeDigestMismatch || string(ack.GetDigest()) != string(m.GetResultsIn()) || ack.GetMessage() == "" {
					t.Errorf("ack %v", ack)
				}
				expect(t, "worker", a.settle(), "set ", "set web@5")
				s.index(index(after))
				if ack := s.ack(); ack.GetCode() != "" {
					t.Errorf("ack of the index %v", ack)
				}
				synctest.Wait()
				expect(t, "worker", a.settle(), "set web@6")
			})
		})
	}
}
