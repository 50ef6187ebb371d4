package rollout

// Verdict is what a cluster shows of what the rollout gave it.
type Verdict uint8

// Verdicts.
const (
	NotYet    Verdict = iota // it is heard, and is not there, or not any more
	Fine                     // it is where its move takes it
	Failing                  // it is heard, and says that it will not get there by itself
	Unwatched                // nobody can say: see Shown.Why
)

// Unseen is why nobody can say.
type Unseen uint8

// Why nobody can say.
const (
	UnseenNot     Unseen = iota // one that is no Unwatched
	UnseenHeld                  // nothing is written there, so that it stands still, for better or worse
	UnseenAway                  // it is not connected
	UnseenSilent                // its session has just ended, or the hub has just started
	UnseenUnheard               // its agent is back, and has not said how it stands
	UnseenStale                 // what is said there is not of what the rollout gave it
)

// Shown is the judgement of a cluster by what is observed of it.
type Shown struct {
	Verdict Verdict
	Why     Unseen
	// Reason of those that cannot get on by themselves, because they are held or away: the code for people; else empty.
	Reason string
}

// shows is what a cluster shows of what the rollout gave it last, by the record and what is observed now. Whatever asks whether a
// revision has shown itself in a cluster, or fails there, asks here, and says only what follows from the answer. It does not say whether
// a cluster that was given nothing yet can be given it: that is obstacle.
func shows(r *Record, o *Observed) Shown {
	switch reason := standstill(o); {
	case o.Connected && r.arrived(o):
		return Shown{Verdict: Fine}
	case reason == ReasonHeld:
		return Shown{Unwatched, UnseenHeld, reason}
	case reason != "":
		return Shown{Unwatched, UnseenAway, reason}
	case o.Silent:
		return Shown{Verdict: Unwatched, Why: UnseenSilent}
	case o.Unheard:
		return Shown{Verdict: Unwatched, Why: UnseenUnheard}
	case !r.mine(o):
		return Shown{Verdict: Unwatched, Why: UnseenStale}
	case o.Failed:
		return Shown{Verdict: Failing}
	}
	return Shown{Verdict: NotYet}
}

// heard reports that the cluster's agent is there, and nothing keeps the cluster where it is.
func (s Shown) heard() bool {
	return s.Verdict != Unwatched || s.Why == UnseenUnheard || s.Why == UnseenStale
}

// ill reports that the cluster is seen, and is not fine: who was fine before is that no more.
func (s Shown) ill() bool { return s.Verdict == NotYet || s.Verdict == Failing }

// mine reports that what is observed speaks of what the record says was assigned.
func (r *Record) mine(o *Observed) bool {
	return r.Generation != 0 && o.Generation >= r.Generation && o.Revision == r.Revision
}

// arrived reports that the member is where its move takes it. One that is to leave is not, however well it does with what it has.
func (r *Record) arrived(o *Observed) bool {
	if r.has(flagLeave) {
		return r.Revision == 0 && o.Removed && r.Generation != 0 && (o.Generation == 0 || o.Generation >= r.Generation)
	}
	return o.Ready && r.mine(o)
}

// standstill is why a member cannot get on by itself, whatever it was given: a cordon does not concern it then.
func standstill(o *Observed) (reason string) {
	switch {
	case o.Held:
		return ReasonHeld
	case !o.Connected:
		return away(o)
	}
	return ""
}

// obstacle is why a member cannot be given a revision now.
func obstacle(o *Observed) (reason string) {
	if o.Cordoned {
		return ReasonCordoned
	}
	return standstill(o)
}

// away is the reason of a member that is not connected.
func away(o *Observed) string {
	switch {
	case o.Locked:
		return ReasonLocked
	case o.NotSeen:
		return ReasonNotSeen
	}
	return ReasonDisconnected
}

func isAway(reason string) bool {
	return reason == ReasonDisconnected || reason == ReasonNotSeen || reason == ReasonLocked
}

// failedUnseen reports that a member which is to have the revision has failed, by being away or by its agent's silence, and what it does
// there nobody has seen.
func (r *Record) failedUnseen() bool {
	return (r.State == ClusterFailed && isAway(r.Reason) || r.State == ClusterTimedOut && r.has(flagUnseen)) && !r.has(flagLeave)
}
