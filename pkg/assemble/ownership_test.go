package assemble

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
)

func entry(kind, name string) fleet.BundleEntry {
	return fleet.BundleEntry{ID: fleet.ObjectID{Kind: kind, Namespace: "shop", Name: name}, Version: "v1", Digest: fleet.Digest{1}}
}

func yields(owner fleet.ModuleRef, since uint64, ordinals ...int) []fleet.Yield {
	return []fleet.Yield{{Owner: owner, Since: since, Ordinals: ordinals}}
}

func TestShared(t *testing.T) {
	list := func(e ...fleet.BundleEntry) []fleet.BundleEntry { return e }
	grouped := entry("Namespace", "a")
	grouped.ID.Group = "example.com"
	inNamespace := entry("ConfigMap", "a")
	inNamespace.ID.Namespace = "${NS}"
	for name, tc := range map[string]struct {
		a, b []fleet.BundleEntry
		want []Pair
	}{
		"empty":                  {nil, list(entry("ConfigMap", "a")), nil},
		"apart":                  {list(entry("ConfigMap", "a"), entry("ConfigMap", "c")), list(entry("ConfigMap", "b"), entry("Secret", "a")), nil},
		"the last ones":          {list(entry("ConfigMap", "a"), entry("Secret", "z")), list(entry("ConfigMap", "b"), entry("ConfigMap", "c"), entry("Secret", "z")), []Pair{{1, 2}}},
		"both":                   {list(entry("ConfigMap", "a"), entry("ConfigMap", "b")), list(entry("ConfigMap", "a"), entry("ConfigMap", "b")), []Pair{{0, 0}, {1, 1}}},
		"a namespace is used":    {list(entry("Namespace", "a")), list(entry("Namespace", "a")), nil},
		"after a namespace":      {list(entry("Namespace", "a"), entry("Secret", "s")), list(entry("Namespace", "a"), entry("Secret", "s")), []Pair{{1, 1}}},
		"a Namespace of a group": {list(grouped), list(grouped), []Pair{{0, 0}}},
		"placeholder":            {list(entry("ConfigMap", "${A}")), list(entry("ConfigMap", "${A}")), nil},
		"placeholder, namespace": {list(inNamespace), list(inNamespace), nil},
	} {
		if diff := cmp.Diff(tc.want, Shared(tc.a, tc.b)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	if got := ConflictMessage(entry("ConfigMap", "a").ID, module("web")); !strings.Contains(got, "a: belongs to module web;") {
		t.Errorf("sentence: %s", got)
	}
}

// TestYields: module "two" lists b, m and n; what others have of m and n.
func TestYields(t *testing.T) {
	const generation = 10
	entries := []fleet.BundleEntry{entry("ConfigMap", "b"), entry("ConfigMap", "m"), entry("ConfigMap", "n")}
	older := []fleet.BundleEntry{entry("ConfigMap", "m")} // m had another ordinal
	rival := func(name string, g uint64, yields []fleet.Yield, shared ...Pair) Rival {
		return Rival{Module: module(name), Generation: g, Yields: yields, Shared: shared}
	}
	for name, tc := range map[string]struct {
		before *Listing
		rivals []Rival
		want   []fleet.Yield
	}{
		"nobody":                     {nil, nil, nil},
		"another one's":              {nil, []Rival{rival("one", 5, nil, Pair{1, 0})}, yields(module("one"), generation, 1)},
		"of one assigned later, too": {nil, []Rival{rival("one", 50, nil, Pair{1, 0})}, yields(module("one"), generation, 1)},
		"two of another's":           {nil, []Rival{rival("one", 5, nil, Pair{1, 0}, Pair{2, 1})}, yields(module("one"), generation, 1, 2)},
		"of two others": {nil, []Rival{rival("z", 5, nil, Pair{1, 0}), rival("a", 6, nil, Pair{2, 0})},
			slices.Concat(yields(module("a"), generation, 2), yields(module("z"), generation, 1))},
		"mine already": {&Listing{Generation: 3, Entries: older}, []Rival{rival("one", 5, yields(module("two"), 5, 0), Pair{1, 0})}, nil},
		"I waited before, and so I do": {&Listing{Generation: 8, Entries: older, Yields: yields(module("one"), 4, 0)},
			[]Rival{rival("one", 5, nil, Pair{1, 0})}, yields(module("one"), 4, 1)},
		"nobody has it, I wait longest": {&Listing{Generation: 8, Entries: older, Yields: yields(module("gone"), 4, 0)},
			[]Rival{rival("three", 5, yields(module("gone"), 5, 0), Pair{1, 0})}, nil},
		"nobody has it, another waits longer": {&Listing{Generation: 8, Entries: older, Yields: yields(module("gone"), 4, 0)},
			[]Rival{rival("three", 50, yields(module("gone"), 3, 0), Pair{1, 0})}, yields(module("three"), 4, 1)},
		"nobody has it, another waits, I come": {nil, []Rival{rival("three", 5, yields(module("gone"), 5, 0), Pair{1, 0})},
			yields(module("three"), generation, 1)},
		"two waited equally long": {&Listing{Generation: 8, Entries: older, Yields: yields(module("gone"), 5, 0)},
			[]Rival{rival("three", 5, yields(module("gone"), 5, 0), Pair{1, 0})}, yields(module("three"), 5, 1)},
		"both have it, I am older": {&Listing{Generation: 3, Entries: older}, []Rival{rival("one", 5, nil, Pair{1, 0})}, nil},
		"both have it, I am newer": {&Listing{Generation: 7, Entries: older}, []Rival{rival("one", 5, nil, Pair{1, 0})}, yields(module("one"), 7, 1)},
		"I list it for the first time": {&Listing{Generation: 3, Entries: older}, []Rival{rival("one", 5, nil, Pair{2, 0})},
			yields(module("one"), generation, 2)},
		"one waits, another has it": {nil, []Rival{rival("three", 3, yields(module("one"), 3, 0), Pair{1, 0}), rival("one", 5, nil, Pair{1, 0})},
			yields(module("one"), generation, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got := Yields(Listing{Module: module("two"), Generation: generation, Entries: entries, Before: tc.before}, tc.rivals)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestOneOwner: whatever modules list an object, in whatever order they are assigned and looked at again, it has one
// owner in the end; who has it keeps it as long as it lists it, and then it goes to the one that waits longest.
func TestOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := contestWorld{syncs: map[string]*Listing{}, waits: map[string]uint64{}}
		names := []string{"a", "b", "c", "d"}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "module")
			owner, next := w.owner(), w.next(name)
			switch lists := rapid.Bool().Draw(t, "lists"); {
			case rapid.IntRange(0, 3).Draw(t, "what") == 0:
				w.leave(name)
			case lists:
				w.assign(name, entry("ConfigMap", "b"), entry("ConfigMap", "m"))
			default:
				w.assign(name, entry("ConfigMap", "b"))
			}
			w.settle(t, rapid.Permutation(names).Draw(t, "order"))
			switch now := w.owner(); {
			case owner != "" && w.lists(owner) && now != owner:
				t.Fatalf("%s had it and still lists it, but it went to %q", owner, now)
			case owner == name && !w.lists(name) && now != next:
				t.Fatalf("%s let it go; it went to %q, and %q waits longest", name, now, next)
			case now == "" && slices.ContainsFunc(names, w.lists):
				t.Fatalf("nobody has it: %+v", w.syncs)
			}
		}
	})
}

// contestWorld is a cluster where modules list m or not. Each has one more object, so that ordinals differ.
type contestWorld struct {
	generation uint64
	syncs      map[string]*Listing
	waits      map[string]uint64
}

func (w *contestWorld) lists(name string) bool {
	s := w.syncs[name]
	return s != nil && len(s.Entries) == 2
}

func (w *contestWorld) owner() string {
	for name, s := range w.syncs {
		if w.lists(name) && len(s.Yields) == 0 {
			return name
		}
	}
	return ""
}

// next is who waits longest besides a module.
func (w *contestWorld) next(besides string) string {
	out := ""
	for name := range w.waits {
		if name != besides && (out == "" || w.waits[name] < w.waits[out]) {
			out = name
		}
	}
	return out
}

func (w *contestWorld) rivals(of string, entries []fleet.BundleEntry) []Rival {
	var out []Rival
	for name, s := range w.syncs {
		if name != of {
			out = append(out, Rival{Module: s.Module, Generation: s.Generation, Yields: s.Yields,
				Shared: slices.DeleteFunc(Shared(entries, s.Entries), func(p Pair) bool { return entries[p.Mine].ID.Name == "b" })})
		}
	}
	return out
}

func (w *contestWorld) assign(name string, entries ...fleet.BundleEntry) {
	w.generation++
	next := &Listing{Module: module(name), Generation: w.generation, Entries: entries, Before: w.syncs[name]}
	next.Yields = Yields(*next, w.rivals(name, entries))
	next.Before = nil
	w.syncs[name] = next
	w.note(name)
}

func (w *contestWorld) leave(name string) {
	delete(w.syncs, name)
	delete(w.waits, name)
}

// note remembers since when a module waits, apart from what the syncs say.
func (w *contestWorld) note(name string) {
	_, waits := w.waits[name]
	switch {
	case len(w.syncs[name].Yields) == 0:
		delete(w.waits, name)
	case !waits:
		w.waits[name] = w.generation
	}
}

// settle looks at every module again until nothing changes, as the hub does.
func (w *contestWorld) settle(t *rapid.T, order []string) {
	for range 2 * len(order) {
		changed := false
		for _, name := range order {
			s := w.syncs[name]
			if s == nil {
				continue
			}
			now := Yields(Listing{Module: s.Module, Generation: s.Generation, Entries: s.Entries, Before: s}, w.rivals(name, s.Entries))
			if EqualYields(now, s.Yields) {
				continue
			}
			w.generation++
			next := *s
			next.Generation, next.Yields = w.generation, now
			w.syncs[name] = &next
			w.note(name)
			changed = true
		}
		if !changed {
			return
		}
	}
	t.Fatalf("it does not settle: %+v", w.syncs)
}

// TestEnd: what an owner is about to let go is waited for, and no conflict: that is said of each object by itself, from where
// its owner is going.
func TestEnd(t *testing.T) {
	entries := []fleet.BundleEntry{entry("ConfigMap", "a"), entry("ConfigMap", "m"), entry("ConfigMap", "n")}
	lists := func(names ...string) map[uint64]bool {
		var list []fleet.BundleEntry
		for _, n := range names {
			list = append(list, entry("ConfigMap", n))
		}
		return HeirKeys(list, nil)
	}
	for name, tc := range map[string]struct {
		owner Course
		want  []int
	}{
		"its next revision lists neither":    {Course{Lists: lists("x")}, []int{1, 2}},
		"its next revision lists one":        {Course{Lists: lists("m")}, []int{2}},
		"its next revision lists both":       {Course{Lists: lists("m", "n")}, nil},
		"it leaves":                          {Course{}, []int{1, 2}},
		"its next revision is being made":    {Course{Unknown: true}, []int{1, 2}},
		"it stays as it is, whatever it has": {Course{Stays: true, Lists: lists("x")}, nil},
		"it stays, and is unknown":           {Course{Stays: true, Unknown: true}, nil},
	} {
		got := slices.Concat(yields(module("one"), 5, 1, 2), yields(module("other"), 5, 0))
		got[0].Ending = []int{0} // of before
		End(got, entries, map[fleet.ModuleRef]Course{module("one"): tc.owner, module("other"): {Stays: true}})
		if !slices.Equal(got[0].Ending, tc.want) || got[1].Ending != nil {
			t.Errorf("%s: %+v, want %v", name, got, tc.want)
		}
	}
	ending, plain := yields(module("one"), 5, 1), yields(module("one"), 5, 1)
	if ending[0].Ending = []int{1}; EqualYields(ending, plain) {
		t.Error("what is about to end makes no difference")
	}
}
