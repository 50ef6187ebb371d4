package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

func call(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAnAgentJoinsAndRenewsOverTheWire(t *testing.T) {
	w := newWorld(t)
	addr, token, key := w.server(), w.token("prod-eu-01", false), newKey(t)
	stranger := w.client(addr, rpc.PinnedTLS(pin(t, token), w.clock.time))
	got, err := stranger.Enroll(call(t), &agentv1.EnrollRequest{Token: token, Csr: csr(t, key), ClusterUid: "uid-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetCluster() != "prod-eu-01" || got.GetHubId() != "hub-1" {
		t.Errorf("got %v", got)
	}
	if _, err := rpc.PinnedCAs(got.GetCa(), pin(t, token)); err != nil {
		t.Error(err)
	}
	if _, err := stranger.Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, key)}); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("renewal without a certificate: %v", err)
	}
	id := w.identity(key, registry.Identity{Certificates: got.GetCertificates()})
	if _, err := w.client(addr, w.tls(id)).Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, newKey(t))}); err != nil {
		t.Errorf("renewal: %v", err)
	}
}

func TestAnAgentDoesNotJoinAnotherHub(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	token := w.token("a", false)
	_, err := w.client(other.server(), rpc.PinnedTLS(pin(t, token), w.clock.time)).Enroll(call(t), &agentv1.EnrollRequest{Token: token, Csr: csr(t, newKey(t)), ClusterUid: "u"})
	if err == nil || !strings.Contains(err.Error(), "not the one that made the join token") {
		t.Errorf("got %v", err)
	}
}

// dial does a whole handshake, reads what the server says, and reports whether the session was resumed.
func dial(t *testing.T, addr string, conf *tls.Config) (resumed bool, err error) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(raw, conf)
	if err := c.Handshake(); err != nil {
		return false, err
	}
	// The server's verdict comes with its first bytes, and so does the session ticket.
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return c.ConnectionState().DidResume, err
	}
	return c.ConnectionState().DidResume, nil
}

// echo is a bare TLS server with the hub's configuration.
func (w *world) echo() string {
	w.t.Helper()
	conf, err := rpc.ServerTLS{Certificate: w.ca.Server, ClientCAs: w.ClientCAs, Verify: w.VerifyConnection, Now: w.clock.time}.Config()
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("x")) // does the handshake first
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestARevokedClusterIsCutOffOnResumedSessionsToo(t *testing.T) {
	w := newWorld(t)
	id, addr := w.join("a", "uid-1"), w.echo()
	conf := w.tls(id)
	if _, err := dial(t, addr, conf); err != nil {
		t.Fatal(err)
	}
	if resumed, err := dial(t, addr, conf); err != nil || !resumed {
		t.Fatalf("resumed %v, %v", resumed, err)
	}
	if _, err := w.Revoke(t.Context(), ana, "a", "", "stolen"); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, conf); err == nil || !strings.Contains(err.Error(), "bad certificate") {
		t.Errorf("resumed after the revocation: %v", err)
	}
	if _, err := dial(t, addr, w.tls(id)); err == nil || !strings.Contains(err.Error(), "bad certificate") {
		t.Errorf("afresh after the revocation: %v", err)
	}
	if _, err := w.open(id, "i", "uid-1", false); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "cluster a: is revoked") {
		t.Errorf("session: %v", err)
	}
	if _, err := w.Renew(t.Context(), id.caller(), csr(t, newKey(t))); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("renewal: %v", err)
	}
	again, err := w.enroll(w.token("a", true), "uid-1", newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, w.tls(again)); err != nil {
		t.Errorf("after joining again: %v", err)
	}
}

func TestRevocationReachesALiveConnectionAndTheClientIsTold(t *testing.T) {
	w := newWorld(t)
	id, addr := w.join("a", "uid-1"), w.server()
	live := w.client(addr, w.tls(id))
	if _, err := live.Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, id.key)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Revoke(t.Context(), ana, "a", "", "stolen"); err != nil {
		t.Fatal(err)
	}
	if _, err := live.Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, id.key)}); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "cluster a: is revoked") {
		t.Errorf("on the live connection: %v", err)
	}
	// In TLS 1.3 the client's first write may fail before it reads the alert: an agent that tries again is told.
	for range 20 {
		_, err := w.client(addr, w.tls(id)).Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, id.key)})
		if errors.Is(err, fleet.ErrDenied) {
			return
		}
		if !errors.Is(err, fleet.ErrUnavailable) {
			t.Fatalf("on a new connection: %v", err)
		}
	}
	t.Error("twenty new connections, and the agent does not know that it is revoked")
}

