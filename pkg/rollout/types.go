package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Instant is a time in nanoseconds since 1970; 0 is none. Records hold Instants because they are small and have no
// pointer.
type Instant int64

// At is t as an Instant.
func At(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return Instant(t.UnixNano())
}

// Time is the Instant as a UTC time; none is the zero time.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}

func (i Instant) add(d time.Duration) Instant { return i + Instant(d) }

// RunState is where a rollout stands.
type RunState string

// States of a rollout.
const (
	Pending     RunState = "Pending"
	Progressing RunState = "Progressing"
	Waiting     RunState = "Waiting"
	Paused      RunState = "Paused"
	Succeeded   RunState = "Succeeded"
	Failed      RunState = "Failed"
	Aborted     RunState = "Aborted"
	RollingBack RunState = "RollingBack"
	RolledBack  RunState = "RolledBack"
	Superseded  RunState = "Superseded"
)

// Ended reports that the rollout is over.
func (s RunState) Ended() bool {
	switch s {
	case Succeeded, Failed, Aborted, RolledBack, Superseded:
		return true
	}
	return false
}

// ClusterState is where a cluster stands in a rollout.
type ClusterState uint8

// States of a cluster. ToApply is shown as Waiting once its stage has begun.
const (
	ClusterToApply ClusterState = iota
	ClusterWaiting
	ClusterProgressing
	ClusterSoaking
	ClusterSucceeded
	ClusterFailed
	ClusterTimedOut
	ClusterDeferred
	ClusterSkipped
	ClusterRolledBack
	ClusterRemoved
	clusterStates
)

var clusterStateNames = [clusterStates]string{"ToApply", "Waiting", "Progressing", "Soaking", "Succeeded", "Failed",
	"TimedOut", "Deferred", "Skipped", "RolledBack", "Removed"}

func (s ClusterState) String() string {
	if s >= clusterStates {
		return "Unknown"
	}
	return clusterStateNames[s]
}

// StageState is where a stage stands.
type StageState string

// States of a stage.
const (
	StagePending     StageState = "Pending"
	StageWaiting     StageState = "Waiting"
	StageProgressing StageState = "Progressing"
	StageSoaking     StageState = "Soaking"
	StageGated       StageState = "Gated"
	StageSucceeded   StageState = "Succeeded"
	StageFailed      StageState = "Failed"
	// A stage that had begun when its rollout ended, or went back, and did not fail, is as that is.
	StageAborted     StageState = "Aborted"
	StageSuperseded  StageState = "Superseded"
	StageRollingBack StageState = "RollingBack"
	StageRolledBack  StageState = "RolledBack"
)

// GateState is where a gate stands, and the outcome of a check.
type GateState string

// States of a gate.
const (
	GatePending      GateState = "Pending"
	GateRunning      GateState = "Running"
	GateSuccessful   GateState = "Successful"
	GateFailed       GateState = "Failed"
	GateError        GateState = "Error"
	GateInconclusive GateState = "Inconclusive"
)

// Position says on which side of a stage a gate is; gates of a rollback stand before the stage's clusters move back.
type Position string

// Positions of gates.
const (
	Before         Position = "before"
	After          Position = "after"
	BeforeRollback Position = "rollback"
)

