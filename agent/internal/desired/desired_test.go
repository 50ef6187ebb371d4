package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"towline.dev/towline/agent/internal/state"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// memory is a State whose writes fail from failAt on.
type memory struct {
	values map[string][]byte
	writes int
	lists  int
	failAt int
}

var errDisk = errors.New("disk is gone")

func newMemory() *memory { return &memory{values: map[string][]byte{}} }

func (m *memory) Read(_ context.Context, name string) ([]byte, error) {
	b, ok := m.values[name]
	if !ok {
		return nil, fleet.ErrNotFound
	}
	return slices.Clone(b), nil
}

func (m *memory) WriteAll(ctx context.Context, items ...state.Item) error {
	for _, it := range items {
		if err := m.Write(ctx, it.Name, it.Data); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Write(_ context.Context, name string, data []byte) error {
	if m.writes++; m.failAt > 0 && m.writes >= m.failAt {
		return errDisk
	}
	m.values[name] = slices.Clone(data)
	return nil
}

func (m *memory) Remove(_ context.Context, name string) error {
	delete(m.values, name)
	return nil
}

func (m *memory) List(_ context.Context, prefix string) ([]string, error) {
	m.lists++
	var names []string
	for name := range m.values {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, nil
}

// hub makes syncs and answers fetches.
type hub struct {
	contents map[fleet.Digest][]byte
	fetched  int
	err      error
}

func newHub() *hub { return &hub{contents: map[fleet.Digest][]byte{}} }

func (h *hub) put(b []byte) fleet.Digest {
	d := fleet.DigestOf(b)
	h.contents[d] = wire.Compress(b)
	return d
}

func (h *hub) fetch(_ context.Context, digests []fleet.Digest) (map[fleet.Digest][]byte, error) {
	if h.err != nil {
		return nil, h.err
	}
	out := map[fleet.Digest][]byte{}
	for _, d := range digests {
		b, ok := h.contents[d]
		if !ok {
			return nil, fleet.Errorf(fleet.ErrNotFound, "content %s is not in the index", d.Short())
		}
		h.fetched++
		out[d] = b
	}
	return out, nil
}

func ref(name string) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: name} }

// sync is a module with objects named o0 to o(n-1); text makes its contents differ.
func (h *hub) sync(name string, generation uint64, n int, text string) fleet.Sync {
	var entries []fleet.BundleEntry
	for i := range n {
		object := fmt.Sprintf(`{"kind":"ConfigMap","metadata":{"name":"%s-o%d"},"data":{"x":%q}}`, name, i, text)
		entries = append(entries, fleet.BundleEntry{Digest: h.put([]byte(object)), Version: "v1",
			ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprintf("%s-o%d", name, i)}})
	}
	_, raw := assemble.BundleDigest(entries)
	return fleet.Sync{Module: ref(name), Generation: generation, Revision: int64(generation), Bundle: h.put(raw),
		Policies: h.put([]byte(`[{"prune":"Never"}]`)), Objects: n}
}

// corrupt makes the hub answer with another object's bytes for the sync's objects.
func (h *hub) corrupt(x fleet.Sync) fleet.Sync {
	raw, err := wire.Decompress(h.contents[x.Bundle], wire.MaxContentBytes)
	if err != nil {
		panic(err)
	}
	b, err := assemble.DecodeBundle(raw)
	if err != nil {
		panic(err)
	}
	for _, e := range b.Entries {
		h.contents[e.Digest] = wire.Compress([]byte(`{"kind":"Secret"}`))
	}
	return x
}

func index(floor uint64, syncs []fleet.Sync, tombstones ...fleet.Tombstone) *agentv1.Index {
	return wire.IndexFromAssemblage(assemble.Build(slices.Clone(syncs), tombstones, false, floor))
}

var home = Lineage{HubID: "hub-1", Incarnation: "one"}

