// Package record reads the store's records as the values that the pure packages speak of. It owns that translation for
// control and api alike; it must not write, nor decide.
package record

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// Cluster is what bindings and selectors see of a cluster.
func Cluster(rec *storev1.ClusterRecord) fleet.Cluster {
	return wire.ClusterOf(rec.GetCluster())
}

// Clusters are all clusters in the order of their names.
func Clusters(r store.Reader) []*storev1.ClusterRecord {
	var out []*storev1.ClusterRecord
	store.Scan(r, store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
		out = append(out, c)
		return true
	})
	return out
}

// ClustersOf are the records of the clusters that have a desired record of a module, in the order of their names, and perhaps others. No
// commit depends on it.
func ClustersOf(r store.Reader, ref fleet.ModuleRef) []*storev1.ClusterRecord {
	r = store.Untracked(r)
	names, known := store.Assigned(r, ref)
	if !known {
		return Clusters(r)
	}
	slices.Sort(names)
	out := make([]*storev1.ClusterRecord, 0, len(names))
	for _, c := range slices.Compact(names) {
		if rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c)); ok {
			out = append(out, rec)
		}
	}
	return out
}

// assignedIn says whether a cluster may have a desired record of a module: where it says no there is none.
func assignedIn(r store.Reader, ref fleet.ModuleRef) func(fleet.ClusterName) bool {
	names, known := store.Assigned(r, ref)
	if !known {
		return func(fleet.ClusterName) bool { return true }
	}
	in := make(map[fleet.ClusterName]bool, len(names))
	for _, c := range names {
		in[c] = true
	}
	return func(c fleet.ClusterName) bool { return in[c] }
}

// Digest reads a stored digest; one that does not parse reads as none.
func Digest(b []byte) fleet.Digest {
	d, err := fleet.DigestFromBytes(b)
	if err != nil {
		return fleet.Digest{}
	}
	return d
}

// ModuleOfRevision is the module message as it was when the revision was cut.
func ModuleOfRevision(ref fleet.ModuleRef, rev *storev1.RevisionRecord) *towlinev1.Module {
	return &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project},
		Spec: rev.GetRevision().GetSpec()}
}

// Tracked is a module in a cluster: the records and what follows from them.
type Tracked struct {
	Cluster  fleet.ClusterName
	Module   fleet.ModuleRef
	Desired  *storev1.DesiredRecord
	Input    tracker.Input
	Tracker  tracker.Tracker
	Observed *storev1.ObservedRecord
	// Void says that what was reported last does not count, or that what was may be lost.
	Void bool
}

// Generation is that of the newest assignment.
func (t Tracked) Generation() uint64 { return Generation(t.Desired) }

// Revision is the revision assigned: that of the sync, or of an assignment that could not be made.
func (t Tracked) Revision() int64 {
	if t.Desired.GetProblem() != "" {
		return t.Desired.GetProblemRevision()
	}
	return max(t.Desired.GetSync().GetRevision(), t.Desired.GetNextRevision())
}

// Generation is the generation of the newest assignment in the record.
func Generation(d *storev1.DesiredRecord) uint64 {
	return max(GivenGeneration(d), d.GetProblemGeneration(), d.GetNextGeneration())
}

// AssignedGeneration is the generation with which the record was assigned, whatever was changed in it since.
func AssignedGeneration(d *storev1.DesiredRecord) uint64 {
	return cmp.Or(d.GetAssignedGeneration(), Generation(d))
}

// GivenGeneration is the generation of what the cluster's agent is told: of the sync, or of the tombstone in its place.
func GivenGeneration(d *storev1.DesiredRecord) uint64 {
	return max(d.GetSync().GetGeneration(), d.GetTombstone().GetGeneration())
}

// Conditions are what the cluster's agent said last about the cluster as a whole.
func Conditions(r store.Reader, c fleet.ClusterName) []fleet.Condition {
	rec, _, ok := store.Get[*storev1.ConditionsRecord](r, store.ConditionKey(c))
	if !ok {
		return nil
	}
	all, err := wire.ConditionsFromProto(rec.GetConditions(), time.Now())
	if err != nil {
		return nil // they were checked when they came: this hub is older than the one that took them
	}
	return all
}

// Seen reports whether the cluster's agent, if it is connected, sees the cluster now. What is known of a cluster that is
// not seen is as last heard.
func Seen(r store.Reader, c fleet.ClusterName, connected bool) bool {
	return connected && fleet.Blinding(Conditions(r, c)) == nil
}

// Voided reports that an acknowledgement is of a time before which nothing counts that was said.
func Voided(s *storev1.SessionRecord, ack *storev1.AckRecord) bool {
	return ack.GetEpoch() < s.GetVoidBefore()
}

// WordFrom is the oldest session whose reports the agent of the newest one stands by; 0: any.
func WordFrom(s *storev1.SessionRecord, ack *storev1.AckRecord) uint64 {
	if ack.GetEpoch() == s.GetEpoch() && ack.GetWordFrom() > 0 {
		return ack.GetWordFrom()
	}
	return s.GetWordFrom()
}

