package registry_test

import (
	"crypto"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// renewed is what an agent has after a renewal.
func (w *world) renewed(i identity) identity {
	w.t.Helper()
	caller, err := w.Certificate(w.state(i))
	if err != nil {
		w.t.Fatal(err)
	}
	key := newKey(w.t)
	id, err := w.Renew(w.t.Context(), caller, csr(w.t, key))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.identity(crypto.Signer(key), id)
}

// copied is a hub over another store, which has what the record was, and was restored at a time; none: it was not.
func (w *world) copied(rec *storev1.ClusterRecord, at time.Time) *world {
	w.t.Helper()
	s := storetest.New(w.t)
	put := func(owner store.Owner, key string, m proto.Message) {
		if _, err := s.As(owner).Update(w.t.Context(), func(w store.Writer) error { w.Put(key, m); return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	put(store.Registry, store.ClusterKey("a"), rec)
	if !at.IsZero() {
		put(store.Hub, store.RestoreKey, &storev1.Restore{Incarnation: "one", At: timestamppb.New(at)})
	}
	if _, err := s.Barrier(w.t.Context()); err != nil { // both are there before anybody comes
		w.t.Fatal(err)
	}
	return w.with(s.As(store.Registry))
}

// shows opens a session with the certificate, as a connection does.
func (w *world) shows(i identity, uid string) error {
	caller, err := w.Certificate(w.state(i))
	if err != nil {
		return err
	}
	_, err = w.OpenSession(rpc.WithCaller(w.t.Context(), caller), registry.Admission{Cluster: "a", InstanceID: "i", ClusterUID: uid, Hub: "a"}, false)
	return err
}

// A store that was restored takes the certificates that were given after its backup: the agent need not join again.
func TestCertificateThatARestoredStoreHasLost(t *testing.T) {
	w := newWorld(t)
	first := w.join("a", "uid-1")
	if err := w.shows(first, "uid-1"); err != nil {
		t.Fatal(err)
	}
	backup := w.cluster("a")
	w.pass(12 * time.Hour)
	second := w.renewed(first)
	if err := w.shows(second, "uid-1"); err != nil {
		t.Fatal(err)
	}
	w.pass(11 * time.Hour)
	third := w.renewed(second)
	restored := w.time().Add(time.Minute)
	w.pass(2 * time.Minute)

	t.Run("the agent goes on", func(t *testing.T) {
		w := w.copied(backup, restored)
		if err := w.shows(third, "uid-2"); !errors.Is(err, fleet.ErrPrecondition) || len(w.cluster("a").GetCertificates()) != 1 {
			t.Errorf("of another cluster: %v, %v", err, w.cluster("a").GetCertificates())
		}
		if err := w.shows(third, "uid-1"); err != nil {
			t.Fatal(err)
		}
		if err := w.shows(second, "uid-1"); !errors.Is(err, fleet.ErrDenied) {
			t.Errorf("one that was replaced: %v", err)
		}
		w.pass(3 * time.Minute)
		if err := w.shows(first, "uid-1"); !errors.Is(err, fleet.ErrDenied) {
			t.Errorf("that of the backup: %v", err)
		}
		if err := w.shows(w.renewed(third), "uid-1"); err != nil {
			t.Errorf("the next one: %v", err)
		}
	})
	t.Run("it renews first", func(t *testing.T) {
		w := w.copied(backup, restored)
		if err := w.shows(w.renewed(third), "uid-1"); err != nil {
			t.Error(err)
		}
	})
	changed := func(change func(*storev1.ClusterRecord)) *storev1.ClusterRecord {
		rec := proto.CloneOf(backup)
		change(rec)
		return rec
	}
	for what, tc := range map[string]struct {
		rec  *storev1.ClusterRecord
		at   time.Time
		want error
	}{
		"no restore":                     {backup, time.Time{}, fleet.ErrUnknownUser},
		"given after the restore":        {backup, restored.Add(-2 * time.Minute), fleet.ErrUnknownUser},
		"the cluster is revoked":         {changed(func(r *storev1.ClusterRecord) { r.Revoked = true }), restored, fleet.ErrDenied},
		"the cluster has not joined yet": {changed(func(r *storev1.ClusterRecord) { r.Joined, r.Certificates, r.Uid = nil, nil, "" }), restored, fleet.ErrUnknownUser},
	} {
		t.Run(what, func(t *testing.T) {
			w := w.copied(tc.rec, tc.at)
			if err := w.shows(third, "uid-1"); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}