// Reasons, the words of the API.
const (
	ReasonApproval          = "Approval"
	ReasonWindow            = "Window"
	ReasonWebhook           = "Webhook"
	ReasonMetric            = "Metric"
	ReasonExpression        = "Expression"
	ReasonSoak              = "Soak"
	ReasonNotYetHeard       = "SoakNotHeard"
	ReasonEmptyStage        = "EmptyStage"
	ReasonEmptyOverride     = "EmptyOverride"
	ReasonAllDeferred       = "AllDeferred"
	ReasonAllAway           = "AllAway"
	ReasonHeldUnready       = "HeldUnready" // a stage that has members that are held, and not ready with the revision
	ReasonOffline           = "Offline"
	ReasonConfirm           = "Confirm"
	ReasonUnplaced          = "PlacementUnknown"
	ReasonAwaitingSource    = "AwaitingSource" // of another module
	ReasonFailures          = "TooManyFailures"
	ReasonGateFailed        = "GateFailed"
	ReasonGateError         = "GateError"
	ReasonGateInconclusive  = "GateInconclusive"
	ReasonRollbackFailed    = "RollbackFailed"
	ReasonNoEarlierRevision = "NoEarlierRevision"
	ReasonPausedByUser      = "PausedByUser"
	ReasonAbortedByUser     = "AbortedByUser"
	ReasonRolledBackByUser  = "RolledBackByUser"
	ReasonUnmatched         = "UnmatchedClusters"
	ReasonModuleDeleted     = "ModuleDeleted"
	ReasonExternal          = "External"
	ReasonSuperseded        = "Superseded"
	ReasonDisconnected      = "Disconnected"
	ReasonLocked            = "ClusterLocked"
	ReasonNotSeen           = "ClusterNotSeen"
	ReasonNotHeard          = "NotHeard"
	ReasonCordoned          = "Cordoned"
	ReasonHeld              = "Held"
	ReasonPinned            = "Pinned"
	ReasonSkipped           = "SkippedByUser"
	ReasonTimedOut          = "ProgressDeadlineExceeded"
	ReasonNotReady          = "NotReady"
	ReasonRegressed         = "NoLongerReady"
	ReasonReady             = "Ready"
	ReasonLeaving           = "Leaving"
	ReasonGone              = "ClusterGone"
	ReasonJoined            = "Joined"
	ReasonHadFailed         = "HadFailed" // it had failed when it was sent back
	ReasonRollingBack       = string(RollingBack)
	ReasonAwaitingRollback  = "AwaitingRollback"
	ReasonLeavingAfter      = "LeavesAfterRollback"
	ReasonCatchingUp        = "CatchingUp"
	ReasonNotListed         = "NotListed"
	ReasonNotDone           = "NotDone"
	ReasonAwaited           = "Awaited"
	// NotJoined is the code of a member that is Disconnected because no agent of it has ever connected.
	NotJoined = "NotJoined"
	// PassedBy is the code of a member that was deferred when its turn came, in a rollout that has ended and moves nobody any more.
	PassedBy = "PassedBy"
	// Overtaken is the code of a member that had not come to the end of its move when a newer rollout took over, which decides of it now.
	Overtaken = "Overtaken"
	// NotByItself is the code of a pause for failures that those which failed cannot end, for they were given nothing.
	NotByItself      = "NotByItself"
	ReasonWouldLeave = "WouldLeave"
	ReasonBudget     = "Failures"
	ReasonNextStage  = "NextStage"
	ReasonNeedsStage = "NeedsStage"
	ReasonNotReached = "NotReached"
	ReasonWentBack   = "RolledBack"
	// What a hub says of a rollout that has no revision yet.
	ReasonResolving  = "ResolvingSource"
	ReasonQueued     = "Queued"
	ReasonHubTrouble = "HubTrouble"
	ReasonStoreFull  = "StoreFull"
	// ReasonNeedsSecret: the secret that the source names is not there, lacks what is needed, or cannot be read.
	ReasonNeedsSecret = "NeedsSecret"
	// ReasonSourceAway: the server that has the source does not answer.
	ReasonSourceAway = "SourceAway"
	// ReasonSourcesAhead: what the module depends on was put, too, and has no revision yet.
	ReasonSourcesAhead = "SourcesAhead"
	// ReasonBehindPause: nobody asked for it, and a person paused the rollout that runs.
	ReasonBehindPause = "BehindPause"
	// ReasonPutsAhead: others of the same batch of puts are still to come.
	ReasonPutsAhead = "PutsAhead"
	// ReasonPutsMissing: others of the same batch of puts never came, so that it did not begin.
	ReasonPutsMissing = "PutsMissing"
	// ReasonRestored: the hub's store was restored from a backup, and nothing begins before that is settled.
	ReasonRestored = "HubRestored"
)

