package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// story plays a machine: each line is what happens, and what the agent is told then.
type story struct {
	t     *testing.T
	m     machine
	now   time.Duration
	syncs map[string]*agentv1.Sync
}

func newStory(t *testing.T, m machine) *story {
	return &story{t: t, m: m, syncs: map[string]*agentv1.Sync{}}
}

// target is of syncs "web@3" and tombstones "-web@4"; the same word is the same message.
func (s *story) target(words string) target {
	var out target
	for _, word := range strings.Fields(words) {
		name, generation, _ := strings.Cut(strings.TrimPrefix(word, "-"), "@")
		ref := fleet.ModuleRef{Project: "default", Name: name}
		if strings.HasPrefix(word, "-") {
			out.tombstones = append(out.tombstones, &agentv1.Tombstone{Module: ref.String()})
			continue
		}
		if s.syncs[word] == nil {
			s.syncs[word] = &agentv1.Sync{Module: ref.String()}
		}
		out.syncs = append(out.syncs, s.syncs[word])
		bundle := fleet.DigestOf([]byte(name + generation))
		out.assemblage.Syncs = append(out.assemblage.Syncs, &fleet.Sync{Module: ref, Bundle: bundle})
	}
	out.assemblage.Digest = fleet.DigestOf([]byte(words))
	return out
}

func (s *story) then(f *frame, want string) {
	s.t.Helper()
	got := "nothing"
	switch {
	case f == nil:
	case f.leave != nil:
		got = fmt.Sprintf("leave %v", f.leave.GetHeld())
	case f.index.GetComplete():
		got = fmt.Sprintf("complete %d ahead %d", len(f.index.GetSyncs()), len(f.ahead))
	default:
		got = fmt.Sprintf("delta %d gone %d ahead %d", len(f.index.GetSyncs()), len(f.index.GetTombstones()), len(f.ahead))
	}
	if got += ", " + s.m.phase.String(); got != want {
		s.t.Errorf("told %q, want %q", got, want)
	}
}

func (s *story) offer(words, want string) {
	s.t.Helper()
	s.then(s.m.offer(s.target(words), s.now), want)
}

func (s *story) answer(words, how, want string) {
	s.t.Helper()
	a := answer{digest: s.target(words).assemblage.Digest, whole: how == "all", refused: how == "none"}
	s.then(s.m.answered(a, s.now), want)
}

func TestMachineSendsWhatTheAgentLacks(t *testing.T) {
	s := newStory(t, machine{fresh: true})
	s.offer("web@1", "complete 1 ahead 1, AwaitingAck")
	s.answer("web@1", "all", "nothing, Settled")
	s.offer("web@1", "nothing, Settled")
	s.offer("web@1 api@2", "delta 1 gone 0 ahead 1, AwaitingAck")
	s.answer("web@1 api@2", "some", "nothing, Refused")
	s.offer("web@1 api@3", "complete 2 ahead 1, AwaitingAck")
	s.answer("web@1 api@3", "all", "nothing, Settled")
	s.offer("web@1 -api@4", "delta 0 gone 1 ahead 0, AwaitingAck")
	s.answer("web@1 -api@4", "all", "nothing, Settled")
	s.offer("api@5", "complete 1 ahead 1, AwaitingAck") // no delta drops web without a tombstone
}

// While an index is on its way, the newest of what the cluster should have waits, and nothing else.
func TestMachineWaitsForTheAnswer(t *testing.T) {
	s := newStory(t, machine{fresh: true})
	s.offer("web@1", "complete 1 ahead 1, AwaitingAck")
	if _, waits := s.m.wake(); waits {
		t.Error("it wants to be woken though nothing waits")
	}
	s.offer("web@2", "nothing, AwaitingAck")
	s.offer("web@3", "nothing, AwaitingAck")
	s.answer("web@0", "all", "nothing, AwaitingAck") // late, of an earlier index
	s.answer("web@1", "all", "delta 1 gone 0 ahead 1, AwaitingAck")
	s.answer("web@3", "all", "nothing, Settled")

	s.offer("web@4", "delta 1 gone 0 ahead 1, AwaitingAck")
	s.offer("web@5", "nothing, AwaitingAck")
	s.offer("web@4", "nothing, AwaitingAck") // taken back: nothing is to be sent any more
	if _, waits := s.m.wake(); waits {
		t.Error("what was taken back is still to be sent")
	}
	s.offer("web@6", "nothing, AwaitingAck")
	due, waits := s.m.wake()
	if !waits || due != ackPatience {
		t.Fatalf("wakes at %v, %v", due, waits)
	}
	s.now = due - 1
	s.then(s.m.tick(s.now), "nothing, AwaitingAck")
	s.now = due
	s.then(s.m.tick(s.now), "complete 1 ahead 1, AwaitingAck")
	s.answer("web@4", "all", "nothing, AwaitingAck")
	s.answer("web@6", "all", "nothing, Settled")
}

