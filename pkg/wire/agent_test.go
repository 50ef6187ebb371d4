package wire

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

func shop(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "shop", Name: name} }

func heldAssemblage() fleet.Assemblage {
	return assemble.Build([]fleet.Sync{
		{Module: shop("web"), Generation: 5, Revision: 2, Bundle: fleet.Digest{1}, Policies: fleet.Digest{2}, Objects: 3, Hold: true,
			Values: map[string]string{"REGION": "eu"}, Yields: []fleet.Yield{{Owner: shop("api"), Since: 3, Ordinals: []int{2}},
				{Owner: shop("old"), Since: 2, Ordinals: []int{0, 1}, Ending: []int{1}}}},
		{Module: shop("api"), Generation: 7, Revision: 1, Bundle: fleet.Digest{3}, Objects: 1, PruneConfirmed: true, PruneShown: []uint64{3, 7}},
	}, []fleet.Tombstone{{Module: shop("old"), Generation: 6, Policy: fleet.DeleteOrphan, Hold: true,
		Policies: `[{"match":{"kinds":["Secret"]},"delete":"Orphan"}]`}}, true, 9)
}

func TestCompleteIndexCarriesTheAssemblage(t *testing.T) {
	want := heldAssemblage()
	raw, err := proto.Marshal(IndexFromAssemblage(want))
	if err != nil {
		t.Fatal(err)
	}
	var in agentv1.Index
	if err := proto.Unmarshal(raw, &in); err != nil {
		t.Fatal(err)
	}
	got, err := AssemblageFromIndex(&in, fleet.Assemblage{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDeltaReplacesAddsAndForgets(t *testing.T) {
	base := heldAssemblage()
	next := fleet.Sync{Module: shop("web"), Generation: 10, Revision: 3, Bundle: fleet.Digest{4}}
	added := fleet.Sync{Module: shop("db"), Generation: 11, Revision: 1, Bundle: fleet.Digest{5}}
	want := assemble.Build([]fleet.Sync{next, added, base.Syncs[0]}, nil, false, 11)
	if base.Syncs[0].Module != shop("api") {
		t.Fatal("the base is not sorted")
	}
	delta := &agentv1.Index{AppliesTo: base.Digest.Bytes(), ResultsIn: want.Digest.Bytes(), Generation: 11,
		Syncs: []*agentv1.Sync{SyncToProto(next), SyncToProto(added)}, Forgotten: []string{"shop/old"}}
	got, err := AssemblageFromIndex(delta, base)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := AssemblageFromIndex(delta, want); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a delta on another base: %v, want corrupt", err)
	}
}

func TestIndexIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*agentv1.Index)
		says   string
	}{
		"another digest":     {func(i *agentv1.Index) { i.ResultsIn[0]++ }, "results in"},
		"short digest":       {func(i *agentv1.Index) { i.ResultsIn = i.ResultsIn[:31] }, "index.resultsIn: digest has 31 bytes"},
		"a module twice":     {func(i *agentv1.Index) { i.Syncs = append(i.Syncs, i.Syncs[0]) }, "index.syncs[2].module: shop/api is listed twice"},
		"sync and tombstone": {func(i *agentv1.Index) { i.Tombstones[0].Module = "shop/api" }, "index.tombstones[0].module: shop/api is listed twice"},
		"a bare name":        {func(i *agentv1.Index) { i.Syncs[0].Module = "api" }, "index.syncs[0].module"},
		"a path":             {func(i *agentv1.Index) { i.Syncs[0].Module = "shop/../x" }, "index.syncs[0].module"},
		"no bundle":          {func(i *agentv1.Index) { i.Syncs[0].Bundle = nil }, "index.syncs[0].bundle: is required"},
		"too many objects":   {func(i *agentv1.Index) { i.Syncs[0].Objects = 1 << 30 }, "index.syncs[0].objects"},
		"a bad value name":   {func(i *agentv1.Index) { i.Syncs[1].Values = map[string]string{"a": "b"} }, "index.syncs[1].values"},
		"a bad policy":       {func(i *agentv1.Index) { i.Tombstones[0].Policy = "" }, "index.tombstones[0].policy"},
		"its own owner":      {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Owner = "shop/web" }, "index.syncs[1].yields[0].owner"},
		"no owner":           {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Owner = "" }, "index.syncs[1].yields[0].module"},
		"owners unsorted":    {func(i *agentv1.Index) { slices.Reverse(i.Syncs[1].Yields) }, "index.syncs[1].yields[1].owner"},
		"an owner twice":     {func(i *agentv1.Index) { i.Syncs[1].Yields[1] = i.Syncs[1].Yields[0] }, "index.syncs[1].yields[1].owner"},
		"waits since never":  {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Since = 0 }, "index.syncs[1].yields[0].since"},
		"yields nothing":     {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Ordinals = nil }, "index.syncs[1].yields[0].ordinals"},
		"an object twice":    {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Ordinals = []uint32{1} }, "index.syncs[1].yields[1].ordinals: 1 is listed twice"},
		"objects unsorted":   {func(i *agentv1.Index) { i.Syncs[1].Yields[1].Ordinals = []uint32{1, 0} }, "index.syncs[1].yields[1].ordinals: 0"},
		"ends another's":     {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Ending = []uint32{1} }, "index.syncs[1].yields[0].ending: 1"},
		"ends unsorted":      {func(i *agentv1.Index) { i.Syncs[1].Yields[1].Ending = []uint32{1, 0} }, "index.syncs[1].yields[1].ending: 0"},
		"no such object":     {func(i *agentv1.Index) { i.Syncs[1].Yields[0].Ordinals = []uint32{3} }, "index.syncs[1].yields[0].ordinals: 3"},
		"generation too low": {func(i *agentv1.Index) { i.Generation = 6 }, "index.generation: 6 is below 7"},
	} {
		t.Run(name, func(t *testing.T) {
			in := IndexFromAssemblage(heldAssemblage())
			tc.change(in)
			_, err := AssemblageFromIndex(in, fleet.Assemblage{})
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
}

func fullStatus(objects int) fleet.SyncStatus {
	at := time.UnixMilli(1_700_000_000_123).UTC()
	s := fleet.SyncStatus{Module: shop("web"), Generation: 5, Bundle: fleet.Digest{1}, Phase: fleet.PhaseApplied, Ready: true,
		Reason: "R", Message: "m", Corrections: 3, Observed: at, ExtraCount: 1, HeldCount: 1, MoreExtras: true,
		Exceptions: []fleet.ObjectException{{Ordinal: 1, Reason: "Drifted", Message: "x", Since: at, Field: "/data/a", ChangedBy: "kubectl"}},
		Holds: []fleet.ObjectHold{{ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "shop", Name: "web"}, Version: "v1", Reason: "INC-42", By: "kubectl-annotate", Since: at,
			Until: at.Add(time.Hour)}, {ID: fleet.ObjectID{Kind: "Namespace", Name: "shop"}, Version: "v1", Unread: "soon"}},
		Extras: []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1",
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthTerminating, Drift: fleet.DriftInSync}, Reason: "Kept", Held: true}}}
	for range objects {
		s.States = append(s.States, fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})
	}
	return s
}

