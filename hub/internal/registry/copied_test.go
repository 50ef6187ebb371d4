package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Who comes with a certificate that was replaced has a copy of the agent's key: the audit says so, beside the cluster. Only a hub that is
// told to locks the cluster for it, once, until a person unlocks it.
func TestCopiedKey(t *testing.T) {
	for name, locks := range map[string]bool{"alarm": false, "lock": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			entries := make(chan *v1.AuditEntry, 100)
			w.made(registry.Options{LockCopied: locks, Audit: func(_ context.Context, e *v1.AuditEntry) { entries <- e }})
			w.run()
			old, next := w.replaced(t)
			w.pass(time.Hour)
			shown := func() {
				t.Helper()
				if _, err := w.Certificate(w.state(old)); !errors.Is(err, fleet.ErrDenied) {
					t.Fatalf("the copy: %v", err)
				}
			}
			shown()
			audited(t, entries, "Attention")
			if got := w.cluster("a").GetAttention(); got != fleet.AttentionCopied {
				t.Errorf("attention %q", got)
			}
			if !locks {
				if _, err := w.Certificate(w.state(next)); err != nil || w.cluster("a").GetLock() != nil {
					t.Errorf("the right agent suffers: %v, %v", err, w.cluster("a").GetLock())
				}
				return
			}
			audited(t, entries, "LockCluster")
			rec := w.cluster("a")
			if l := rec.GetLock(); l.GetBy() != "hub" || !strings.Contains(l.GetReason(), "replaced") || rec.GetCluster().GetMetadata().GetChangedBy() != "hub" {
				t.Errorf("locked by %v; changed by %q", l, rec.GetCluster().GetMetadata().GetChangedBy())
			}
			if s := w.session("a"); s.GetEnded() == nil {
				t.Error("the session goes on")
			}
			if _, err := w.Certificate(w.state(next)); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "is locked") {
				t.Errorf("the agent while it is locked: %v", err)
			}
			if _, _, err := w.Unlock(t.Context(), ana, "a", registry.Unlocking{}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.open(next, "i", "uid-a", false); err != nil {
				t.Errorf("unlocked: %v", err)
			}
			shown() // within the time in which the same attention is not written again
			audited(t, entries, "LockCluster")
		})
	}
}

// A certificate that was replaced is shown by the right agent, too: where it could not save the next one, which it has used. Its state takes
// no writes, as it has said, and the cluster is not locked for it. What agents say is no reason once all is well again.
func TestUnsavedIdentityIsNoCopy(t *testing.T) {
	stored := storetest.New(t)
	w := newWorld(t).with(stored.As(store.Registry))
	entries := make(chan *v1.AuditEntry, 100)
	w.made(registry.Options{LockCopied: true, Audit: func(_ context.Context, e *v1.AuditEntry) { entries <- e }})
	w.run()
	say := func(conditions ...*agentv1.Condition) {
		t.Helper()
		if _, err := stored.As(store.Session).Update(t.Context(), func(w store.Writer) error {
			w.Put(store.ConditionKey("a"), &storev1.ConditionsRecord{Conditions: conditions})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	old, _ := w.replaced(t)
	say(wire.ConditionsToProto([]fleet.Condition{{Type: fleet.ConditionStateWritable, Status: fleet.ConditionFalse, Reason: "NoSpace", Since: w.time()}})...)
	w.pass(time.Hour)
	shown := func() {
		t.Helper()
		if _, err := w.Certificate(w.state(old)); !errors.Is(err, fleet.ErrDenied) {
			t.Fatalf("the old certificate: %v", err)
		}
	}
	shown()
	audited(t, entries, "Attention")
	if w.cluster("a").GetLock() != nil || w.cluster("a").GetAttention() != fleet.AttentionCopied {
		t.Errorf("locked by %v, attention %q", w.cluster("a").GetLock(), w.cluster("a").GetAttention())
	}
	say()
	shown()
	audited(t, entries, "LockCluster")
}

// Of certificates that were asked for again and again, and of which none was used, the hub forgets the older ones: who comes with one of these
// does not have the cluster locked.
func TestCertificateThatWasForgottenUnusedIsNoCopy(t *testing.T) {
	w := newWorld(t)
	entries := make(chan *v1.AuditEntry, 100)
	w.made(registry.Options{LockCopied: true, Audit: func(_ context.Context, e *v1.AuditEntry) { entries <- e }})
	w.run()
	old := w.join("a", "uid-a")
	if _, err := w.open(old, "i", "uid-a", false); err != nil {
		t.Fatal(err)
	}
	w.pass(12 * time.Hour)
	first := w.renewed(old)
	for range 4 {
		w.pass(time.Minute)
		w.renewed(old)
	}
	if _, err := w.Certificate(w.state(first)); !errors.Is(err, fleet.ErrDenied) {
		t.Fatalf("the first of them: %v", err)
	}
	e := <-entries
	for e.GetMethod() != "Attention" {
		e = <-entries
	}
	if e.GetDetail() != fleet.AttentionCopied || w.cluster("a").GetLock() != nil {
		t.Errorf("the entry %v, the lock %v", e, w.cluster("a").GetLock())
	}
	if _, err := w.Certificate(w.state(old)); err != nil {
		t.Errorf("the one that is in use: %v", err)
	}
}

// replaced is an agent's identity that was used, and the one which it has renewed that to, and uses.
func (w *world) replaced(t *testing.T) (old, next identity) {
	t.Helper()
	old = w.join("a", "uid-a")
	if _, err := w.open(old, "i", "uid-a", false); err != nil {
		t.Fatal(err)
	}
	w.pass(12 * time.Hour)
	next = w.renewed(old)
	if _, err := w.open(next, "i", "uid-a", false); err != nil {
		t.Fatal(err)
	}
	return old, next
}

// audited waits for the hub's own entry of the method for cluster a.
func audited(t *testing.T, entries <-chan *v1.AuditEntry, method string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e := <-entries:
			if e.GetMethod() != method {
				continue
			}
			if e.GetCaller() != "hub" || e.GetSubject() != "a" || e.GetDetail() != fleet.AttentionCopied {
				t.Errorf("the entry: %v", e)
			}
			return
		case <-deadline:
			t.Fatalf("no entry says %s", method)
		}
	}
}