func open(t *testing.T, state State) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func accept(t *testing.T, s *Store, h *hub, in *agentv1.Index) Result {
	t.Helper()
	r, err := s.Accept(t.Context(), home, in, h.fetch, alone)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// describe is what is held, in words: name@generation, ~ for strays, ! for tombstones.
func describe(s *Store) string {
	h := s.Held()
	var out []string
	for _, x := range h.Assemblage.Syncs {
		out = append(out, fmt.Sprintf("%s@%d", x.Module.Name, x.Generation))
	}
	for _, x := range h.Strays {
		out = append(out, fmt.Sprintf("~%s@%d", x.Module.Name, x.Generation))
	}
	for _, x := range h.Assemblage.Tombstones {
		out = append(out, fmt.Sprintf("!%s@%d", x.Module.Name, x.Generation))
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(strings.Trim(a, "~!"), strings.Trim(b, "~!")) })
	return strings.Join(out, " ")
}

func refusals(r Result) string {
	var out []string
	for _, x := range r.Refused {
		out = append(out, fmt.Sprintf("%s@%d:%s", x.Module.Name, x.Generation, x.Code))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestInvariant4 walks through every way in which an index may differ from what is held: web@5 and api@7, and the
// tombstone old@6.
func TestInvariant4(t *testing.T) {
	h := newHub()
	web, api := h.sync("web", 5, 2, "a"), h.sync("api", 7, 1, "a")
	old := fleet.Tombstone{Module: ref("old"), Generation: 6, Policy: fleet.DeleteDelete}
	changed := func(x fleet.Sync, fn func(*fleet.Sync)) fleet.Sync { fn(&x); return x }
	dead := func(name string, generation uint64) fleet.Tombstone {
		return fleet.Tombstone{Module: ref(name), Generation: generation, Policy: fleet.DeleteDelete}
	}
	for name, tc := range map[string]struct {
		in      *agentv1.Index
		from    Lineage
		confirm bool
		held    string
		refused string
		code    string
	}{
		"the same again":                 {in: index(7, []fleet.Sync{web, api}, old), held: "api@7 !old@6 web@5"},
		"a newer sync":                   {in: index(7, []fleet.Sync{h.sync("web", 9, 1, "b"), api}, old), held: "api@7 !old@6 web@9"},
		"an added sync":                  {in: index(7, []fleet.Sync{web, api, h.sync("db", 8, 1, "a")}, old), held: "api@7 db@8 !old@6 web@5"},
		"an added sync of an older step": {in: index(7, []fleet.Sync{web, api, h.sync("db", 3, 1, "a")}, old), held: "api@7 db@3 !old@6 web@5"},
		"a missing sync stays":           {in: index(7, []fleet.Sync{api}, old), held: "api@7 !old@6 ~web@5"},
		"all missing stays":              {in: index(7, nil), held: "~api@7 !old@6 ~web@5"},
		"a tombstone takes a sync":       {in: index(7, []fleet.Sync{api}, old, dead("web", 8)), held: "api@7 !old@6 !web@8"},
		"a stale tombstone does not":     {in: index(7, []fleet.Sync{api}, old, dead("web", 5)), held: "api@7 !old@6 web@5", refused: "web@5:STALE"},
		"a tombstone for the unknown":    {in: index(7, []fleet.Sync{web, api}, old, dead("new", 8)), held: "api@7 !new@8 !old@6 web@5"},
		"a confirmed tombstone goes":     {in: index(7, []fleet.Sync{web, api}), confirm: true, held: "api@7 web@5"},
		"an unconfirmed one stays":       {in: index(7, []fleet.Sync{web, api}), held: "api@7 !old@6 web@5"},
		"confirmed but listed stays":     {in: index(7, []fleet.Sync{web, api}, old), confirm: true, held: "api@7 !old@6 web@5"},
		"the module comes back":          {in: index(7, []fleet.Sync{web, api, h.sync("old", 8, 1, "c")}), held: "api@7 old@8 web@5"},
		"it comes back too old":          {in: index(7, []fleet.Sync{web, api, h.sync("old", 6, 1, "c")}), held: "api@7 !old@6 web@5", refused: "old@6:STALE"},
		"an older sync":                  {in: index(7, []fleet.Sync{h.sync("web", 4, 1, "z"), api}, old), held: "api@7 !old@6 web@5", refused: "web@4:STALE"},
		"a generation given twice":       {in: index(7, []fleet.Sync{h.sync("web", 5, 2, "other"), api}, old), held: "api@7 !old@6 web@5", refused: "web@5:DIGEST_MISMATCH"},
		"other values, same generation": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Values = map[string]string{"A": "b"} }), api}, old),
			held: "api@7 !old@6 web@5", refused: "web@5:DIGEST_MISMATCH"},
		"a hold needs no generation": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Hold = true }), api}, old), held: "api@7 !old@6 web@5"},
		"a wrong count": {in: index(7, []fleet.Sync{changed(h.sync("web", 9, 2, "b"), func(x *fleet.Sync) { x.Objects = 3 }), api}, old),
			held: "api@7 !old@6 web@5", refused: "web@9:COUNT_MISMATCH"},
		"a bundle that is none": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Bundle = 9, h.put([]byte("junk")) }), h.sync("api", 10, 1, "b")}, old),
			held: "api@10 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"policies of a newer hub": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Policies = 9, h.put([]byte(`[{"levitate":"Always"}]`)) }), api}, old),
			held: "api@7 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"a word of a newer hub": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Policies = 9, h.put([]byte(`[{"delete":"Archive"}]`)) }), api}, old),
			held: "api@7 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"more objects than it knows": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Objects = 9, 1<<20 }), h.sync("api", 10, 1, "b")}, old),
			held: "api@10 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"more values than it knows": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Values = 9, map[string]string{"not-yet": "b"} }), h.sync("api", 10, 1, "b")}, old),
			held: "api@10 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"an heir that it does not know": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) {
			x.Generation, x.Heirs = 9, []fleet.Heir{{Module: ref("db")}, {Module: ref("api"), Keys: []uint64{2, 1}}}
		}), h.sync("api", 10, 1, "b")}, old), held: "api@10 !old@6 web@5", refused: "web@9:UNDECODABLE"},
		"an added one that is not understood": {in: index(7, []fleet.Sync{web, api, changed(h.sync("db", 8, 1, "a"), func(x *fleet.Sync) { x.Objects = 1 << 20 })}, old),
			held: "api@7 !old@6 web@5", refused: "db@8:UNDECODABLE"},
		"a tombstone that is not understood": {in: index(7, []fleet.Sync{api}, old, fleet.Tombstone{Module: ref("web"), Generation: 8, Policy: "Archive"}),
			held: "api@7 !old@6 web@5", refused: "web@8:UNDECODABLE"},
		"a tombstone that keeps by a newer word": {in: index(7, []fleet.Sync{h.sync("api", 10, 1, "b")}, old, fleet.Tombstone{Module: ref("web"), Generation: 8, Policy: fleet.DeleteDelete,
			Policies: `[{"prune":"Archive"}]`}), held: "api@10 !old@6 web@5", refused: "web@8:UNDECODABLE"},
		"a content the hub lost": {in: index(7, []fleet.Sync{changed(web, func(x *fleet.Sync) { x.Generation, x.Bundle = 9, fleet.Digest{9} }), h.sync("api", 10, 1, "b")}, old),
			held: "api@10 !old@6 web@5", refused: "web@9:DIGEST_MISMATCH"},
		"an object with other bytes": {in: index(7, []fleet.Sync{h.corrupt(h.sync("web", 9, 1, "forged")), h.sync("api", 10, 1, "b")}, old),
			held: "api@10 !old@6 web@5", refused: "web@9:DIGEST_MISMATCH"},
		"a new sync that is refused": {in: index(7, []fleet.Sync{web, api, changed(h.sync("db", 8, 1, "a"), func(x *fleet.Sync) { x.Objects = 9 })}, old),
			held: "api@7 !old@6 web@5", refused: "db@8:COUNT_MISMATCH"},
		"a lower generation": {in: index(0, []fleet.Sync{web}), held: "api@7 !old@6 web@5", code: CodeRegressed},
		"an emptied hub":     {in: index(0, nil), held: "api@7 !old@6 web@5", code: CodeRegressed},
		"another incarnation": {in: index(50, nil), from: Lineage{HubID: "hub-1", Incarnation: "two"},
			held: "api@7 !old@6 web@5", code: CodeRegressed},
		"another hub": {in: index(50, nil), from: Lineage{HubID: "hub-2", Incarnation: "one"}, held: "api@7 !old@6 web@5", code: CodeRegressed},
		"bytes that do not fit": {in: func() *agentv1.Index { i := index(9, []fleet.Sync{web}); i.ResultsIn[0]++; return i }(),
			held: "api@7 !old@6 web@5", code: CodeDigestMismatch},
		"a malformed index": {in: func() *agentv1.Index { i := index(9, []fleet.Sync{web}); i.Syncs[0].Module = "x"; return i }(),
			held: "api@7 !old@6 web@5", code: CodeUndecodable},
		"a delta on another base": {in: &agentv1.Index{AppliesTo: make([]byte, 32)}, held: "api@7 !old@6 web@5", code: CodeDigestMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			state := newMemory()
			s := open(t, state)
			accept(t, s, h, index(7, []fleet.Sync{web, api}, old))
			if tc.confirm {
				s.Confirm(ref("old"), fleet.Age{Lineage: 1, Generation: 6})
			}
			if tc.from == (Lineage{}) {
				tc.from = home
			}
			r, err := s.Accept(t.Context(), tc.from, tc.in, h.fetch, alone)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(s); got != tc.held {
				t.Errorf("held %q, want %q", got, tc.held)
			}
			if got := refusals(r); got != tc.refused || r.Code != tc.code {
				t.Errorf("refused %q code %q (%s), want %q %q", got, r.Code, r.Message, tc.refused, tc.code)
			}
			unknown := tc.refused != "" && !strings.Contains(name, "tombstone") // what that module lists is known
			if got := s.Held().Assemblage.Refused; (len(got) == 1) != unknown || unknown && !strings.HasPrefix(tc.refused, got[0].Name+"@") {
				t.Errorf("what modules list is said not to be known: %v, refused %q", got, tc.refused)
			}
			again := open(t, state)
			if got := describe(again); got != tc.held {
				t.Errorf("after a restart held %q, want %q", got, tc.held)
			}
			if diff := cmp.Diff(s.Held(), again.Held(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("a restart changes what is held (-before +after)\n%s", diff)
			}
			checkContents(t, again)
		})
	}
}