func TestMachineRepeatsARefusedDeltaInFullOnce(t *testing.T) {
	s := newStory(t, machine{fresh: true})
	s.offer("web@1", "complete 1 ahead 1, AwaitingAck")
	s.answer("web@1", "all", "nothing, Settled")
	s.offer("web@2", "delta 1 gone 0 ahead 1, AwaitingAck")
	s.answer("web@2", "none", "complete 1 ahead 0, AwaitingAck")
	s.answer("web@2", "none", "nothing, Refused")
	s.offer("web@2", "nothing, Refused")
	s.offer("web@3", "complete 1 ahead 1, AwaitingAck")
	s.offer("web@4", "nothing, AwaitingAck")
	s.answer("web@3", "none", "complete 1 ahead 1, AwaitingAck")
	// An agent may take back later what it said of an index.
	s.answer("web@4", "all", "nothing, Settled")
	s.answer("web@4", "some", "nothing, Refused")
	s.offer("web@5", "complete 1 ahead 1, AwaitingAck")
}

// An agent that answers one index again and again, each time something else, is told no more than one that answers once; what
// it was never sent it cannot answer.
func TestMachineIsNotKeptBusyByAnswers(t *testing.T) {
	s := newStory(t, machine{fresh: true})
	s.offer("web@1", "complete 1 ahead 1, AwaitingAck")
	s.answer("web@1", "all", "nothing, Settled")
	s.offer("web@2", "delta 1 gone 0 ahead 1, AwaitingAck")
	s.answer("web@2", "all", "nothing, Settled")
	s.answer("web@2", "none", "complete 1 ahead 0, AwaitingAck")
	for range 3 {
		s.answer("web@2", "none", "nothing, Refused")
		s.answer("web@9", "none", "nothing, Refused")
		s.answer("web@2", "all", "nothing, Settled")
		s.answer("web@9", "all", "nothing, Settled")
	}
}

func TestMachineThatResumes(t *testing.T) {
	s := newStory(t, machine{})
	now := s.target("web@1")
	now.assemblage.Generation = 7
	s.m = begin(7, now.assemblage.Digest, now)
	s.offer("web@1", "nothing, Settled")
	s.offer("web@2", "delta 1 gone 0 ahead 1, AwaitingAck")

	for name, m := range map[string]machine{
		"it holds something else":        begin(7, fleet.DigestOf([]byte("x")), now),
		"the same of another generation": begin(6, now.assemblage.Digest, now),
	} {
		t.Run(name, func(t *testing.T) {
			s.t, s.m = t, m
			// Nothing goes ahead: what the agent has of earlier sessions is not known.
			s.offer("web@1", "complete 1 ahead 0, AwaitingAck")
		})
	}
}

func TestMachineTellsARegressedAgentNothingButToLeave(t *testing.T) {
	s := newStory(t, machine{phase: regressed})
	s.offer("web@1", "nothing, Regressed")
	s.answer("web@1", "all", "nothing, Regressed")
	s.then(s.m.depart(&agentv1.Leave{Objects: "delete"}), "leave [], Leaving")
	s.then(s.m.depart(&agentv1.Leave{Objects: "delete"}), "nothing, Leaving")
	s.then(s.m.depart(&agentv1.Leave{Objects: "delete", Held: []string{"default/web"}}), "leave [default/web], Leaving")
	s.offer("web@1", "nothing, Leaving")
}

// What waits for an answer goes with the order to leave.
func TestMachineForgetsWhatWaitsWhenItLeaves(t *testing.T) {
	s := newStory(t, machine{fresh: true})
	s.offer("web@1", "complete 1 ahead 1, AwaitingAck")
	s.offer("web@2", "nothing, AwaitingAck")
	s.then(s.m.depart(&agentv1.Leave{Objects: "orphan"}), "leave [], Leaving")
	s.answer("web@1", "all", "nothing, Leaving")
	s.then(s.m.tick(time.Hour), "nothing, Leaving")
}

// What two lists have in common at both ends is not looked at; what is between is, also where one is the other's beginning.
func TestApart(t *testing.T) {
	for _, c := range []struct{ last, next, was, is string }{
		{"abcd", "abXcd", "", "X"},
		{"abcd", "aXcd", "b", "X"},
		{"abcd", "acd", "b", ""},
		{"abab", "ab", "ab", ""},
		{"", "ab", "", "ab"},
		{"ab", "ab", "", ""},
	} {
		was, is := apart([]byte(c.last), []byte(c.next))
		if string(was) != c.was || string(is) != c.is {
			t.Errorf("%s, %s: %s, %s; want %s, %s", c.last, c.next, was, is, c.was, c.is)
		}
	}
}
