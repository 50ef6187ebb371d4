package fleet

// SyncState says whether the cluster has what is wanted.
type SyncState string

// Sync states.
const (
	SyncUnknown   SyncState = "Unknown"
	SyncSynced    SyncState = "Synced"
	SyncOutOfSync SyncState = "OutOfSync"
)

// Health says how an object or a module is.
type Health string

// Health states, worst last.
const (
	HealthUnknown     Health = "Unknown"
	HealthHealthy     Health = "Healthy"
	HealthSuspended   Health = "Suspended"
	HealthProgressing Health = "Progressing"
	HealthTerminating Health = "Terminating"
	HealthMissing     Health = "Missing"
	HealthDegraded    Health = "Degraded"
)

// Drift says whether somebody else changed what is ours.
type Drift string

// Drift states.
const (
	DriftInSync   Drift = "InSync"
	DriftDrifted  Drift = "Drifted"
	DriftConflict Drift = "Conflict"
	DriftIgnored  Drift = "Ignored"
	DriftHeld     Drift = "Held"
	// DriftUnknown is said of what cannot be seen; no agent reports it.
	DriftUnknown Drift = "Unknown"
)

// ClusterState says how the hub and a cluster's agent stand.
type ClusterState string

// Cluster states.
const (
	ClusterPending      ClusterState = "Pending"
	ClusterReady        ClusterState = "Ready"
	ClusterDisconnected ClusterState = "Disconnected"
	ClusterCordoned     ClusterState = "Cordoned"
	ClusterLocked       ClusterState = "Locked"
	ClusterRemoving     ClusterState = "Removing"
	ClusterRevoked      ClusterState = "Revoked"
)

// SyncPhase is where an agent stands with a sync.
type SyncPhase string

// Sync phases as agents report them.
const (
	PhaseApplying SyncPhase = "Applying" // writes under way or retried
	PhaseApplied  SyncPhase = "Applied"  // every object was applied
	PhaseFailed   SyncPhase = "Failed"   // at least one object or the sync itself cannot be applied
	PhaseRemoving SyncPhase = "Removing" // carrying out a tombstone
	PhaseRemoved  SyncPhase = "Removed"  // tombstone carried out: nothing is left
	PhaseStray    SyncPhase = "Stray"    // held, though the hub does not list it
	PhaseHeld     SyncPhase = "Held"     // no writes by order of a person
)

// ObjectState is one object as an agent sees it. All but Unjudged, Uncounted and Used packs into one byte (Pack).
type ObjectState struct {
	Sync   SyncState
	Health Health
	Drift  Drift
	// Unjudged is NoStatus or NoRule if the object is Healthy only for want of anything to judge it by.
	Unjudged string
	// Uncounted says that the health counts for nothing but itself: the module is ready without it, by the word of its manifest.
	Uncounted bool
	// Used says that the module lists the object and does not own it: it stays when the module goes.
	Used bool
}

// Reasons of an object that is missing, and of which nothing failed: somebody deleted it, and a hold is why it is left so. Its state and its
// message say that.
const (
	ObjectMissing = "Missing"
	ObjectHeld    = "Held"
)

// Why an object is Healthy though nothing says so.
const (
	NoStatus = "NoStatus" // its kind has a status, and nothing was ever written into it
	NoRule   = "NoRule"   // nothing says how its kind is judged
)

var (
	packSync   = []SyncState{SyncUnknown, SyncSynced, SyncOutOfSync}
	packHealth = []Health{HealthUnknown, HealthHealthy, HealthSuspended, HealthProgressing, HealthTerminating, HealthMissing, HealthDegraded}
	packDrift  = []Drift{DriftInSync, DriftDrifted, DriftConflict, DriftIgnored, DriftHeld}
)

// Pack is the byte on the wire: bits 0–2 health, 3–4 sync, 5–7 drift; the numbers are part of the protocol. 0 is
// unknown, unknown, in sync.
func (s ObjectState) Pack() byte {
	return index(packHealth, s.Health) | index(packSync, s.Sync)<<3 | index(packDrift, s.Drift)<<5
}

// UnpackState reads the byte; values of a newer version read as Unknown.
func UnpackState(b byte) ObjectState {
	return ObjectState{Health: at(packHealth, b&7), Sync: at(packSync, b>>3&3), Drift: at(packDrift, b>>5)}
}

func index[T comparable](list []T, v T) byte {
	for i, x := range list {
		if x == v {
			return byte(i)
		}
	}
	return 0
}

func at[T any](list []T, i byte) T {
	if int(i) >= len(list) {
		return list[0]
	}
	return list[i]
}

// Fine reports that nobody needs to look: synced, healthy or suspended, and not drifting.
func (s ObjectState) Fine() bool {
	return s.Sync == SyncSynced && (s.Health == HealthHealthy || s.Health == HealthSuspended) &&
		(s.Drift == DriftInSync || s.Drift == DriftIgnored)
}

// LeftMissing reports that somebody deleted the object and that it stays so: under a policy, which only the agent knows, or
// until it is restored.
func (s ObjectState) LeftMissing() bool {
	return s.Health == HealthMissing && (s.Drift == DriftDrifted || s.Drift == DriftIgnored)
}

// Worse reports whether a is worse than b: Degraded, Missing, Terminating, Progressing, Unknown, Suspended, Healthy.
func (h Health) Worse(b Health) bool { return h.rank() > b.rank() }

func (h Health) rank() int {
	switch h {
	case HealthHealthy:
		return 0
	case HealthSuspended:
		return 1
	case HealthProgressing:
		return 3
	case HealthTerminating:
		return 4
	case HealthMissing:
		return 5
	case HealthDegraded:
		return 6
	default:
		return 2
	}
}
