package fleet

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Sync is one revision of one module for one cluster.
type Sync struct {
	Module     ModuleRef
	Generation uint64
	Revision   int64
	Bundle     Digest
	// Values for ${NAME}, evaluated on the hub.
	Values map[string]string
	// Policies is the digest of the canonical JSON of a PolicySet.
	Policies Digest
	// Hold stops every write for the module, corrections included.
	Hold bool
	// PruneConfirmed says that a person confirmed the prune that this sync's bundle implies.
	PruneConfirmed bool
	// PruneShown are the objects that he was shown (assemble.HeirKey), ascending; none: they are not known.
	PruneShown []uint64
	// Objects is how many entries the bundle has.
	Objects int
	// Yields are objects of the bundle that other modules of the cluster own, sorted by owner and since.
	Yields []Yield
	// Heirs are modules that are about to have what this one does not list any more, sorted by module.
	Heirs []Heir
	// Recycles are orders of people to let go what keepLegacy keeps, sorted by revision.
	Recycles []Recycle
	// Held are the objects that nothing is written to (assemble.HeldKeys), ascending.
	Held []uint64
	// Lineage numbers the lineage that Generation counts in. It is the agent's: no hub knows its number.
	Lineage uint64
	// Watched is how many objects the policies name that are only watched.
	Watched int
	// DependsOn are modules that come first in the cluster, in the order of their names.
	DependsOn []ModuleRef
}

// Recycle is the order to delete the tracker of a revision in a cluster: what it listed last and keepLegacy keeps.
type Recycle struct {
	Revision int64
	// Keys name the objects that the person was shown (assemble.HeirKey), ascending. Nothing else goes by the order.
	Keys []uint64
	// Unasked says that the order is not one about what the agent has: it does not count. It is not told.
	Unasked bool
}

// Yield names objects of a sync that another module of the cluster owns. They are not written, but waited for.
type Yield struct {
	Owner ModuleRef
	// Since is the generation from which the sync's module waits. Of several modules that wait for an object the one
	// with the lowest is next.
	Since uint64
	// Ordinals are ascending.
	Ordinals []int
	// Ending are those of the ordinals that the owner is about to let go, ascending: to wait for them is no failure.
	Ending []int
}

// Heir is a module that lists objects which another module of the cluster lets go, or which it let go itself and is to list
// again, and that is not there with them yet. They are not deleted until it comes.
type Heir struct {
	Module ModuleRef
	// Unknown says that what it lists is not known yet: it may be any of the objects.
	Unknown bool
	// Keys name the objects (assemble.HeirKey), ascending.
	Keys []uint64
}

// Tombstone takes a module from a cluster: the only thing that may remove a whole sync.
type Tombstone struct {
	Module     ModuleRef
	Generation uint64
	// Policy is DeleteDelete or DeleteOrphan.
	Policy string
	// Hold stops every write for the module: what is left of it stays as it is.
	Hold bool
	// Heirs are as those of a Sync.
	Heirs []Heir
	// Policies are those of the sync that is removed, as the content of a PolicySet, as far as they say what goes and what stays;
	// empty: there are none. They hold for what the agent has lost its record of.
	Policies string
	// DependsOn is that of the sync that is removed: what that depended on goes after it.
	DependsOn []ModuleRef
	// Lineage is as that of a Sync.
	Lineage uint64
}

// Leave is the order to take a cluster out of the fleet.
type Leave struct {
	// Objects is LeaveKeep or LeaveDelete; empty: there is no such order.
	Objects string
	// Hold stops every write in the cluster, Held those for single modules, in the order of their names.
	Hold bool
	Held []ModuleRef
}

// What becomes of the objects when a cluster leaves the fleet.
const (
	LeaveKeep   = "keep"
	LeaveDelete = "delete"
)

// Equal reports that both say the same.
func (l Leave) Equal(b Leave) bool {
	return l.Objects == b.Objects && l.Hold == b.Hold && slices.Equal(l.Held, b.Held)
}

// Loosens reports that an order lets the agent do what the one before did not: write where that was held, or delete what was to stay.
func (l Leave) Loosens(before Leave) bool {
	if before.Objects == "" {
		return false
	}
	freed := slices.ContainsFunc(before.Held, func(ref ModuleRef) bool { return !slices.Contains(l.Held, ref) })
	return before.Hold && !l.Hold || freed && !l.Hold || before.Objects == LeaveKeep && l.Objects == LeaveDelete
}

// Assemblage is all syncs and tombstones of one cluster, sorted by module. Its digest is assemble.Digest.
type Assemblage struct {
	Generation uint64
	Digest     Digest
	Hold       bool
	Syncs      []Sync
	Tombstones []Tombstone
	// Lineage is the one that the hub speaks for now. What an older one said is kept, and nothing is deleted for it.
	Lineage uint64
	// Refused are the modules whose newest sync the agent could not take, in the order of their names: what they list now it
	// does not know. The wire does not carry them.
	Refused []ModuleRef
}

