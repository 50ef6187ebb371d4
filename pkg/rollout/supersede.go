package rollout

import "towline.dev/towline/pkg/fleet"

// Succession is what becomes of a new change while a rollout runs.
type Succession string

// What becomes of it.
const (
	// StartNow: no rollout runs, or the running one gives way.
	StartNow Succession = "StartNow"
	// StartLater: it waits until the running one has ended. A newer change takes its place in the queue.
	StartLater Succession = "StartLater"
)

// OnPut says whether a change may be put while a rollout runs. The running rollout's own strategy decides. p is nil if
// none runs.
func OnPut(p *Plan, s *State) (Succession, error) {
	if p == nil || s.State.Ended() {
		return StartNow, nil
	}
	switch p.Strategy.OnSupersede {
	case SupersedeReject:
		return "", fleet.Errorf(fleet.ErrPrecondition, "%s is %s and its strategy rejects changes until it has ended; abort it, or wait: towline rollout wait %s --id %d",
			p.ID, s.State, p.ID.Module.Display(), p.ID.Number)
	case SupersedeQueue:
		return StartLater, nil
	}
	return StartNow, nil
}

// OnRendered says whether a rollout whose revision is ready may start. With StartNow, the running one is told by
// Module.Successor and ends as Superseded in the transaction that starts the new one.
func OnRendered(p *Plan, s *State) Succession {
	if p == nil || s.State.Ended() || p.Strategy.OnSupersede == SupersedeReplace {
		return StartNow
	}
	return StartLater
}