// Observed is what is known of a cluster now. The zero Observed is a selected cluster that is away and runs nothing, so
// that what is not known never removes anything.
type Observed struct {
	// Revision and Generation are what is assigned now; 0: nothing.
	Revision   int64
	Generation uint64
	// Reason says what is wrong, or what it waits for, Message that in the words of its agent.
	Reason, Message string
	// Stage is the number, from 1, of the stage that the cluster's present labels select; 0: as planned.
	Stage int16
	// Connected: its agent's session is live. The caller keeps it true for a grace after a session breaks and after the
	// hub itself has started.
	// It is false, too, while the agent does not see its cluster: NotSeen says so then; and while a person keeps the agent out: Locked.
	Connected, NotSeen, Locked bool
	// NotJoined: no agent of the cluster has ever connected, so that there is none that is away and comes back.
	NotJoined bool
	// Unheard: it is connected, and its agent has not said in this session how it stands, so that it is neither Ready nor
	// Failed. Who was ready before is not taken for one that failed.
	Unheard bool
	// Silent: it counts as connected only because its session has just ended, or the hub has just started, and its agent may be on its
	// way back. What it said before is no verdict, good or bad, and its time does not run.
	Silent bool
	// Session is since when the agent's session is live; 0: it has none, or nobody knows.
	Session Instant
	// Untold is until when its agent is given time to tell what charts may ask of the cluster, which decides what the revision is there;
	// 0: it has, or that makes no difference.
	Untold Instant
	// Ready: the last report is of exactly Generation and every object in it is fine, and as the revision has it where it is held.
	Ready bool
	// Failed: that report says that it will not become ready by itself.
	Failed bool
	// Well: all that is wanted is there, as the revision has it, and healthy, by its last word, though it may be held, and is not Ready then.
	Well bool
	// Cordoned: no new revision may be assigned. Held: nothing is written there, by order of a person or by the cluster's own policy.
	Cordoned, Held bool
	// Gone: no longer registered.
	Gone bool
	// Anew: what the rollout gave it is recorded nowhere: it was forgotten and is registered again, and nobody saw it gone.
	Anew bool
	// Taken tells the Kubernetes cluster that has the name from those that had it before; 0: it is the first.
	Taken uint64
	// Unselected: the placement of the plan's revision does not select it any more. UnselectedOlder: that of the revision
	// Input.Older does not. Which of them counts follows from the state (see State.PlacedBy), and may change in a decision.
	Unselected, UnselectedOlder bool
	// Last: it is not selected any more by one of them, and no other module is, or is to be, in the cluster.
	Last bool
	// MayBeLast: the same, unless a module comes there whose source is being fetched.
	MayBeLast bool
	// Without: there is nothing of the module that a person could miss: Revision could not be assigned, or waits for a removal.
	Without bool
	// Removed: the tombstone of exactly Generation is carried out.
	Removed bool
	// Lost: nobody knows any more what is assigned. The agent keeps what it has until a person has it assigned again.
	Lost bool
}

// Newcomer is a cluster that one of the placements selects and that is no member yet.
type Newcomer struct {
	Cluster  fleet.Cluster
	Observed Observed
}

// Module is what the rollout must know of its module.
type Module struct {
	Deleted bool
	// Successor is the number of a newer rollout that has begun; 0: none has. One that waits for this one is none (see
	// Succeed).
	Successor int64
	// Put is the number of a newer rollout that has no revision yet, or never got one; 0: there is none.
	Put int64
	// SourceFailed is why there is no revision to roll out; nil: there is, or may be.
	SourceFailed *SourceFailed
	// Aborted is the word of a person who aborted it before it had a revision; nil: nobody did.
	Aborted *Verb
	// External says that another program assigns the revision.
	External bool
	// Revisions are those that there are, ascending; nil: not known.
	Revisions []int64
}

// SourceFailed is why a source gave no revision.
type SourceFailed struct{ Reason, Message string }

// closes reports that what happened to the module ends the rollout, or has it decide no more.
func (m *Module) closes() bool {
	return m.Deleted || m.Successor != 0 || m.External || m.SourceFailed != nil || m.Aborted != nil
}

// UnknownRevision is the error for a revision of the module that is not there; nil: it is, or nobody can say.
func (m Module) UnknownRevision(of fleet.ModuleRef, revision int64) error {
	if m.Revisions == nil || slices.Contains(m.Revisions, revision) {
		return nil
	}
	var have []string
	for _, n := range m.Revisions {
		have = append(have, fmt.Sprintf("r%d", n))
	}
	return fleet.Errorf(fleet.ErrPrecondition, "module %s has no revision r%d; there are %s", of.Display(), revision, cmp.Or(strings.Join(have, ", "), "none"))
}

// Input is everything that a decision depends on.
type Input struct {
	Now time.Time
	// Clock is what is known of the clock by which Now and the times are that the rollout noted. Not knowing it is no mistake.
	Clock Clock
	Plan  *Plan
	State State
	// Observed is aligned with the members: State.Member(Plan, i). Missing entries are the zero Observed.
	Observed  []Observed
	Newcomers []Newcomer
	// Stands: the hub's store was restored from a backup, and that is not settled. Nobody is moved, nothing is asked, and no time runs for
	// those on their way.
	Stands bool
	// Matched are those of Plan.EmptyOverrides that match a selected cluster by now: labels change.
	Matched []string
	// Unplaced: the placement of the plan's revision is not known: by it nobody leaves, and nobody comes.
	Unplaced bool
	// Older is the revision of whose placement Observed.UnselectedOlder speaks; 0: that of none is known. MayNeed says which
	// one a decision may need.
	Older int64
	// Results are answers to Decision.Checks. A result counts once, by its number.
	Results []GateResult
	// Verbs in the order in which they were recorded. A verb counts once, by its ID.
	Verbs  []Verb
	Module Module
	// Confirmed holds the digests of holds that people released.
	Confirmed []fleet.Digest
	// Awaits are, by revision, the sets of clusters in which modules that come before it are not ready now. A cluster does not begin such a
	// revision; going back to one waits for nobody. See Decision.Begins.
	Awaits map[int64][]AwaitedSet
}

