package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// sighted is a kind whose lists and watches do what the test says.
type sighted struct {
	*Watcher
	*kind
	lw     *cache.ListWatch
	refuse error
	noList error // lists alone are refused
	told   atomic.Int64
}

func newSighted(reachable func() bool) *sighted {
	s := &sighted{kind: newKind()}
	s.users = 1
	s.Watcher = s.w
	s.o.Reachable, s.o.BlindAfter, s.o.Log = reachable, BlindAfter, quiet
	s.o.Synced = func(apply.Resource) { s.told.Add(1) }
	s.o.Changed = func(fleet.ObjectID, string) {}
	s.o.Gone = func(fleet.ObjectID, string, plan.Outcome) {}
	s.kinds = map[apply.Resource]*kind{s.resource: s.kind}
	s.lw = s.observed(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &itemList{}, cmp.Or(s.noList, s.refuse)
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), s.refuse
		},
	})
	return s
}

func (s *sighted) open(initial bool) {
	o := metav1.ListOptions{}
	if initial {
		o.SendInitialEvents = &initial
	}
	_, _ = s.lw.WatchWithContext(context.Background(), o)
}

func TestKindWithoutAWatchIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSighted(nil)
		s.prints[Key{"n", "a"}], s.synced = &Fingerprint{Namespace: "n", Name: "a"}, true
		known := func() bool { _, ok := s.See(s.resource, "n", "a"); return ok }
		s.open(false)
		if s.Behind() || !known() {
			t.Error("a kind with a watch is behind, or not known")
		}
		s.refuse = errors.New("forbidden")
		s.open(false)
		if !s.Behind() || !known() {
			t.Error("a kind that just lost its watch is not behind, or not known any more")
		}
		<-time.After(BlindAfter - time.Second)
		s.open(false) // attempts change nothing
		<-time.After(2 * time.Second)
		synctest.Wait()
		if known() || s.Blind(s.resource) != s.refuse || s.told.Load() != 1 {
			t.Errorf("known %v because of %v, told %d times", known(), s.Blind(s.resource), s.told.Load())
		}
		s.refuse = nil
		s.open(true)
		if known() || !s.Behind() {
			t.Error("known before all was read")
		}
		_ = s.Replace(nil, "7")
		if _, ok := s.See(s.resource, "n", "a"); !ok || s.Behind() || s.Blind(s.resource) != nil || s.told.Load() != 2 {
			t.Errorf("known %v, told %d times", ok, s.told.Load())
		}
	})
}

// An attempt may fail after it was said that nothing is known of the kind: why is said then, and again when it is something else.
func TestWhyAKindIsNotKnownIsSaidWhenItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSighted(nil)
		defer s.end()
		s.attempt() // and no answer comes
		<-time.After(BlindAfter + time.Second)
		synctest.Wait()
		if s.Blind(s.resource) == nil || s.told.Load() != 1 {
			t.Fatalf("blind because of %v, told %d times", s.Blind(s.resource), s.told.Load())
		}
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no right"))
		for i, why := range []error{forbidden, errors.New("connection refused")} {
			for range 2 { // it is said once
				s.refuse = why
				s.open(false)
			}
			if s.Blind(s.resource) != why || s.told.Load() != int64(2+i) {
				t.Errorf("blind because of %v, told %d times", s.Blind(s.resource), s.told.Load())
			}
		}
	})
}

// While the whole API server is not reached that is said of the cluster, and what was known of each kind stays.
func TestKindsOfAServerThatIsNotReachedStayAsTheyWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reached atomic.Bool
		s := newSighted(reached.Load)
		s.refuse = errors.New("connection refused")
		s.open(false)
		<-time.After(time.Hour)
		synctest.Wait()
		if s.Blind(s.resource) != nil || !s.Behind() {
			t.Errorf("blind: %v", s.Blind(s.resource))
		}
		reached.Store(true)
		<-time.After(blindAgain)
		synctest.Wait()
		if s.Blind(s.resource) == nil {
			t.Error("not blind though the server is reached")
		}
		s.end()
	})
}

// An API server ends the watches of a kind whose definition changes. What it shows of the objects after that may be
// another thing without a new version, so that only a list tells.
func TestWatchThatWasCutShortIsFollowedByAList(t *testing.T) {
	const asked = 300
	for _, tt := range []struct {
		name, group string
		after       time.Duration
		list        bool
	}{
		{"cut short, of a kind with a definition", "example.com", time.Minute, true},
		{"at its time", "example.com", asked * time.Second, false},
		{"cut short, of a kind that every cluster has", "apps", time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSighted(nil)
				defer s.end()
				s.resource.Group = tt.group
				initial, timeout := true, int64(asked)
				for _, o := range []metav1.ListOptions{{SendInitialEvents: &initial, TimeoutSeconds: &timeout}, {TimeoutSeconds: &timeout}} {
					if o.SendInitialEvents == nil { // a list, and the watch that belongs to it
						_, _ = s.lw.ListWithContextFunc(context.Background(), metav1.ListOptions{})
					}
					if _, err := s.lw.WatchWithContext(context.Background(), o); err != nil {
						t.Fatal(err)
					}
					_ = s.Replace(nil, "7")
					<-time.After(tt.after)
					_, err := s.lw.WatchWithContext(context.Background(), metav1.ListOptions{ResourceVersion: "9", TimeoutSeconds: &timeout})
					if apierrors.IsResourceExpired(err) != tt.list {
						t.Errorf("the next watch: %v; a list is wanted: %v", err, tt.list)
					}
				}
			})
		})
	}
}

