package record

import (
	"errors"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Presence says whose agents are there. Rollouts are decided and explained by the same one.
type Presence struct {
	// Live reports that the cluster's agent has a live session with this hub.
	Live func(fleet.ClusterName) bool
	// Lost is when a session of the cluster's agent ended here last; zero, or a nil Lost: none did.
	Lost func(fleet.ClusterName) time.Time
	// Started is when this hub began to serve agents.
	Started time.Time
	// Grace is for how long agents are given time to come back before they count as away: after their session ended, and, if they had
	// one when the last hub stopped, after this one has started.
	Grace time.Duration
}

// Ends is when nobody is expected any more who has not been there since the hub started.
func (p Presence) Ends() time.Time { return p.Started.Add(p.Grace) }

// Connected tells whose agents are there, or are expected back.
func (p Presence) Connected(r store.Reader, now time.Time) func(fleet.ClusterName) bool {
	starting := now.Before(p.Ends())
	return func(name fleet.ClusterName) bool {
		return p.Live(name) || starting && p.expected(r, name) || p.leftLately(r, name, now)
	}
}

// leftLately reports that the agent's session ended a moment ago. Sessions break whenever the network does, and agents that are started
// anew are back soon: who passed them over at once would end a rollout without them.
func (p Presence) leftLately(r store.Reader, name fleet.ClusterName, now time.Time) bool {
	if p.Lost == nil {
		return false
	}
	if at := p.Lost(name); at.IsZero() || !now.Before(at.Add(p.Grace)) {
		return false
	}
	_, _, ok := store.Get[*storev1.SessionRecord](r, store.SessionKey(name)) // not that of a cluster which was forgotten
	return ok
}

// Expected reports that a cluster's agent is not there since the hub started, and is expected back.
func (p Presence) Expected(r store.Reader, name fleet.ClusterName, now time.Time) bool {
	return now.Before(p.Ends()) && !p.Live(name) && p.expected(r, name)
}

func (p Presence) expected(r store.Reader, name fleet.ClusterName) bool {
	s, _, ok := store.Get[*storev1.SessionRecord](r, store.SessionKey(name))
	return ok && (s.GetEnded() == nil || p.Started.Sub(s.GetEnded().AsTime()) < p.Grace)
}

// Over is the view of a run to which people said verbs: with the older placement, too, that counts, or may count after the next
// decision. One that counts has to be readable.
func (p Presence) Over(r store.Reader, now time.Time, run *rollouts.Run, verbs []rollout.Verb) (View, error) {
	m, _ := ModuleOf(r, run.Module, run.Record) // one that cannot be read places nobody anew
	v := p.View(r, now, m)
	to := run.State.MayNeed(run.Plan, verbs)
	if to == 0 {
		return v, nil
	}
	older, err := ModuleAt(r, run.Module, to)
	switch {
	case err == nil:
		v.Older, v.OlderRevision = older, to
	case run.State.PlacedBy() == to && !errors.Is(err, fleet.ErrNotFound):
		return View{}, err
	}
	return v, nil
}

// View is what observing a rollout that goes forward needs besides the store.
func (p Presence) View(r store.Reader, now time.Time, m *wire.Module) View {
	return View{Connected: p.Connected(r, now), Live: p.Live, Holds: ReadHolds(r, now), Module: m, neighbours: &neighbours{}, now: now, asking: map[int64]bool{}}
}
