package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// shelf has contents by their digests.
type shelf map[fleet.Digest][]byte

func (s shelf) put(b []byte) fleet.Digest {
	d := fleet.DigestOf(b)
	s[d] = b
	return d
}

func (s shelf) get(d fleet.Digest) ([]byte, error) {
	b, ok := s[d]
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "content %s: is not held", d.Short())
	}
	return b, nil
}

// bundle stores one of ConfigMaps with these texts.
func (s shelf) bundle(texts ...string) fleet.Bundle {
	var entries []fleet.BundleEntry
	for i, text := range texts {
		name := fmt.Sprintf("c-%02d", i)
		object := fmt.Sprintf(`{"apiVersion":"v1","data":{"a":%q},"kind":"ConfigMap","metadata":{"name":%q,"namespace":"shop"}}`, text, name)
		entries = append(entries, fleet.BundleEntry{Digest: s.put([]byte(object)), Version: "v1", ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: name}})
	}
	_, raw := assemble.BundleDigest(entries)
	s.put(raw)
	b, err := assemble.DecodeBundle(raw)
	if err != nil {
		panic(err)
	}
	return b
}

// moved is a cluster with two modules of which one gets another bundle, and the move that says so.
type moved struct {
	shelf     shelf // of the hub
	held      shelf // of the agent
	old, next fleet.Assemblage
	move      *agentv1.Move
}

func newMove(t testing.TB, dictionary bool, before, after []string) moved {
	t.Helper()
	m := moved{shelf: shelf{}, held: shelf{}}
	was, is := m.held.bundle(before...), m.shelf.bundle(after...)
	api := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: "api"}, Generation: 3, Revision: 1, Bundle: m.held.bundle("x").Digest, Objects: 1}
	web := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: "web"}, Generation: 4, Revision: 1, Bundle: was.Digest, Objects: len(before),
		Values: map[string]string{"A": "b"}}
	m.old = assemble.Build([]fleet.Sync{api, web}, nil, false, 5)
	web.Generation, web.Revision, web.Bundle = 6, 2, is.Digest
	m.next = assemble.Build([]fleet.Sync{api, web}, nil, false, 6)
	ordinals, ok := PatchedOrdinals(was, is)
	if !ok {
		t.Fatal("there is no patch")
	}
	var contents [][]byte
	var dict []byte
	for _, o := range ordinals {
		contents = append(contents, m.shelf[is.Entries[o].Digest])
		if dictionary {
			dict = append(dict, m.held[was.Entries[o].Digest]...)
		}
	}
	p, err := PackPatch(ordinals, contents, dict)
	if err != nil {
		t.Fatal(err)
	}
	m.move = &agentv1.Move{AppliesTo: AppliesTo(m.old.Digest), ResultsIn: m.next.Digest.Bytes(), Generation: 6,
		Syncs: []*agentv1.MovedSync{{Place: 1, Revision: 2, Patch: p}}}
	return m
}

// take does what an agent does with a move.
func (m moved) take() (fleet.Assemblage, map[fleet.Digest][]byte, error) {
	ix, contents, err := IndexFromMove(m.move, m.old, m.held.get)
	if err != nil {
		return fleet.Assemblage{}, nil, err
	}
	a, err := AssemblageFromIndex(ix, m.old)
	return a, contents, err
}

func long(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < 4000 {
		fmt.Fprintf(&b, "%x ", r.Uint64())
	}
	return b.String()
}

func TestMoveStandsForItsIndex(t *testing.T) {
	for _, dictionary := range []bool{false, true} {
		m := newMove(t, dictionary, []string{"one", long(1), long(2), "four"}, []string{"one", long(1) + "!", long(2), "five"})
		a, contents, err := m.take()
		if err != nil {
			t.Fatal(err)
		}
		if a.Digest != m.next.Digest || a.Generation != 6 || len(contents) != 3 {
			t.Errorf("assemblage %+v with %d contents", a, len(contents))
		}
		for d, b := range contents {
			if fleet.DigestOf(b) != d || !bytes.Equal(m.shelf[d], b) {
				t.Errorf("content %s is not what the hub has", d.Short())
			}
		}
		size := len(m.move.GetSyncs()[0].GetPatch().GetContents())
		if dictionary && size > 100 || !dictionary && size < 1000 {
			t.Errorf("dictionary %v: %d bytes", dictionary, size)
		}
	}
}