// An event that an API server never sends is made up for by a list, which comes once in a while though every watch ends at its time.
func TestKindIsListedAnewOnceInAWhile(t *testing.T) {
	for _, initial := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSighted(nil)
			defer s.end()
			s.open(initial)
			_ = s.Replace(nil, "7")
			lists := 0
			for range 5 * 60 / 7 {
				<-time.After(7 * time.Minute)
				timeout := int64(420)
				_, err := s.lw.WatchWithContext(context.Background(), metav1.ListOptions{ResourceVersion: "9", TimeoutSeconds: &timeout})
				if apierrors.IsResourceExpired(err) {
					lists++
					s.open(initial)
					_ = s.Replace(nil, "9")
				}
			}
			if lists != 4 {
				t.Errorf("%d lists in five hours", lists)
			}
			<-time.After(2 * time.Hour)
			s.noList = errors.New("too many requests")
			if _, err := s.lw.WatchWithContext(context.Background(), metav1.ListOptions{ResourceVersion: "9"}); err != nil {
				t.Errorf("a watch that works is given up for a list that is refused: %v", err)
			}
		})
	}
}

func TestWatchThatHangsOnBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSighted(nil)
		s.attempt()
		<-time.After(BlindAfter)
		synctest.Wait()
		if !errors.Is(s.Blind(s.resource), context.DeadlineExceeded) {
			t.Errorf("blind: %v", s.Blind(s.resource))
		}
		s.end()
	})
}

// Why a kind is not watched is said to people in few words: the address that was asked is not among them.
func TestWhyAKindIsNotWatchedHasNoAddress(t *testing.T) {
	s := newSighted(nil)
	refused := errors.New("connection refused")
	s.refuse = &url.Error{Op: "Get", URL: "https://api.example.com/api/v1/configmaps?labelSelector=" + strings.Repeat("x", 300), Err: refused}
	s.open(false)
	s.judge()
	defer s.end()
	if why := s.Blind(s.resource); why != refused {
		t.Errorf("blind: %v", why)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// A kind of which a list takes so long that it may not be seen meanwhile is seldom listed anew while its watch works.
func TestKindThatIsLongToListIsSeldomListedAnew(t *testing.T) {
	for _, tc := range []struct {
		takes, after time.Duration
		anew         bool
	}{{time.Second, 2 * time.Hour, true}, {20 * time.Second, 2 * time.Hour, false}, {time.Minute, 23 * time.Hour, false}, {time.Minute, 25 * time.Hour, true}} {
		for _, initial := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := newSighted(nil)
				defer s.end()
				if initial {
					s.open(true)
				} else if _, err := s.lw.ListWithContext(context.Background(), metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				<-time.After(tc.takes)
				_ = s.Replace(nil, "7")
				<-time.After(tc.after)
				_, err := s.lw.WatchWithContext(context.Background(), metav1.ListOptions{ResourceVersion: "9"})
				if apierrors.IsResourceExpired(err) != tc.anew {
					t.Errorf("a list takes %s, and the watch after %s ends with %v", tc.takes, tc.after, err)
				}
			})
		}
	}
}

// What happened while no watch was open is not known before the next one has had the time to bring it. Nobody waits for that where it may never come.
func TestKindSettlesWhenItHasBeenHeard(t *testing.T) {
	away := errors.New("connection refused")
	unserved := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "", 0, true)
	for name, tc := range map[string]struct {
		refuse error         // of the attempts to open a watch again
		away   time.Duration // for how long there is none
		open   bool          // then there is
		want   time.Duration // for which it settles from then on
	}{
		"its watch ended in order":        {away: time.Millisecond, open: true, want: time.Millisecond},
		"it was away for a moment":        {refuse: away, away: 300 * time.Millisecond, open: true, want: 300 * time.Millisecond},
		"it was away for long":            {refuse: away, away: 20 * time.Second, open: true, want: catchUp},
		"it stays away":                   {refuse: away, away: time.Second, want: BlindAfter - time.Second},
		"it was away until it was unseen": {refuse: away, away: time.Minute},
		"it is not served":                {refuse: unserved, away: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSighted(nil)
				defer s.end()
				s.open(false)
				s.synced = true
				<-time.After(time.Minute)
				if s.settling() {
					t.Fatal("settles though it is watched")
				}
				s.refuse = tc.refuse
				s.attempt()
				if s.refuse != nil {
					s.open(false)
				}
				<-time.After(tc.away)
				if tc.open {
					s.refuse = nil
					s.open(false)
				}
				began := time.Now()
				for s.settling() && time.Since(began) < time.Hour {
					<-time.After(time.Millisecond)
				}
				if got := time.Since(began); got.Round(10*time.Millisecond) != tc.want.Round(10*time.Millisecond) {
					t.Errorf("settles for %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A server whose watches never last keeps nothing waiting.
func TestWatchesThatNeverLastSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSighted(nil)
		defer s.end()
		s.open(false)
		s.synced = true
		settles := 0
		for range 20 {
			<-time.After(100 * time.Millisecond)
			s.attempt()
			<-time.After(5 * time.Second)
			if s.settling() {
				settles++
			}
			s.open(false)
		}
		if settles != everBrief-1 {
			t.Errorf("settles %d times", settles)
		}
		<-time.After(time.Minute)
		s.attempt()
		if !s.settling() {
			t.Error("does not settle after a watch that lasted")
		}
	})
}
