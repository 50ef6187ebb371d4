package rollout

import "fmt"

// event is what happens to a member. The state and the marks of its record change by events only, as transitions says.
type event uint8

const (
	// While the rollout goes forward, and after its end.
	memberKept       event = iota // it is pinned before its turn came
	memberStageBegan              // its stage began: it waits for the target, no longer for the last succeeded revision
	memberOvertaken               // the same, on the way to the last succeeded revision
	memberFound                   // it has what it should already
	memberMoved                   // it is assigned what it should have, or its removal
	memberBehind                  // at the last succeeded revision, where it waits for its stage
	memberNoProof                 // it failed at the last succeeded revision, which says nothing of the new one
	memberMissed                  // it is away, and that is a failure
	memberPostponed               // it cannot be moved now
	memberAgain                   // the same, and it was moved before: it is to be assigned again
	memberStuck                   // it cannot get on by itself, or for another reason than before
	memberStill                   // it is awaited where it stands, without a clock
	memberHeard                   // it is heard again
	memberReady                   // it is ready, and has to stay so
	memberSucceeded
	memberFailed
	memberTimedOut
	memberTimedOutUnseen // the same, and its agent is there and has said nothing of what it was given
	memberShown          // who has timed out unseen has been seen, and is not fine
	memberRegressed      // it is not ready any more
	memberAccepted       // it has failed, and a person goes on in spite of that
	memberRecovered      // after a failure it has been ready for long enough: its success follows
	memberBack           // who was postponed can be moved
	memberBackIdle       // the same, and its rollout was aborted
	memberLeftAsIs       // the rollout is aborted before it was moved
	memberCatchesUp      // the rollout is over before its turn, and it has nothing of the module
	memberMissedAll      // the same, and it has failed by being away when its turn came
	memberOn             // who was moved, and then stuck, goes on
	memberSeen           // who was held, and let by, is held no more
	// Clusters that leave, come back or are forgotten.
	memberGone       // it is no cluster of the fleet any more
	memberRegistered // it is one again
	memberLeaves     // the placement does not select it any more
	memberLeavesLate // the same, after its stage began
	memberHadNothing // the same, and there is nothing to take from it
	memberLast       // when it has left, its cluster has nothing any more
	memberConfirmed  // a person confirmed that it may leave
	memberTaken      // another cluster has the name, of which nobody has confirmed that
	memberStays      // it is selected again
	memberLeft       // the module is removed there
	memberRestaged   // after the end its labels lead to another stage, which wants another revision
	// On the way back.
	memberToGoBack
	memberStopped      // on the way back it may not be given a revision now
	memberMovedBack    // it is assigned the old revision
	memberBackStuck    // the same, while it cannot get on by itself
	memberRolledBack   // it has the old revision
	memberCaughtBack   // after a rollback it catches up with that
	memberLeavesAtEnd  // after a rollback it is assigned its removal
	memberSettled      // after a rollback that it was no part of it has what it should
	memberNotBack      // the rollout is aborted before its turn to go back
	memberToGoBackLate // the rollback is over, and it is to go back after all
	// On a person's word.
	memberRetried
	memberRetriedFailed // the same, and it has failed
	memberStillFailed   // it can not begin anew now
	memberGiven         // again what the rollout gave it, which is lost
	memberTakenUp       // it was left out, and is to have what the others got
	memberSkipped       // it is left out
	memberPinned
	memberPinnedThere // where it is: it has its revision, or is on the way to it
	memberUnpinned
	memberUnpinnedIdle  // its rollout was aborted
	memberUnpinnedMoved // after it was moved: what it was assigned since is not known
	memberUnpinnedThere // where it is
	memberLetBy         // it is held, and no stage is to wait for it
)

// transition is what an event does: in which states a member may be for it, the state that it gets, and the marks that are
// set and cleared.
type transition struct {
	from       states
	to         ClusterState
	set, clear recordFlag
}

// stays is in the place of a state that does not change.
const stays ClusterState = 255

type states uint16

const (
	whileToApply  states = 1 << ClusterToApply // people may see it as Waiting
	whileFlying   states = 1<<ClusterProgressing | 1<<ClusterSoaking
	whileDone     states = 1 << ClusterSucceeded
	whileFailing  states = 1<<ClusterFailed | 1<<ClusterTimedOut
	whileDeferred states = 1 << ClusterDeferred
	whileSkipped  states = 1 << ClusterSkipped
	whileBack     states = 1 << ClusterRolledBack
	whileRemoved  states = 1 << ClusterRemoved
	whileThere    states = whileToApply | whileFlying | whileDone | whileFailing | whileDeferred | whileSkipped | whileBack
	always               = whileThere | whileRemoved
)