func TestRenewalKeepsTheOldCertificateUntilTheNewOneIsUsed(t *testing.T) {
	w := newWorld(t)
	w.run()
	old := w.join("a", "uid-1")
	if _, err := w.open(old, "i", "uid-1", false); err != nil {
		t.Fatal(err)
	}
	w.pass(12 * time.Hour)
	key := newKey(t)
	first, err := w.Renew(t.Context(), old.caller(), csr(t, key))
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.Renew(t.Context(), old.caller(), csr(t, key))
	if err != nil || string(again.Certificates[0]) != string(first.Certificates[0]) {
		t.Errorf("asked twice: %v", err)
	}
	fresh := w.identity(key, first)
	for name, id := range map[string]identity{"old": old, "new": fresh} {
		if _, err := w.Certificate(w.state(id)); err != nil {
			t.Errorf("%s before the new one is used: %v", name, err)
		}
	}
	opened, err := w.open(fresh, "i", "uid-1", false)
	if err != nil || opened.Epoch != 2 {
		t.Fatalf("epoch %d, %v", opened.Epoch, err)
	}
	if _, err := w.Certificate(w.state(old)); err != nil {
		t.Errorf("old within the grace: %v", err)
	}
	sub := w.store.Subscribe(nil, store.ClusterKey("a"))
	defer sub.Stop()
	w.pass(3 * time.Minute)
	if err := w.VerifyConnection(w.state(old)); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "copied") {
		t.Errorf("old after the grace: %v", err)
	}
	select {
	case <-sub.C():
	case <-time.After(time.Minute):
		t.Fatal("no attention was recorded")
	}
	if got := w.cluster("a").GetAttention(); got != fleet.AttentionCopied {
		t.Errorf("attention %q", got)
	}
	if _, err := w.Certificate(w.state(fresh)); err != nil {
		t.Errorf("the right agent suffers: %v", err)
	}
}

func TestARenewalWhoseReplyWasLostDoesNoHarm(t *testing.T) {
	w := newWorld(t)
	old := w.join("a", "uid-1")
	_, _ = w.open(old, "i", "uid-1", false)
	w.pass(12 * time.Hour)
	saved := newKey(t)
	got, err := w.Renew(t.Context(), old.caller(), csr(t, saved))
	if err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute)
	if _, err := w.Renew(t.Context(), old.caller(), csr(t, newKey(t))); err != nil { // lost
		t.Fatal(err)
	}
	if _, err := w.open(w.identity(saved, got), "i", "uid-1", false); err != nil {
		t.Errorf("the saved one: %v", err)
	}
	for range 50 {
		w.pass(time.Second)
		if _, err := w.Renew(t.Context(), w.identity(saved, got).caller(), csr(t, newKey(t))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.cluster("a").GetCertificates()); n > 6 {
		t.Errorf("%d certificates are kept", n)
	}
}

func TestExpiryIsExplained(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	w.pass(25 * time.Hour)
	_, err := w.Certificate(w.state(id))
	const want = "cluster a: the agent's certificate expired 1h ago; run: towline cluster join a --reissue"
	if err == nil || err.Error() != want || !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("got %v", err)
	}
}

func TestARestoredHubDoesNotTakeItsAgentsForCopies(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	backup := w.cluster("a")
	w.pass(12 * time.Hour)
	key := newKey(t)
	renewed, err := w.Renew(t.Context(), id.caller(), csr(t, key))
	if err != nil {
		t.Fatal(err)
	}
	rev, err := w.store.Update(t.Context(), func(wr store.Writer) error {
		wr.Put(store.ClusterKey("a"), proto.CloneOf(backup))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = w.store.View(t.Context(), rev, func(store.Reader) error { return nil })
	fresh := w.identity(key, renewed)
	if _, err := w.Certificate(w.state(fresh)); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("at once it may be a read model that is late: %v", err)
	}
	w.pass(time.Hour)
	if _, err := w.Certificate(w.state(fresh)); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("later: %v", err)
	}
	if err := w.VerifyConnection(w.state(fresh)); err != nil {
		t.Errorf("the handshake: %v", err)
	}
}

