package store_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

var (
	shop       = fleet.ModuleRef{Project: "default", Name: "shop"}
	desiredKey = store.DesiredKey("c1", shop)
	reportKey  = store.ObservedKey("c1", shop)
)

func desired(change func(*fleet.Sync)) *storev1.DesiredRecord {
	s := fleet.Sync{Module: shop, Generation: 7, Revision: 3, Bundle: fleet.DigestOf([]byte("b")), Policies: fleet.DigestOf([]byte("[]")), Objects: 10}
	if change != nil {
		change(&s)
	}
	return &storev1.DesiredRecord{Rollout: 3, Sync: wire.SyncToProto(s)}
}

func report(objects int, change func(*fleet.SyncStatus)) *storev1.ObservedRecord {
	s := fleet.SyncStatus{Module: shop, Generation: 7, Bundle: fleet.DigestOf([]byte("b")), Phase: fleet.PhaseApplied, Ready: true, States: make([]fleet.ObjectState, objects)}
	for i := range s.States {
		s.States[i] = fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	}
	if change != nil {
		change(&s)
	}
	return &storev1.ObservedRecord{Epoch: 2, Since: 1_764_000_000_000, Status: wire.SyncStatusToProto(s)}
}

// short is the short form of a record, which gives back the very bytes; nil: it has none.
func short(t interface {
	Helper()
	Fatal(...any)
}, key string, m proto.Message) (whole, form []byte) {
	t.Helper()
	whole, err := envelope.Payload(m)
	if err != nil {
		t.Fatal(err)
	}
	class := store.ClassOf(key)
	form, ok := class.Shorten(key, whole)
	if !ok {
		return whole, nil
	}
	again, err := class.Lengthen(key, form)
	if err != nil || !bytes.Equal(again, whole) {
		t.Fatal("the short form gives back", again, err)
	}
	return whole, form
}

// What a tracker is kept as, where its module is well, has neither names nor what all others say too.
func TestTrackersAreKeptShort(t *testing.T) {
	for what, c := range map[string]struct {
		key    string
		record proto.Message
		saves  int // at least; 0: there is no short form
	}{
		"assigned":           {desiredKey, desired(nil), 46},
		"with policies":      {desiredKey, desired(func(s *fleet.Sync) { s.Policies = fleet.DigestOf([]byte("[1]")) }), 12},
		"held, with values":  {desiredKey, desired(func(s *fleet.Sync) { s.Hold, s.Values = true, map[string]string{"A": "b"} }), 46},
		"leaving":            {desiredKey, &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: shop.String()}}, 0},
		"of an older hub":    {desiredKey, &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String()}}, 0},
		"of another module":  {desiredKey, desired(func(s *fleet.Sync) { s.Module.Name = "cart" }), 30},
		"ready":              {reportKey, report(10, nil), 35},
		"many objects":       {reportKey, report(500, nil), 25},
		"one is not healthy": {reportKey, report(10, func(s *fleet.SyncStatus) { s.States[3].Health = fleet.HealthDegraded }), 25},
		"not ready":          {reportKey, report(10, func(s *fleet.SyncStatus) { s.Ready, s.Reason = false, "Unhealthy" }), 0},
		"no objects":         {reportKey, report(0, nil), 25},
		"nothing reported":   {reportKey, &storev1.ObservedRecord{Epoch: 2}, 0},
		"of a cluster":       {store.AckKey("c1"), &storev1.AckRecord{Epoch: 1, Generation: 1}, 0},
	} {
		whole, form := short(t, c.key, c.record)
		if c.saves == 0 && form != nil {
			t.Errorf("%s: has a short form of %d bytes", what, len(form))
		}
		if c.saves > 0 && (form == nil || len(form) > len(whole)-c.saves) {
			t.Errorf("%s: %d bytes, of %d; want %d less", what, len(form), len(whole), c.saves)
		}
	}
}

// Whatever a record is, its short form gives it back, and no bytes are read as more than they can be.
func TestShortFormsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := rapid.SliceOfN(rapid.SampledFrom([]byte{fleet.ObjectState{}.Pack(), report(1, nil).GetStatus().GetStates()[0]}), 0, 80).Draw(t, "states")
		status := &agentv1.SyncStatus{
			Module: rapid.SampledFrom([]string{"", "default/shop", "other/shop"}).Draw(t, "module"), Phase: rapid.SampledFrom([]string{"", "Applied", "Failed"}).Draw(t, "phase"),
			Ready: rapid.Bool().Draw(t, "ready"), States: states, Corrections: rapid.Uint64().Draw(t, "corrections"),
			Reason: rapid.String().Draw(t, "reason"),
		}
		short(t, reportKey, &storev1.ObservedRecord{Status: status, Since: rapid.Int64().Draw(t, "since")})
		garbage := rapid.SliceOf(rapid.Byte()).Draw(t, "garbage")
		for _, key := range []string{reportKey, desiredKey} {
			if out, err := store.ClassOf(key).Lengthen(key, garbage); err == nil && len(out) > len(garbage)*4096+256 {
				t.Fatalf("%d bytes became %d", len(garbage), len(out))
			}
			if _, ok := store.ClassOf(key).Shorten(key, garbage); ok {
				short(t, key, store.NewRecord(key))
			}
		}
	})
}
