package registry

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Locked is why an agent is refused whose cluster is locked. It is not told who did that, nor why.
func Locked(c fleet.ClusterName) error {
	return notForgotten(fleet.Errorf(fleet.ErrDenied, "cluster %s: is locked; its agent is let in again after: towline cluster unlock %s", c, c))
}

// notForgotten has the agent that is refused know that the hub has not forgotten its cluster: it is to stop, also if it was told to leave before.
func notForgotten(err error) error {
	return fleet.With(err, fleet.Hint{Unmet: fleet.PreconditionUnlocked})
}

// Revoked is the error by which the agent of a cluster is refused that is revoked, or removed; rec is nil of one that is forgotten. Only of the
// first it is said that the hub has not forgotten it.
func Revoked(rec *storev1.ClusterRecord, err error) error {
	if rec == nil || rec.GetRemoving() != "" {
		return err
	}
	return notForgotten(err)
}

// Lock keeps the agent of a cluster out until Unlock: its session ends, and it is given none, no certificate and no join. Nothing else
// changes, so that all is as it was when it is unlocked. With a UID it is the cluster of that, and no other one of the name. changed is false
// of one that was locked already.
func (r *Registry) Lock(ctx context.Context, caller rpc.Caller, c fleet.ClusterName, uid, reason string) (changed bool, revision int64, err error) {
	now := r.now()
	revision, err = r.commit(ctx, func(w store.Writer) error {
		rec, err := meant(w, c, uid)
		if err != nil {
			return err
		}
		if changed = rec.GetLock() == nil; !changed {
			return nil
		}
		lock(w, rec, &v1.ClusterLock{By: caller.String(), Reason: reason, Since: timestamppb.New(now)})
		w.Put(store.ClusterKey(c), rec)
		return nil
	})
	if err == nil && changed {
		r.log.Info("cluster locked", "cluster", c, "by", caller)
	}
	return changed, revision, err
}

// lock puts the lock on the record, which the caller writes, and ends the session of the cluster.
func lock(w store.Writer, rec *storev1.ClusterRecord, l *v1.ClusterLock) {
	rec.Lock = l
	changedBy(rec, l.GetBy(), l.GetReason())
	cutSession(w, fleet.ClusterName(rec.GetCluster().GetMetadata().GetName()), l.GetSince().AsTime())
}

// Unlocking says how a cluster is let in again.
type Unlocking struct {
	// Reissue ends the identity that it had, and makes a token for the next one.
	Reissue bool
	// TTL is the token's; zero is DefaultTokenTTL.
	TTL time.Duration
	// UID, if set, is that of the cluster as the caller saw it.
	UID    string
	Reason string
}

// Unlock ends what Lock did. The join has no token unless it is a new identity that was asked for.
func (r *Registry) Unlock(ctx context.Context, caller rpc.Caller, c fleet.ClusterName, q Unlocking) (out Join, changed bool, err error) {
	join := JoinRequest{Cluster: c, TTL: q.TTL, Reason: q.Reason}
	if err := join.check(); err != nil {
		return Join{}, false, err
	}
	made, record := r.newToken(caller, join)
	out.Revision, err = r.commit(ctx, func(w store.Writer) error {
		rec, err := meant(w, c, q.UID)
		if err != nil {
			return err
		}
		if changed = rec.GetLock() != nil; !changed && q.Reissue {
			return fleet.Forbids(c.Object(), "cluster %s is not locked; for a new identity run: towline cluster join %s --reissue", c, c)
		}
		if !changed {
			return nil
		}
		if q.Reissue {
			if rec.GetRemoving() != "" {
				return fleet.Forbids(c.Object(), "cluster %s is being removed, so that it joins no more; unlock it without --reissue", c)
			}
			rec.Revoked, rec.Certificates = true, nil
			endTokens(w, c)
			putToken(w, record)
		}
		rec.Lock = nil
		changedBy(rec, caller.String(), q.Reason)
		w.Put(store.ClusterKey(c), rec)
		return nil
	})
	if err != nil {
		return Join{}, false, err
	}
	if q.Reissue {
		out.Token, out.Expires = made.Token, made.Expires
	}
	if changed {
		r.log.Info("cluster unlocked", "cluster", c, "by", caller, "reissued", q.Reissue)
	}
	return out, changed, nil
}

// meant is a copy of the record of the cluster that the caller means, to be changed.
func meant(r store.Reader, c fleet.ClusterName, uid string) (*storev1.ClusterRecord, error) {
	rec, ok := cluster(r, c)
	if !ok {
		return nil, notFound(c)
	}
	return rec, sameCluster(rec, c, uid)
}

func changedBy(rec *storev1.ClusterRecord, by, reason string) {
	meta := rec.GetCluster().GetMetadata()
	meta.ChangedBy, meta.ChangeReason = by, reason
}