// SyncStatus is what an agent knows of a sync, a tombstone or a stray.
type SyncStatus struct {
	Module     ModuleRef
	Generation uint64
	Bundle     Digest
	Phase      SyncPhase
	Ready      bool
	Reason     string
	Message    string
	States     []ObjectState
	// Watched are the states of the objects that are only watched. Ordinals of Exceptions go on into them.
	Watched    []ObjectState
	Exceptions []ObjectException
	// Extras are objects of older revisions that are still there, and ExtraCount how many there are, if not all are listed.
	Extras     []ExtraObject
	ExtraCount int
	HeldCount  int // as ExtraCount, of those that wait for a confirm
	// MoreExtras says that there may be more, which the agent has not found yet, or of which it cannot tell yet.
	MoreExtras bool
	// Holds are those of objects of the module that annotations in the cluster put, in the order of the objects.
	Holds       []ObjectHold
	Corrections uint64
	Observed    time.Time
}

// Extra is how many objects of older revisions are still there.
func (s SyncStatus) Extra() int { return max(s.ExtraCount, len(s.Extras)) }

// Waiting is how many of them wait for a confirm.
func (s SyncStatus) Waiting() int { return max(s.HeldCount, len(s.Held())) }

// Held are those that wait for a confirm, as far as they are listed.
func (s SyncStatus) Held() []string {
	var out []string
	for _, x := range s.Extras {
		if x.Held {
			out = append(out, x.ID.String())
		}
	}
	return out
}

// ObjectException says why an object is not fine.
type ObjectException struct {
	Ordinal int
	Reason  string
	Message string
	Since   time.Time
	// Field is the JSON pointer of the first field that drifts; Want and Live are its values as text, *** in a Secret.
	Field, Want, Live string
	ChangedBy         string
	// Seen is how often somebody changed the object since the agent began to keep it, this time included.
	Seen int
	// First and Last are when somebody changed it first and last since then; zero: it does not drift.
	First, Last time.Time
}

// ExtraObject is an object of an older revision that is still in the cluster.
type ExtraObject struct {
	ID      ObjectID
	Version string
	State   ObjectState
	Reason  string
	Message string
	// Held says that it waits for a confirm.
	Held bool
	// Revision is the one that listed it last in this cluster; 0: the agent does not know.
	Revision int64
	// Root says that it stays until the module goes, or longer.
	Root bool
}

// Cluster is what selectors and bindings see of a registered cluster.
type Cluster struct {
	Name   ClusterName
	Labels map[string]string
	// Annotations are free text for bindings; never matched.
	Annotations map[string]string
	Cordoned    bool
	Taints      []Taint
}

// Taint keeps modules away from a cluster that do not tolerate it.
type Taint struct{ Key, Value string }

// Toleration matches taints: of any key if that is empty, with any value if that is nil.
type Toleration struct {
	Key   string
	Value *string
}

// Placement selects clusters by selector and by name.
type Placement struct {
	Selector    *Selector
	Clusters    []ClusterName
	Tolerations []Toleration
}

// Marks on managed objects. They are hints: owned means that the UID is in the agent's inventory (DESIGN §6).
const (
	HubLabel        = "towline.dev/hub"
	OwnerAnnotation = "towline.dev/owner"
	// AgainAnnotation is on an object for a moment, so that a DELETE from before it was listed again, or kept, does not meet it.
	AgainAnnotation = "towline.dev/again"
	WaveAnnotation  = "towline.dev/wave"
	// SubstituteAnnotation with SubstituteDisabled has ${…} be text in the whole object.
	SubstituteAnnotation = "towline.dev/substitute"
	SubstituteDisabled   = "disabled"
	// ReadyAnnotation with ReadyIgnore has the health of the object not count for whether its module, or its wave, is ready.
	ReadyAnnotation = "towline.dev/ready"
	ReadyIgnore     = "ignore"
	// HoldAnnotation on a live object has the agent leave it as it is, and HoldUntilAnnotation says until when. People of the
	// cluster set them; no manifest carries them.
	HoldAnnotation      = "towline.dev/hold"
	HoldUntilAnnotation = "towline.dev/hold-until"
	FieldManager        = "towline"
)

// ChangedMark is the first of Towline's own labels, or annotations, that were sent and are otherwise in the answer; empty: none is. What others put
// there is theirs to change.
func ChangedMark(sent, got map[string]string) (key string) {
	for _, key := range slices.Sorted(maps.Keys(sent)) {
		if strings.HasPrefix(key, "towline.dev/") && got[key] != sent[key] {
			return key
		}
	}
	return ""
}

// OwnerMark is the value of OwnerAnnotation: the module, the cluster, and a digest of the identity that the object has
// there, so that a copy of it under another name does not pass for an object of the module. The group is no part of it:
// it may change while the object stays.
func OwnerMark(m ModuleRef, clusterUID string, id ObjectID) string {
	return m.String() + "@" + clusterUID + "#" + DigestOf([]byte(id.Short())).Short()
}

// ParseOwnerMark reads the module and the cluster from an owner mark.
func ParseOwnerMark(mark string) (m ModuleRef, clusterUID string, ok bool) {
	ref, at, found := strings.Cut(mark, "@")
	if !found {
		return ModuleRef{}, "", false
	}
	m, err := ParseModuleRef(ref)
	clusterUID, _, _ = strings.Cut(at, "#")
	return m, clusterUID, err == nil
}
