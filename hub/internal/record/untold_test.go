package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// An agent has a minute to tell what its cluster can do, and not a minute more with each session.
func TestSessionsThatBreakGiveNoMoreTimeToTell(t *testing.T) {
	now, features := time.Unix(1_000_000, 0), []string{wire.FeatureCapabilities}
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	for name, tc := range map[string]struct {
		before *storev1.SessionRecord
		left   time.Duration
	}{
		"the first session":                                 {nil, time.Minute},
		"the one before ended a moment ago":                 {&storev1.SessionRecord{Epoch: 4, Untold: ago(50 * time.Second), Ended: ago(time.Second), Features: features}, 10 * time.Second},
		"so did the others, for longer":                     {&storev1.SessionRecord{Epoch: 4, Untold: ago(5 * time.Minute), Ended: ago(time.Second), Features: features}, 0},
		"it was away for most of it":                        {&storev1.SessionRecord{Epoch: 4, Untold: ago(70 * time.Second), Ended: ago(40 * time.Second), Features: features}, 5 * time.Second},
		"so did the others, for two minutes":                {&storev1.SessionRecord{Epoch: 4, Untold: ago(118 * time.Second), Ended: ago(time.Second), Features: features}, 0},
		"the hub has not noticed yet that it ended":         {&storev1.SessionRecord{Epoch: 4, Untold: ago(5 * time.Minute), Features: features}, 0},
		"the agent was away":                                {&storev1.SessionRecord{Epoch: 4, Untold: ago(5 * time.Minute), Ended: ago(2 * time.Minute), Features: features}, time.Minute},
		"that was hours ago":                                {&storev1.SessionRecord{Epoch: 4, Untold: ago(3 * time.Hour), Features: features}, time.Minute},
		"the agent was of before it could tell":             {&storev1.SessionRecord{Epoch: 4, Untold: ago(5 * time.Minute), Ended: ago(time.Second)}, time.Minute},
		"another cluster has joined":                        {&storev1.SessionRecord{Epoch: 4, VoidBefore: 4, Untold: ago(5 * time.Minute), Ended: ago(time.Second), Features: features}, time.Minute},
		"the record is of before this was kept":             {&storev1.SessionRecord{Epoch: 4, Ended: ago(time.Second), Features: features}, time.Minute},
		"the clock was set back by more than it has lasted": {&storev1.SessionRecord{Epoch: 4, Untold: ago(-time.Hour), Ended: ago(-time.Hour), Features: features}, time.Minute},
	} {
		s := &storev1.SessionRecord{Started: timestamppb.New(now), Features: features, Untold: UntoldSince(tc.before, now)}
		if err := storetest.New(t).View(t.Context(), 0, func(r store.Reader) error {
			want := rollout.Instant(0)
			if tc.left > 0 {
				want = rollout.At(now.Add(tc.left))
			}
			v := View{now: now, asking: map[int64]bool{2: true}}
			if got := v.untold(r, &rollouts.Run{Plan: &rollout.Plan{Revision: 2}}, "a", s); got != want {
				t.Errorf("%s: it is waited for until %v, want %v", name, got, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// It is waited for because of any revision that the rollout may give the cluster: its own, the one before, and the one that a person has it
// go back to.
func TestRevisionsForWhichItIsWaited(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := &storev1.SessionRecord{Started: timestamppb.New(now), Features: []string{wire.FeatureCapabilities}}
	back := rollout.State{Head: rollout.Head{Back: &rollout.Back{To: 3}}}
	for name, tc := range map[string]struct {
		state rollout.State
		asks  int64
		waits bool
	}{
		"none asks":                   {state: back},
		"its own":                     {asks: 9, waits: true},
		"the one before":              {asks: 8, waits: true},
		"where it goes back to":       {state: back, asks: 3, waits: true},
		"where it does not, asks":     {asks: 3},
		"its own, while it goes back": {state: back, asks: 9, waits: true},
	} {
		if err := storetest.New(t).View(t.Context(), 0, func(r store.Reader) error {
			v := View{now: now, asking: map[int64]bool{3: false, 8: false, 9: false, tc.asks: tc.asks != 0}}
			if got := v.untold(r, &rollouts.Run{Plan: &rollout.Plan{Revision: 9, From: 8}, State: tc.state}, "a", s); got != 0 != tc.waits {
				t.Errorf("%s: until %v", name, got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
