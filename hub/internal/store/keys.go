package store

import (
	"fmt"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Prefixes of keys. What lives under them and who writes it is in Classes.
const (
	ModulePrefix     = "modules/"
	ClusterPrefix    = "clusters/"
	ProjectPrefix    = "projects/"
	SecretPrefix     = "secrets/"
	TokenPrefix      = "tokens/"
	UserPrefix       = "users/"
	CertPrefix       = "certificates/" // of people
	RevisionPrefix   = "revisions/"
	RolloutPrefix    = "rollouts/"
	StartPrefix      = "starts/"
	ChunkPrefix      = "rolloutclusters/"
	StepPrefix       = "steps/"
	BatchPrefix      = "batches/"
	WantedPrefix     = "wanted/"
	VerbPrefix       = "verbs/"
	RequestPrefix    = "requests/"
	AnswerPrefix     = "answers/"
	DesiredPrefix    = "desired/"
	ObservedPrefix   = "observed/"
	SessionPrefix    = "sessions/"
	HoldPrefix       = "holds/"
	FreezePrefix     = "holds/freeze-" // of the holds those that people put
	ConfirmPrefix    = "confirms/"
	RecyclePrefix    = "recycles/"
	FollowPrefix     = "follows/"
	CatalogPrefix    = "catalogs/"
	CatalogStates    = "catalogstates/"
	FloorPrefix      = "floors/"
	AckPrefix        = "acks/"
	ConditionPrefix  = "conditions/"
	CapabilityPrefix = "capabilities/"
	PeerPrefix       = "hubs/"
	AuditDone        = "audit/done/"
	AuditRefused     = "audit/refused/"
	HubKey           = "meta/hub"
	GenerationKey    = "meta/generation"
	CAKey            = "meta/ca"
	RestoreKey       = "meta/restore"
	AcceptedKey      = "meta/accepted"
	AcceptedPrefix   = "meta/accepted/"
	ResumedKey       = "meta/resumed"
	SettledKey       = "meta/settled"
	GuardPrefix      = "meta/uid/"
	numberPadding    = "0000000000"
	componentDivider = "/"
)

// AcceptedFor is meta/accepted/CLUSTER.
func AcceptedFor(c fleet.ClusterName) string { return AcceptedPrefix + string(c) }

// AboutRestore reports that a key has a word about the restore of the store.
func AboutRestore(key string) bool {
	return key == AcceptedKey || key == ResumedKey || key == SettledKey || strings.HasPrefix(key, AcceptedPrefix)
}

// GuardKey is meta/uid/UID: makes two joins with the UID of one cluster meet.
func GuardKey(uid string) string { return GuardPrefix + uid }

// TakenKey counts how often another Kubernetes cluster has taken the name of one, under a key that is of no UID: an order that is given to a
// cluster in that moment meets it, and is looked at once more.
const TakenKey = GuardPrefix + "/taken"

// HeldKey counts the holds that people put: an order that is given in that moment meets it, and is looked at once more.
const HeldKey = "meta/held"

// PeerKey is hubs/INSTANCE: of a hub that runs on this store.
func PeerKey(instance string) string { return PeerPrefix + instance }

// ModuleKey is modules/PROJECT/NAME.
func ModuleKey(m fleet.ModuleRef) string { return ModulePrefix + m.Project + "/" + m.Name }

// ClusterKey is clusters/NAME.
func ClusterKey(c fleet.ClusterName) string { return ClusterPrefix + string(c) }

// SecretKey is secrets/PROJECT/NAME.
func SecretKey(project, name string) string { return SecretsOf(project) + name }

// SecretsOf is the prefix of a project's secrets.
func SecretsOf(project string) string { return SecretPrefix + project + "/" }

// SplitSecret reads project and name out of a secrets key.
func SplitSecret(key string) (project, name string, ok bool) {
	p := strings.Split(key, componentDivider)
	if len(p) != 3 {
		return "", "", false
	}
	return p[1], p[2], true
}

// SessionKey is sessions/NAME.
func SessionKey(c fleet.ClusterName) string { return SessionPrefix + string(c) }

// DesiredKey is desired/CLUSTER/PROJECT/MODULE.
func DesiredKey(c fleet.ClusterName, m fleet.ModuleRef) string {
	return DesiredPrefix + string(c) + "/" + m.Project + "/" + m.Name
}

// RecycleKey is recycles/CLUSTER/PROJECT/MODULE.
func RecycleKey(c fleet.ClusterName, m fleet.ModuleRef) string {
	return RecyclePrefix + string(c) + "/" + m.Project + "/" + m.Name
}

// AckKey is acks/CLUSTER.
func AckKey(c fleet.ClusterName) string { return AckPrefix + string(c) }

// ConditionKey is conditions/CLUSTER.
func ConditionKey(c fleet.ClusterName) string { return ConditionPrefix + string(c) }

// CapabilityKey is capabilities/CLUSTER.
func CapabilityKey(c fleet.ClusterName) string { return CapabilityPrefix + string(c) }

// FloorKey is floors/CLUSTER: the hold of the cluster, and the lowest generation that its next assemblage may have. The
// leader raises it when a confirmed tombstone is forgotten or the hold changes, so that an assemblage never changes
// without a higher generation.
func FloorKey(c fleet.ClusterName) string { return FloorPrefix + string(c) }

// ObservedKey is observed/CLUSTER/PROJECT/MODULE.
func ObservedKey(c fleet.ClusterName, m fleet.ModuleRef) string {
	return ObservedPrefix + string(c) + "/" + m.Project + "/" + m.Name
}

// RevisionKey is revisions/PROJECT/MODULE/N; numbers are padded so that keys sort.
func RevisionKey(m fleet.ModuleRef, n int64) string { return numbered(RevisionPrefix, m, n) }

// StartKey is starts/PROJECT/MODULE/N, of a rollout that waits for its revision.
func StartKey(m fleet.ModuleRef, n int64) string { return numbered(StartPrefix, m, n) }

// RolloutKey is rollouts/PROJECT/MODULE/N.
func RolloutKey(m fleet.ModuleRef, n int64) string { return numbered(RolloutPrefix, m, n) }

// ChunkKey is rolloutclusters/PROJECT/MODULE/N/CHUNK.
func ChunkKey(m fleet.ModuleRef, n int64, chunk int) string {
	return fmt.Sprintf("%s/%06d", numbered(ChunkPrefix, m, n), chunk)
}

// StepKey is steps/PROJECT/MODULE/N/STEP.
func StepKey(m fleet.ModuleRef, n int64, step int64) string {
	return fmt.Sprintf("%s/%06d", numbered(StepPrefix, m, n), step)
}

// VerbKey is verbs/PROJECT/MODULE/N/K.
func VerbKey(m fleet.ModuleRef, n int64, k int64) string {
	return fmt.Sprintf("%s/%06d", numbered(VerbPrefix, m, n), k)
}

// BatchKey is batches/ID.
func BatchKey(id string) string { return BatchPrefix + id }

// WantedKey is wanted/PROJECT/MODULE.
func WantedKey(m fleet.ModuleRef) string { return WantedPrefix + m.String() }

// RequestKey is requests/PROJECT/MODULE/ID.
func RequestKey(m fleet.ModuleRef, id string) string { return RequestsOf(m) + id }

// RequestsOf is the prefix of a module's requests.
func RequestsOf(m fleet.ModuleRef) string { return RequestPrefix + m.String() + "/" }

// AnswerKey is answers/PROJECT/MODULE/ID: of the request of the ID.
func AnswerKey(m fleet.ModuleRef, id string) string { return AnswersOf(m) + id }

// AnswersOf is the prefix of the answers to a module's requests.
func AnswersOf(m fleet.ModuleRef) string { return AnswerPrefix + m.String() + "/" }

// FollowKey is follows/PROJECT/MODULE.
func FollowKey(m fleet.ModuleRef) string { return FollowPrefix + m.String() }

// CatalogKey is catalogs/PROJECT/NAME.
func CatalogKey(c fleet.ModuleRef) string { return CatalogPrefix + c.String() }

// CatalogStateKey is catalogstates/PROJECT/NAME.
func CatalogStateKey(c fleet.ModuleRef) string { return CatalogStates + c.String() }

// SplitCatalog reads project and name out of a catalogs or catalogstates key.
func SplitCatalog(key string) (fleet.ModuleRef, bool) { return SplitModule(key) }

// VerbsOf is the prefix of a rollout's verbs.
func VerbsOf(m fleet.ModuleRef, n int64) string { return numbered(VerbPrefix, m, n) + "/" }

// StepsOf is the prefix of a rollout's steps.
func StepsOf(m fleet.ModuleRef, n int64) string { return numbered(StepPrefix, m, n) + "/" }

// ChunksOf is the prefix of a rollout's clusters.
func ChunksOf(m fleet.ModuleRef, n int64) string { return numbered(ChunkPrefix, m, n) + "/" }

func numbered(prefix string, m fleet.ModuleRef, n int64) string {
	digits := strconv.FormatInt(n, 10)
	if len(digits) < len(numberPadding) {
		return prefix + m.Project + "/" + m.Name + "/" + numberPadding[len(digits):] + digits
	}
	return prefix + m.Project + "/" + m.Name + "/" + digits
}

// SplitClusterModule reads the cluster and the module out of a desired, observed or recycles key.
func SplitClusterModule(key string) (fleet.ClusterName, fleet.ModuleRef, bool) {
	p := strings.Split(key, componentDivider)
	if len(p) != 4 {
		return "", fleet.ModuleRef{}, false
	}
	return fleet.ClusterName(p[1]), fleet.ModuleRef{Project: p[2], Name: p[3]}, true
}

// SplitModule reads the module out of a modules, revisions, rollouts, rolloutclusters, steps, verbs, requests or answers key.
func SplitModule(key string) (fleet.ModuleRef, bool) {
	p := strings.Split(key, componentDivider)
	if len(p) < 3 {
		return fleet.ModuleRef{}, false
	}
	return fleet.ModuleRef{Project: p[1], Name: p[2]}, true
}

// SplitNumber reads the number of the revision or rollout out of a revisions, rollouts, rolloutclusters, steps or verbs key.
func SplitNumber(key string) (int64, bool) {
	p := strings.Split(key, componentDivider)
	if len(p) < 4 {
		return 0, false
	}
	n, err := strconv.ParseInt(p[3], 10, 64)
	return n, err == nil
}
