package registry

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// Admission is what an agent says when it asks for the session.
type Admission struct {
	Cluster           fleet.ClusterName
	InstanceID        string
	ClusterUID        string
	Hub               string
	AgentVersion      string
	KubernetesVersion string
	Features          []string
	// StatusDigest names the status that the hub acknowledged last, as the agent has it. StatusSeen says that the agent's
	// process has itself seen what it names.
	StatusDigest []byte
	StatusSeen   bool
	// Follows is the incarnation of the hub's store if the agent follows that, or none; empty: it follows another one.
	Follows string
	// LastEpoch is the agent's last session with this hub, as it says: it counts only when the hub's own word is lost.
	LastEpoch uint64
	// Blind: the agent says that it does not see its cluster.
	Blind bool

	lately bool // it has not been refused for so long that it must be a copy
}

// Opened is a session.
type Opened struct {
	Epoch uint64
	// Fence holds until a newer session of the cluster is opened, this one is closed or the cluster joins again.
	Fence store.Fence
	// KnownFrom is the oldest session with reports in the status that the admission names; 0: the hub does not have it.
	KnownFrom uint64
}

// OpenSession gives the cluster's session to the agent instance: epoch = old + 1. alive says that this hub hears the
// session before it; another instance must wait until it does not, or takes over from it. The caller in ctx is the agent: its
// certificate is thereby used, and the ones before it end.
func (r *Registry) OpenSession(ctx context.Context, a Admission, alive bool) (Opened, error) {
	caller, err := rpc.AgentFrom(ctx)
	if err != nil {
		return Opened{}, err
	}
	if caller.Cluster != a.Cluster {
		return Opened{}, fleet.Errorf(fleet.ErrDenied, "cluster %s: may not open the session of %.63q", caller.Cluster, a.Cluster)
	}
	if a.InstanceID == "" || len(a.InstanceID) > maxInstance {
		return Opened{}, fleet.Invalidf("instance_id", "has %d characters; 1 to %d are allowed", len(a.InstanceID), maxInstance)
	}
	a.AgentVersion, a.KubernetesVersion = cutVersion(a.AgentVersion), cutVersion(a.KubernetesVersion)
	a.Features = slices.DeleteFunc(wire.Features(), func(f string) bool { return !slices.Contains(a.Features, f) })
	var next *storev1.SessionRecord
	var known uint64
	var refusal error
	back := false
	a.lately = !r.rivals.persists(a.Cluster, a.InstanceID, r.now())
	rev, err := r.commit(ctx, func(w store.Writer) error {
		old, _, _ := store.Get[*storev1.SessionRecord](w, store.SessionKey(a.Cluster))
		back = comesBack(old, a)
		next, known, refusal, err = admit(w, a, caller, alive, r.now())
		return err
	})
	switch {
	case errors.Is(err, fleet.ErrExists) && !a.Blind && r.rivals.refused(a.Cluster, a.InstanceID, r.now()):
		r.alarms.add(a.Cluster, alarm{code: fleet.AttentionCloned})
		return Opened{}, err
	case err != nil:
		return Opened{}, err
	case refusal != nil:
		return Opened{}, refusal
	case back:
		r.alarms.add(a.Cluster, alarm{code: fleet.AttentionCloned})
	}
	return Opened{Epoch: next.GetEpoch(), KnownFrom: known, Fence: store.Fence{Key: store.SessionKey(a.Cluster), ModRevision: rev}}, nil
}

// What an agent says of itself is stored, so it is bounded.
const (
	maxInstance = 128
	maxVersion  = 64
)

func cutVersion(s string) string {
	return fleet.CleanText(strings.ToValidUTF8(s[:min(len(s), maxVersion)], ""))
}

