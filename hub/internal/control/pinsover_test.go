package control

import (
	"testing"
	"time"

	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestPinThatIsOverKeepsNothingBack: a rollout that has failed decides nothing any more, so a pin whose time is over stays in its head; nobody is told
// to unpin what is not pinned.
func TestPinThatIsOverKeepsNothingBack(t *testing.T) {
	l := newLeader(t)
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	plan := rollout.Plan{ID: fleet.RolloutID{Module: shop, Number: 1}, Revision: 1}
	head, err := rollout.EncodeHead(&plan, &rollout.State{Head: rollout.Head{State: rollout.Failed, Pins: []rollout.Pin{
		{Cluster: "a", Until: rollout.At(now.Add(time.Hour))}, {Cluster: "b"}}}})
	l.must(err)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		ro := rolloutRecord(1, string(rollout.Failed))
		ro.Head = head
		w.Put(store.RolloutKey(shop, 1), ro)
	})
	l.read(func(r store.Reader) {
		for _, at := range []struct {
			time time.Time
			want int
		}{{now, 2}, {now.Add(time.Hour), 1}} {
			if got := rollouts.StandingPins(r, shop, at.time); len(got) != at.want {
				t.Errorf("at %s: %v, want %d", at.time, got, at.want)
			}
			x := withholder{r: r, ref: shop, now: at.time}
			if x.pinned("a") != (at.want == 2) || !x.pinned("b") {
				t.Errorf("at %s: a is pinned: %v, b: %v", at.time, x.pinned("a"), x.pinned("b"))
			}
		}
	})
}
