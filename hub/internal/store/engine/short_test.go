package engine

import (
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What a hub wrote before trackers had a short form is read, put again without a write, and kept short once it changes.
func TestTrackersOfBeforeAreRead(t *testing.T) {
	ctx, b := t.Context(), memory.New()
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	key := store.DesiredKey("c1", shop)
	rec := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: shop, Generation: 1, Revision: 1, Policies: fleet.DigestOf([]byte("[]"))})}
	whole, err := envelope.SealMessage(key, rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Commit(ctx, []backend.Part{{Then: []backend.Op{{Key: recordSpace + key, Value: whole}}}}); err != nil {
		t.Fatal(err)
	}
	stored := func() backend.KV {
		t.Helper()
		kvs, _, err := b.Get(ctx, 0, recordSpace+key)
		if err != nil {
			t.Fatal(err)
		}
		return kvs[recordSpace+key]
	}
	put := func(want *storev1.DesiredRecord) {
		t.Helper()
		e, err := Open(ctx, unclosed{b}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		_, err = e.As(store.Everyone).Update(ctx, func(w store.Writer) error {
			if got, _, ok := store.Get[*storev1.DesiredRecord](w, key); !ok || !proto.Equal(got, rec) {
				t.Errorf("it is read as %v", got)
			}
			w.Put(key, want)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		rec = want
	}
	before := stored().Mod
	put(proto.CloneOf(rec))
	if stored().Mod != before {
		t.Error("what did not change was written")
	}
	next := proto.CloneOf(rec)
	next.Sync.Generation = 2
	put(next)
	if n := len(stored().Value); n > len(whole)-30 {
		t.Errorf("it takes %d bytes, before %d", n, len(whole))
	}
	before = stored().Mod
	put(proto.CloneOf(rec))
	if stored().Mod != before {
		t.Error("what did not change was written, after it was read from the short form")
	}
}

// unclosed is a backend that a store does not close.
type unclosed struct{ backend.Backend }

func (unclosed) Close() error { return nil }
