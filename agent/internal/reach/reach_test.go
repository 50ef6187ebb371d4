package reach

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/pkg/fleet"
)

// eyes are watches that are behind until they are said not to be.
type eyes struct {
	behind  atomic.Bool
	reached atomic.Int64
}

func (e *eyes) Behind() bool { return e.behind.Load() }
func (e *eyes) Reached()     { e.reached.Add(1) }

// world is a monitor in virtual time.
type world struct {
	*Monitor
	eyes
	conditions *report.Conditions
	heardAt    time.Time
}

func run(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{conditions: report.NewConditions()}
		w.Monitor = New(Options{Conditions: w.conditions})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx, &w.eyes) }()
		synctest.Wait()
		fn(w)
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// beats has the server heard, or not, for a time.
func (w *world) beats(d time.Duration, err error) {
	for range d / (4 * time.Second) {
		<-time.After(4 * time.Second)
		w.Heard(err)
		if err == nil {
			w.heardAt = time.Now()
		}
	}
	synctest.Wait()
}

func (w *world) condition(t *testing.T) fleet.Condition {
	t.Helper()
	all := w.conditions.All()
	if len(all) != 1 || w.Reachable() {
		t.Fatalf("conditions %+v, reachable %v", all, w.Reachable())
	}
	return all[0]
}

var errRefused = errors.New("connection refused")

func TestDeadServerIsToldWithinHalfAMinuteAndSoIsItsReturn(t *testing.T) {
	run(t, func(w *world) {
		w.beats(time.Hour, nil)
		w.beats(24*time.Second, &url.Error{Op: "Put", URL: "https://x", Err: errRefused})
		if !w.Reachable() || len(w.conditions.All()) != 0 {
			t.Errorf("after 24 s: %+v", w.conditions.All())
		}
		w.beats(4*time.Second, errRefused)
		c := w.condition(t)
		if c.Type != fleet.ConditionAPIServerReachable || c.Status != fleet.ConditionFalse || c.Reason != "NotReached" ||
			c.Message != "the API server is not reached: connection refused" || !c.Since.Equal(w.heardAt) {
			t.Errorf("condition %+v", c)
		}
		w.behind.Store(true)
		w.beats(8*time.Second, nil)
		w.condition(t) // what is known of the cluster is still old
		w.behind.Store(false)
		<-time.After(settlePoll + settleTime)
		synctest.Wait()
		if !w.Reachable() || len(w.conditions.All()) != 0 || w.reached.Load() != 1 {
			t.Errorf("heard again: %+v, %d times reached", w.conditions.All(), w.reached.Load())
		}
		w.beats(time.Hour, nil)
		if w.reached.Load() != 1 {
			t.Errorf("reached %d times", w.reached.Load())
		}
	})
}

func TestHungServerIsToldThoughNoRequestFails(t *testing.T) {
	run(t, func(w *world) {
		<-time.After(26 * time.Second)
		synctest.Wait()
		if c := w.condition(t); c.Reason != "NoAnswer" {
			t.Errorf("condition %+v", c)
		}
	})
}

func TestHiccupsAreNoCondition(t *testing.T) {
	run(t, func(w *world) {
		for range 20 {
			w.beats(20*time.Second, apierrors.NewTimeoutError("leader changed", 0))
			w.beats(4*time.Second, nil)
			if !w.Reachable() {
				t.Fatalf("conditions %+v", w.conditions.All())
			}
		}
	})
}

func TestWatchesThatDoNotReturnDoNotKeepTheClusterUnseen(t *testing.T) {
	run(t, func(w *world) {
		w.beats(28*time.Second, errRefused)
		w.condition(t)
		w.behind.Store(true)
		w.beats(20*time.Second, nil)
		if !w.Reachable() {
			t.Errorf("conditions %+v", w.conditions.All())
		}
	})
}

func TestServerThatGoesAgainWhileItReturnsIsNotSeen(t *testing.T) {
	run(t, func(w *world) {
		w.beats(28*time.Second, errRefused)
		w.behind.Store(true)
		w.beats(4*time.Second, nil)
		w.beats(60*time.Second, errRefused)
		w.condition(t)
		w.behind.Store(false)
		w.beats(8*time.Second, nil)
		if !w.Reachable() {
			t.Errorf("conditions %+v", w.conditions.All())
		}
	})
}

// Why the cluster is not seen may be another thing later: one that hung refuses the agent when it is back.
func TestReasonIsThatOfNow(t *testing.T) {
	run(t, func(w *world) {
		w.beats(4*time.Second, nil)
		w.beats(28*time.Second, &url.Error{Err: context.DeadlineExceeded})
		if c := w.condition(t); c.Reason != "NoAnswer" {
			t.Errorf("condition %+v", c)
		}
		w.beats(time.Minute, apierrors.NewUnauthorized("the token is not known"))
		if c := w.condition(t); c.Reason != "Refused" || !strings.Contains(c.Message, "the token is not known") || !c.Since.Equal(w.heardAt) {
			t.Errorf("condition %+v", c)
		}
		w.beats(8*time.Second, nil)
		if !w.Reachable() || len(w.conditions.All()) != 0 {
			t.Errorf("heard again: %+v", w.conditions.All())
		}
	})
}

func TestReasons(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	for _, tt := range []struct {
		fault  error
		reason string
		says   string
	}{
		{nil, "NoAnswer", "in time"},
		{&url.Error{Err: context.DeadlineExceeded}, "NoAnswer", "in time"},
		{errRefused, "NotReached", "connection refused"},
		{apierrors.NewForbidden(leases, "towline-agent", errors.New("no role")), "Refused", "no role"},
		{apierrors.NewServiceUnavailable("etcdserver: no leader"), "Unavailable", "no leader"},
	} {
		if c := describe(tt.fault); c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
			t.Errorf("%v: %+v", tt.fault, c)
		}
	}
}

// An outage that is too short to count as one ends: whoever waits to write again is told, and nobody is where nothing had failed.
func TestEndOfAShortOutageIsTold(t *testing.T) {
	run(t, func(w *world) {
		told := func() bool {
			select {
			case <-w.Again():
				return true
			default:
				return false
			}
		}
		w.beats(8*time.Second, nil)
		if told() {
			t.Error("told without an outage")
		}
		w.beats(8*time.Second, errors.New("connection refused"))
		if told() {
			t.Error("told before its end")
		}
		w.beats(8*time.Second, nil)
		if !w.Reachable() || !told() || told() {
			t.Error("the end is not told once, or the cluster counted as not reached")
		}
	})
}