// checkContents reads all that the held syncs need.
func checkContents(t *testing.T, s *Store) {
	t.Helper()
	held := s.Held()
	for _, x := range slices.Concat(held.Assemblage.Syncs, held.Strays) {
		b, err := s.Bundle(x.Bundle)
		if err != nil {
			t.Fatalf("%s: %v", x.Module, err)
		}
		for _, e := range b.Entries {
			if _, err := s.Object(e.Digest); err != nil {
				t.Errorf("%s: %s: %v", x.Module, e.ID, err)
			}
		}
		if p, err := s.Policies(x.Policies); err != nil || len(p.Policies) != 1 || p.Policies[0].Prune != fleet.PruneNever {
			t.Errorf("%s: policies %v, %v", x.Module, p, err)
		}
	}
}

func TestHelloDigest(t *testing.T) {
	h := newHub()
	web := h.sync("web", 5, 2, "a")
	state := newMemory()
	s := open(t, state)
	if _, _, d := s.Position(); !d.IsZero() {
		t.Errorf("nothing accepted, digest %s", d)
	}
	in := index(7, []fleet.Sync{web, h.sync("api", 6, 1, "a")})
	accept(t, s, h, in)
	if l, generation, d := s.Position(); l != home || generation != 7 || string(d.Bytes()) != string(in.GetResultsIn()) {
		t.Errorf("position %v %d %s", l, generation, d)
	}
	stray := index(7, []fleet.Sync{web})
	accept(t, s, h, stray)
	if _, _, d := s.Position(); string(d.Bytes()) != string(stray.GetResultsIn()) {
		t.Error("with a stray the hello's digest is not that of the hub's index: it would be sent again at every connect")
	}
	bad := h.sync("db", 9, 1, "a")
	bad.Objects = 2
	refused := index(9, []fleet.Sync{web, bad})
	accept(t, s, h, refused)
	if _, _, d := s.Position(); string(d.Bytes()) == string(refused.GetResultsIn()) {
		t.Error("with a refusal the hello's digest is that of the hub's index: the sync would never be tried again")
	}
}

