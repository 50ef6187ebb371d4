package registry_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// recovery is what an agent asks with a certificate that has ended, for a key.
func (w *world) recovery(i identity, uid string, key *ecdsa.PrivateKey) registry.Recovery {
	w.t.Helper()
	e := registry.Recovery{Certificate: i.leaf.Raw, CSR: csr(w.t, key), ClusterUID: uid, Remote: "192.0.2.1:5"}
	var err error
	if e.Proof, err = ecdsa.SignASN1(rand.Reader, i.key.(*ecdsa.PrivateKey), rpc.RecoveryDigest(e.Certificate, e.CSR, uid)); err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) recover(i identity, uid string, key *ecdsa.PrivateKey) (identity, error) {
	w.t.Helper()
	got, err := w.Recover(w.t.Context(), w.recovery(i, uid, key))
	if err != nil {
		return identity{}, err
	}
	return w.identity(key, got), nil
}

// An agent that was away for a week, as its hub was, comes back by its old certificate, over the wire and without a person, and the
// old one is of no use then.
func TestCertificateThatEndedGetsTheNextOne(t *testing.T) {
	w := newWorld(t)
	addr := w.server()
	old := w.join("a", "uid-a")
	if _, err := w.open(old, "i", "uid-a", false); err != nil {
		t.Fatal(err)
	}
	w.pass(7 * 24 * time.Hour)
	if _, err := w.client(addr, w.tls(old)).Renew(call(t), &agentv1.RenewRequest{Csr: csr(t, newKey(t))}); err == nil {
		t.Fatal("a certificate that has ended renews as one that has not")
	}
	key := newKey(t)
	e := w.recovery(old, "uid-a", key)
	anyone := w.client(addr, rpc.ClientTLS{CAs: w.ca.Pool(), Now: w.clock.time}.Config())
	q := &agentv1.RecoverRequest{Certificate: e.Certificate, Csr: e.CSR, ClusterUid: "uid-a", Proof: e.Proof}
	first, err := anyone.Recover(call(t), q)
	if err != nil {
		t.Fatal(err)
	}
	second, err := anyone.Recover(call(t), q) // the first answer was lost
	if err != nil || string(second.GetCertificates()[0]) != string(first.GetCertificates()[0]) {
		t.Fatalf("the same request gives another certificate: %v", err)
	}
	if _, err := w.recover(old, "uid-a", newKey(t)); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("another key at once: %v", err)
	}
	next := w.identity(key, registry.Identity{Certificates: first.GetCertificates()})
	if _, err := w.open(next, "i", "uid-a", false); err != nil {
		t.Fatalf("with the new certificate: %v", err)
	}
	w.pass(time.Hour)
	if _, err := w.recover(old, "uid-a", newKey(t)); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "copied") {
		t.Errorf("the one that ended is used again: %v", err)
	}
}

// A certificate that was given and never used, for the agent went away with it, is as good as the one before.
func TestCertificateThatEndedUnused(t *testing.T) {
	for _, name := range []string{"used", "unused"} {
		w := newWorld(t)
		id := w.join("a", "uid-a")
		if _, err := w.open(id, "i", "uid-a", false); err != nil {
			t.Fatal(err)
		}
		w.pass(12 * time.Hour)
		if next := w.renewed(id); name == "unused" {
			id = next
		}
		w.pass(3 * 24 * time.Hour)
		if _, err := w.recover(id, "uid-a", newKey(t)); err != nil {
			t.Errorf("by the one that was %s: %v", name, err)
		}
	}
}

