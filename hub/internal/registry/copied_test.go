package registry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// Who comes with a certificate that was replaced has a copy of the agent's key: the audit says so, beside the cluster.
func TestCopiedKeyIsAudited(t *testing.T) {
	w := newWorld(t)
	entries := make(chan *v1.AuditEntry, 100)
	w.audits(func(_ context.Context, e *v1.AuditEntry) { entries <- e })
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
	if _, err := w.Certificate(w.state(old)); !errors.Is(err, fleet.ErrDenied) {
		t.Fatalf("the copy: %v", err)
	}
	deadline := time.After(10 * time.Second)
	for {
		select {
		case e := <-entries:
			if e.GetMethod() == "Attention" && e.GetSubject() == "a" && e.GetDetail() == fleet.AttentionCopied {
				return
			}
		case <-deadline:
			t.Fatal("no entry says it")
		}
	}
}