func TestLostContentsAreFetchedAgain(t *testing.T) {
	h := newHub()
	state := newMemory()
	in := index(0, []fleet.Sync{h.sync("web", 5, 2, "a"), h.sync("api", 6, 1, "a")})
	first := open(t, state)
	accept(t, first, h, in)
	file(t, first)
	for name := range maps.Clone(state.values) {
		if strings.HasPrefix(name, contentPrefix) {
			state.values[name] = state.values[name][:20]
		}
	}
	s := open(t, state)
	if _, _, d := s.Position(); !d.IsZero() {
		t.Error("contents are lost and the hello does not ask for them")
	}
	if got := describe(s); got != "api@6 web@5" {
		t.Errorf("held %q", got)
	}
	accept(t, s, h, in)
	checkContents(t, open(t, state))
}

// file has the packs in files, and a record that does not carry them.
func file(t *testing.T, s *Store) {
	t.Helper()
	for _, err := range []error{s.Tidy(t.Context()), s.Freeze(t.Context(), "a word"), s.Freeze(t.Context(), "")} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Small contents are durable with the record that needs them, in one write, and get files of their own later. Large ones
// get theirs first. At no time is a needed one in neither.
func TestSmallContentsTravelInTheRecord(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	packs := func() int {
		names, _ := state.List(t.Context(), contentPrefix)
		return len(names)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 1, 3, "a")}))
	if state.writes != 1 || packs() != 0 {
		t.Errorf("%d writes, %d packs: want the record alone", state.writes, packs())
	}
	checkContents(t, open(t, state))
	if err := s.Tidy(t.Context()); err != nil || packs() != 2 { // bundle and policies
		t.Errorf("%v, %d packs after tidying up", err, packs())
	}
	checkContents(t, open(t, state))
	before := len(state.values[setName])
	file(t, s)
	if after := len(state.values[setName]); after >= before {
		t.Errorf("the record has %d bytes, and %d with the packs in it", after, before)
	}
	checkContents(t, open(t, state))
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 1, 3, "a"), h.sync("large", 2, 4000, "b")}))
	if packs() != 3 {
		t.Errorf("%d packs, want that of the large bundle in a file before the record", packs())
	}
	checkContents(t, open(t, state))
}

