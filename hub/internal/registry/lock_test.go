package registry_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

func (w *world) lock(c fleet.ClusterName) {
	w.t.Helper()
	if changed, _, err := w.Lock(w.t.Context(), ana, c, "", "suspected"); err != nil || !changed {
		w.t.Fatalf("locked %v, %v", changed, err)
	}
}

func (w *world) unlock(c fleet.ClusterName, q registry.Unlocking) registry.Join {
	w.t.Helper()
	join, changed, err := w.Unlock(w.t.Context(), ana, c, q)
	if err != nil || !changed {
		w.t.Fatalf("unlocked %v, %v", changed, err)
	}
	return join
}

// wantsLocked: what the agent of a locked cluster is told names the cluster, and neither who locked it nor why.
func wantsLocked(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), "cluster a: is locked") || strings.Contains(err.Error(), "ana") || strings.Contains(err.Error(), "suspected") {
		t.Errorf("%s: %v", what, err)
	}
	if kind == fleet.ErrDenied && fleet.HintOf(err).Unmet != fleet.PreconditionUnlocked {
		t.Errorf("%s: nothing but words says that it is a lock", what)
	}
}

// A cluster that is locked is cut off from all that its identity gives it, and has all of that again when it is unlocked.
func TestALockedClusterIsCutOffUntilItIsUnlocked(t *testing.T) {
	w := newWorld(t)
	id, other, addr := w.join("a", "uid-1"), w.join("b", "uid-2"), w.echo()
	conf := w.tls(id)
	for range 2 { // the second one is resumed
		if _, err := dial(t, addr, conf); err != nil {
			t.Fatal(err)
		}
	}
	open, err := w.open(id, "i", "uid-1", false)
	if err != nil {
		t.Fatal(err)
	}
	before := w.cluster("a")
	w.lock("a")
	refused := func(when string) {
		t.Helper()
		for what, c := range map[string]func() error{
			"a connection that is resumed": func() error { _, err := dial(t, addr, conf); return err },
			"a new connection":             func() error { _, err := dial(t, addr, w.tls(id)); return err },
		} {
			if err := c(); err == nil || !strings.Contains(err.Error(), "bad certificate") {
				t.Errorf("%s, %s: %v", when, what, err)
			}
		}
		_, err := w.open(id, "i", "uid-1", false)
		wantsLocked(t, when+", a session", err, fleet.ErrDenied)
		_, err = w.Renew(t.Context(), id.caller(), csr(t, newKey(t)))
		wantsLocked(t, when+", a renewal", err, fleet.ErrDenied)
	}
	refused("locked")
	if _, err := dial(t, addr, w.tls(other)); err != nil {
		t.Errorf("another cluster: %v", err)
	}
	if changed, _, err := w.Lock(t.Context(), ana, "a", "", "again"); changed || err != nil || w.cluster("a").GetLock().GetReason() != "suspected" {
		t.Errorf("locked again: %v, %v, %v", changed, err, w.cluster("a").GetLock())
	}
	refused("locked twice")
	w.unlock("a", registry.Unlocking{Reason: "false alarm"})
	after := w.cluster("a")
	after.Cluster.Metadata.ChangedBy, after.Cluster.Metadata.ChangeReason = before.GetCluster().GetMetadata().GetChangedBy(), before.GetCluster().GetMetadata().GetChangeReason()
	if !proto.Equal(before, after) {
		t.Errorf("before the lock\n%v\nafter it\n%v", before, after)
	}
	if _, err := dial(t, addr, conf); err != nil {
		t.Errorf("unlocked: %v", err)
	}
	if next, err := w.open(id, "i", "uid-1", false); err != nil || next.Epoch != open.Epoch+1 {
		t.Errorf("a session of one that is unlocked: %v, %v", next, err)
	}
	if _, changed, err := w.Unlock(t.Context(), ana, "a", registry.Unlocking{}); changed || err != nil {
		t.Errorf("unlocked again: %v, %v", changed, err)
	}
}

// A certificate that ended while the cluster was locked is renewed after the lock, in its window.
func TestALockedClusterIsGivenNoCertificateForOneThatEnded(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	w.lock("a")
	w.pass(7 * 24 * time.Hour)
	_, err := w.recover(id, "uid-1", newKey(t))
	wantsLocked(t, "locked", err, fleet.ErrDenied)
	w.unlock("a", registry.Unlocking{})
	if _, err := w.recover(id, "uid-1", newKey(t)); err != nil {
		t.Errorf("unlocked: %v", err)
	}
}