// transitions is the whole life of a member. One that is pinned never waits for its turn: where a state is ToApply it gets
// Skipped; only one that is on its way has a clock that stands still, and only one that stands where it is can be let by. Which event it is that happens is said by scan.go
// (what is observed), members.go (who belongs to the rollout), advance.go and rollback.go (who moves), and verbs_clusters.go
// (what people want).
var transitions = [...]transition{
	memberKept:           {from: whileToApply, to: ClusterSkipped},
	memberStageBegan:     {from: whileToApply, to: stays, clear: flagBaseline},
	memberOvertaken:      {from: whileFlying, to: ClusterToApply, clear: flagBaseline},
	memberFound:          {from: whileToApply, to: ClusterProgressing},
	memberMoved:          {from: whileToApply, to: ClusterProgressing, clear: flagRetry | flagAway | flagMayHave},
	memberBehind:         {from: whileFlying | whileFailing, to: ClusterToApply, clear: flagLate},
	memberNoProof:        {from: whileFlying, to: ClusterToApply},
	memberMissed:         {from: whileToApply | whileFlying, to: ClusterFailed},
	memberPostponed:      {from: whileToApply, to: ClusterDeferred},
	memberAgain:          {from: whileToApply, to: ClusterDeferred, set: flagRetry},
	memberStuck:          {from: whileFlying | whileDeferred, to: ClusterDeferred},
	memberStill:          {from: whileFlying, to: ClusterProgressing, set: flagAway},
	memberHeard:          {from: whileFlying, to: ClusterProgressing, clear: flagAway},
	memberReady:          {from: 1 << ClusterProgressing, to: ClusterSoaking},
	memberSucceeded:      {from: whileFlying | whileFailing, to: ClusterSucceeded, clear: flagLate}, // it has caught up
	memberFailed:         {from: whileFlying | whileDone, to: ClusterFailed},
	memberTimedOut:       {from: whileFlying, to: ClusterTimedOut},
	memberTimedOutUnseen: {from: whileFlying, to: ClusterTimedOut, set: flagUnseen},
	memberShown:          {from: 1 << ClusterTimedOut, to: stays, clear: flagUnseen},
	memberRegressed:      {from: 1<<ClusterSoaking | whileDone, to: ClusterProgressing},
	memberAccepted:       {from: whileFailing, to: stays, set: flagAccepted},
	memberRecovered:      {from: whileFailing, to: stays, clear: flagRetry},
	memberBack:           {from: whileDeferred, to: ClusterToApply, set: flagLate},
	memberBackIdle:       {from: whileDeferred, to: ClusterToApply},
	memberLeftAsIs:       {from: whileToApply | whileDeferred, to: stays, clear: flagLate},
	memberCatchesUp:      {from: whileToApply | whileDeferred, to: stays, set: flagLate, clear: flagBaseline},
	memberMissedAll:      {from: whileFailing, to: ClusterToApply, set: flagLate, clear: flagBaseline},
	memberOn:             {from: whileDeferred, to: ClusterProgressing, set: flagLate},
	memberSeen:           {from: whileDone | whileDeferred, to: stays, clear: flagLetBy},

	memberGone:       {from: always, to: ClusterRemoved},
	memberRegistered: {from: always, to: ClusterToApply, set: flagLate, clear: flagBack | flagBaseline | flagLeave | flagConfirmed | flagLast},
	memberLeaves:     {from: always, to: ClusterToApply, set: flagLeave, clear: flagBaseline | flagLast | flagConfirmed},
	memberLeavesLate: {from: always, to: ClusterToApply, set: flagLeave | flagLate, clear: flagBaseline | flagLast | flagConfirmed},
	memberHadNothing: {from: always, to: ClusterRemoved, set: flagLeave, clear: flagBaseline | flagLate},
	memberLast:       {from: whileThere, to: stays, set: flagLast},
	memberConfirmed:  {from: whileThere, to: stays, set: flagConfirmed},
	memberTaken:      {from: whileThere, to: stays, clear: flagConfirmed},
	memberStays:      {from: always, to: ClusterToApply, set: flagLate, clear: flagLeave | flagConfirmed | flagLast},
	memberLeft:       {from: whileFlying | whileFailing, to: ClusterRemoved},
	memberRestaged:   {from: whileToApply | whileDone | whileFailing | whileDeferred | whileBack, to: ClusterToApply, set: flagLate, clear: flagBaseline},

	memberToGoBack:     {from: always, to: stays, set: flagBack, clear: flagLate | flagRetry},
	memberStopped:      {from: always, to: ClusterDeferred},
	memberMovedBack:    {from: always, to: ClusterProgressing, clear: flagLeave | flagConfirmed | flagRetry | flagAway},
	memberBackStuck:    {from: always, to: ClusterDeferred, clear: flagLeave | flagConfirmed | flagRetry | flagAway | flagAnew},
	memberRolledBack:   {from: whileFlying | whileFailing, to: ClusterRolledBack, clear: flagBack | flagLate},
	memberCaughtBack:   {from: whileToApply, to: stays, set: flagBack},
	memberLeavesAtEnd:  {from: whileToApply, to: ClusterProgressing, clear: flagBack | flagRetry | flagAway},
	memberSettled:      {from: whileToApply, to: stays, clear: flagLate},
	memberNotBack:      {from: always, to: stays, clear: flagBack},
	memberToGoBackLate: {from: always, to: ClusterToApply, set: flagBack | flagLate, clear: flagRetry},

	memberRetried:       {from: always, to: ClusterToApply, set: flagRetry},
	memberRetriedFailed: {from: whileFailing, to: ClusterToApply, set: flagRetry | flagAnew},
	memberStillFailed:   {from: whileToApply | whileDeferred, to: ClusterFailed, clear: flagRetry},
	memberGiven:         {from: always, to: ClusterToApply, set: flagRetry | flagLate},
	memberTakenUp:       {from: whileSkipped, to: ClusterToApply, set: flagLate},
	memberSkipped:       {from: whileToApply | whileFlying | whileFailing | whileDeferred, to: ClusterSkipped, clear: flagRetry | flagLate | flagBaseline | flagBack},
	memberPinned:        {from: whileToApply | whileFailing | whileDeferred, to: ClusterSkipped, set: flagPinned, clear: flagBack | flagLate | flagRetry},
	memberPinnedThere:   {from: whileFlying | whileDone | whileSkipped | whileBack | whileRemoved, to: stays, set: flagPinned, clear: flagBack | flagLate | flagRetry},
	memberUnpinned:      {from: whileSkipped, to: ClusterToApply, set: flagLate, clear: flagPinned},
	memberUnpinnedIdle:  {from: whileSkipped, to: ClusterToApply, clear: flagPinned},
	memberUnpinnedMoved: {from: whileSkipped, to: ClusterToApply, set: flagLate | flagRetry, clear: flagPinned},
	memberUnpinnedThere: {from: always, to: stays, clear: flagPinned},
	memberLetBy:         {from: whileDone | whileDeferred, to: stays, set: flagLetBy},
}