// Decision is what follows from an Input.
type Decision struct {
	State State
	// Assign is one step: commit it with State in one transaction, with one generation for all of it (State.Stamp).
	Assign []Assign
	// Changed are the members whose record changed, in order. Chunk n holds members n*ChunkSize and on.
	Changed []int32
	// HeadChanged says that the head is to be stored.
	HeadChanged bool
	// WakeAt is when to decide again if nothing is heard before; zero: never.
	WakeAt time.Time
	// Awaited is how many clusters are on their way and there: so many may be heard of soon.
	Awaited int
	// Moves are the transitions of this decision, for events.
	Moves []Transition
	// Checks are to be run outside; all that are open are listed in every decision.
	Checks []Check
	// Outcomes answer verbs.
	Outcomes []Outcome
	// Holds wait for a person's confirm.
	Holds []Hold
	// Start asks for a new rollout of this revision, on a person's word (retry of an ended rollout).
	Start *Start
	// Behind says that Now is behind a time that the rollout noted, and something counts from then on.
	Behind bool
	// odd is an event that found a member in a state for which transitions does not have it: a mistake of this package.
	odd string
}

// Assign gives a member a revision, or takes the module from it.
type Assign struct {
	Member   int32
	Revision int64
	Leave    bool
}

// Transition is a change of state, of the rollout, a stage, a gate or a cluster.
type Transition struct {
	Kind     Subject
	Stage    int16
	Position Position
	Gate     string
	Member   int32
	From, To string
	Reason   string
	Facts    *Facts // nil: the reason says it all
}

// Subject is what a transition is about.
type Subject uint8

// Subjects.
const (
	OfRollout Subject = iota
	OfStage
	OfGate
	OfCluster
)

// Check is a gate to evaluate outside.
type Check struct {
	Stage     int
	Position  Position
	Gate      string
	Number    int
	NotBefore time.Time
}

// GateResult answers a Check. Outcome is Running (ask again), Successful, Failed, Error or Inconclusive.
type GateResult struct {
	Stage    int
	Position Position
	Gate     string
	Number   int
	At       time.Time
	Outcome  GateState
	Message  string
	Value    string
}

// Start asks for a new rollout.
type Start struct {
	Revision int64
	By, Why  string
}

// Hold waits for a confirm of exactly these items.
type Hold struct {
	ID     string
	Items  []string
	Digest fleet.Digest
	Since  time.Time
}

// Verbs.
const (
	VerbPause    = "pause"
	VerbResume   = "resume"
	VerbApprove  = "approve"
	VerbReject   = "reject"
	VerbAbort    = "abort"
	VerbRetry    = "retry"
	VerbSkip     = "skip"
	VerbPin      = "pin"
	VerbUnpin    = "unpin"
	VerbPromote  = "promote"
	VerbRollback = "rollback"
	VerbOverride = "override"
)

// Verb is one act of a person on a rollout.
type Verb struct {
	ID       string              `json:"id"` // unique in the module
	Verb     string              `json:"verb"`
	Rollout  int64               `json:"rollout,omitempty"` // 0: the present one
	Clusters []fleet.ClusterName `json:"clusters,omitempty"`
	Stage    string              `json:"stage,omitempty"`
	Gate     string              `json:"gate,omitempty"`
	By       string              `json:"by,omitempty"`
	At       time.Time           `json:"at,omitzero"`
	Why      string              `json:"why,omitempty"`
	Revision int64               `json:"revision,omitempty"`
	Scope    string              `json:"scope,omitempty"`
	Until    time.Time           `json:"until,omitzero"`
	Shorten  bool                `json:"shorten,omitempty"` // a pin may end sooner than the one that stands
}

// Outcome answers a verb: accepted, with what follows, or the error that says why not.
type Outcome struct {
	ID       string `json:"id"`
	Accepted bool   `json:"accepted"`
	Sentence string `json:"sentence"`
	Notes    []Note `json:"notes,omitempty"`
}

// VerbRecord is a verb that was folded, with its outcome.
type VerbRecord struct {
	Verb
	Outcome Outcome `json:"outcome"`
}
