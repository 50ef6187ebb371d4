package control

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// made has the branch at a commit of an hour of a day.
func (b *branch) made(commit string, hour int) {
	b.at(commit, "of-"+commit)
	b.moves(commit, hour)
}

// moves has it at a commit with the files that are there.
func (b *branch) moves(commit string, hour int) {
	b.ref, b.when = "main@sha1:"+commit, time.Date(2026, 3, 10, hour, 0, 0, 0, time.UTC)
}

// followsSecond is a follower whose module has the second commit, of noon, and had the first.
func followsSecond(t *testing.T) *follower {
	t.Helper()
	f := newFollower(t)
	f.end(1, rollout.Succeeded)
	f.source.made("2", 12)
	f.lives(6 * time.Minute)
	f.has(1, "2")
	return f
}

// has fails unless so many rollouts were begun by looks, the last one of the commit.
func (f *follower) has(begun int, commit string) {
	f.t.Helper()
	if len(f.begun) != begun || begun > 0 && !strings.HasSuffix(f.begun[begun-1].Ref, ":"+commit) {
		f.t.Fatalf("begun %v; want %d, the last of %s", f.begun, begun, commit)
	}
	if begun > 0 {
		f.end(int64(begun+1), rollout.Succeeded)
	}
}

// sees lives until its source was fetched so many times more.
func (f *follower) sees(n int) {
	f.t.Helper()
	for until, tries := f.source.fetches()+n, 0; f.source.fetches() < until; tries++ {
		if tries == 10*n {
			f.t.Fatal("its source is not looked at")
		}
		f.lives(time.Minute)
	}
}

// A server that is behind for a look or two has nothing rolled out that the module has left, a commit of before or one of before its time; a
// branch that somebody puts back is followed by the third look.
func TestSourceThatIsBehindForAWhile(t *testing.T) {
	for name, old := range map[string]string{"a commit that the module had": "1", "one of before its time": "0"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := followsSecond(t)
				behind := func() {
					f.source.made(old, 11)
					if old == "1" {
						f.source.at("1", "one")
					}
				}
				behind()
				f.lives(6 * time.Minute)
				f.has(1, "2")
				rec, _ := f.stored()
				if rec.GetReason() != follow.ReasonGoesBack || !strings.Contains(rec.GetMessage(), "the next 2 looks") || !strings.Contains(rec.GetMessage(), "towline resync shop") {
					t.Errorf("it says %v", rec)
				}
				f.source.fails(fleet.Errorf(fleet.ErrUnavailable, "the server is away"))
				f.restarts()
				f.lives(6 * time.Minute)
				behind()
				f.lives(6 * time.Minute)
				f.has(1, "2")
				f.source.made("2", 12)
				f.lives(6 * time.Minute)
				f.has(1, "2")
				if rec, _ := f.stored(); rec.GetReason() != "" {
					t.Errorf("it has caught up, and says %v", rec)
				}
				behind()
				f.sees(2)
				f.has(1, "2")
				f.sees(1)
				f.has(2, old)
			})
		})
	}
}

// A file of a web server has no ref and no time: one of its servers that is behind, and brings the file of before, has nothing rolled out either.
func TestFileThatIsBehindForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &follower{leader: newLeader(t), source: &branch{}}
		f.o.Source, f.o.News = f.source, f.news
		has := func(text string) {
			f.source.at("", text)
			f.source.ref = ""
		}
		has("one")
		rec := f.module(1)
		rec.Module.Spec.Source.Git, rec.Module.Spec.Source.Http = nil, &towlinev1.HttpSource{Url: "https://files.example.com/shop.yaml"}
		f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
		f.begins(rec, 1, 0)
		f.end(1, rollout.Succeeded)
		has("two")
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 {
			t.Fatalf("begun %v", f.begun)
		}
		f.end(2, rollout.Succeeded)
		has("one")
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 {
			t.Errorf("the file of before is rolled out at its first word: %v", f.begun)
		}
		if rec, _ := f.stored(); rec.GetReason() != follow.ReasonGoesBack || !strings.Contains(rec.GetMessage(), "which r1 had") {
			t.Errorf("it says %v", rec)
		}
		f.sees(2)
		if len(f.begun) != 2 {
			t.Errorf("somebody has put it back: %v", f.begun)
		}
	})
}

