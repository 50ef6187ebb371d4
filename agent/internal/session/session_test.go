package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/report"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

func newState() *memory { return &memory{values: map[string][]byte{}} }

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// settle waits until everything that can happen now has happened.
func (a *agent) settle() []string {
	synctest.Wait()
	return a.worker.take()
}

func TestFirstSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		if s.hello.GetMinProtocol() != 1 || s.hello.GetClusterUid() != "uid-1" || s.hello.GetInstanceId() == "" || len(s.hello.GetDigest()) > 0 ||
			s.hello.GetKubernetesVersion() != "v1.36.3" {
			t.Errorf("hello %v", s.hello)
		}
		s.welcome(1)
		in := index(h.sync("web", 5, "a"), h.sync("api", 6, "a"))
		s.index(in)
		if ack := s.ack(); string(ack.GetDigest()) != string(in.GetResultsIn()) || ack.GetGeneration() != 6 || ack.GetEpoch() != 1 || ack.GetCode() != "" || len(ack.GetRefused()) > 0 {
			t.Errorf("ack %v", ack)
		}
		_, modules := s.status(time.Second)
		expect(t, "status", modules, "api@6", "web@5")
		expect(t, "worker", a.settle(), "set ", "set api@6 web@5")
	})
}

// What the agent itself has told is not told again. A new process tells in one empty frame that it holds still, once it
// has looked.
func TestResumeSendsNothingTwice(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		in := index(h.sync("web", 5, "a"))
		s.index(in)
		s.ack()
		s.status(time.Second)
		asked := h.asked
		s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
		s = h.next()
		if string(s.hello.GetDigest()) != string(in.GetResultsIn()) || s.hello.GetGeneration() != 5 || s.hello.GetLastEpoch() != 1 ||
			s.hello.GetHubId() != "hub-1" || s.hello.GetIncarnation() != "one" || len(s.hello.GetStatusDigest()) == 0 ||
			!s.hello.GetStatusSeen() {
			t.Errorf("hello %v", s.hello)
		}
		s.welcome(2, known)
		if frames, modules := s.status(5 * time.Second); frames != 0 {
			t.Errorf("%d frames: %q", frames, modules)
		}
		a.stop()
		a.settle()

		b := start(t, h, state) // a new process
		defer b.stop()
		expect(t, "worker before any hub", b.settle(), "set web@5")
		s = h.next()
		if string(s.hello.GetDigest()) != string(in.GetResultsIn()) || len(s.hello.GetStatusDigest()) == 0 || s.hello.GetStatusSeen() {
			t.Errorf("hello after a restart %v", s.hello)
		}
		s.welcome(3, known)
		if frames, modules := s.status(5 * time.Second); frames != 1 || len(modules) > 0 {
			t.Errorf("after a restart %d frames: %q", frames, modules)
		}
		if h.asked != asked {
			t.Errorf("%d contents were fetched again", h.asked-asked)
		}
	})
}

func TestWorksWithoutAHub(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.stop()
		h.set(func() { h.down = true })
		b := start(t, h, state)
		defer b.stop()
		expect(t, "worker", b.settle(), "set web@5")
		<-time.After(10 * time.Hour)
		expect(t, "worker after hours without a hub", b.settle())
		if tries := len(h.dials); tries < 600 || tries > 2000 { // 30 s on average
			t.Errorf("%d tries in ten hours", tries)
		}
	})
}

func TestRepeatedIndexIsAcknowledgedAndChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		in := index(h.sync("web", 5, "a"))
		for range 3 {
			s.index(in)
			if ack := s.ack(); string(ack.GetDigest()) != string(in.GetResultsIn()) {
				t.Errorf("ack %v", ack)
			}
		}
		if h.asked != 2 {
			t.Errorf("%d contents were fetched, want bundle and object once", h.asked)
		}
		if _, modules := s.status(time.Second); len(modules) != 1 {
			t.Errorf("status %q", modules)
		}
	})
}