func TestStatusRoundTrip(t *testing.T) {
	for _, objects := range []int{2, 64, 65, 5000} {
		want := fullStatus(objects)
		raw := SyncStatusToProto(want)
		if raw.GetStatesZstd() != (objects > 64) {
			t.Errorf("%d objects: compressed is %v", objects, raw.GetStatesZstd())
		}
		got, err := SyncStatusFromProto(raw)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d objects (-want +got)\n%s", objects, diff)
		}
	}
	if n := proto.Size(SyncStatusToProto(fleet.SyncStatus{Module: shop("web"), Generation: 5, Bundle: fleet.Digest{1},
		Phase: fleet.PhaseApplied, Ready: true, States: fullStatus(5000).States, Observed: time.Now()})); n > 300 {
		t.Errorf("a healthy module of 5000 objects takes %d bytes, more than 300", n)
	}
}

func TestStatusIsCutToItsLimits(t *testing.T) {
	s := fullStatus(300)
	s.Message = strings.Repeat("ü", 1000) + "\xff"
	s.Exceptions = slices.Repeat(s.Exceptions, 250)
	s.Phase, s.Ready = fleet.PhaseHeld, true
	got, err := SyncStatusFromProto(SyncStatusToProto(s))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Message) > MaxMessageBytes || !strings.HasSuffix(got.Message, "ü…") || len(got.Exceptions) != MaxExceptions {
		t.Errorf("message %d bytes ending %q, %d exceptions", len(got.Message), got.Message[len(got.Message)-5:], len(got.Exceptions))
	}
	if got.Ready {
		t.Error("ready in phase Held")
	}
}

