package assemble

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
)

func module(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }

func assemblage() fleet.Assemblage {
	return fleet.Assemblage{Generation: 9, Syncs: []fleet.Sync{
		{Module: module("api"), Generation: 7, Revision: 3, Bundle: fleet.Digest{1}, Objects: 2,
			Values: map[string]string{"REGION": "eu", "ZONE": "a"}, Policies: fleet.Digest{2}},
		{Module: module("web"), Generation: 9, Revision: 1, Bundle: fleet.Digest{3}, Objects: 1},
	}, Tombstones: []fleet.Tombstone{{Module: module("old"), Generation: 8, Policy: fleet.DeleteDelete}}}
}

func TestDigestIgnoresOrder(t *testing.T) {
	a := assemblage()
	want := Digest(a)
	slices.Reverse(a.Syncs)
	a.Generation, a.Digest = 99, fleet.Digest{5}
	if got := Digest(a); got != want {
		t.Errorf("order or the assemblage's own generation changed the digest: %s, want %s", got, want)
	}
}

// The golden values are part of the protocol: a hub and an agent of different versions must agree on them.
func TestDigestGolden(t *testing.T) {
	if got, want := Digest(assemblage()).Short(), "a35601db5741"; got != want {
		t.Errorf("digest of the assemblage = %s, want %s", got, want)
	}
	d, _ := BundleDigest(entries())
	if got, want := d.Short(), "4cd8d694bec4"; got != want {
		t.Errorf("digest of the bundle = %s, want %s", got, want)
	}
}

func TestDigestSeesEveryField(t *testing.T) {
	changes := map[string]func(*fleet.Assemblage){
		"hold":             func(a *fleet.Assemblage) { a.Hold = true },
		"project":          func(a *fleet.Assemblage) { a.Syncs[0].Module.Project = "team" },
		"name":             func(a *fleet.Assemblage) { a.Syncs[0].Module.Name = "apj" },
		"generation":       func(a *fleet.Assemblage) { a.Syncs[0].Generation++ },
		"revision":         func(a *fleet.Assemblage) { a.Syncs[0].Revision++ },
		"bundle":           func(a *fleet.Assemblage) { a.Syncs[0].Bundle[31]++ },
		"value":            func(a *fleet.Assemblage) { a.Syncs[0].Values["ZONE"] = "b" },
		"values shift":     func(a *fleet.Assemblage) { a.Syncs[0].Values = map[string]string{"REGION": "euZONE", "": "a"} },
		"policies":         func(a *fleet.Assemblage) { a.Syncs[0].Policies = fleet.Digest{} },
		"sync hold":        func(a *fleet.Assemblage) { a.Syncs[0].Hold = true },
		"prune confirmed":  func(a *fleet.Assemblage) { a.Syncs[0].PruneConfirmed = true },
		"prune shown":      func(a *fleet.Assemblage) { a.Syncs[0].PruneShown = []uint64{7} },
		"held":             func(a *fleet.Assemblage) { a.Syncs[0].Held = []uint64{7} },
		"objects":          func(a *fleet.Assemblage) { a.Syncs[0].Objects++ },
		"yields":           func(a *fleet.Assemblage) { a.Syncs[0].Yields = yields(module("web"), 3, 0) },
		"yields to others": func(a *fleet.Assemblage) { a.Syncs[0].Yields = yields(module("old"), 3, 0) },
		"yields since":     func(a *fleet.Assemblage) { a.Syncs[0].Yields = yields(module("web"), 4, 0) },
		"yields more":      func(a *fleet.Assemblage) { a.Syncs[0].Yields = yields(module("web"), 3, 0, 1) },
		"yields another":   func(a *fleet.Assemblage) { a.Syncs[0].Yields = yields(module("web"), 3, 1) },
		"fewer syncs":      func(a *fleet.Assemblage) { a.Syncs = a.Syncs[:1] },
		"tombstone":        func(a *fleet.Assemblage) { a.Tombstones[0].Generation++ },
		"tombstone policy": func(a *fleet.Assemblage) { a.Tombstones[0].Policy = fleet.DeleteOrphan },
		"tombstone hold":   func(a *fleet.Assemblage) { a.Tombstones[0].Hold = true },
		"no tombstones":    func(a *fleet.Assemblage) { a.Tombstones = nil },
	}
	seen := map[fleet.Digest]string{Digest(assemblage()): "unchanged"}
	for name, change := range changes {
		a := assemblage()
		change(&a)
		d := Digest(a)
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[d] = name
	}
}