func TestOnlyMissingContentsAreFetchedAndOldOnesGo(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 1, 3, "a")}))
	if h.fetched != 5 { // bundle, policies, three objects
		t.Errorf("fetched %d contents, want 5", h.fetched)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 2, 4, "a")}))
	if h.fetched != 7 { // bundle and one object
		t.Errorf("fetched %d contents, want 7", h.fetched)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 3, 3, "a")}))
	if h.fetched != 7 {
		t.Errorf("going back fetched %d contents", h.fetched-7)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 4, 1, "b")}))
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 5, 1, "c")}))
	if err := s.Tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, _ := state.List(t.Context(), contentPrefix)
	if len(names) != 3 { // two bundles, one list of policies
		t.Errorf("%d packs are kept, want those of the current and the previous assemblage: 3", len(names))
	}
	checkContents(t, open(t, state))
}

func TestRepeatedIndexWritesNothing(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	in := index(0, []fleet.Sync{h.sync("web", 1, 3, "a"), h.sync("api", 2, 1, "a")}, fleet.Tombstone{Module: ref("old"), Generation: 1, Policy: fleet.DeleteOrphan})
	accept(t, s, h, in)
	writes, fetched := state.writes, h.fetched
	accept(t, s, h, in)
	s = open(t, state)
	accept(t, s, h, in)
	if state.writes != writes || h.fetched != fetched {
		t.Errorf("%d writes and %d fetches for nothing", state.writes-writes, h.fetched-fetched)
	}
}

