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
	"towline.dev/towline/pkg/wire"
)

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

// takesVersions has the module take the highest tag in a range.
func (f *follower) takesVersions() {
	rec := f.module(1)
	rec.Module.Spec.Source.Git.Ref = &towlinev1.GitRef{Semver: ">=1"}
	digest, err := wire.SpecDigest(rec.Module.Spec)
	f.must(err)
	rec.SpecDigest = digest.Bytes()
	f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
}

// What else comes from a server that is behind is not rolled out at its first word: a lower version in a range, without a time, and files of one ref
// whose chart depends on what another server has.
func TestWhatElseIsBehindForAWhile(t *testing.T) {
	is := func(f *follower, ref, text string) {
		f.source.at("", text)
		f.source.ref, f.source.db, _ = strings.Cut(ref, " ")
	}
	for name, tc := range map[string]struct{ first, second, behind, text, says string }{
		"a lower version":                   {"1.4.9@sha256:a", "1.5.0@sha256:b", "1.4.2@sha256:c", "three", "lower version than that of r2"},
		"a lower version of two parts":      {"1.4@sha1:a", "1.5@sha1:b", "1.3@sha1:c", "three", "lower version than that of r2"},
		"a branch that is called so":        {"1.4@sha1:a", "1.5@sha1:b", "1.3@sha1:c", "three", ""},
		"what a chart of it depends on":     {"main@sha1:1", "main@sha1:1", "main@sha1:1", "one", "which r1 had"},
		"a higher version that is no back":  {"1.4.9@sha256:a", "1.5.0@sha256:b", "1.6.0@sha256:c", "three", ""},
		"a lower version of a chart in it":  {"main@sha1:1 4.2.0", "main@sha1:1 4.3.0", "main@sha1:1 4.2.9", "three", "version 4.2.9 of chart web/db, on which it depends, and which is lower than that of r2, 4.3.0"},
		"the same, with a push":             {"main@sha1:1 4.2.9", "main@sha1:1 4.3.0", "main@sha1:2 4.2.9", "three", "version 4.2.9 of chart web/db"},
		"a higher version of a chart in it": {"main@sha1:1 4.2.0", "main@sha1:1 4.3.0", "main@sha1:1 4.10.0", "three", ""},
		"a chart that was not noted":        {"main@sha1:1", "main@sha1:1", "main@sha1:1 4.2.9", "three", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFollower(t)
				if name == "a lower version of two parts" {
					f.takesVersions()
				}
				is(f, tc.first, "one")
				f.lives(6 * time.Minute)
				n := len(f.begun)
				f.end(int64(n+1), rollout.Succeeded)
				is(f, tc.second, "two")
				f.lives(6 * time.Minute)
				n = len(f.begun)
				f.end(int64(n+1), rollout.Succeeded)
				is(f, tc.behind, tc.text)
				f.lives(6 * time.Minute)
				if tc.says == "" {
					if len(f.begun) != n+1 {
						t.Errorf("begun %v", f.begun)
					}
					return
				}
				if rec, _ := f.stored(); len(f.begun) != n || rec.GetReason() != follow.ReasonGoesBack || !strings.Contains(rec.GetMessage(), tc.says) {
					t.Errorf("begun %v, says %q", f.begun, rec.GetMessage())
				}
				f.sees(2)
				if len(f.begun) != n+1 {
					t.Errorf("it has that for good: begun %v", f.begun)
				}
			})
		})
	}
}

// What was rolled back does not come again by itself because a server was behind for so long that the module went back in between.
func TestWhatWasRolledBackAndComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.source.made("2", 12)
		f.lives(6 * time.Minute)
		f.end(2, rollout.RolledBack)
		f.source.made("0", 11)
		f.sees(3)
		f.lives(time.Minute)
		if len(f.begun) != 2 {
			t.Fatalf("begun %v", f.begun)
		}
		f.end(3, rollout.Succeeded)
		f.source.made("2", 12)
		f.lives(time.Hour)
		if rec, _ := f.stored(); len(f.begun) != 2 || rec.GetReason() != follow.ReasonRolledBack || !strings.Contains(rec.GetMessage(), "has again what r2 had, whose rollout is RolledBack") {
			t.Errorf("begun %v, says %q", f.begun, rec.GetMessage())
		}
		if came, err := f.resync(); err != nil || came.Number != 4 {
			t.Errorf("a person asks: %+v, %v", came, err)
		}
	})
}

// What was rolled back for a cause outside, and is committed anew after the revert, goes forward.
func TestWhatWasRolledBackAndIsCommittedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.source.made("2", 12)
		f.lives(6 * time.Minute)
		f.end(2, rollout.RolledBack)
		f.source.made("3", 13)
		f.lives(6 * time.Minute)
		f.end(3, rollout.Succeeded)
		f.source.at("4", "of-2")
		f.source.moves("4", 14)
		f.lives(6 * time.Minute)
		if len(f.begun) != 3 || f.begun[2].Ref != "main@sha1:4" {
			t.Errorf("begun %v", f.begun)
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

// In a range, a version that is lower than the one before goes back, though it has no time and was not there before.
func TestCatalogOfARangeThatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		for _, step := range []struct{ ref, want string }{
			{"1.5.0@sha256:b", catalog.Applied}, {"1.4.2@sha256:c", catalog.Failed}, {"1.6.0@sha256:d", catalog.Applied},
		} {
			w.source.moves("", 12)
			w.source.ref, w.source.when = step.ref, time.Time{}
			for tries, before := 0, len(w.source.asked); len(w.source.asked) == before; tries++ {
				if w.looks(time.Minute); tries > 10 {
					t.Fatal("it is not looked at")
				}
			}
			if s, _ := w.CatalogSeen(w.ref); s.GetStatus().GetState() != step.want {
				t.Errorf("at %s: %s, %v", step.ref, s.GetStatus().GetState(), s.GetStatus().GetProblems())
			}
		}
	})
}

// A person aborted a rollout before it had a revision, and a server of the source is behind for a look, and has what the module had before: what was
// aborted is not something else by that, nor when it is there again.
func TestFollowKeepsWhatWasAbortedBesideAServerThatIsBehind(t *testing.T) {
	for name, begins := range map[string]func(f *follower){
		"of a put": func(f *follower) {
			rec := f.module(2)
			rec.Module.Spec.Namespace = "other"
			f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
			f.source.made("2", 12)
		},
		"of a push": func(f *follower) {
			f.source.made("2", 12)
			f.aborts = true
			f.lives(6 * time.Minute)
			f.aborts = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFollower(t)
				f.end(1, rollout.Succeeded)
				begins(f)
				f.aborted(2)
				f.begun = nil
				f.lives(time.Hour)
				for range 3 {
					f.source.at("1", "one")
					f.lives(6 * time.Minute)
					f.source.made("2", 12)
					f.lives(6 * time.Minute)
				}
				if len(f.begun) != 0 {
					t.Fatalf("it came by itself: %v", f.begun)
				}
				f.source.made("3", 13)
				f.lives(6 * time.Minute)
				if len(f.begun) != 1 || f.begun[0].Ref != "main@sha1:3" {
					t.Fatalf("mended: %v", f.begun)
				}
			})
		})
	}
}