func TestSessions(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	first, err := w.open(id, "one", "uid-1", false)
	if err != nil || first.Epoch != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	batch := func(f store.Fence) error {
		_, err := storetest.All(w.store).Batch(t.Context(), f, []store.Op{{Key: store.AckKey("a"), Value: &storev1.AckRecord{Epoch: 1}}})
		return err
	}
	if err := batch(first.Fence); err != nil {
		t.Errorf("the fence of a live session: %v", err)
	}
	if err := batch(first.Fence); err != nil {
		t.Errorf("the fence after a write under it: %v", err)
	}
	if _, err := w.open(id, "two", "uid-1", true); !errors.Is(err, fleet.ErrExists) {
		t.Errorf("another instance while the first lives: %v", err)
	}
	if err := batch(first.Fence); err != nil {
		t.Errorf("a refusal fenced the live session: %v", err)
	}
	if _, err := w.open(id, "one", "uid-2", true); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "towline cluster join a --reissue") {
		t.Errorf("another cluster UID: %v", err)
	}
	if got := w.cluster("a").GetAttention(); got != fleet.AttentionOtherCluster {
		t.Errorf("attention %q", got)
	}
	if err := batch(first.Fence); err != nil {
		t.Errorf("a clone fenced the live session: %v", err)
	}
	second, err := w.open(id, "one", "uid-1", true)
	if err != nil || second.Epoch != 2 {
		t.Fatalf("the same instance: %+v, %v", second, err)
	}
	if err := batch(first.Fence); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the fence of the replaced session: %v", err)
	}
	if err := w.CloseSession(t.Context(), "a", 1, time.Now()); err != nil {
		t.Error(err)
	}
	if err := batch(second.Fence); err != nil {
		t.Errorf("an old close ended the new session: %v", err)
	}
	third, err := w.open(id, "two", "uid-1", false)
	if err != nil || third.Epoch != 3 {
		t.Errorf("another instance when the first is dead: %+v, %v", third, err)
	}
	if _, err := w.enroll(w.token("a", true), "uid-1", newKey(t)); err != nil {
		t.Fatal(err)
	}
	if err := batch(third.Fence); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the session of an older join: %v", err)
	}
}

func TestAnAttentionEndsAnHourAfterItsCause(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	_, _ = w.open(id, "one", "uid-2", false)
	w.pass(59 * time.Minute)
	_, _ = w.open(id, "one", "uid-1", false)
	if w.cluster("a").GetAttention() == "" {
		t.Error("it went too soon")
	}
	w.pass(2 * time.Minute)
	_, _ = w.open(id, "one", "uid-1", false)
	if got := w.cluster("a").GetAttention(); got != "" {
		t.Errorf("it stays: %q", got)
	}
}

func TestAnAgentHasOnlyItsOwnSession(t *testing.T) {
	w := newWorld(t)
	a := w.join("a", "uid-1")
	w.join("b", "uid-2")
	ctx := rpc.WithCaller(t.Context(), a.caller())
	if _, err := w.OpenSession(ctx, registry.Admission{Cluster: "b", InstanceID: "i", ClusterUID: "uid-2"}, false); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("got %v", err)
	}
}

func TestCertificatesThatAreNotOurs(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	foreign := other.join("a", "uid-1")
	w.join("a", "uid-1")
	if _, err := w.Certificate(other.state(foreign)); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("of another CA with the same name: %v", err)
	}
	if _, err := w.Certificate(tls.ConnectionState{}); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("none: %v", err)
	}
	unverified := w.state(w.join("b", "uid-2"))
	unverified.VerifiedChains = nil
	if _, err := w.Certificate(unverified); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("unverified: %v", err)
	}
}

// A second instance that keeps asking while the first is there is a copy; one that takes over does not ask that long.
func TestTwoAgentsWithOneIdentityAreSaid(t *testing.T) {
	w := newWorld(t)
	w.run()
	i := w.join("a", "uid-1")
	if _, err := w.open(i, "one", "uid-1", false); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		if _, err := w.open(i, "two", "uid-1", true); !errors.Is(err, fleet.ErrExists) {
			t.Fatal(err)
		}
		if got := w.cluster("a").GetAttention(); got != "" {
			t.Fatalf("attention after a moment: %q", got)
		}
		w.pass(5 * time.Second)
	}
	sub := w.store.Subscribe(nil, store.ClusterKey("a"))
	defer sub.Stop()
	if _, err := w.open(i, "two", "uid-1", true); !errors.Is(err, fleet.ErrExists) {
		t.Fatal(err)
	}
	select {
	case <-sub.C():
	case <-time.After(time.Minute):
		t.Fatal("no attention was recorded")
	}
	if got := w.cluster("a").GetAttention(); got != fleet.AttentionCloned {
		t.Errorf("attention %q", got)
	}
}

