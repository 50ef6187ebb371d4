package fence

import (
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// An admission policy or webhook of the cluster that changes what the agent writes into its Lease takes from the Lease what others go by: one that
// seems to have no holder is free for everybody. A swap counts only if the answer says what was sent.
func TestLeaseThatAdmissionChanges(t *testing.T) {
	nobody, other := "", "somebody-else"
	for name, change := range map[string]func(*coordinationv1.Lease){
		"no holder":      func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil },
		"empty holder":   func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &nobody },
		"another holder": func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &other },
		"no annotations": func(l *coordinationv1.Lease) { l.Annotations = nil },
		"no epoch":       func(l *coordinationv1.Lease) { delete(l.Annotations, EpochAnnotation) },
		"no batch":       func(l *coordinationv1.Lease) { delete(l.Annotations, BatchAnnotation) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			web := httptest.NewServer(s)
			defer web.Close()
			a := leadWith(t, unrenewed(newFence(t, web.URL, "a")))
			leading := a.wait(t)
			s.admit(change)
			if err := a.f.Prove(t.Context()); err == nil || !strings.Contains(err.Error(), "admission") {
				t.Errorf("a swap of which the Lease keeps something else: %v", err)
			}
			if err := a.f.Open(t.Context()); err == nil {
				t.Error("a write is let through under a Lease that does not say whose it is")
			}
			if a.f.Covered().Err() == nil || leading.Err() == nil {
				t.Fatal("what is under way is not stopped")
			}
			s.admit(nil)
			s.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil })
			a.wait(t)
		})
	}
}

// Nobody leads by a Lease that was never kept as it was sent.
func TestLeaseThatAdmissionChangesFromTheStart(t *testing.T) {
	s := &server{}
	web := httptest.NewServer(s)
	defer web.Close()
	asked := make(chan struct{}, 64)
	s.admit(func(l *coordinationv1.Lease) {
		l.Spec.HolderIdentity = nil
		asked <- struct{}{}
	})
	a := lead(t, web.URL, "a")
	for range 3 {
		<-asked
	}
	if n := len(a.leads); n != 0 || a.f.Epoch() != 0 {
		t.Errorf("leads %d times, in epoch %d", n, a.f.Epoch())
	}
	s.admit(nil)
	a.wait(t)
}
