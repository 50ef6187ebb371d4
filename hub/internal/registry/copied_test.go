package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
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
			old := w.join("a", "uid-a")
			if _, err := w.open(old, "i", "uid-a", false); err != nil {
				t.Fatal(err)
			}
			w.pass(12 * time.Hour)
			next := w.renewed(old)
			if _, err := w.open(next, "i", "uid-a", false); err != nil {
				t.Fatal(err)
			}
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
