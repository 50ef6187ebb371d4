package report

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// advance lets virtual time pass.
func advance(d time.Duration) { <-time.After(d) }

func ref(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }

func refs(names ...string) (out []fleet.ModuleRef) {
	for _, n := range names {
		out = append(out, ref(n))
	}
	return out
}

func applying(name, message string) fleet.SyncStatus {
	return fleet.SyncStatus{Module: ref(name), Generation: 1, Phase: fleet.PhaseApplying, Message: message, Observed: time.Now()}
}

func ready(name string) fleet.SyncStatus {
	return fleet.SyncStatus{Module: ref(name), Generation: 1, Phase: fleet.PhaseApplied, Ready: true, Observed: time.Now(),
		States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}}}
}

func drifted(name string) fleet.SyncStatus {
	s := ready(name)
	s.Ready = false
	s.States[0].Drift = fleet.DriftDrifted
	return s
}

// peer is the hub's side: it sends what is due and acknowledges it, and knows what it was told.
type peer struct {
	r      *Reporter
	start  time.Time
	log    []string
	holds  map[string]*agentv1.SyncStatus
	digest []byte
	acks   bool
}

func newPeer(r *Reporter) *peer {
	return &peer{r: r, start: time.Now(), holds: map[string]*agentv1.SyncStatus{}, acks: true}
}

// run sends all that comes due in the given time, like a session does.
func (p *peer) run(d time.Duration) {
	end := time.Now().Add(d)
	for {
		frame, wait := p.r.Next(time.Now())
		if frame != nil {
			p.take(frame)
			continue
		}
		left := time.Until(end)
		if wait == 0 || wait > left {
			wait = left
		}
		select {
		case <-p.r.C():
		case <-time.After(wait):
			if !time.Now().Before(end) {
				return
			}
		}
	}
}

func (p *peer) take(f *agentv1.Status) {
	var names []string
	if f.GetFullBegin() {
		names = append(names, "<")
		p.holds = map[string]*agentv1.SyncStatus{}
	}
	for _, s := range f.GetSyncs() {
		_, name, _ := strings.Cut(s.GetModule(), "/")
		names = append(names, name)
		p.holds[name] = s
	}
	if f.GetFullEnd() {
		names = append(names, ">")
	}
	p.log = append(p.log, fmt.Sprintf("%d:%s", time.Since(p.start).Milliseconds(), strings.Join(names, " ")))
	p.digest = f.GetDigest()
	if p.acks {
		p.r.Ack(f.GetEpoch(), f.GetSequence())
	}
}

func (p *peer) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(p.log, want) {
		t.Errorf("sent %q, want %q", p.log, want)
	}
	p.log = nil
}

// begun is a reporter in a session in which all is sent.
func begun(t *testing.T, names ...string) (*Reporter, *peer) {
	t.Helper()
	r := New(fleet.Digest{})
	r.Expect(refs(names...))
	for _, n := range names {
		r.Report(applying(n, ""))
	}
	p := newPeer(r)
	r.Begin(1, false, 0)
	p.run(time.Minute)
	p.log, p.start = nil, time.Now()
	return r, p
}

func TestFirstReportAfterQuietGoesAtOnceTheRestCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		go func() {
			for i := range 25 { // every 10 ms
				r.Report(applying("web", fmt.Sprint(i)))
				advance(10 * time.Millisecond)
			}
		}()
		p.run(time.Minute)
		p.expect(t, "0:web", "100:web", "200:web", "310:web")
		if got := p.holds["web"].GetMessage(); got != "24" {
			t.Errorf("the hub holds %q, the newest is 24", got)
		}
	})
}

func TestTransitionsGoAtOnceButForTheBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		go func() {
			for i := range 9 { // every 5 ms between ready and drifted
				if i%2 == 0 {
					r.Report(ready("web"))
				} else {
					r.Report(drifted("web"))
				}
				advance(5 * time.Millisecond)
			}
		}()
		p.run(10 * time.Second)
		p.expect(t, "0:web", "5:web", "10:web", "15:web", "120:web")
		if !p.holds["web"].GetReady() {
			t.Error("the hub holds drifted, the newest is ready")
		}
	})
}

func TestManyModulesShareFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a", "b", "c", "d"}
		r, p := begun(t, names...)
		for _, n := range names {
			r.Report(ready(n))
		}
		p.run(time.Second)
		p.expect(t, "0:a b c d")
	})
}

func TestWhatGoesBackIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		r.Report(applying("web", "1"))
		p.run(0)
		r.Report(applying("web", "2"))
		r.Report(applying("web", "1"))
		advance(time.Minute)
		again := applying("web", "1") // seen later, but the same
		r.Report(again)
		p.run(time.Second)
		p.expect(t, "0:web")
	})
}

func TestReconnectWithKnownStatusSendsNothingOrTheDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "api", "web")
		if string(r.AckedDigest().Bytes()) != string(p.digest) {
			t.Fatal("the hello would not name what the hub holds")
		}
		r.End()
		r.Begin(2, true, 0)
		p.run(time.Second)
		p.expect(t)
		r.End()
		r.Report(ready("web"))
		r.Begin(3, true, 0)
		p.start = time.Now()
		p.run(time.Second)
		p.expect(t, "0:web")
		r.End()
		r.Begin(4, false, 0)
		p.start = time.Now()
		p.run(time.Second)
		p.expect(t, "0:< api web >")
	})
}

func TestLostFramesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "api", "web")
		before := r.AckedDigest()
		p.acks = false
		r.Report(ready("web"))
		p.run(time.Second)
		p.expect(t, "0:web")
		if r.AckedDigest() != before {
			t.Error("a frame that was not acknowledged is in the hello's digest")
		}
		r.End()
		p.acks = true
		r.Begin(2, true, 0) // the hub says that it holds what was acknowledged: the frame was lost
		p.start = time.Now()
		p.run(time.Second)
		p.expect(t, "0:web")
		r.Ack(1, 99) // late, of the old session
		if string(r.AckedDigest().Bytes()) != string(p.digest) {
			t.Error("the digest is not that of the last frame")
		}
	})
}

func TestRestartSaysThatWhatTheHubHoldsHoldsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, _ := begun(t, "api", "web")
		r := New(old.AckedDigest())
		if r.AckedSeen() || !old.AckedSeen() {
			t.Error("who has seen what the digest names?")
		}
		r.Expect(refs("api", "web"))
		p := newPeer(r)
		r.Begin(2, true, 0)
		r.Report(applying("api", ""))
		p.run(time.Second)
		p.expect(t) // web was not looked at yet
		r.Report(applying("web", ""))
		p.run(time.Second)
		p.expect(t, "1000:") // no module, and the digest that the hub has
		if string(p.digest) != string(old.AckedDigest().Bytes()) || !r.AckedSeen() {
			t.Error("the hub cannot tell what holds still")
		}
		r.Report(ready("web"))
		p.run(time.Second)
		p.expect(t, "2000:web")
	})
}

func TestRestartSendsAllWhenSomethingElseIsTrueNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, _ := begun(t, "api", "web")
		r := New(old.AckedDigest())
		r.Expect(refs("api", "web"))
		p := newPeer(r)
		r.Begin(2, true, 0)
		r.Report(applying("api", ""))
		p.run(time.Minute)
		p.expect(t, "5000:< api >") // web says nothing: after a while the hub learns that nobody knows
		r.Report(ready("web"))
		p.run(time.Second)
		p.expect(t, "60000:web")
	})
}

func TestEmptyFullStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(fleet.Digest{})
		p := newPeer(r)
		r.Begin(1, false, 0)
		p.run(time.Second)
		p.expect(t, "0:< >")
	})
}

func TestFramesAreSplitAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(fleet.Digest{})
		var names []string
		for i := range 50 {
			names = append(names, fmt.Sprintf("m%02d", i))
		}
		r.Expect(refs(names...))
		for _, n := range names {
			r.Report(applying(n, strings.Repeat("x", 200)))
		}
		huge := ready("m07")
		huge.Phase, huge.Ready = fleet.PhaseApplying, false
		for i := range 1000 {
			huge.Extras = append(huge.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprintf("c%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)}))}})
		}
		r.Report(huge)
		p := newPeer(r)
		r.Begin(1, false, 2048)
		var frames int
		for {
			f, _ := r.Next(time.Now())
			if f == nil {
				break
			}
			frames++
			if n := proto.Size(f); n > 2048 {
				t.Errorf("a frame has %d bytes, more than 2048", n)
			}
			if f.GetFullBegin() != (frames == 1) {
				t.Errorf("frame %d: full_begin is %v", frames, f.GetFullBegin())
			}
			p.take(f)
		}
		if len(p.holds) != 50 || frames < 7 || !strings.HasSuffix(p.log[len(p.log)-1], ">") {
			t.Errorf("%d modules in %d frames, the last %q", len(p.holds), frames, p.log[len(p.log)-1])
		}
		if m := p.holds["m07"]; len(m.GetStates()) != 1 || m.GetExtraCount() != 1000 {
			t.Errorf("%d states, %d extras: something was cut that is exact", len(m.GetStates()), m.GetExtraCount())
		}
	})
}

func TestSlowHubGetsOnlyTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		p.acks = false
		sent := 0
		for i := range 1000 {
			r.Report(applying("web", fmt.Sprint(i)))
			advance(coalesce)
			if f, _ := r.Next(time.Now()); f != nil {
				sent++
			}
		}
		if sent > maxInFlight {
			t.Errorf("%d frames in flight, at most %d may be", sent, maxInFlight)
		}
		p.acks = true
		r.Ack(1, r.sequence)
		p.run(time.Second)
		if len(p.log) != 1 || p.holds["web"].GetMessage() != "999" {
			t.Errorf("after the acknowledgement %d frames, message %q", len(p.log), p.holds["web"].GetMessage())
		}
	})
}

func TestForgottenModulesAreNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web", "old")
		r.Expect(refs("web"))
		r.Report(applying("old", "late"))
		p.run(time.Second)
		p.expect(t)
		r.Report(applying("web", "x"))
		p.run(time.Second)
		other := New(fleet.Digest{})
		other.Expect(refs("web"))
		other.Report(applying("web", "x"))
		if string(p.digest) != string(root(other.digests()).Bytes()) {
			t.Error("a forgotten module is still in the digest")
		}
	})
}

func TestStraysAreReportedThoughNobodyExpectsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		r.Report(fleet.SyncStatus{Module: ref("lost"), Phase: fleet.PhaseStray})
		r.Expect(refs("web"))
		p.run(time.Second)
		p.expect(t, "0:lost")
		r.Report(fleet.SyncStatus{Module: ref("lost"), Phase: fleet.PhaseRemoved})
		p.run(time.Second)
		p.expect(t)
	})
}

// Who leaves says of everything what becomes of it: the hub waits for that.
func TestLeavingIsReportedOfStraysToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		r.Report(fleet.SyncStatus{Module: ref("lost"), Phase: fleet.PhaseStray})
		p.run(time.Second)
		p.expect(t, "0:lost")
		r.Leave()
		for _, phase := range []fleet.SyncPhase{fleet.PhaseRemoving, fleet.PhaseRemoved} {
			r.Report(fleet.SyncStatus{Module: ref("lost"), Phase: phase})
			p.run(time.Second)
		}
		p.expect(t, "1000:lost", "2000:lost")
		if got := p.holds["lost"].GetPhase(); got != string(fleet.PhaseRemoved) {
			t.Errorf("the hub has it as %s", got)
		}
	})
}

func TestStatusOnTheWireIsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := begun(t, "web")
		want := drifted("web")
		r.Report(want)
		p.run(time.Second)
		got, err := wire.SyncStatusFromProto(p.holds["web"])
		if err != nil || got.States[0] != want.States[0] || got.Observed.UnixMilli() != want.Observed.UnixMilli() {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