func entries() []fleet.BundleEntry {
	return []fleet.BundleEntry{
		{Digest: fleet.Digest{1}, ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Wave: -1},
		{Digest: fleet.Digest{2}, ID: fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "shop", Name: "web"}, Version: "v1", Wave: 5},
	}
}

func TestBundleRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z.-]{0,12}`)
		list := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) fleet.BundleEntry {
			return fleet.BundleEntry{
				Digest: fleet.DigestOf([]byte(text.Draw(t, "content"))),
				ID: fleet.ObjectID{Group: text.Draw(t, "group"), Kind: "K" + text.Draw(t, "kind"),
					Namespace: text.Draw(t, "namespace"), Name: "n" + text.Draw(t, "name")},
				Version: "v1",
				Wave:    rapid.OneOf(rapid.Just(int32(math.MinInt32)), rapid.Just(int32(math.MaxInt32)), rapid.Int32()).Draw(t, "wave"),
			}
		}), 0, 30, func(e fleet.BundleEntry) fleet.ObjectID { return e.ID }).Draw(t, "entries")
		digest, content := BundleDigest(list)
		b, err := DecodeBundle(content)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list, func(a, b fleet.BundleEntry) int { return a.ID.Compare(b.ID) })
		if diff := cmp.Diff(list, b.Entries); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if b.Digest != digest || digest != fleet.DigestOf(content) {
			t.Fatalf("digest %s, decoded %s, of the bytes %s", digest, b.Digest, fleet.DigestOf(content))
		}
	})
}

func TestDecodeBundleRefuses(t *testing.T) {
	_, good := BundleDigest(entries())
	twice := []fleet.BundleEntry{entries()[0], entries()[0]}
	_, duplicate := BundleDigest(twice)
	_, nameless := BundleDigest([]fleet.BundleEntry{{Digest: fleet.Digest{1}, Version: "v1", ID: fleet.ObjectID{Kind: "X"}}})
	long := append([]byte(bundleMagic), 0x80, 0x00)
	for name, content := range map[string][]byte{
		"nothing":          nil,
		"another format":   []byte("{}"),
		"cut off":          good[:len(good)-1],
		"trailing bytes":   append(slices.Clone(good), 0),
		"duplicate":        duplicate,
		"no name":          nameless,
		"not the shortest": long,
		"huge count":       append([]byte(bundleMagic), 0xff, 0xff, 0xff, 0x7f),
	} {
		if _, err := DecodeBundle(content); !errors.Is(err, fleet.ErrCorrupt) && !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: error %v, want corrupt or invalid", name, err)
		}
	}
}

// FuzzDecodeBundle: whatever is taken is canonical, so no two contents mean one bundle.
func FuzzDecodeBundle(f *testing.F) {
	_, good := BundleDigest(entries())
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte(bundleMagic + "\x00"))
	f.Add(append([]byte(bundleMagic), 0xff, 0xff, 0x03))
	f.Fuzz(func(t *testing.T, content []byte) {
		b, err := DecodeBundle(content)
		if err != nil {
			return
		}
		if _, again := BundleDigest(b.Entries); string(again) != string(content) {
			t.Fatalf("%q was taken, but encodes as %q", content, again)
		}
	})
}

// A hub keeps what it has encoded, an agent builds its own: they agree on the digest, in whatever order the agent has it.
func TestDigestOfWhatIsEncoded(t *testing.T) {
	ref := func(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }
	syncs := []fleet.Sync{{Module: ref("b"), Generation: 3, Values: map[string]string{"X": "1"}}, {Module: ref("a-c"), Generation: 9}, {Module: ref("a"), Generation: 2}}
	tombstones := []fleet.Tombstone{{Module: ref("z"), Generation: 4, Hold: true}, {Module: ref("d"), Generation: 5}}
	built := Build(slices.Clone(syncs), slices.Clone(tombstones), true, 7)
	var alive, dead []byte
	for i := range built.Syncs {
		alive = AppendSync(alive, &built.Syncs[i])
	}
	for i := range built.Tombstones {
		dead = AppendTombstone(dead, &built.Tombstones[i])
	}
	if got := DigestOf(Encoded{Count: 3, Bytes: alive}, Encoded{Count: 2, Bytes: dead}, true); got != built.Digest || got != Digest(fleet.Assemblage{Syncs: syncs, Tombstones: tombstones, Hold: true}) {
		t.Errorf("%s of what is encoded, built %s", got, built.Digest)
	}
	if syncs[0].Module.Name != "b" {
		t.Error("a list was sorted in place")
	}
}
