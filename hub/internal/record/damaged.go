package record

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// damage begins what is said of a record that cannot be read.
const damage = "the hub's record of it is damaged: "

// StandIn is what the hub goes on with when a record cannot be read. The damage of one record must not stop what the
// others are about, and it must never be taken for an order: what an agent said is asked for again, what a cluster should
// run is a problem that says how it is mended, and a freeze that cannot be read ends nowhere. Records of clusters,
// modules, rollouts and identities have no stand-in: nothing is done about them until they can be read, or until a person
// puts something in their place.
func StandIn(key string, why error) (value proto.Message, absent bool) {
	switch prefix, rest, _ := strings.Cut(key, "/"); prefix + "/" {
	case store.DesiredPrefix:
		return damagedDesired(key, why), false
	case store.ObservedPrefix:
		return &storev1.ObservedRecord{}, false
	case store.SessionPrefix:
		return &storev1.SessionRecord{VoidBefore: lostSession}, false
	case store.VerbPrefix:
		return &storev1.VerbRecord{}, false // its number is taken, and it says nothing
	case firstOfGuard:
		if key == store.TakenKey {
			return &storev1.Counter{Value: lostTakes}, false
		}
		if strings.HasPrefix(key, store.GuardPrefix) || key == store.HeldKey {
			return &storev1.Counter{}, false // all that counts is that it changes
		}
		if key == store.RestoreKey {
			return &storev1.Restore{Stands: true}, false // of a store of which nobody is known to be no newer
		}
		if store.AboutRestore(key) {
			return nil, true // nobody has said so
		}
	case store.BatchPrefix:
		return &storev1.BatchRecord{}, false // it is waited for as long as for any other
	case store.WantedPrefix:
		return damagedWanted(), false // who cannot be told from anybody else wants it
	case store.AckPrefix, store.ConditionPrefix, store.CapabilityPrefix, store.FollowPrefix, store.CatalogStates:
		return nil, true
	case store.ConfirmPrefix:
		return nil, true // the leader asks anew
	case store.PeerPrefix:
		return nil, true // as of a hub that is gone, until it says again that it is there
	case store.RecyclePrefix:
		return nil, true // an order that cannot be read is none
	case store.FloorPrefix:
		return &storev1.FloorRecord{Hold: true}, false // until the leader has looked at the holds
	case store.HoldPrefix:
		if !strings.HasPrefix(key, store.FreezePrefix) {
			return nil, true // the leader asks anew
		}
		return &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: rest, Kind: HoldFreeze, Code: fleet.HoldDamaged}}, false
	}
	return nil, false
}

// firstOfGuard is the first component of the keys of guards and counts, and of others that have no stand-in.
const firstOfGuard = "meta/"

// lostTakes stands in for how often names were taken when the record of that is damaged.
const lostTakes = math.MaxUint64

// lostSession stands in for the session from which on reports count when the record of the newest one is damaged: none does,
// until the agent has a session again and says everything anew.
const lostSession = math.MaxUint64

// LostSession reports that the record of the cluster's newest session is damaged.
func LostSession(s *storev1.SessionRecord) bool { return s.GetVoidBefore() == lostSession }

// LastEpoch is the newest session of a cluster that anything but the record of that session speaks of.
func LastEpoch(r store.Reader, c fleet.ClusterName) uint64 {
	ack, _, _ := store.Get[*storev1.AckRecord](r, store.AckKey(c))
	told, _, _ := store.Get[*storev1.ConditionsRecord](r, store.ConditionKey(c))
	last := max(ack.GetEpoch(), told.GetEpoch(), Anew(r, c).GetAnewEpoch())
	store.Scan(r, store.ObservedPrefix+string(c)+"/", func(o *storev1.ObservedRecord, _ store.Entry) bool {
		last = max(last, o.GetEpoch())
		return true
	})
	return last
}

func damagedDesired(key string, why error) *storev1.DesiredRecord {
	cluster, ref, _ := store.SplitClusterModule(key)
	text := fmt.Sprintf("%sits agent keeps what it has; to assign it again: towline rollout retry %s --cluster %s (%v)", damage, ref.Display(), cluster, why)
	return &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: 1}, Problem: text, ProblemGeneration: 1}
}

