package cli

import (
	"cmp"
	"fmt"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// The API gives codes with facts. All sentences that are made of them are made here and in the other say files; codes that
// are not known, such as those of an agent's objects, are said in the words that came with them.

// rolloutSays is why a rollout, or a stage that stands for the same reason, stands as it does; empty: there is nothing to say.
func (a *app) rolloutSays(reason string, f *v1.Facts) string {
	if said, waits := a.waitSays(reason, f); waits {
		return said
	}
	switch reason {
	case "":
		return leftOutSays(f)
	case rollout.ReasonModuleDeleted:
		return "the module is being deleted"
	case rollout.ReasonSuperseded:
		return f.GetRollout() + " took over"
	case rollout.ReasonExternal:
		return revision(f.GetRevision()) + " is cut; another program assigns it"
	case rollout.ReasonUnmatched:
		return "no stage takes " + someClusters(f) + "; add a stage without selector, or unmatched: Last"
	case rollout.ReasonFailures, rollout.ReasonGateFailed, rollout.ReasonRolledBackByUser, rollout.ReasonNoEarlierRevision, rollout.ReasonRollbackFailed:
		return a.failureSays(reason, f)
	case rollout.ReasonPausedByUser:
		return bySays("paused", f)
	case rollout.ReasonAbortedByUser:
		return bySays("aborted", f)
	case rollout.ReasonWentBack:
		return "rolled back"
	case rollout.ReasonNeedsStage:
		return "needs stage " + f.GetStage()
	case rollout.ReasonNotReached:
		return "not reached"
	case rollout.ReasonResolving:
		return "fetching and rendering the source"
	case rollout.ReasonDependentsFirst:
		return "stays in clusters of dependsOn until what depends on it there is gone everywhere: " + strings.Join(f.GetNames(), ", ")
	case rollout.ReasonSourcesAhead:
		return "begins when what it depends on has its revision: " + strings.Join(f.GetNames(), ", ") + "; towline rollout status says what is with that"
	case rollout.ReasonQueued:
		return "begins when " + f.GetRollout() + " has ended; or now: towline rollout abort " + f.GetRollout()
	case rollout.ReasonBehindPause:
		return "begins when " + f.GetRollout() + ", which somebody paused, goes on or has ended; nobody asked for this one"
	case rollout.ReasonPutsAhead:
		return "begins when the other modules that are put with it are in, and not at all if none comes for " + span(f.GetFor().AsDuration())
	case rollout.ReasonHubTrouble, rollout.ReasonStoreFull:
		return f.GetDetail() + "; it is tried again"
	case rollout.ReasonNeedsSecret:
		return "it goes on by itself when it has its secret: " + f.GetDetail()
	case rollout.ReasonSourceAway:
		return strings.Join(f.GetNames(), ", ") + " has not answered for " + span(f.GetFor().AsDuration()) + "; it is asked again, and the rollout goes on by itself when it does: " + f.GetDetail()
	case fleet.ReasonDamagedModule:
		return "the hub's record of the module is damaged; its clusters keep what they have. Put the module again (towline apply), or delete it"
	case fleet.ReasonDamagedRollout:
		return "the hub's record of it is damaged: it moves nothing any more, and its clusters keep what they have. Put the module again " +
			"(towline apply): that begins a new one; pins that were set since the one before have to be set again"
	}
	return f.GetDetail()
}

// waitSays is what a rollout waits for; false: the reason is none to wait for.
func (a *app) waitSays(reason string, f *v1.Facts) (said string, waits bool) {
	stage := "stage " + f.GetStage()
	switch reason {
	case rollout.ReasonApproval, rollout.ReasonWindow, rollout.ReasonWebhook, rollout.ReasonMetric, rollout.ReasonExpression,
		rollout.ReasonGateError, rollout.ReasonGateInconclusive:
		return gateName(f.GetGate(), f.GetPosition(), f.GetStage()) + ": " + a.gateSays(f), true
	case rollout.ReasonSoak:
		return stage + " soaks until " + a.clock(f.GetUntil()), true
	case rollout.ReasonNotYetHeard:
		return stage + " has soaked; how " + agree(f.GetCount(), "cluster stands", "clusters stand") + " now is still to be heard", true
	case rollout.ReasonEmptyStage:
		if f.GetCount() > 0 {
			return "no cluster of " + stage + " gets " + revision(f.GetRevision()) + ": " + agree(f.GetCount(), "cluster is", "clusters are") +
				" pinned, removed or to lose the module; label another, or promote, or set allowEmpty", true
		}
		return stage + " matches no cluster; label one, or promote, or set allowEmpty", true
	case rollout.ReasonEmptyOverride:
		return "no cluster is matched by " + strings.Join(f.GetNames(), ", ") + "; correct the selector, or promote, or set allowEmpty", true
	case rollout.ReasonAllDeferred:
		who, how := someClusters(f)+" deferred", "wait for one, or promote"
		switch f.GetFailed() {
		case 0:
		case f.GetCount():
			who, how = someClusters(f)+" failed, away or not heard", "retry one that is back, or promote"
		default:
			who, how = someClusters(f)+" deferred, or failed, away or not heard", "wait for one, retry one that is back, or promote"
		}
		return "no cluster of " + stage + " has shown that " + revision(f.GetRevision()) + " works: " + who + "; " + how, true
	case rollout.ReasonAllAway:
		return "nobody sees what " + revision(f.GetRevision()) + " does in " + stage + ": its " + agree(f.GetCount(), "cluster is", "clusters are") + " away, or held; wait for one, or promote", true
	case rollout.ReasonHeldUnready:
		who, have := someClusters(f), [2]string{" have ", ", are"}
		if f.GetStage() != "" {
			who += " of " + stage
		}
		if f.GetCount() == 1 {
			have = [2]string{" has ", ", is"}
		}
		return "no further stage begins: " + who + have[0] + revision(f.GetRevision()) + have[1] + " held and not ready with it; end the hold, or promote", true
	case rollout.ReasonOffline:
		return stage + " waits for " + agree(f.GetCount(), "cluster that is", "clusters that are") + " away", true
	case rollout.ReasonUnplaced:
		return "the placement of " + revision(f.GetRevision()) + " cannot be read, and clusters wait to leave by it; put the module again", true
	case rollout.ReasonAwaitingDependency:
		return setSays(f), true
	case rollout.ReasonAwaitingSource:
		return count(f.GetCount(), "cluster") + " would be left with nothing, unless a module comes there whose source is being fetched", true
	case rollout.ReasonRestored:
		return standsSays, true
	case rollout.ReasonConfirm:
		who := count(f.GetCount(), "cluster")
		if f.GetTotal() > 0 {
			who = number(f.GetCount()) + " of " + count(f.GetTotal(), "cluster")
		}
		return who + " would lose the module; a person must confirm that", true
	}
	return "", false
}

// standsSays is why nothing begins after a restore.
const standsSays = "the hub's store was restored from a backup, and nothing begins before all clusters were heard and none is ahead of it, or somebody says so; towline restore show"

// failureSays is about a rollout that failed, or goes back, or has gone back.
func (a *app) failureSays(reason string, f *v1.Facts) string {
	said := ""
	switch {
	case f.GetCode() == rollout.ReasonRestored:
		return standsSays
	case f.GetCode() == rollout.ReasonUnplaced:
		return "the placement of " + revision(f.GetRevision()) + " is to be read first"
	case f.GetGate() != "":
		said = gateName(f.GetGate(), f.GetPosition(), f.GetStage()) + " failed: " + a.gateSays(f)
	case reason == rollout.ReasonRollbackFailed:
		return number(f.GetCount()) + " of " + count(f.GetTotal(), "cluster") + " failed on the way back to " + revision(f.GetRevision())
	case f.GetTotal() > 0:
		of := count(f.GetTotal(), "cluster")
		if f.GetStage() != "" {
			of += " of stage " + f.GetStage()
		}
		said = fmt.Sprintf("%s of %s failed, %s tolerated", number(f.GetCount()), of, number(f.GetTolerated()))
	case f.GetRevision() > 0:
		return wentBackSays(f)
	case reason == rollout.ReasonRolledBackByUser:
		return bySays("rolled back", f)
	}
	switch {
	case reason != rollout.ReasonNoEarlierRevision:
	case f.GetRevision() > 0:
		said += "; " + revision(f.GetRevision()) + ", to which it would go back, is not kept any more"
	default:
		said += "; there is no earlier revision to roll back to"
	}
	return said
}

// wentBackSays is what became of a rollback. Who is still to go, as one that is away or held, may have what the others went back from; not so
// who is deferred otherwise, as one that never had it.
func wentBackSays(f *v1.Facts) string {
	moved := " moved back to "
	if f.GetToGo() > 0 {
		moved = " were to move back to "
		if f.GetCount() == 1 {
			moved = " was to move back to "
		}
	}
	said := count(f.GetCount(), "cluster") + moved + revision(f.GetRevision())
	if f.GetCode() == rollout.ScopeFailed {
		said += "; the others keep what they have"
	} else {
		said += "; the module stays there"
	}
	if left := leftOutSays(f); left != "" {
		said += "; " + left
	}
	return said
}

// leftOutSays is "3 deferred, 1 skipped".
func leftOutSays(f *v1.Facts) string {
	return tally(counted{f.GetDeferred(), "deferred"}, counted{f.GetSkipped(), "skipped"}, counted{f.GetFailed(), "failed"})
}

type counted struct {
	n    int32
	what string
}

// tally lists what there is at all.
func tally(all ...counted) string {
	var parts []string
	for _, x := range all {
		if x.n > 0 {
			parts = append(parts, number(x.n)+" "+x.what)
		}
	}
	return strings.Join(parts, ", ")
}

// bySays is "paused by ana: lunch".
func bySays(what string, f *v1.Facts) string {
	if f.GetBy() != "" {
		what += " by " + f.GetBy()
	}
	if f.GetDetail() != "" {
		what += ": " + f.GetDetail()
	}
	return what
}

// agree is "1 cluster is" or "3 clusters are".
func agree(n int32, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + more
}

// whatEndsIt is how the standstill of a rollout ends by itself, or that it does not.
func whatEndsIt(r *v1.Reason) string {
	f := r.GetFacts()
	failures := r.GetReason() == rollout.ReasonFailures || r.GetReason() == rollout.ReasonNoEarlierRevision || r.GetReason() == rollout.ReasonRollbackFailed
	switch {
	case r.GetBlocks() && failures && f.GetRemoved() > 0:
		return fmt.Sprintf("; %s that failed left, which mends nothing: it does not go on by itself", count(f.GetRemoved(), "cluster"))
	case r.GetBlocks() && failures && f.GetCode() == rollout.NotByItself:
		return "; it does not go on by itself: some were away when their turn came, and have nothing to get ready with"
	case r.GetBlocks() && failures && f.GetGate() == "":
		return "; it goes on by itself when enough of them are ready again"
	case !r.GetBlocks() && f.GetRevision() > 0 && f.GetTotal() == 0 && r.GetReason() != rollout.ReasonExternal:
		return " until it changes or somebody retries"
	}
	return ""
}

// someClusters names the first of some clusters.
func someClusters(f *v1.Facts) string {
	names := strings.Join(f.GetClusters(), ", ")
	if more := int(f.GetCount()) - len(f.GetClusters()); more > 0 {
		names += fmt.Sprintf(", %d more", more)
	}
	return names
}

// gateName is "gate approval after stage canary".
func gateName(gate, position, stage string) string {
	at := "before"
	if position == string(rollout.After) {
		at = "after"
	}
	return "gate " + gate + " " + at + " stage " + stage
}

// gateSays is why a gate stands as it does.
func (a *app) gateSays(f *v1.Facts) string {
	n, total, tolerated := number(f.GetCount()), number(f.GetTotal()), number(f.GetTolerated())
	switch f.GetCode() {
	case rollout.GateNotReached:
		return "not reached"
	case rollout.GateNoAnswer:
		return "asked, no answer yet"
	case rollout.GateAnswered:
		return cmp.Or(f.GetDetail(), "answered")
	case rollout.GateNotYet:
		return cmp.Or(f.GetDetail(), "does not hold yet")
	case rollout.GateApproving:
		return n + " of " + total + " approved" + notByStarter(f)
	case rollout.GateApproved:
		return "approved by " + strings.Join(f.GetNames(), ", ")
	case rollout.GateRejected:
		return bySays("rejected", f)
	case rollout.GateOverridden:
		return bySays("overridden", f)
	case rollout.GateOpen:
		return "open"
	case rollout.GateClosed:
		if f.GetUntil() == nil {
			return "closed, and it never opens"
		}
		return "closed; looked at again at " + a.clock(f.GetUntil())
	case rollout.GateMeasuring:
		if f.GetCount() == 0 {
			return cmp.Or(f.GetDetail(), "measuring")
		}
		return fmt.Sprintf("%s of %s measurements, %s failed", n, total, number(f.GetFailed()))
	case rollout.GateFailedTooOften:
		return fmt.Sprintf("%s of %s measurements failed, %s tolerated; last: %s", n, total, tolerated, f.GetDetail())
	case rollout.GateUnclearTooOften:
		return fmt.Sprintf("%s of %s measurements inconclusive, %s tolerated; last: %s", n, total, tolerated, f.GetDetail())
	case rollout.GateErrorTooOften:
		return fmt.Sprintf("%s errors in a row, %s tolerated; last: %s", n, tolerated, f.GetDetail())
	}
	return f.GetDetail()
}

func notByStarter(f *v1.Facts) string {
	if f.GetBy() == "" {
		return ""
	}
	return ", not by " + f.GetBy() + ", who started it"
}

// memberSays is why a cluster stands as it does in a rollout.
func (a *app) memberSays(state, reason string, f *v1.Facts) string {
	failed := state == stateFailed || state == stateTimedOut
	said := a.memberBecause(failed, reason, f)
	if f.GetCode() == rollout.ReasonWouldLeave {
		said += "; it would lose the module"
	}
	if failed && f.GetUntil() != nil {
		said = strings.TrimPrefix(said+"; ready again, counts as recovered at "+a.clock(f.GetUntil()), "; ")
	}
	return said
}

// pastSays is of a cluster with which its rollout is done, whatever becomes of it.
var pastSays = map[string]string{
	rollout.PassedBy:  "it was passed by, and this rollout moves no cluster any more",
	rollout.Overtaken: "so it stood when the rollout ended, which decides no more what becomes of it",
}

func (a *app) memberBecause(failed bool, reason string, f *v1.Facts) string {
	if said := pastSays[f.GetCode()]; said != "" {
		return said
	}
	switch reason {
	case rollout.ReasonCordoned:
		return "no new revisions until it is uncordoned"
	case rollout.ReasonHeld:
		return cmp.Or(f.GetDetail(), "the cluster, the module or one of its objects there is held, by a person or by the cluster's own policy")
	case rollout.ReasonDisconnected, rollout.ReasonNotSeen:
		return awayBecause(failed, f)
	case rollout.ReasonLocked:
		return lockedBecause(failed, f)
	case rollout.ReasonNotHeard:
		return cmp.Or(f.GetDetail(), "its agent is expected back: its session has just ended, or the hub has just started")
	case rollout.ReasonRestored:
		return "its time stands still: the hub's store was restored, and that is not settled"
	case rollout.ReasonRollingBack:
		return cmp.Or(f.GetDetail(), "on its way back")
	case rollout.ReasonAwaitingRollback:
		return "waits for its turn to go back to " + revision(f.GetRevision())
	case rollout.ReasonLeavingAfter:
		return "leaves when the rollback is over: " + revision(f.GetRevision()) + " does not place it"
	case rollout.ReasonWouldLeave:
		return "would lose the module"
	case rollout.ReasonAwaitingDependency:
		return setSays(f)
	case rollout.ReasonAwaitingSource:
		return "would be left with nothing, unless a module comes whose source is being fetched"
	case rollout.ReasonLeaving:
		return cmp.Or(f.GetDetail(), "the module is taken from it")
	case rollout.ReasonGone:
		return "it is no cluster of the fleet any more"
	case rollout.ReasonJoined:
		return "joined stage " + f.GetStage()
	case rollout.ReasonTimedOut:
		said := "not ready in time"
		if f.GetFor() != nil {
			said = "not ready within " + f.GetFor().AsDuration().String()
		}
		if f.GetDetail() != "" {
			said += ": " + f.GetDetail()
		}
		return said
	case rollout.ReasonReady:
		return "ready; counts at " + a.clock(f.GetUntil())
	case rollout.ReasonNotReady:
		return cmp.Or(f.GetDetail(), "assigned, not ready yet")
	case rollout.ReasonRegressed:
		return cmp.Or(f.GetDetail(), "it was ready, and is not any more")
	case rollout.ReasonSkipped:
		return bySays("skipped", f)
	case rollout.ReasonPinned:
		return bySays("pinned", f)
	case rollout.SimFails:
		return "fails in this simulation"
	}
	return f.GetDetail()
}

// lockedBecause is why a member does not move whose cluster is locked.
func lockedBecause(failed bool, f *v1.Facts) string {
	switch {
	case f.GetCode() == rollout.ReasonAwaited:
		return "its turn has come, and it is locked; it is waited for"
	case failed:
		return "it was locked when it was to move"
	case f.GetRevision() > 0:
		return "it is locked, with the revision assigned; goes on when it is unlocked, through the same checks"
	}
	return "it is locked; moves when it is unlocked, through the same checks"
}

// awayBecause is what being away means for a cluster in a rollout.
func awayBecause(failed bool, f *v1.Facts) string {
	assigned := f.GetRevision() > 0
	switch {
	case f.GetCode() == rollout.NotJoined:
		return neverThere(failed, f)
	case f.GetCode() == rollout.ReasonAwaited:
		return "its turn has come; it is waited for"
	case f.GetDetail() != "":
		return f.GetDetail()
	case failed && assigned:
		return "it went away on its way"
	case failed:
		return "it was away when its turn came"
	case assigned:
		return "it has the revision assigned; goes on when it is back, through the same checks"
	}
	return "moves when it is back, through the same checks"
}

// neverThere is said of a cluster to which nothing can go, for it has no agent yet.
func neverThere(failed bool, f *v1.Facts) string {
	said := "no agent of it has ever connected; moves when one has, through the same checks: "
	if failed {
		said = "no agent of it had ever connected when its turn came; to have one: "
	}
	return said + joinAnew(strings.Join(f.GetClusters(), ""))
}

// span of a soak, such as 5m.
func soakSpan(f *v1.Facts) string { return span(f.GetFor().AsDuration()) }

// simSays is a line of a simulation: a step, a transition with why, or what a simulation takes for granted.
func (a *app) simSays(e *rollout.SimEvent) string {
	f := wire.FactsToProto(e.Facts)
	switch e.Reason {
	case rollout.SimConfirmed:
		return count(f.GetCount(), "cluster") + " must be confirmed: the module would leave them; taken as confirmed"
	case rollout.SimAssign:
		return count(f.GetCount(), "cluster") + " to " + revision(f.GetRevision())
	case rollout.SimTake:
		return agree(f.GetCount(), "cluster loses", "clusters lose") + " the module"
	}
	said := ""
	switch e.Subject.Kind {
	case rollout.AboutGate:
		said = a.gateSays(f)
	case rollout.AboutClusters:
		said = reasoned(e.Reason, a.memberSays(e.To, e.Reason, f))
	default:
		said = reasoned(e.Reason, a.rolloutSays(e.Reason, f))
	}
	return strings.TrimSuffix(e.From+" → "+e.To+": "+said, ": ")
}

// reasoned is a code with its sentence.
func reasoned(reason, said string) string {
	return strings.TrimPrefix(strings.TrimSuffix(reason+": "+said, ": "), ": ")
}