// admit judges an admission. A refusal is committed with what a person must know about it; an error commits nothing.
func admit(w store.Writer, a Admission, caller rpc.Caller, alive bool, now time.Time) (next *storev1.SessionRecord, known uint64, refusal, err error) {
	rec, ok := cluster(w, a.Cluster)
	if !ok {
		return nil, 0, nil, unregistered(a.Cluster)
	}
	shown := regained(w, rec, caller, now)
	if err := standing(shown, a.Cluster, caller.CertSerial, now); err != nil {
		return nil, 0, nil, err
	}
	if rec.GetUid() != a.ClusterUID {
		const format = "cluster %s: cluster UID differs: joined as %s, and the agent is in %.64q: the agent's identity was copied, or the cluster was made anew; run: towline cluster join %s --reissue"
		if needsAttention(rec, fleet.AttentionOtherCluster, now) {
			attend(rec, fleet.AttentionOtherCluster, now)
			w.Put(store.ClusterKey(a.Cluster), rec)
		}
		return nil, 0, fleet.Errorf(fleet.ErrPrecondition, format, a.Cluster, rec.GetUid(), a.ClusterUID, a.Cluster), nil
	}
	old, _, _ := store.Get[*storev1.SessionRecord](w, store.SessionKey(a.Cluster))
	there := old.GetEnded() == nil && (alive && old.GetHub() == a.Hub || lives(w, old.GetHub(), a.Hub))
	other := there && old.GetInstanceId() != a.InstanceID
	if other && !comesBack(old, a) && !overtakes(w, rec, a) {
		return nil, 0, nil, fleet.Errorf(fleet.ErrExists, "cluster %s: another instance of its agent (%.40s) is connected; this one may take over when that is gone", a.Cluster, old.GetInstanceId())
	}
	if record.LostSession(old) {
		old = succeeded(w, a)
	}
	rec = shown
	changed := activate(rec, caller.CertSerial, now)
	if rec.GetAttention() != "" && now.Sub(rec.GetAttentionAt().AsTime()) > attentionLife {
		rec.Attention, rec.AttentionAt, changed = "", nil, true
	}
	if changed {
		w.Put(store.ClusterKey(a.Cluster), rec)
	}
	next = &storev1.SessionRecord{Epoch: old.GetEpoch() + 1, InstanceId: a.InstanceID, Hub: a.Hub, Started: timestamppb.New(now),
		AgentVersion: a.AgentVersion, KubernetesVersion: a.KubernetesVersion, VoidBefore: old.GetVoidBefore(), Features: a.Features, Follows: a.Follows, Untold: record.UntoldSince(old, now)}
	switch {
	case comesBack(old, a):
	case other:
		next.Overtaken = old.GetInstanceId()
	default:
		next.Overtaken = old.GetOvertaken()
	}
	known = knownFrom(w, a, old)
	if next.WordFrom = next.GetEpoch(); known > 0 && a.StatusSeen {
		next.WordFrom = known
	}
	w.Put(store.SessionKey(a.Cluster), next)
	return next, known, nil, nil
}

// overtakes reports that the agent sees the cluster, and that the instance with the session says that it does not: what asks has the Lease of the
// cluster, and where the other one does not hear of that, as on a node that is cut off from the API server and not from the hub, it would keep
// the session without being able to do anything. A copy of the agent in a copy of the cluster had asked before that, and waits on, also when it or
// the hub starts anew.
func overtakes(r store.Reader, rec *storev1.ClusterRecord, a Admission) bool {
	unseen := fleet.Blinding(record.Conditions(r, a.Cluster))
	return a.lately && !a.Blind && unseen != nil && !copied(rec, unseen.Since)
}

// comesBack reports that the agent was overtaken because it did not see its cluster, and sees it now as the same instance: one that loses its Lease
// goes on as another. So nobody else has had the Lease of its cluster meanwhile, and what overtook it is a copy in another one, which had not asked
// for the session before.
func comesBack(old *storev1.SessionRecord, a Admission) bool {
	return !a.Blind && a.InstanceID == old.GetOvertaken()
}

// copied reports that two agents had asked for the session of the cluster before a moment, and until a while before it at least.
func copied(rec *storev1.ClusterRecord, at time.Time) bool {
	before := at.Sub(rec.GetAttentionAt().AsTime())
	return rec.GetAttention() == fleet.AttentionCloned && before >= 0 && before < 2*attentionRepeat
}

// lives reports that the session before is with another hub, and that hub is there: it ends its sessions by itself when it hears
// nothing any more.
func lives(r store.Reader, hub, me string) bool {
	if hub == "" || hub == me {
		return false
	}
	_, _, ok := store.Get[*storev1.HubRecord](r, store.PeerKey(hub))
	return ok
}

// succeeded stands for a session whose record is damaged: every epoch that was ever given is below that of the next, and
// nothing that was reported counts any more. An agent may make itself newer by what it says, and nobody else.
func succeeded(r store.Reader, a Admission) *storev1.SessionRecord {
	last := max(record.LastEpoch(r, a.Cluster), min(a.LastEpoch, math.MaxInt64))
	return &storev1.SessionRecord{Epoch: last, VoidBefore: last + 1}
}

