package registry

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Which reports count is told by the sessions: those that the agent stands by now, of the cluster that has the name now. What
// the hub is known to have is what all counts of.
func TestWhoseWordCounts(t *testing.T) {
	s := storetest.New(t)
	shop, web := fleet.ModuleRef{Project: "default", Name: "shop"}, fleet.ModuleRef{Project: "default", Name: "web"}
	digest := []byte("status")
	open := func(digest []byte, seen bool, reports ...fleet.ModuleRef) (session *storev1.SessionRecord, known uint64) {
		t.Helper()
		var err error
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Uid: "u", Certificates: []*storev1.Certificate{{Serial: "1", Active: true, NotAfter: timestamppb.New(time.Now().Add(time.Hour))}}})
			var refused error
			session, known, refused, err = admit(w, Admission{Cluster: "a", ClusterUID: "u", InstanceID: "i", StatusDigest: digest, StatusSeen: seen}, rpc.Caller{CertSerial: "1"}, false, time.Now())
			if refused != nil || err != nil {
				t.Fatal(refused, err)
			}
			for _, ref := range reports {
				w.Put(store.ObservedKey("a", ref), &storev1.ObservedRecord{Epoch: session.GetEpoch(), Status: &agentv1.SyncStatus{Module: ref.String()}})
			}
			w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: session.GetEpoch(), StatusDigest: []byte("status")})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		return session, known
	}
	all := []fleet.ModuleRef{shop, web}
	for i, step := range []struct {
		digest      []byte
		seen        bool
		word, known uint64
		reports     []fleet.ModuleRef
	}{
		{nil, false, 1, 0, all},             // the first session
		{digest, true, 1, 1, nil},           // the same process is back
		{digest, true, 1, 1, all[:1]},       // and again, and one module has changed
		{digest, false, 4, 1, nil},          // another process, which only remembers
		{digest, false, 5, 0, nil},          // and another, for that one was cut off before it said that all holds still
		{digest, true, 6, 0, all[:1]},       // it was cut off as well, and takes for given what it said; all is asked for
		{digest, true, 7, 0, all},           // it was cut off between two frames of that
		{digest, true, 7, 7, nil},           // it has said all
		{digest, false, 9, 7, all[1:]},      // another process, which says it anew, and is cut off between two frames
		{digest, true, 10, 0, all},          // what the process before it said is not what this one stands by
		{[]byte("other"), true, 11, 0, all}, // it holds what the hub does not
		{digest, true, 11, 11, nil},         //
	} {
		got, known := open(step.digest, step.seen, step.reports...)
		if got.GetWordFrom() != step.word || known != step.known {
			t.Errorf("session %d: reports count from session %d, known from %d; want %d, %d", i+1, got.GetWordFrom(), known, step.word, step.known)
		}
	}
	if _, err := s.Update(t.Context(), func(w store.Writer) error { endSession(w, "a", time.Now()); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, known := open(digest, true)
	if known != 0 || got.GetVoidBefore() != got.GetEpoch()-1 || got.GetWordFrom() != got.GetEpoch() {
		t.Errorf("another cluster has the name: %v, known from %d", got, known)
	}
	if n := record.WordFrom(got, &storev1.AckRecord{Epoch: got.GetEpoch(), WordFrom: 3}); n != 3 {
		t.Errorf("once the agent stands by it, reports count from %d", n)
	}
	if n := record.WordFrom(got, &storev1.AckRecord{Epoch: got.GetEpoch() - 1, WordFrom: 3}); n != got.GetEpoch() {
		t.Errorf("what was said in another session counts from %d", n)
	}
}

// TestDamagedReportIsAskedForAgain: of a report that cannot be read nothing is left but that there was one, so the hub does
// not have what the agent believes it has, and must not tell it so.
func TestDamagedReportIsAskedForAgain(t *testing.T) {
	s, shop := storetest.New(t), fleet.ModuleRef{Project: "default", Name: "shop"}
	digest := []byte("status")
	why := fleet.Errorf(fleet.ErrCorrupt, "a bit flipped")
	standIn, _ := record.StandIn(store.ObservedKey("a", shop), why)
	for name, tc := range map[string]struct {
		report *storev1.ObservedRecord
		known  uint64
	}{
		"sound":   {&storev1.ObservedRecord{Epoch: 3, Status: &agentv1.SyncStatus{Module: shop.String()}}, 3},
		"damaged": {standIn.(*storev1.ObservedRecord), 0},
	} {
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.ObservedKey("a", shop), tc.report)
			w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 3, StatusDigest: digest})
			if known := knownFrom(w, Admission{Cluster: "a", StatusDigest: digest}, &storev1.SessionRecord{Epoch: 3, WordFrom: 3}); known != tc.known {
				t.Errorf("%s: reports are known from session %d, want %d", name, known, tc.known)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// When the record of the newest session cannot be read, the next one is above every epoch that was given, so that the agent
// does not take this store for an older one, and what was reported before is asked for again.
func TestSessionAfterADamagedOne(t *testing.T) {
	s, shop := storetest.New(t), fleet.ModuleRef{Project: "default", Name: "shop"}
	lost, _ := record.StandIn(store.SessionKey("a"), fleet.Errorf(fleet.ErrCorrupt, "a bit flipped"))
	digest := []byte("status")
	for name, tc := range map[string]struct {
		said, epoch uint64
		rejoined    bool
	}{
		"the agent knows of one more": {said: 9, epoch: 10},
		"the agent knows of none":     {epoch: 9},
		"the agent says anything":     {said: 1<<64 - 1, epoch: 1 << 63},
		"another cluster has joined":  {epoch: 9, rejoined: true},
	} {
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			valid := &storev1.Certificate{Serial: "1", Active: true, NotAfter: timestamppb.New(time.Now().Add(time.Hour))}
			w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Uid: "u", Certificates: []*storev1.Certificate{valid}})
			w.Put(store.SessionKey("a"), lost)
			w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 7, StatusDigest: digest})
			w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Epoch: 8, Status: &agentv1.SyncStatus{Module: shop.String()}})
			if tc.rejoined {
				endSession(w, "a", time.Now())
			}
			hello := Admission{Cluster: "a", ClusterUID: "u", InstanceID: "i", StatusDigest: digest, StatusSeen: true, LastEpoch: tc.said}
			got, known, refused, err := admit(w, hello, rpc.Caller{CertSerial: "1"}, false, time.Now())
			if refused != nil || err != nil {
				t.Fatal(refused, err)
			}
			if got.GetEpoch() != tc.epoch || got.GetVoidBefore() != tc.epoch || known != 0 || record.LostSession(got) {
				t.Errorf("%s: %v, known from %d; want epoch %d, and nothing of before counts", name, got, known, tc.epoch)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