// DamagedCluster says what becomes of a cluster whose record cannot be read, and what to do.
func DamagedCluster(name fleet.ClusterName) string {
	return fmt.Sprintf("the hub's record of cluster %s is damaged, so its agent is not let in; it keeps what it has. Let the hub forget it, and join it again with its labels: towline cluster remove %s, towline cluster join %s", name, name, name)
}

// ReadableCluster fails if the hub's record of a cluster cannot be read, and says what to do.
func ReadableCluster(r store.Reader, name fleet.ClusterName) error {
	if why := store.DamageOf(r, store.ClusterKey(name)); why != nil {
		return fmt.Errorf("cluster %s: %s (%w)", name, DamagedCluster(name), why)
	}
	return nil
}

// DamagedModule says the same of a module.
func DamagedModule(ref fleet.ModuleRef) string {
	return fmt.Sprintf("the hub's record of module %s is damaged; its clusters keep what they have. Put the module again (towline apply), or delete it: towline delete module %s", ref.Display(), ref.Display())
}

// ReadableCatalog fails if the hub's record of a catalog cannot be read, and says what to do.
func ReadableCatalog(r store.Reader, ref fleet.ModuleRef) error {
	if why := store.DamageOf(r, store.CatalogKey(ref)); why != nil {
		return fmt.Errorf("%s (%w)", DamagedCatalog(ref), why)
	}
	return nil
}

// DamagedCatalog says that a catalog cannot be read, and what to do.
func DamagedCatalog(ref fleet.ModuleRef) string {
	return fmt.Sprintf("catalog %s, of which the hub's record is damaged: put that catalog again (towline apply), or delete it: towline delete catalog %s", ref.Display(), ref.Display())
}

// LastCatalogUID is the UID of a catalog whose record cannot be read, by what came of its last look; empty: there was none.
func LastCatalogUID(r store.Reader, ref fleet.ModuleRef) string {
	state, _, _ := store.Get[*storev1.CatalogState](r, store.CatalogStateKey(ref))
	return state.GetCatalogUid()
}

// DamagedCatalogs are the catalogs of a project that cannot be read, each with what to do.
func DamagedCatalogs(r store.Reader, project string) (out []string) {
	for _, d := range r.Damaged(store.CatalogPrefix + project + "/") {
		if ref, ok := store.SplitCatalog(d.Key); ok {
			out = append(out, DamagedCatalog(ref))
		}
	}
	return out
}

// DamagedRevision says the same of a revision; nil: its record can be read, or there is none.
func DamagedRevision(r store.Reader, ref fleet.ModuleRef, number int64) error {
	why := store.DamageOf(r, store.RevisionKey(ref, number))
	if why == nil {
		return nil
	}
	return fmt.Errorf("module %s: the hub's record of revision r%d is damaged: no further cluster can be given it; those that have it "+
		"keep it. Put the module again (towline apply): that makes a new one (%w)", ref.Display(), number, why)
}

// DamagedFloor reports that the floor of a cluster cannot be read: a sound one has a generation.
func DamagedFloor(f *storev1.FloorRecord) bool { return f.GetHold() && f.GetGeneration() == 0 }

// Damaged reports that what a cluster should run of a module cannot be read.
func Damaged(d *storev1.DesiredRecord) bool { return strings.HasPrefix(d.GetProblem(), damage) }

// StillDamaged says that a revision cannot be assigned in the place of what cannot be read. It is Damaged as well.
func StillDamaged(revision int64, why string) string {
	return fmt.Sprintf("%sits agent keeps what it has, and r%d cannot be assigned: %s", damage, revision, why)
}

// damaged reports that a freeze cannot be read: a sound one names a module or a cluster.
func damaged(h *towlinev1.Hold) bool {
	return h.GetKind() == HoldFreeze && h.GetModule() == "" && h.GetCluster() == ""
}

// unreadable is in Holds when a freeze cannot be read.
const unreadable = "?"