// Track reads a module in a cluster; false: nothing is assigned there. connected says that the cluster's agent has a live
// session.
func Track(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, connected bool) (Tracked, bool) {
	return At(r, c, connected).Track(ref)
}

// ListExtras has the tracker list the objects of older revisions, which it only counts otherwise: they may be many.
func (t *Tracked) ListExtras() {
	if t.Input.Observed == nil {
		return
	}
	o := *t.Input.Observed
	o.Extras, _ = wire.ExtrasFromProto(t.Observed.GetStatus()) // checked when it came
	t.Input.Observed = &o
}

// Unlisted is how many objects of older revisions the agent counted and could not list, after ListExtras.
func (t Tracked) Unlisted() int {
	if o := t.Input.Observed; o != nil {
		return max(0, o.ExtraCount-len(o.Extras))
	}
	return 0
}

// LastWord is when a session that is not live is known to have been heard of last. Of one that ended with the hub itself
// nobody noted the end: then it is when it began, or when its newest report of something new came.
func LastWord(r store.Reader, c fleet.ClusterName, s *storev1.SessionRecord) time.Time {
	switch {
	case s.GetHeard() != nil:
		return s.GetHeard().AsTime()
	case s.GetEnded() != nil:
		return s.GetEnded().AsTime()
	}
	if s.GetStarted() == nil {
		return time.Time{}
	}
	at := s.GetStarted().AsTime()
	store.Scan(r, store.ObservedPrefix+string(c)+"/", func(o *storev1.ObservedRecord, _ store.Entry) bool {
		if since := time.UnixMilli(o.GetSince()); o.GetEpoch() == s.GetEpoch() && since.After(at) {
			at = since
		}
		return true
	})
	return at
}

// next is what a cluster is to have once a final tombstone is carried out.
func next(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, d *storev1.DesiredRecord) *fleet.Sync {
	// One that is damaged is said when its turn comes.
	rev, _, _ := store.Get[*storev1.RevisionRecord](store.Untracked(r), store.RevisionKey(ref, d.GetNextRevision()))
	v := nextVariant(r, c, ref, rev)
	return &fleet.Sync{Module: ref, Generation: d.GetNextGeneration(), Revision: d.GetNextRevision(), Bundle: Digest(v.GetBundle()),
		Objects: int(v.GetObjects()), Watched: len(rev.GetRevision().GetSpec().GetWatch())}
}

func wanted(d *storev1.DesiredRecord) (*fleet.Sync, *fleet.Tombstone) {
	if d.GetTombstone() != nil {
		if v, err := wire.TombstoneFromProto(d.GetTombstone()); err == nil {
			return nil, &v
		}
	}
	if d.GetSync() == nil {
		return &fleet.Sync{}, nil
	}
	v, err := wire.SyncFromProto(d.GetSync())
	if err != nil {
		return &fleet.Sync{}, nil
	}
	return &v, nil
}

// ModulesOf are the modules with anything assigned in the cluster.
func ModulesOf(r store.Reader, c fleet.ClusterName) []fleet.ModuleRef {
	var out []fleet.ModuleRef
	r.Scan(store.DesiredPrefix+string(c)+"/", func(e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok {
			out = append(out, ref)
		}
		return true
	})
	return out
}

// Connected reports whether a cluster with a live session counts as connected: that of a locked one is about to be cut.
func Connected(rec *storev1.ClusterRecord, live bool) bool { return live && rec.GetLock() == nil }

// State is a cluster's state and since when it holds; zero: not known, for nobody notes when a cluster is cordoned or revoked.
func State(r store.Reader, rec *storev1.ClusterRecord, connected bool) (fleet.ClusterState, time.Time) {
	meta := rec.GetCluster().GetMetadata()
	name := fleet.ClusterName(meta.GetName())
	s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(name))
	switch {
	case rec.GetRevoked():
		return fleet.ClusterRevoked, Instant(meta.GetDeletionTimestamp())
	case rec.GetRemoving() != "":
		return fleet.ClusterRemoving, Instant(meta.GetDeletionTimestamp())
	case rec.GetLock() != nil:
		return fleet.ClusterLocked, Instant(rec.GetLock().GetSince())
	case rec.GetJoined() == nil:
		return fleet.ClusterPending, time.Time{}
	case !connected && s.GetEnded() == nil: // the hub ended with the session
		return fleet.ClusterDisconnected, LastWord(r, name, s)
	case !connected:
		return fleet.ClusterDisconnected, Instant(s.GetEnded())
	case rec.GetCluster().GetSpec().GetCordoned():
		return fleet.ClusterCordoned, time.Time{}
	}
	return fleet.ClusterReady, Instant(s.GetStarted())
}

// Instant is a time of a record; zero: it has none.
func Instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