// What the agent of a revoked cluster still says does not count, from the revocation on; what it said before stays its last word.
func TestRevocationEndsTheSessionsFence(t *testing.T) {
	for name, revoke := range map[string]func(*world) error{
		"revoke": func(w *world) error { _, err := w.Revoke(t.Context(), ana, "a", "", "lost"); return err },
		"lock":   func(w *world) error { _, _, err := w.Lock(t.Context(), ana, "a", "", "suspected"); return err },
		"remove by force": func(w *world) error {
			_, _, err := w.RemoveCluster(t.Context(), "a", registry.Removal{Objects: "keep", Force: true}, registry.Word{By: "ana"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o, err := w.open(w.join("a", "uid-a"), "i", "uid-a", false)
			if err != nil {
				t.Fatal(err)
			}
			report := []store.Op{{Key: store.ObservedKey("a", fleet.ModuleRef{Project: "default", Name: "shop"}), Value: &storev1.ObservedRecord{Epoch: o.Epoch}}}
			if _, err := storetest.All(w.store).Batch(t.Context(), o.Fence, report); err != nil {
				t.Fatal(err)
			}
			if err := revoke(w); err != nil {
				t.Fatal(err)
			}
			if _, err := storetest.All(w.store).Batch(t.Context(), o.Fence, report); !errors.Is(err, fleet.ErrStale) {
				t.Errorf("a report after the revocation: %v", err)
			}
			heard := w.time().Add(-time.Minute)
			if err := w.CloseSession(t.Context(), "a", o.Epoch, heard); err != nil {
				t.Fatal(err)
			}
			if s := w.session("a"); s.GetEpoch() != o.Epoch || !s.GetHeard().AsTime().Equal(heard) || s.GetVoidBefore() != 0 {
				t.Errorf("the session is %v", s)
			}
		})
	}
}

// An agent that does not see its cluster keeps the session from a copy of it that has asked before that, also when that starts anew, or the hub does: it
// cannot be told from the other one of a Deployment, and people were told that there are two.
func TestAgentThatIsBlindAndItsCopy(t *testing.T) {
	for name, copied := range map[string]bool{"no copy": false, "a copy": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run()
			i := w.join("a", "uid-1")
			w.pass(-2 * time.Hour) // what is read of conditions has no time that is to come
			one, err := w.open(i, "one", "uid-1", false)
			if err != nil {
				t.Fatal(err)
			}
			asks := func(instance string, blind bool) error {
				_, err := w.OpenSession(rpc.WithCaller(t.Context(), i.caller()), registry.Admission{Cluster: "a", InstanceID: instance, ClusterUID: "uid-1", Hub: "a", Blind: blind}, true)
				return err
			}
			patiently := func(instance string, blind bool, d time.Duration) {
				t.Helper()
				for range d / (5 * time.Second) {
					if err := asks(instance, blind); !errors.Is(err, fleet.ErrExists) {
						t.Fatal(err)
					}
					w.pass(5 * time.Second)
				}
			}
			if copied {
				sub := w.store.Subscribe(nil, store.ClusterKey("a"))
				defer sub.Stop()
				patiently("copy", false, time.Minute)
				<-sub.C()
			}
			unseen := &storev1.ConditionsRecord{Conditions: wire.ConditionsToProto([]fleet.Condition{{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Since: w.time()}})}
			if _, err := storetest.All(w.store).Batch(t.Context(), one.Fence, []store.Op{{Key: store.ConditionKey("a"), Value: unseen}}); err != nil {
				t.Fatal(err)
			}
			patiently("blind", true, time.Minute)
			if !copied { // a hub of before has taken the other one of a Deployment for a copy, which did not get the session from it
				rec := proto.CloneOf(w.cluster("a"))
				rec.Attention, rec.AttentionAt = fleet.AttentionCloned, timestamppb.New(w.time())
				if _, err := storetest.All(w.store).Update(t.Context(), func(w store.Writer) error { w.Put(store.ClusterKey("a"), rec); return nil }); err != nil {
					t.Fatal(err)
				}
				if err := asks("two", false); err != nil {
					t.Fatalf("one that sees the cluster: %v", err)
				}
				return
			}
			patiently("copy", false, time.Hour)
			if err := asks("copy that was started anew", false); !errors.Is(err, fleet.ErrExists) {
				t.Errorf("it takes the session from the agent of the cluster: %v", err)
			}
		})
	}
}