func TestStaleEpochTakesNoIndex(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(7)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.settle()
		s.end <- nil
		s = h.next()
		s.welcome(7)
		s.index(index(h.sync("web", 9, "b")))
		if ack := s.ack(); ack.GetCode() != "REGRESSED" || !strings.Contains(ack.GetMessage(), "epoch 7 after 7") {
			t.Errorf("ack %v", ack)
		}
		expect(t, "worker", a.settle())
		s.end <- nil
		s = h.next()
		s.welcome(8)
		s.index(index(h.sync("web", 9, "b")))
		if ack := s.ack(); ack.GetCode() != "" {
			t.Errorf("ack %v", ack)
		}
		expect(t, "worker", a.settle(), "set web@9")
	})
}

func TestOtherIncarnationIsRefusedAndNothingIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(7)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.settle()
		s.end <- nil
		s = h.next()
		s.welcome(1, func(w *agentv1.Welcome) { w.Incarnation = "two" })
		s.index(index())
		if ack := s.ack(); ack.GetCode() != "REGRESSED" || !strings.Contains(ack.GetMessage(), "restored") {
			t.Errorf("ack %v", ack)
		}
		expect(t, "worker", a.settle())
	})
}

// A store that was restored says so: the agent begins anew with it, and believes no store of before any more.
func TestRestoredStoreIsFollowed(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(7)
		s.index(index(h.sync("web", 9, "a")))
		s.ack()
		a.settle()
		s.end <- nil
		s = h.next()
		before := s.hello.GetIncarnation()
		s.welcome(1, func(w *agentv1.Welcome) { w.Incarnation, w.Succeeds = "two", before })
		s = h.next() // the agent has ended the session by itself
		if s.hello.GetHubId() != "" || s.hello.GetGeneration() != 0 || s.hello.GetLastEpoch() != 0 {
			t.Errorf("it says hello as %v", s.hello)
		}
		s.welcome(2, func(w *agentv1.Welcome) { w.Incarnation = "two" })
		s.index(index(h.sync("web", 5, "b")))
		if ack := s.ack(); ack.GetCode() != "" {
			t.Errorf("ack %v", ack)
		}
		a.settle()
		s.end <- nil
		s = h.next()
		s.welcome(8, func(w *agentv1.Welcome) { w.Succeeds = "two" })
		s = h.next()
		if s.hello.GetIncarnation() != "two" {
			t.Errorf("it follows %q", s.hello.GetIncarnation())
		}
	})
}

func TestRefusedSyncKeepsTheOthersGoing(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		bad := h.sync("bad", 6, "a")
		bad.Objects = 7
		lost := h.sync("lost", 7, "a")
		lost.Bundle = fleet.Digest{1}
		s.index(index(h.sync("web", 5, "a"), bad, lost))
		ack := s.ack()
		var got []string
		for _, r := range ack.GetRefused() {
			got = append(got, r.GetModule()+" "+r.GetCode())
		}
		slices.Sort(got)
		expect(t, "refused", got, "default/bad COUNT_MISMATCH", "default/lost DIGEST_MISMATCH")
		expect(t, "worker", a.settle(), "set ", "set web@5")
	})
}

func TestLargeContentsComeInPartsAndHintsSpareTheFetch(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		h.partSize = 7
		s := h.next()
		s.welcome(1)
		web := h.sync("web", 5, "a")
		s.index(index(web))
		if ack := s.ack(); len(ack.GetRefused()) > 0 {
			t.Errorf("refused %v", ack.GetRefused())
		}
		asked := h.asked
		next := h.sync("web", 6, "b")
		delta := &agentv1.BundleDelta{FromBundle: web.Bundle.Bytes(), ToBundle: next.Bundle.Bytes(), Manifest: h.contents[next.Bundle],
			Objects: []*agentv1.Content{{Digest: fleet.DigestOf([]byte(`{"kind":"ConfigMap","metadata":{"name":"web"},"data":{"x":"b"}}`)).Bytes(), Data: []byte("junk")}}}
		s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_BundleDelta{BundleDelta: delta}})
		s.index(index(next))
		if ack := s.ack(); len(ack.GetRefused()) > 0 {
			t.Errorf("refused %v", ack.GetRefused())
		}
		if h.asked != asked+1 {
			t.Errorf("%d contents were fetched, want the one whose hint was junk", h.asked-asked)
		}
	})
}