// turn has an event happen to a member: its record, the counts and what people are told follow. message is in the words of
// its agent, or of the person who says so.
func (d *decider) turn(i int, e event, reason, message string) {
	t, r := &transitions[e], d.s.record(i)
	if !r.in(t.from) {
		d.out.odd = fmt.Sprintf("event %d of a member that is %s", e, r.State)
	}
	to, flags := t.to, r.flags&^t.clear|t.set
	switch {
	case to == stays:
		to, reason, message = r.State, r.Reason, r.Message
	case to == ClusterToApply && flags&flagPinned != 0:
		to, reason, message = ClusterSkipped, ReasonPinned, ""
	}
	if whileFlying&(1<<to) == 0 {
		flags &^= flagAway
	}
	if (whileDone|whileDeferred)&(1<<to) == 0 {
		flags &^= flagLetBy
	}
	if (whileToApply|whileDeferred)&(1<<to) == 0 {
		flags &^= flagAnew
	}
	if whileFailing&(1<<to) == 0 {
		flags &^= flagUnseen
	}
	if whileFailing&(1<<to) == 0 && flags&flagAnew == 0 { // the word was on that failure, and not on the next one
		flags &^= flagAccepted
	}
	message = clip(message)
	if r.State == to && r.Reason == reason && r.Message == message && r.flags == flags {
		return
	}
	r = d.edit(i)
	d.uncount(i, r)
	if r.State != to {
		d.out.Moves = append(d.out.Moves, Transition{Kind: OfCluster, Member: int32(i), Stage: r.Stage,
			From: r.State.String(), To: to.String(), Reason: reason, Facts: detail(message)})
		r.State, r.Since = to, d.now
		if to == ClusterFailed || to == ClusterTimedOut {
			r.ReadySince = 0 // from here it counts the recovery
		}
	}
	r.Reason, r.Message, r.flags = reason, message, flags
	d.recount(i, r)
}

func (r *Record) in(s states) bool { return s&(1<<r.State) != 0 }
