package engine

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestJudge(t *testing.T) {
	const nonce = 77
	puts, deletes := trace{base: 10, nonce: nonce, carried: true}, trace{base: 10, deletes: []string{"a", "b"}}
	put := func(key string, at int64) change { return change{key: key, revision: at, created: 1} }
	made := func(key string, at int64) change { return change{key: key, revision: at, created: at} }
	ours := func(key string, at int64) change { return change{key: key, revision: at, created: 1, nonce: nonce} }
	gone := func(key string, at int64) change { return change{key: key, revision: at, deleted: true} }
	for _, c := range []struct {
		name    string
		trace   trace
		changes []change
		partial bool     // history does not go back to the base
		there   []string // now
		want    fate
		at      int64
	}{
		{name: "a put that happened", trace: puts, changes: []change{ours("a", 11)}, there: []string{"a"}, want: done, at: 11},
		{name: "that was overwritten", trace: puts, changes: []change{ours("a", 11), put("a", 12)}, want: done, at: 11},
		{name: "that was deleted", trace: puts, changes: []change{ours("a", 11), gone("a", 12)}, want: done, at: 11},
		{name: "that never happened", trace: puts, want: lost},
		{name: "that lost the race", trace: puts, changes: []change{put("a", 11)}, want: lost},
		{name: "of which little is remembered", trace: puts, partial: true, changes: []change{put("a", 15)}, want: unknown},
		{name: "of which little but it is remembered", trace: puts, partial: true, changes: []change{ours("a", 15)}, want: done, at: 15},

		{name: "deletes that happened", trace: deletes, changes: []change{gone("a", 11), gone("b", 11)}, want: done, at: 11},
		{name: "of keys that were partly not there", trace: deletes, changes: []change{gone("a", 11)}, want: done, at: 11},
		{name: "of keys that were made anew", trace: deletes, changes: []change{gone("a", 11), made("a", 12), made("b", 13)}, want: done, at: 11},
		{name: "that never happened", trace: deletes, there: []string{"a", "b"}, want: lost},
		{name: "of which another did one", trace: deletes, changes: []change{gone("a", 11)}, there: []string{"b"}, want: lost},
		{name: "of which others did one each", trace: deletes, changes: []change{gone("a", 11), gone("b", 12)}, want: lost},
		{name: "that lost the race", trace: deletes, changes: []change{put("a", 11), gone("a", 12), gone("b", 12)}, want: lost},
		{name: "of which one was changed later", trace: deletes, changes: []change{gone("a", 11), put("b", 12)}, want: lost},
		{name: "before the base", trace: deletes, changes: []change{gone("a", 9), gone("b", 9)}, want: lost},
		{name: "of which little is remembered", trace: deletes, partial: true, changes: []change{gone("a", 11), gone("b", 11)}, want: unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, at := judge(c.trace, c.changes, !c.partial, func(key string) bool { return slices.Contains(c.there, key) })
			if f != c.want || at != c.at {
				t.Errorf("judged %d at %d, want %d at %d", f, at, c.want, c.at)
			}
		})
	}
}

// TestJudgeIsRight lets others change keys at random around a commit that may or may not have arrived.
func TestJudgeIsRight(t *testing.T) {
	keys := []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		var changes []change
		created, modified := map[string]int64{}, map[string]int64{}
		rev := int64(0)
		apply := func(puts, deletes []string, nonce uint64) bool {
			rev++
			before := len(changes)
			for _, k := range puts {
				if created[k] == 0 {
					created[k] = rev
				}
				modified[k] = rev
				changes = append(changes, change{key: k, revision: rev, created: created[k], nonce: nonce})
				nonce = 0
			}
			for _, k := range deletes {
				if created[k] != 0 {
					changes = append(changes, change{key: k, revision: rev, deleted: true})
				}
				delete(created, k)
				modified[k] = rev
			}
			return len(changes) > before
		}
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 3, rapid.ID)
		others := func() {
			for range rapid.IntRange(0, 4).Draw(rt, "others") {
				touched := some.Draw(rt, "keys")
				n := rapid.IntRange(0, len(touched)).Draw(rt, "puts")
				apply(touched[:n], touched[n:], rapid.SampledFrom([]uint64{0, 5}).Draw(rt, "nonce"))
			}
		}
		others()
		base, present := rev, maps.Clone(created)
		others()
		puts, deletes := some.Draw(rt, "puts"), some.Filter(func(k []string) bool { return len(k) > 0 }).Draw(rt, "deletes")
		if len(puts) > 0 {
			deletes = nil
		}
		tr := trace{base: base, nonce: 99, carried: len(puts) > 0, deletes: deletes}
		arrived := int64(0)
		if rapid.Bool().Draw(rt, "sent") && !slices.ContainsFunc(append(puts, deletes...), func(k string) bool { return modified[k] > base }) {
			if apply(puts, deletes, tr.nonce) {
				arrived = rev
			}
		}
		others()
		f, at := judge(tr, changes, true, func(key string) bool { return created[key] != 0 })
		switch {
		case arrived > 0 && (f != done || at != arrived):
			rt.Fatalf("it arrived at %d, and is judged %d at %d: %+v", arrived, f, at, changes)
		case arrived == 0 && f == done && tr.carried:
			rt.Fatalf("a put that did not arrive is judged done: %+v", changes)
		case arrived == 0 && f == done:
			asGood(rt, tr, at, changes, present)
		}
	})
}

// asGood checks that what others did at the revision is what the deletions were to do.
func asGood(rt *rapid.T, tr trace, at int64, changes []change, present map[string]int64) {
	for _, k := range tr.deletes {
		there := present[k] != 0
		for _, c := range changes {
			if c.key != k || c.revision <= tr.base || c.revision > at {
				continue
			}
			if c.revision < at {
				rt.Fatalf("%s had changed at %d", k, c.revision)
			}
			there = !c.deleted
		}
		if there {
			rt.Fatalf("%s is there after %d", k, at)
		}
	}
}

// History is bounded, and says how far it goes back.
func TestHistoryKnowsWhatItForgot(t *testing.T) {
	var h history
	const all = 5 * keptChanges
	for rev := int64(1); rev <= all; rev++ {
		h.add([]change{{key: "a", revision: rev}})
		if n := int64(len(h.changes)); n > 2*keptChanges || h.floor+n != rev {
			t.Fatalf("after %d changes it holds %d, and says that it is complete after %d", rev, n, h.floor)
		}
	}
	h.gap(all + 100)
	if h.floor != all+100 || len(h.changes) == 0 {
		t.Errorf("after a gap it is complete after %d, and holds %d", h.floor, len(h.changes))
	}
}