func TestHubThatCannotServeContentsIsAskedAgainInTheSameSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("old", 4, "a")))
		s.ack()
		web := h.sync("web", 5, "a")
		raw := h.contents[web.Bundle]
		h.set(func() { h.contents[web.Bundle] = nil }) // an empty answer: the bytes do not fit
		s.index(index(web))
		if ack := s.ack(); len(ack.GetRefused()) != 1 {
			t.Errorf("ack %v", ack)
		}
		h.set(func() { h.contents[web.Bundle] = raw })
		s.index(index(web))
		if ack := s.ack(); len(ack.GetRefused()) != 0 {
			t.Errorf("ack %v", ack)
		}
	})
}

func TestStalledFetchIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState())
		defer a.stop()
		s := h.next()
		s.welcome(1)
		stall := make(chan struct{})
		h.set(func() { h.stall = stall })
		s.index(index(h.sync("web", 5, "a")))
		for range 3 {
			<-time.After(10 * time.Second)
			s.beat()
		}
		h.set(func() { h.stall = nil })
		<-time.After(5 * time.Second)
		expect(t, "worker", a.settle(), "set ", "set web@5")
		close(stall)
	})
}

func TestRevokedAgentWritesNothingUntilItIsAcceptedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		a.settle()
		h.set(func() { h.refuse = fleet.Errorf(fleet.ErrDenied, "cluster c1 is revoked") })
		s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 is revoked")
		<-time.After(time.Minute)
		got := a.settle()
		if len(got) == 0 || got[0] != "freeze true cluster c1 is revoked" {
			t.Errorf("worker %q", got)
		}
		a.stop()
		b := start(t, h, state) // it stays frozen over a restart, before any hub says so
		defer b.stop()
		if got := b.settle(); len(got) < 2 || got[0] != "freeze true cluster c1 is revoked" || got[1] != "set web@5" {
			t.Errorf("worker after a restart %q", got)
		}
		h.set(func() { h.refuse = nil })
		s = h.next()
		s.welcome(2)
		s.status(time.Second)
		if got := b.settle(); !slices.Contains(got, "freeze false ") {
			t.Errorf("worker after the welcome %q", got)
		}
	})
}

// A new join on the way, which settles why the agent was frozen, must reach the worker too.
func TestNewJoinThaws(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		h.set(func() { h.refuse = fleet.Errorf(fleet.ErrDenied, "cluster c1 is revoked") })
		s.end <- fleet.Errorf(fleet.ErrDenied, "cluster c1 is revoked")
		<-time.After(time.Second)
		a.stop()
		h.set(func() { h.refuse = nil })
		b := start(t, h, state, func(o *Options) {
			o.Prepare = func(ctx context.Context) error { return o.Desired.Adopt(ctx, "join-2") }
		})
		defer b.stop()
		h.next().welcome(2)
		expect(t, "worker", b.settle(), "freeze true cluster c1 is revoked", "set ", "freeze false ")
	})
}