// No token lets an agent in while the cluster is locked: neither one of before, nor one that was redeemed and whose answer is asked for
// again; and none is made. One of before counts again after the lock, unless a new identity is asked for: so its agent is to ask again.
func TestALockedClusterIsNotJoined(t *testing.T) {
	for name, reissue := range map[string]bool{"with its identity": false, "with a new one": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			used, key := w.token("a", false), newKey(t)
			id, err := w.enroll(used, "uid-1", key)
			if err != nil {
				t.Fatal(err)
			}
			waits := w.token("a", true)
			w.lock("a")
			_, err = w.enroll(used, "uid-1", key)
			wantsLocked(t, "the answer that was lost", err, fleet.ErrUnavailable)
			_, err = w.enroll(waits, "uid-1", newKey(t))
			wantsLocked(t, "a token of before", err, fleet.ErrUnavailable)
			if _, err := w.CreateJoin(t.Context(), ana, registry.JoinRequest{Cluster: "a", Reissue: true}); !errors.Is(err, fleet.ErrPrecondition) ||
				!strings.Contains(err.Error(), "towline cluster unlock a --reissue") {
				t.Errorf("a new token: %v", err)
			}
			join := w.unlock("a", registry.Unlocking{Reissue: reissue})
			if (join.Token != "") != reissue {
				t.Errorf("token %q", join.Token)
			}
			_, err = w.open(id, "i", "uid-1", false)
			if reissue != errors.Is(err, fleet.ErrDenied) {
				t.Errorf("the identity of before: %v", err)
			}
			_, err = w.enroll(waits, "uid-1", newKey(t))
			if reissue != errors.Is(err, fleet.ErrDenied) {
				t.Errorf("the token of before: %v", err)
			}
			if !reissue {
				return
			}
			next, err := w.enroll(join.Token, "uid-1", newKey(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.open(next, "i", "uid-1", false); err != nil {
				t.Errorf("the new identity: %v", err)
			}
		})
	}
}

func TestLocksThatAreRefused(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"lock of none":     {func() error { _, _, err := w.Lock(t.Context(), ana, "x", "", ""); return err }, fleet.ErrNotFound},
		"lock of another":  {func() error { _, _, err := w.Lock(t.Context(), ana, "a", "other", ""); return err }, fleet.ErrPrecondition},
		"unlock of none":   {func() error { _, _, err := w.Unlock(t.Context(), ana, "x", registry.Unlocking{}); return err }, fleet.ErrNotFound},
		"unlock of no one": {func() error { _, _, err := w.Unlock(t.Context(), ana, "", registry.Unlocking{}); return err }, fleet.ErrInvalid},
		"a new identity of one that is not locked": {func() error {
			_, _, err := w.Unlock(t.Context(), ana, "a", registry.Unlocking{Reissue: true})
			return err
		}, fleet.ErrPrecondition},
		"a token for a week": {func() error {
			_, _, err := w.Unlock(t.Context(), ana, "a", registry.Unlocking{Reissue: true, TTL: 7 * 24 * time.Hour})
			return err
		}, fleet.ErrInvalid},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if rec := w.cluster("a"); rec.GetLock() != nil || rec.GetRevoked() || len(rec.GetCertificates()) != 1 {
		t.Errorf("the record is %v", rec)
	}
}

// Whatever else is done to a locked cluster leaves it locked: nobody is let in by the way.
func TestALockOutlastsWhatElseIsDone(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	w.lock("a")
	cluster := &v1.Cluster{Metadata: &v1.Metadata{Name: "a", Labels: map[string]string{"env": "prod"}}, Spec: &v1.ClusterSpec{}}
	if _, err := w.PutCluster(t.Context(), cluster, registry.How{Word: registry.Word{By: "ana"}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RemoveCluster(t.Context(), "a", registry.Removal{Objects: "keep"}, registry.Word{By: "ana"}); err != nil {
		t.Fatal(err)
	}
	_, err := w.open(id, "i", "uid-1", false)
	wantsLocked(t, "labelled and removed", err, fleet.ErrDenied)
	if _, err := w.Revoke(t.Context(), ana, "a", "", "stolen"); err != nil {
		t.Fatal(err)
	}
	if rec := w.cluster("a"); rec.GetLock() == nil || !rec.GetRevoked() {
		t.Errorf("the record is %v", rec)
	}
	w.unlock("a", registry.Unlocking{})
	if _, err := w.open(id, "i", "uid-1", false); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("unlocked: %v", err)
	}
}

// What is found of an agent whose session a lock has ended gives that session no fence that holds.
func TestALockedSessionStaysEnded(t *testing.T) {
	w := newWorld(t)
	o, err := w.open(w.join("a", "uid-1"), "i", "uid-1", false)
	if err != nil {
		t.Fatal(err)
	}
	w.lock("a")
	fence, err := w.Regressed(t.Context(), "a", o, "an older store")
	if err != nil {
		t.Fatal(err)
	}
	report := []store.Op{{Key: store.ObservedKey("a", fleet.ModuleRef{Project: "default", Name: "shop"}), Value: &storev1.ObservedRecord{Epoch: o.Epoch}}}
	if _, err := storetest.All(w.store).Batch(t.Context(), fence, report); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("a report after the lock: %v", err)
	}
	if found := w.cluster("a").GetRegressed(); found != "" {
		t.Errorf("the cluster is said to have seen a newer store: %s", found)
	}
}

// A certificate that a hub gave after the backup of which its store was restored lets nobody in whose cluster is locked.
func TestALockedClusterRegainsNoCertificate(t *testing.T) {
	w := newWorld(t)
	id := w.join("a", "uid-1")
	w.lock("a")
	if _, err := storetest.All(w.store).Update(t.Context(), func(wr store.Writer) error {
		rec, _, _ := store.Get[*storev1.ClusterRecord](wr, store.ClusterKey("a"))
		lost := proto.CloneOf(rec)
		lost.Certificates, lost.Joined = nil, timestamppb.New(w.time().Add(-time.Hour))
		wr.Put(store.ClusterKey("a"), lost)
		wr.Put(store.RestoreKey, &storev1.Restore{At: timestamppb.New(w.time().Add(time.Minute))})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Renew(t.Context(), id.caller(), csr(t, newKey(t)))
	wantsLocked(t, "after a restore", err, fleet.ErrDenied)
}