// Two servers of a source that differ for good, and answer in turn, do not have the module go to and fro: it ends with the newer one, and a
// person may have it go back.
func TestServersOfASourceThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		answers := func(commit string, hour int) {
			f.source.made(commit, hour)
			f.lives(22 * time.Minute)
		}
		answers("2", 12)
		f.has(1, "2")
		answers("3", 13)
		f.has(2, "3")
		answers("2", 12)
		f.has(3, "2")
		answers("3", 13) // newer than what it has, so that it need not be steady
		f.has(4, "3")
		answers("2", 12)
		f.has(4, "3")
		if rec, _ := f.stored(); rec.GetReason() != follow.ReasonGoesBack || !strings.Contains(rec.GetMessage(), "only when a person asks: towline resync shop") {
			t.Errorf("it says %v", rec)
		}
		if came, err := f.resync(); err != nil || came.Number != 6 {
			t.Fatalf("a person asks: %v, %v", came, err)
		}
		f.has(5, "2")
		f.restarts()
		f.lives(time.Hour)
		f.has(5, "2")
		f.source.made("4", 14)
		f.lives(6 * time.Minute)
		f.has(6, "4")
	})
}

// A signed call says that something has changed just now: what goes back is looked at again at once, and not in the interval.
func TestCallAboutWhatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := followsSecond(t)
		f.source.at("1", "one")
		f.Called(shop)
		f.lives(15 * time.Second)
		f.has(1, "2")
		f.lives(15 * time.Second)
		f.has(2, "1")
	})
}

// Between a look and the fetch for the revision that it began another server of the source answers, which is behind: nothing is rolled out of that,
// and what the look saw comes with the next one.
func TestServerThatIsBehindAnswersTheFetch(t *testing.T) {
	for name, test := range map[string]struct {
		by      string
		hour    int
		revised bool
	}{
		"older":                  {record.ByFollow, 11, false},
		"older, of a call":       {record.ByWebhook, 11, false},
		"older, a person's word": {"ana", 11, true},
		"newer still":            {record.ByFollow, 14, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollower(t)
			f.end(1, rollout.Succeeded)
			f.source.made("2", 12)
			_, err := f.resync()
			f.must(err)
			f.has(1, "2")
			ro := rolloutRecord(3, string(rollout.Pending))
			ro.Rollout.Revision, ro.Rollout.ModuleGeneration, ro.Fetched = 0, 1, fleet.DigestOf([]byte("what the look saw")).Bytes()
			ro.Rollout.Status.StartedBy = test.by
			f.put(func(w store.Writer) { w.Put(store.StartKey(shop, 3), ro) })
			f.source.made("x", test.hour)
			f.resolves()
			var state rollout.RunState
			f.read(func(r store.Reader) { state = rollouts.StateOf(rollouts.Get(r, shop, 3)) })
			if f.revisions() == 3 != test.revised || (state == rollout.Failed) == test.revised {
				t.Errorf("%d revisions, and it is %s", f.revisions(), state)
			}
		})
	}
}

// The same holds for a catalog: what it lists is not read from a server that is behind for a while, nor to and fro from two that differ.
func TestCatalogOfASourceThatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		at := func(commit string, hour, looks int, want string) {
			t.Helper()
			w.source.moves(commit, hour)
			for tries, before := 0, len(w.source.asked); len(w.source.asked) < before+looks; tries++ {
				if w.looks(time.Minute); tries > 10*looks {
					t.Fatal("it is not looked at")
				}
			}
			s, _ := w.CatalogSeen(w.ref)
			got := s.GetStatus().GetState() + " " + s.GetStatus().GetReason()
			if got = strings.TrimSpace(got); got != want || strings.HasSuffix(s.GetStatus().GetAppliedRef(), ":"+commit) != (want == catalog.Applied) {
				t.Errorf("at %s: %s, of %s; want %s: %v", commit, got, s.GetStatus().GetAppliedRef(), want, s.GetStatus().GetProblems())
			}
		}
		const waits = catalog.Failed + " " + follow.ReasonGoesBack
		at("1", 11, 1, catalog.Applied)
		at("2", 12, 1, catalog.Applied)
		at("1", 11, 2, waits)
		w.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		w.looks(6 * time.Minute)
		w.source.err = nil
		w.restarts()
		at("2", 12, 1, catalog.Applied)
		at("1", 11, 2, waits)
		at("1", 11, 1, catalog.Applied)
		at("2", 12, 1, catalog.Applied)
		at("1", 11, 5, waits)
		if s, _ := w.CatalogSeen(w.ref); !strings.Contains(strings.Join(s.GetStatus().GetProblems(), ""), "only when a person asks: towline resync catalog team") {
			t.Errorf("it says %v", s.GetStatus().GetProblems())
		}
		w.says(2, false) // a person has put it
		at("1", 11, 1, catalog.Applied)
	})
}