// A state of Secrets pays for a list with a request, so an index that changed nothing is not tidied up after.
func TestRepeatedIndexIsNotTidiedUpAfter(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	in := index(0, []fleet.Sync{h.sync("web", 1, 3, "a")})
	tidied := func() int {
		before := state.lists
		accept(t, s, h, in)
		if err := s.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		return state.lists - before
	}
	if first, again := tidied(), tidied(); first != 1 || again != 0 {
		t.Errorf("%d lists after a new index, %d after the same again; want 1 and 0", first, again)
	}
}

// A crash at any write of an accept leaves the old state or the new one, with all contents of it.
func TestAcceptSurvivesACrashAtEveryWrite(t *testing.T) {
	h := newHub()
	before := index(0, []fleet.Sync{h.sync("web", 1, 2, "a")})
	after := index(0, []fleet.Sync{h.sync("web", 2, 3, "b"), h.sync("api", 3, 1, "a")})
	for crash := 1; ; crash++ {
		state := newMemory()
		s := open(t, state)
		accept(t, s, h, before)
		state.writes, state.failAt = 0, crash
		_, err := s.Accept(t.Context(), home, after, h.fetch, alone)
		want := "web@1"
		if err == nil {
			want = "api@3 web@2"
		}
		if got := describe(s); got != want {
			t.Fatalf("crash at write %d: works by %q, want %q", crash, got, want)
		}
		state.failAt = 0
		again := open(t, state)
		if got := describe(again); got != want {
			t.Fatalf("crash at write %d: restarts with %q, want %q", crash, got, want)
		}
		checkContents(t, again)
		if err == nil {
			return
		}
		accept(t, again, h, after)
		if got := describe(again); got != "api@3 web@2" {
			t.Fatalf("crash at write %d: cannot be done again: %q", crash, got)
		}
	}
}

func TestUnreachableHubChangesNothing(t *testing.T) {
	h := newHub()
	s := open(t, newMemory())
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 1, 2, "a")}))
	next := index(0, []fleet.Sync{h.sync("web", 2, 2, "b")})
	h.err = fleet.Errorf(fleet.ErrUnavailable, "hub unreachable")
	if _, err := s.Accept(t.Context(), home, next, h.fetch, alone); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if got := describe(s); got != "web@1" {
		t.Errorf("held %q", got)
	}
}

// The module that was removed and forgotten does not come back by an old sync, also after a restart.
func TestForgottenTombstoneStillFences(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	accept(t, s, h, index(0, nil, fleet.Tombstone{Module: ref("old"), Generation: 6, Policy: fleet.DeleteDelete}))
	s.Confirm(ref("old"), fleet.Age{Lineage: 1, Generation: 6})
	if r := accept(t, s, h, index(6, nil)); !slices.Equal(r.Dropped, []fleet.ModuleRef{ref("old")}) {
		t.Errorf("dropped %v", r.Dropped)
	}
	s = open(t, state)
	if r := accept(t, s, h, index(6, []fleet.Sync{h.sync("old", 5, 1, "a")})); refusals(r) != "old@5:STALE" {
		t.Errorf("refused %q", refusals(r))
	}
	if r := accept(t, s, h, index(7, []fleet.Sync{h.sync("old", 7, 1, "a")})); refusals(r) != "" {
		t.Errorf("a newer sync is refused: %q", refusals(r))
	}
}
