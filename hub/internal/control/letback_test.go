package control

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// What goes back, and was found often enough, is begun as soon as nothing else is in the way: the looks are not counted anew meanwhile, and it is
// said what it waits for.
func TestWhatGoesBackWaitsForAPauseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := followsSecond(t)
		f.refuse = record.IsPaused(shop)
		f.source.made("0", 11)
		f.sees(3)
		for range 4 {
			if rec, _ := f.stored(); rec.GetReason() != follow.ReasonPaused {
				t.Errorf("stored %v", rec)
			}
			f.looked()
		}
		f.refuse = nil
		f.looked()
		f.has(2, "0")
	})
}

// looked lives until its source was fetched once more, however rarely that is by now.
func (f *follower) looked() {
	f.t.Helper()
	for before, tries := f.source.fetches(), 0; f.source.fetches() == before; tries++ {
		if tries == 200 {
			f.t.Fatal("its source is not looked at")
		}
		f.lives(time.Minute)
	}
}

// A person is asked before modules go because the source goes back, and is asked on while it does. What he confirms goes at once: also where the
// source went back to the same in the last day, and he had it go back again.
func TestQuestionAboutASourceThatGoesBackIsAnswered(t *testing.T) {
	for name, asked := range map[string]bool{"it was found three times": false, "a person asked for the look": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				at := func(commit string, hour int) {
					w.source.moves(commit, hour)
					w.looks(22 * time.Minute)
				}
				confirms := func() {
					w.leader.put(func(tx store.Writer) {
						h := catalogHold(tx, w.ref)
						tx.Put(store.ConfirmPrefix+h.GetId(), &storev1.ConfirmRecord{Digest: h.GetDigest()})
					})
				}
				at("1", 11)
				at("2", 12)
				at("1", 11)
				at("2", 12)
				w.writes.plan.Goes = []catalog.Gone{{Name: "d", UID: "ud"}}
				if asked {
					w.source.moves("1", 11)
					asks := make(chan catalogAnswer, 1)
					w.catalogs.with(w.ref, func(l *cataloguing) { l.asks = append(l.asks, catalogAsk{record.Ask{By: "ana"}, false, asks}) })
					w.looks(time.Second)
				} else {
					at("0", 10)
				}
				for range 3 {
					if s, _ := w.CatalogSeen(w.ref); s.GetStatus().GetState() != catalog.Waiting || s.GetStatus().GetReason() != catalog.ReasonGoesBack {
						t.Errorf("it is %s %s: %v", s.GetStatus().GetState(), s.GetStatus().GetReason(), s.GetStatus().GetProblems())
					}
					w.looks(6 * time.Minute)
				}
				confirms()
				w.looks(5 * time.Second)
				if w.state() != catalog.Applied {
					t.Errorf("confirmed, and it is %s", w.state())
				}
			})
		})
	}
}

// Servers that are behind by something else each answer a call in turn: the looks that it asks for end.
func TestCallAboutAnotherStateEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := followsSecond(t)
		f.source.each = func(b *branch, n int) {
			hour := 10 + n%2
			b.ref, b.when, b.files = fmt.Sprint("main@sha1:", hour), time.Date(2026, 3, 10, hour, 0, 0, 0, time.UTC), map[string]string{"a.yaml": strings.Replace(b.files["a.yaml"], "text: ", "text: a", 1)}
		}
		before := f.source.fetches()
		f.Called(shop)
		f.lives(time.Hour)
		f.has(1, "2")
		if n := f.source.fetches() - before; n > 16 {
			t.Errorf("%d looks in an hour", n)
		}
	})
}

// A catalog that a person put while its source was away is looked at for that when it is back, and takes what it has as it comes.
func TestPutWhileTheSourceIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.looks(time.Minute)
		w.source.moves("2", 12)
		w.looks(6 * time.Minute)
		w.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		w.says(2, false)
		w.looks(time.Minute)
		w.source.err = nil
		w.source.moves("0", 11)
		for before := len(w.source.asked); len(w.source.asked) == before; {
			w.looks(time.Minute)
		}
		if s, _ := w.CatalogSeen(w.ref); s.GetStatus().GetAppliedRef() != w.source.ref {
			t.Errorf("it is %s %s, of %s", s.GetStatus().GetState(), s.GetStatus().GetReason(), s.GetStatus().GetAppliedRef())
		}
	})
}
