package desired

import (
	"context"
	"errors"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

func TestLeaveAndFreezeSurviveARestart(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 1, 1, "a")}))
	if err := s.Freeze(t.Context(), "revoked"); err != nil {
		t.Fatal(err)
	}
	order := fleet.Leave{Objects: fleet.LeaveKeep, Hold: true, Held: []fleet.ModuleRef{{Project: "default", Name: "web"}}}
	if err := s.Leave(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	s = open(t, state)
	if held := s.Held(); held.Frozen != "revoked" || !held.Leaving.Equal(order) {
		t.Errorf("after a restart: frozen %q, leaving %v", held.Frozen, held.Leaving)
	}
	if err := s.Adopt(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	s = open(t, state)
	if held := s.Held(); held.Frozen != "" || held.Leaving.Objects != "" || describe(s) != "" {
		t.Errorf("after a new join: %+v", held)
	}
}

func TestDamagedRecordBeginsAnew(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	in := index(0, []fleet.Sync{h.sync("web", 1, 1, "a")})
	accept(t, s, h, in)
	state.values[setName] = []byte("{")
	s = open(t, state)
	if got := describe(s); got != "" {
		t.Errorf("held %q", got)
	}
	accept(t, s, h, in)
	if got := describe(s); got != "web@1" {
		t.Errorf("held %q", got)
	}
	state.values[setName] = []byte(`{"schema":2}`)
	if _, err := Open(t.Context(), Options{State: state}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("state of a newer agent: %v", err)
	}
}

func FuzzDecodeSet(f *testing.F) {
	state := newMemory()
	s := &set{lineage: home, join: "j", highWater: 9, floor: map[fleet.ModuleRef]uint64{ref("old"): 3}, previous: []fleet.Digest{{1}},
		listed: assemble.Build([]fleet.Sync{{Module: ref("web"), Generation: 5, Bundle: fleet.Digest{1}}}, nil, true, 9)}
	if err := writeSet(context.Background(), state, s); err != nil {
		f.Fatal(err)
	}
	f.Add(state.values[setName])
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := decodeSet(raw)
		if err != nil {
			return
		}
		if err := writeSet(t.Context(), state, got); err != nil {
			t.Fatal(err)
		}
		if again, err := decodeSet(state.values[setName]); err != nil || again.listed.Digest != got.listed.Digest {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

func FuzzDecodePack(f *testing.F) {
	f.Add(encodePack([]fleet.Digest{{1}, {2}}, func(fleet.Digest) []byte { return []byte("abc") }))
	f.Add([]byte(packMagic))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = decodePack(raw, newContents()) })
}