func TestQueries(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		a := start(t, h, newState(), func(o *Options) {
			get := o.Get
			o.Get = func(ctx context.Context, e fleet.BundleEntry) ([]byte, error) {
				if e.ID.Name == "bug" {
					panic("a secret of the object")
				}
				if e.ID.Name == "none" {
					return nil, fleet.Errorf(fleet.ErrNotFound, "%s: is not in the cluster", e.ID)
				}
				return get(ctx, e)
			}
			o.Logs = func(_ context.Context, e fleet.BundleEntry, q fleet.LogQuery) ([]fleet.PodLog, int, error) {
				return []fleet.PodLog{{LogCursor: fleet.LogCursor{Pod: e.ID.Name, At: time.Unix(0, 7)}, Data: []byte(fmt.Sprint(q.Bytes, "\n"))}}, 3, nil
			}
			o.MayRead = func(what string) error {
				if what == "events" {
					return errors.New("the cluster's policy does not let events be read")
				}
				return nil
			}
		})
		defer a.stop()
		s := h.next()
		s.welcome(1)
		ask := func(id uint64, kind, name string, max uint32) *agentv1.QueryResult {
			s.send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Query{Query: &agentv1.Query{Id: id, Type: kind, MaxBytes: max,
				Object: &agentv1.BundleEntry{Version: "v1", Kind: "ConfigMap", Namespace: "shop", Name: name}}}})
			r := recv(s, (*agentv1.ConnectRequest).GetQueryResult)
			if r.GetId() != id {
				t.Errorf("answer to %d, asked %d", r.GetId(), id)
			}
			return r
		}
		if r := ask(1, "get", "web", 0); string(r.GetData()) != `{"got":"web"}` || r.GetError() != "" {
			t.Errorf("answer %v", r)
		}
		if r := ask(7, "logs", "web", 50).GetLogs(); r.GetOmitted() != 3 || len(r.GetPods()) != 1 || string(r.GetPods()[0].GetData()) != "50\n" || r.GetPods()[0].GetAt().GetNanos() != 7 {
			t.Errorf("logs %v", r)
		}
		for want, r := range map[string]*agentv1.QueryResult{"does not let events be read": ask(8, "events", "web", 0), "is not in the cluster": ask(2, "get", "none", 0), "unsupported": ask(3, "dance", "web", 0),
			"more than the 3": ask(4, "get", "web", 3), "name: is required": ask(5, "get", "", 0), "stopped by a bug in the agent": ask(6, "get", "bug", 0)} {
			if !strings.Contains(r.GetError(), want) || len(r.GetData()) > 0 {
				t.Errorf("answer %v, want an error with %q", r, want)
			}
		}
	})
}

func TestConditionsGoWithTheHelloAndWheneverTheyChange(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		holds := report.NewConditions()
		holds.Set(fleet.Condition{Type: fleet.ConditionStateWritable, Status: fleet.ConditionFalse, Reason: "ReadOnly"})
		a := start(t, h, newState(), func(o *Options) { o.Conditions = holds })
		defer a.stop()
		types := func(list []*agentv1.Condition) (out []string) {
			for _, c := range list {
				out = append(out, c.GetType()+"="+c.GetStatus())
			}
			return out
		}
		conditions := func(s *hubSession) []string {
			return types(recv(s, (*agentv1.ConnectRequest).GetConditions).GetConditions())
		}
		s := h.next()
		expect(t, "hello", types(s.hello.GetConditions()), "StateWritable=False")
		s.welcome(1)
		began := time.Now()
		holds.Set(fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer"})
		expect(t, "one more", conditions(s), "APIServerReachable=False", "StateWritable=False")
		if waited := time.Since(began); waited > 0 {
			t.Errorf("a condition waited for %s", waited)
		}
		holds.Clear(fleet.ConditionStateWritable)
		expect(t, "one less", conditions(s), "APIServerReachable=False")
		s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
		s = h.next()
		expect(t, "hello of the next session", types(s.hello.GetConditions()), "APIServerReachable=False")
		s.welcome(2)
		holds.Clear(fleet.ConditionAPIServerReachable)
		expect(t, "none", conditions(s))
	})
}