// What does not fit is refused, and nothing that a hub says makes an agent take more memory than a move may.
func TestMoveThatDoesNotFit(t *testing.T) {
	bomb := Compress(make([]byte, 15<<20))
	for name, tc := range map[string]struct {
		change func(*moved)
		is     error
		says   string
	}{
		"of another assemblage": {func(m *moved) { m.move.AppliesTo++ }, fleet.ErrCorrupt, "applies to"},
		"to another one":        {func(m *moved) { m.move.ResultsIn = m.old.Digest.Bytes() }, fleet.ErrCorrupt, "results in"},
		"place":                 {func(m *moved) { m.move.Syncs[0].Place = 2 }, fleet.ErrInvalid, "place 2"},
		"place twice":           {func(m *moved) { m.move.Syncs = append(m.move.Syncs, m.move.Syncs[0]) }, fleet.ErrInvalid, "out of order"},
		"no patch":              {func(m *moved) { m.move.Syncs[0].Patch = nil }, fleet.ErrCorrupt, "results in"},
		"of another module":     {func(m *moved) { m.move.Syncs[0].Place = 0 }, fleet.ErrInvalid, "ordinals"},
		"ordinals":              {func(m *moved) { m.move.Syncs[0].Patch.Ordinals[0] = 1 << 31 }, fleet.ErrInvalid, "ordinals"},
		"sizes":                 {func(m *moved) { m.move.Syncs[0].Patch.Sizes = nil }, fleet.ErrInvalid, "sizes"},
		"another size":          {func(m *moved) { m.move.Syncs[0].Patch.Sizes[0]++ }, fleet.ErrCorrupt, "zstd"},
		"smaller":               {func(m *moved) { m.move.Syncs[0].Patch.Sizes[0]-- }, fleet.ErrCorrupt, "zstd"},
		"size of nothing":       {func(m *moved) { m.move.Syncs[0].Patch.Sizes[0] = 0 }, fleet.ErrInvalid, "sizes"},
		"size over all":         {func(m *moved) { m.move.Syncs[0].Patch.Sizes[0] = MaxPatchBytes + 1 }, fleet.ErrInvalid, "sizes"},
		"bomb":                  {func(m *moved) { m.move.Syncs[0].Patch.Contents = bomb }, fleet.ErrCorrupt, "zstd"},
		"cut off": {func(m *moved) {
			p := m.move.Syncs[0].Patch
			p.Contents = p.Contents[:len(p.Contents)-3]
		}, fleet.ErrCorrupt, "zstd"},
		"no dictionary": {func(m *moved) { m.move.Syncs[0].Patch.Dictionary = false }, fleet.ErrCorrupt, ""},
		"old content is missing": {func(m *moved) {
			for d, b := range m.held {
				if bytes.Contains(b, []byte(`c-01"`)) {
					delete(m.held, d)
				}
			}
		}, fleet.ErrNotFound, "is not held"},
		"another dictionary": {func(m *moved) {
			for d, b := range m.held {
				if bytes.Contains(b, []byte(`c-01","namespace`)) {
					m.held[d] = bytes.ToUpper(b)
				}
			}
		}, fleet.ErrCorrupt, "results in"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMove(t, true, []string{"one", long(1)}, []string{"one", long(1) + "!"})
			tc.change(&m)
			if _, _, err := m.take(); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %v with %q", err, tc.is, tc.says)
			}
		})
	}
}

func TestBundlesWithoutAPatch(t *testing.T) {
	s := shelf{}
	if _, ok := PatchedOrdinals(s.bundle("a"), s.bundle("a", "b")); ok {
		t.Error("a bundle with one more object has a patch")
	}
	wave := s.bundle("a", "b")
	wave.Entries[1].Wave = 3
	if _, ok := PatchedOrdinals(s.bundle("a", "b"), wave); ok {
		t.Error("a bundle with another wave has a patch")
	}
}

// Whatever a hub sends as a move, an agent either has an assemblage of the digest that it names, or an error.
func FuzzMove(f *testing.F) {
	for _, dictionary := range []bool{false, true} {
		m := newMove(f, dictionary, []string{"one", "two"}, []string{"one", "three"})
		p := m.move.GetSyncs()[0].GetPatch()
		f.Add(p.GetContents(), uint32(1), p.GetSizes()[0], uint32(1), dictionary)
	}
	f.Fuzz(func(t *testing.T, contents []byte, ordinal, size, place uint32, dictionary bool) {
		m := newMove(t, true, []string{"one", "two"}, []string{"one", "three"})
		m.move.Syncs[0] = &agentv1.MovedSync{Place: place, Revision: 2, Patch: &agentv1.BundlePatch{Ordinals: []uint32{ordinal}, Sizes: []uint32{size},
			Contents: contents, Dictionary: dictionary}}
		a, got, err := m.take()
		if err != nil {
			return
		}
		if a.Digest != m.next.Digest {
			t.Errorf("results in %s", a.Digest)
		}
		for d, b := range got {
			if fleet.DigestOf(b) != d {
				t.Error("a content has another digest")
			}
		}
	})
}