func TestRecoveriesThatAreRefused(t *testing.T) {
	w := newWorld(t)
	id, other, gone := w.join("a", "uid-a"), w.join("b", "uid-b"), w.join("c", "uid-c")
	if _, err := w.Revoke(t.Context(), ana, "c", "", "stolen"); err != nil {
		t.Fatal(err)
	}
	w.pass(rpc.RecoveryWindow)
	good := func() registry.Recovery { return w.recovery(id, "uid-a", newKey(t)) }
	for name, e := range map[string]func() registry.Recovery{
		"nothing":                func() registry.Recovery { return registry.Recovery{} },
		"no certificate":         func() registry.Recovery { e := good(); e.Certificate = []byte("x"); return e },
		"the proof of another":   func() registry.Recovery { e := good(); e.Proof = w.recovery(other, "uid-a", newKey(t)).Proof; return e },
		"a request of another":   func() registry.Recovery { e := good(); e.CSR = csr(t, newKey(t)); return e },
		"no proof":               func() registry.Recovery { e := good(); e.Proof = nil; return e },
		"another cluster":        func() registry.Recovery { return w.recovery(id, "uid-x", newKey(t)) },
		"revoked":                func() registry.Recovery { return w.recovery(gone, "uid-c", newKey(t)) },
		"of another hub":         func() registry.Recovery { return w.recovery(newWorld(t).join("a", "uid-a"), "uid-a", newKey(t)) },
		"a person's certificate": func() registry.Recovery { return w.recovery(w.adminIdentity(), "uid-a", newKey(t)) },
		"of a cluster that is no": func() registry.Recovery {
			return w.recovery(w.with(newWorld(t).store).join("d", "uid-d"), "uid-d", newKey(t))
		},
	} {
		w.pass(time.Minute) // the failed attempts of an address are limited
		_, err := w.Recover(t.Context(), e())
		if err == nil || errors.Is(err, fleet.ErrExhausted) {
			t.Errorf("%s: %v", name, err)
		}
		if stops := fleet.HintOf(err).Unmet == fleet.PreconditionUnlocked; stops != (name == "revoked") {
			t.Errorf("%s: an agent that was told to leave is to stop: %v", name, stops)
		}
	}
	w.pass(24 * time.Hour)
	if _, err := w.recover(id, "uid-a", newKey(t)); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "for 30 days after its end; run: towline cluster join a --reissue") {
		t.Errorf("after the window: %v", err)
	}
	fresh := w.join("e", "uid-e")
	unproven := good()
	unproven.Proof = nil
	for range 20 {
		_, _ = w.Recover(t.Context(), unproven)
	}
	if _, err := w.Recover(t.Context(), unproven); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("attempts of an address are not limited: %v", err)
	}
	if _, err := w.recover(fresh, "uid-e", newKey(t)); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("by one that has not ended: %v", err)
	}
	w.pass(48 * time.Hour)
	for range 20 {
		_, _ = w.Recover(t.Context(), unproven)
	}
	if _, err := w.recover(fresh, "uid-e", newKey(t)); err != nil {
		t.Errorf("whoever has the key is kept out by others at its address: %v", err)
	}
}

// An agent that asks again and again for what it was given is one entry of the audit, and does not push out the others.
func TestRecoveryThatIsAskedForAgainIsOneEntry(t *testing.T) {
	w := newWorld(t)
	var entries []*v1.AuditEntry
	w.audits(func(_ context.Context, e *v1.AuditEntry) {
		if e.GetMethod() == "Recover" {
			entries = append(entries, e)
		}
	})
	w.run()
	id := w.join("a", "uid-a")
	w.pass(7 * 24 * time.Hour)
	e := w.recovery(id, "uid-a", newKey(t))
	for range 5 {
		if _, err := w.Recover(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if len(entries) != 1 {
		t.Errorf("%d entries: %v", len(entries), entries)
	}
}

// An agent that is refused for days, or somebody who has its key, pushes nobody else's refusals out of the audit: an hour has one of a kind.
func TestRecoveryThatIsRefusedAgainIsOneEntry(t *testing.T) {
	w := newWorld(t)
	var entries []*v1.AuditEntry
	w.audits(func(_ context.Context, e *v1.AuditEntry) {
		if e.GetMethod() == "Recover" {
			entries = append(entries, e)
		}
	})
	w.run()
	id, other := w.join("a", "uid-a"), w.join("b", "uid-b")
	for _, c := range []string{"a", "b"} {
		if _, err := w.Revoke(t.Context(), ana, fleet.ClusterName(c), "", "stolen"); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(7 * 24 * time.Hour)
	ask := func(i identity, uid string) {
		t.Helper()
		if _, err := w.recover(i, uid, newKey(t)); !errors.Is(err, fleet.ErrDenied) {
			t.Fatal(err)
		}
	}
	for range 5 {
		ask(id, "uid-a")
	}
	ask(other, "uid-b")
	if len(entries) != 2 || entries[0].GetSubject() != "a" || entries[1].GetSubject() != "b" {
		t.Errorf("%d entries: %v", len(entries), entries)
	}
	w.pass(time.Hour)
	ask(id, "uid-a")
	if len(entries) != 3 {
		t.Errorf("an hour later there are %d entries", len(entries))
	}
}

// adminIdentity is the admin's certificate, with its key.
func (w *world) adminIdentity() identity {
	w.t.Helper()
	c, err := w.ca.IssueAdmin("127.0.0.1:7444")
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := c.Certificate()
	if err != nil {
		w.t.Fatal(err)
	}
	return identity{cert.PrivateKey.(*ecdsa.PrivateKey), cert.Leaf}
}