// An agent whose state takes no writes is connected all the same, and reports: it cannot say what is wrong otherwise.
func TestStateThatTakesNoWritesDoesNotKeepTheAgentAway(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		defer a.stop()
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		s.status(time.Second)
		fails := func(err error) {
			state.mu.Lock()
			defer state.mu.Unlock()
			state.fail = err
		}
		fails(errors.New("no space left on device"))
		s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
		s = h.next()
		s.welcome(2)
		_, modules := s.status(10 * time.Second)
		expect(t, "status", modules, "web@5")
		fails(nil)
		s.beat()
		s.status(15 * time.Second) // a heartbeat saves what could not be saved
		if held := openDesired(t, state); held.Marks().Epoch != 2 {
			t.Errorf("epoch %d is saved, want 2", held.Marks().Epoch)
		}
	})
}

// An agent whose state was put back from a copy gives its worker nothing to do before the hub has spoken.
func TestStateThatIsBehindWaitsForTheHub(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		state := newState()
		a := start(t, h, state)
		s := h.next()
		s.welcome(1)
		s.index(index(h.sync("web", 5, "a")))
		s.ack()
		copied := maps.Clone(state.values)
		s.index(index(h.sync("web", 9, "b")))
		s.ack()
		noted := a.desired.HighWater().String()
		a.stop()

		state.values = copied
		a = start(t, h, state, func(o *Options) {
			if behind, err := o.Desired.Recall(t.Context(), noted); err != nil || !behind {
				t.Fatalf("behind %t, %v", behind, err)
			}
		})
		defer a.stop()
		s = h.next()
		if s.hello.GetGeneration() != 9 || len(s.hello.GetDigest()) > 0 {
			t.Errorf("hello %v", s.hello)
		}
		s.welcome(2)
		<-time.After(time.Minute / 4)
		expect(t, "worker", a.worker.take())
		s.index(index(h.sync("web", 9, "b")))
		s.ack()
		synctest.Wait()
		expect(t, "worker", a.worker.take(), "set web@9")
	})
}

// What charts may ask of the cluster goes to a hub that takes it, once, unless that has the same; an older hub is sent none.
func TestCapabilitiesGoToAHubThatTakesThem(t *testing.T) {
	bubble(t, func(t *testing.T, h *hub) {
		can := report.NewCapabilities()
		first, second := fleet.Capabilities{KubeVersion: "v1.33.4", APIs: []string{"apps/v1", "v1"}}, fleet.Capabilities{KubeVersion: "v1.34.0", APIs: []string{"v1"}}
		a := start(t, h, newState(), func(o *Options) { o.Capabilities = can })
		defer a.stop()
		cut := func(s *hubSession) *hubSession {
			s.end <- fleet.Errorf(fleet.ErrUnavailable, "cut")
			return h.next()
		}
		sent := func(s *hubSession) string {
			return recv(s, (*agentv1.ConnectRequest).GetCapabilities).GetKubernetesVersion()
		}
		none := func(s *hubSession) {
			t.Helper()
			recv(s, (*agentv1.ConnectRequest).GetHeartbeat)
			for _, f := range s.passed {
				if f.GetCapabilities() != nil {
					t.Errorf("sent %v", f)
				}
			}
		}
		takes := func(digest []byte) func(*agentv1.Welcome) {
			return func(w *agentv1.Welcome) { w.TakesCapabilities, w.Capabilities = true, digest }
		}
		s := h.next()
		s.welcome(1, takes(second.Digest().Bytes())) // of the process before; this one has not read them yet
		none(s)
		can.Set(first)
		expect(t, "known later", []string{sent(s)}, "v1.33.4")
		s = cut(s)
		s.welcome(2, takes(first.Digest().Bytes()))
		none(s)
		can.Set(second)
		expect(t, "changed", []string{sent(s)}, "v1.34.0")
		s = cut(s)
		expect(t, "hello", []string{s.hello.GetKubernetesVersion()}, "v1.34.0")
		s.welcome(3, takes(first.Digest().Bytes()))
		expect(t, "the hub has others", []string{sent(s)}, "v1.34.0")
		s = cut(s)
		s.welcome(4)
		can.Set(first)
		none(s)
	})
}
