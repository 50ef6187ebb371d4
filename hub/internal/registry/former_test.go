package registry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// An agent with an identity that a person has ended, by another join or with the cluster that had the name, may run on, or somebody has its
// key: it is refused and told of, and takes the one that joined out of service neither then nor when its certificate has ended. Nothing says
// that this store is an older one.
func TestIdentityFromBeforeTheJoinIsNoCopy(t *testing.T) {
	for name, ends := range map[string]func(*world, identity) (token, uid string){
		"join --reissue": func(w *world, _ identity) (string, string) { return w.token("a", true), "uid-a" },
		"unlock --reissue": func(w *world, _ identity) (string, string) {
			w.lock("a")
			return w.unlock("a", registry.Unlocking{Reissue: true}).Token, "uid-a"
		},
		"removed and made anew": func(w *world, last identity) (string, string) {
			if _, err := storetest.All(w.store).Update(w.t.Context(), func(x store.Writer) error { x.Delete(store.ClusterKey("a")); return nil }); err != nil {
				w.t.Fatal(err)
			}
			token := w.token("a", false)
			if _, err := w.Certificate(w.state(last)); !errors.Is(err, fleet.ErrUnknownUser) {
				w.t.Errorf("before the other one has joined: %v", err)
			}
			return token, "uid-b"
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			entries := make(chan *v1.AuditEntry, 100)
			w.made(registry.Options{LockCopied: true, Audit: func(_ context.Context, e *v1.AuditEntry) { entries <- e }})
			w.run()
			first, last := w.replaced(t)
			w.pass(time.Hour)
			token, uid := ends(w, last)
			now, err := w.enroll(token, uid, newKey(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.open(now, "i", uid, false); err != nil {
				t.Fatal(err)
			}
			w.pass(attentive)
			for _, old := range []identity{first, last} {
				if _, err := w.Certificate(w.state(old)); !errors.Is(err, fleet.ErrDenied) {
					t.Errorf("it is let in: %v", err)
				}
				toldOfFormer(t, entries)
				w.pass(attentive)
			}
			w.pass(24 * time.Hour)
			if _, err := w.recover(last, "uid-a", newKey(t)); !errors.Is(err, fleet.ErrDenied) {
				t.Errorf("it is renewed: %v", err)
			}
			if uid == "uid-a" {
				toldOfFormer(t, entries)
			}
			if rec := w.cluster("a"); rec.GetLock() != nil || rec.GetAttention() != fleet.AttentionFormer {
				t.Errorf("attention %q, lock %v", rec.GetAttention(), rec.GetLock())
			}
		})
	}
}

// attentive is after how long the same attention is written again.
const attentive = 11 * time.Minute

// toldOfFormer waits for the hub's own entry.
func toldOfFormer(t *testing.T, entries <-chan *v1.AuditEntry) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e := <-entries:
			if e.GetMethod() != "Attention" && e.GetMethod() != "LockCluster" {
				continue
			}
			if e.GetMethod() == "LockCluster" || e.GetDetail() != fleet.AttentionFormer {
				t.Errorf("the entry: %v", e)
			}
			return
		case <-deadline:
			t.Fatal("no entry says it")
		}
	}
}