// knownFrom is the oldest session with reports in the status that the agent holds; 0: the hub has another one, or not all that it has
// counts. That an agent takes its word for given does not say that the hub does: the session in which it gave it may have ended before
// any of it was committed, or between the frames of a full status. What would not count is asked for again, and so is a report that was
// damaged, of which nothing is left.
func knownFrom(r store.Reader, a Admission, old *storev1.SessionRecord) uint64 {
	ack, _, _ := store.Get[*storev1.AckRecord](r, store.AckKey(a.Cluster))
	if len(a.StatusDigest) == 0 || !bytes.Equal(a.StatusDigest, ack.GetStatusDigest()) || record.Voided(old, ack) {
		return 0
	}
	from := record.WordFrom(old, ack)
	store.Scan(r, store.ObservedPrefix+string(a.Cluster)+"/", func(o *storev1.ObservedRecord, _ store.Entry) bool {
		if o.GetStatus() == nil || o.GetEpoch() < max(from, old.GetVoidBefore()) {
			from = 0
		}
		return from != 0
	})
	return from
}

// Regressed records that this store is older than what the cluster's agent has seen of the hub. A new join ends it. What was
// reported before the session is of a time that the agent has left behind, and says no more what the cluster has; the fence of
// the session is the one that it returns.
func (r *Registry) Regressed(ctx context.Context, c fleet.ClusterName, o Opened, why string) (store.Fence, error) {
	changed := false
	rev, err := r.commit(ctx, func(w store.Writer) error {
		rec, ok := cluster(w, c)
		s, _, open := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
		changed = ok && open && s.GetEpoch() == o.Epoch && s.GetEnded() == nil && rec.GetRegressed() == ""
		if !changed {
			return nil
		}
		rec.Regressed = why
		w.Put(store.ClusterKey(c), rec)
		next := proto.CloneOf(s)
		next.VoidBefore = max(s.GetVoidBefore(), s.GetWordFrom())
		w.Put(store.SessionKey(c), next)
		return nil
	})
	if err != nil || !changed {
		return o.Fence, err
	}
	return store.Fence{Key: o.Fence.Key, ModRevision: rev}, nil
}

// CloseSession records the end of the session, and when its agent's last word came, if it is still the newest; its fence does not
// hold any more.
func (r *Registry) CloseSession(ctx context.Context, c fleet.ClusterName, epoch uint64, heard time.Time) error {
	_, err := r.commit(ctx, func(w store.Writer) error {
		rec, _, ok := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
		if !ok || rec.GetEpoch() != epoch || rec.GetHeard() != nil {
			return nil
		}
		ended := proto.CloneOf(rec)
		if ended.Heard = timestamppb.New(heard); rec.GetEnded() == nil {
			ended.Ended = timestamppb.New(r.now())
		}
		w.Put(store.SessionKey(c), ended)
		return nil
	})
	return err
}

// cutSession ends the session of a cluster that is revoked or locked: its fence fails from the commit on, so that nothing counts that its
// agent still says. What it has said before stays the last word.
func cutSession(w store.Writer, c fleet.ClusterName, now time.Time) {
	rec, _, ok := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
	if !ok || rec.GetEnded() != nil || record.LostSession(rec) {
		return
	}
	ended := proto.CloneOf(rec)
	ended.Ended = timestamppb.New(now)
	w.Put(store.SessionKey(c), ended)
}

// Continued records that the cluster's agent, which followed another store of this hub, goes on with this one as after a new join: a
// store that was restored from a backup says so. The session ends with it, and what was reported in it counts no more.
func (r *Registry) Continued(ctx context.Context, c fleet.ClusterName, o Opened) error {
	_, err := r.commit(ctx, func(w store.Writer) error {
		s, _, open := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
		rec, ok := cluster(w, c)
		if !ok || !open || s.GetEpoch() != o.Epoch {
			return fleet.Errorf(fleet.ErrStale, "cluster %s: a newer session took over", c)
		}
		if rec.GetRegressed() != "" {
			rec.Regressed = ""
			w.Put(store.ClusterKey(c), rec)
		}
		endSession(w, c, r.now())
		return nil
	})
	return err
}

// endSession voids the session of an earlier join, and what was reported in it: its fence fails from the commit on. Who joins may
// be another cluster, or one that goes on from a time which this store has lost.
func endSession(w store.Writer, c fleet.ClusterName, now time.Time) {
	rec, _, ok := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
	if !ok {
		return
	}
	ended := proto.CloneOf(rec)
	ended.Epoch++
	ended.Ended = timestamppb.New(now)
	if !record.LostSession(rec) { // of one that is lost nothing counts anyway
		ended.VoidBefore = ended.Epoch
	}
	w.Put(store.SessionKey(c), ended)
}
