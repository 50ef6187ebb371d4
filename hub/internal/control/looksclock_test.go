package control

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/testkit/steptest"
)

// A source is looked at in its interval, neither all the time nor never, when the clock of the hub is put back an hour, or that of the hub which
// led before, or which took the put, was ahead.
func TestSourcesAreLookedAtByAClockThatWasAhead(t *testing.T) {
	const interval = 5 * time.Minute
	led := time.Now()
	for name, c := range map[string]struct {
		back        time.Duration // by how much the clock was put back, ten minutes after the hub began to lead
		looked, put time.Duration // from now
	}{
		"this clock was ahead, and it has looked since":   {back: time.Hour, looked: -time.Second, put: time.Hour - interval},
		"this clock was ahead, and it has not looked":     {back: time.Hour, looked: time.Hour - time.Minute, put: time.Hour - interval},
		"the clock of the hub before was ahead":           {looked: time.Hour - time.Minute, put: -time.Hour},
		"that of the hub with the put was a year ahead":   {looked: -time.Second, put: 365 * 24 * time.Hour},
		"no clock was ahead":                              {looked: -time.Second, put: -time.Hour},
		"no clock was ahead, and it has not looked since": {looked: -time.Hour, put: -time.Hour},
	} {
		at := func(after time.Duration) time.Time { return steptest.Clocks(led.Add(10*time.Minute+after), -c.back) }
		now := at(0)
		looked, put := timestamppb.New(now.Add(c.looked)), timestamppb.New(now.Add(c.put))
		plan := follow.Plan{Interval: interval}
		x := &looks{}
		x.begin(led)
		next := map[string]func(after time.Duration) time.Time{
			"module": func(after time.Duration) time.Time {
				return x.schedule(fleet.ModuleRef{Project: "p", Name: "m"}, &storev1.ModuleRecord{}, plan, &storev1.FollowRecord{Looked: looked}, put.AsTime(), at(after))
			},
			"catalog": func(after time.Duration) time.Time {
				return catalogMemory{uid: "u", plan: &plan, state: &storev1.CatalogState{Status: &towlinev1.CatalogStatus{Looked: looked}}}.next(at(after), led)
			},
		}
		for kind, next := range next {
			if due := next(0); c.looked == -time.Second && due.Sub(now) < interval/2 {
				t.Errorf("%s, %s: it was looked at a second ago, and is again in %v", name, kind, due.Sub(now))
			}
			if after := interval + interval/5; next(after).After(at(after)) {
				t.Errorf("%s, %s: it is not looked at within %v, but in %v", name, kind, after, next(after).Sub(at(after)))
			}
		}
	}
}