func TestStatusIsRefused(t *testing.T) {
	for name, change := range map[string]func(*agentv1.SyncStatus){
		"module":            func(s *agentv1.SyncStatus) { s.Module = "web" },
		"bundle":            func(s *agentv1.SyncStatus) { s.Bundle = []byte{1} },
		"ordinal":           func(s *agentv1.SyncStatus) { s.Exceptions[0].Ordinal = 2 },
		"compressed states": func(s *agentv1.SyncStatus) { s.StatesZstd = true },
		"states bomb": func(s *agentv1.SyncStatus) {
			s.States, s.StatesZstd = Compress(make([]byte, assemble.MaxBundleObjects+1)), true
		},
		"many exceptions": func(s *agentv1.SyncStatus) { s.Exceptions = slices.Repeat(s.Exceptions, MaxExceptions+1) },
		"many holds":      func(s *agentv1.SyncStatus) { s.Holds = slices.Repeat(s.Holds, MaxHolds) },
		"hold of nothing": func(s *agentv1.SyncStatus) { s.Holds[0].Name = "a\nb" },
		"nameless extra":  func(s *agentv1.SyncStatus) { s.Extras[0].Name = "" },
		"extras bomb": func(s *agentv1.SyncStatus) {
			s.ExtrasZstd = Compress(make([]byte, MaxContentBytes+1))
		},
		"too many extras": func(s *agentv1.SyncStatus) { setExtras(s, slices.Repeat(s.Extras, MaxExtras+1)) },
	} {
		in := SyncStatusToProto(fullStatus(2))
		change(in)
		if _, err := SyncStatusFromProto(in); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: error %v, want invalid", name, err)
		}
	}
	newer := SyncStatusToProto(fullStatus(2))
	newer.Phase = "Levitating"
	if got, err := SyncStatusFromProto(newer); err != nil || got.Phase != fleet.PhaseApplying || got.Ready {
		t.Errorf("phase of a newer version: %v, %v, ready %v", got.Phase, err, got.Ready)
	}
}

func TestDecompressIsBounded(t *testing.T) {
	plain := bytes.Repeat([]byte("towline "), 100_000)
	var streamed bytes.Buffer
	w, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, packed := range map[string][]byte{"with its size": Compress(plain), "streamed": streamed.Bytes()} {
		if got, err := Decompress(packed, len(plain)); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if _, err := Decompress(packed, len(plain)-1); !errors.Is(err, fleet.ErrExhausted) {
			t.Errorf("%s, one byte too many: %v, want exhausted", name, err)
		}
		if _, err := Decompress(packed[:len(packed)-1], len(plain)); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%s, cut off: %v, want corrupt", name, err)
		}
	}
	for _, n := range []int{1, 100, 255, 256, 1000} {
		content := bytes.Repeat([]byte("a"), n)
		allocs := testing.AllocsPerRun(20, func() {
			if got, err := Decompress(Compress(content), n); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes: %d, %v", n, len(got), err)
			}
		})
		if allocs > 10 {
			t.Errorf("%d bytes took %.0f allocations", n, allocs)
		}
		if _, err := Decompress(Compress(content), n-1); !errors.Is(err, fleet.ErrExhausted) {
			t.Errorf("%d bytes of which fewer are allowed: %v, want exhausted", n, err)
		}
	}
	double := append(Compress([]byte("a")), Compress(plain)...)
	if out, err := Decompress(double, 1); err == nil {
		t.Errorf("a second frame behind the first was unpacked to %d bytes", len(out))
	}
	if out, err := Decompress(Compress(nil), 0); err != nil || len(out) != 0 {
		t.Errorf("nothing: %v, %v", out, err)
	}
}

func FuzzSyncStatusFromProto(f *testing.F) {
	for _, n := range []int{2, 100} {
		seed, err := proto.Marshal(SyncStatusToProto(fullStatus(n)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in agentv1.SyncStatus
		if proto.Unmarshal(raw, &in) != nil {
			return
		}
		s, err := SyncStatusFromProto(&in)
		if err != nil {
			return
		}
		again, err := SyncStatusFromProto(SyncStatusToProto(s))
		if err != nil {
			t.Fatalf("what was taken is refused when sent on: %v", err)
		}
		if diff := cmp.Diff(s, again); diff != "" {
			t.Fatalf("(-first +second)\n%s", diff)
		}
	})
}

func FuzzAssemblageFromIndex(f *testing.F) {
	seed, err := proto.Marshal(IndexFromAssemblage(heldAssemblage()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in agentv1.Index
		if proto.Unmarshal(raw, &in) != nil {
			return
		}
		a, err := AssemblageFromIndex(&in, fleet.Assemblage{})
		if err != nil {
			return
		}
		if a.Digest != assemble.Digest(a) {
			t.Fatalf("taken with digest %s, has %s", a.Digest, assemble.Digest(a))
		}
	})
}

func FuzzDecompress(f *testing.F) {
	f.Add(Compress([]byte("hello")))
	f.Add(Compress(nil))
	f.Add(Compress(make([]byte, 4096)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if out, err := Decompress(raw, 1024); err == nil && len(out) > 1024 {
			t.Fatalf("%d bytes came out, at most 1024 may", len(out))
		}
	})
}
