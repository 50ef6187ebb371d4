package rollout

// Succession is what becomes of a change that is put while a rollout runs.
type Succession string

// What becomes of it.
const (
	// StartNow: it starts when it is rendered. The running rollout is told by Module.Successor (see Close) and ends as
	// Superseded in the transaction that starts the new one.
	StartNow Succession = "StartNow"
	// StartLater: it waits until the running one has ended. A newer change takes its place in the queue.
	StartLater Succession = "StartLater"
	// Refused: it is not taken.
	Refused Succession = "Refused"
)

// Succeed decides by onSupersede of the strategy of the rollout that runs, not by that of the change.
func Succeed(onSupersede string) Succession {
	switch onSupersede {
	case SupersedeReject:
		return Refused
	case SupersedeQueue:
		return StartLater
	}
	return StartNow
}
