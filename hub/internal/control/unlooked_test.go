package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A look for which another module waits is stored whatever it finds, and lets that go on; what it begins nobody outside asked for. One that a
// webhook asks for is stored when it finds something.
func TestLookThatAnotherModuleAwaitsIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(6 * time.Minute)
		f.lives(20 * time.Second)
		_, before := f.stored()
		f.call(shop, true)
		f.lives(20 * time.Second)
		if rec, mod := f.stored(); mod != before {
			t.Errorf("a webhook had a look stored that found nothing: %v", rec)
		}
		asked := time.Now()
		f.call(shop, false)
		f.lives(3 * time.Second)
		if rec, _ := f.stored(); rec.GetLooked().AsTime().Before(asked) {
			t.Errorf("stored is a look of %s before", asked.Sub(rec.GetLooked().AsTime()))
		}
		f.lives(20 * time.Second)
		f.source.at("2", "two")
		f.call(shop, false)
		f.lives(3 * time.Second)
		if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByFollow {
			t.Errorf("begun %v", f.begun)
		}
	})
}

// A call whose look comes to nothing for the hub's own trouble is not forgotten.
func TestCallOutlastsTheHubsOwnTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(20 * time.Second)
		f.source.at("2", "two")
		troubles := 2
		f.o.News = func(ctx context.Context, list []record.News) ([]int64, error) {
			if troubles--; troubles >= 0 {
				return nil, fleet.Errorf(fleet.ErrUnavailable, "no member answers")
			}
			return f.news(ctx, list)
		}
		f.Called(shop)
		f.lives(time.Minute)
		if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByWebhook {
			t.Errorf("begun %v, with %d troubles to come", f.begun, troubles)
		}
	})
}

// A call whose look comes to nothing for what may pass is not forgotten: the server of the source is away for a moment, what is called about is not there
// yet, or what runs is in the way. It is looked at again before the interval is over, ever more rarely, and that ends with what was in the way.
func TestCallOutlastsWhatMayPass(t *testing.T) {
	for name, blocks := range map[string]func(f *follower, is bool){
		"away": func(f *follower, is bool) {
			if f.source.err = nil; is {
				f.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
			}
		},
		"refused": func(f *follower, is bool) {
			if f.refuse = nil; is {
				f.refuse = fleet.Errorf(fleet.ErrPrecondition, "not now")
			}
		},
	} {
		for _, lasts := range []time.Duration{5 * time.Second, 2 * time.Hour} {
			t.Run(fmt.Sprint(name, " for ", lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFollower(t)
					rec := f.module(1)
					rec.Module.Spec.Source.Follow.Interval = "24h"
					f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
					f.end(1, rollout.Succeeded)
					f.lives(time.Minute)
					looks := len(f.source.asked)
					f.source.at("2", "two")
					blocks(f, true)
					if err := f.Called(shop); err != nil {
						t.Fatal(err)
					}
					f.lives(lasts)
					if n := len(f.source.asked) - looks; n < 1 || n > 20 {
						t.Errorf("%d looks", n)
					}
					blocks(f, false)
					f.lives(min(16*time.Minute, 4*lasts))
					if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByWebhook {
						t.Fatalf("begun %v", f.begun)
					}
					f.end(2, rollout.Succeeded)
					looks = len(f.source.asked)
					f.lives(2 * time.Hour)
					if n := len(f.source.asked) - looks; n > 1 {
						t.Errorf("%d looks when it was over", n)
					}
				})
			})
		}
	}
}

// A call from outside does not wait for one that another module has set for later, nor is it lost without a word where nobody looks.
func TestCallDoesNotWaitForALaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(20 * time.Second)
		f.source.at("2", "two")
		f.callAt(shop, time.Now().Add(5*time.Minute), false)
		if err := f.Called(shop); err != nil {
			t.Error(err)
		}
		f.lives(5 * time.Second)
		if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByWebhook {
			t.Errorf("begun %v", f.begun)
		}
		f.looks.end()
		f.catalogs.end()
		if err := f.Called(shop); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("a module's, where nobody looks: %v", err)
		}
		if err := f.CatalogCalled(shop); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("a catalog's, where nobody looks: %v", err)
		}
	})
}

// newsOfAll begins rollouts of others, too, of which nothing comes.
func (f *follower) newsOfAll(ctx context.Context, list []record.News) ([]int64, error) {
	numbers := make([]int64, len(list))
	for i, n := range list {
		numbers[i] = n.Rollout + 1
		if n.Module != shop {
			f.begun = append(f.begun, n)
			continue
		}
		if _, err := f.news(ctx, list[i:i+1]); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// A branch that moves whenever it is looked at holds nobody up: a module begins without those of its source that have something newer, of
// which nothing is noted before they are looked at themselves.
func TestBranchThatAlwaysMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		others := f.siblings(3, "shop")
		f.o.News = f.newsOfAll
		f.source.each = func(b *branch, n int) { b.at(fmt.Sprint("c", n), fmt.Sprint("t", n)) }
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 || f.begun[0].Module != shop {
			t.Fatalf("begun %v", f.begun)
		}
		for _, ref := range others {
			if memory, _ := f.Followed(ref); memory != nil {
				t.Errorf("%s: %v", ref, memory)
			}
		}
	})
}
