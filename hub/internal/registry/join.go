package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

const (
	// DefaultTokenTTL is how long a join token may be used when nobody says otherwise.
	DefaultTokenTTL = 15 * time.Minute
	// MaxTokenTTL is the longest it may be.
	MaxTokenTTL = 24 * time.Hour
	// tokenMemory is how long a used or expired token is shown and explained.
	tokenMemory = 24 * time.Hour
)

// States of a join token.
const (
	TokenUnused  = "Unused"
	TokenUsed    = "Used"
	TokenExpired = "Expired"
)

// JoinRequest asks for a join token.
type JoinRequest struct {
	Cluster fleet.ClusterName
	Labels  map[string]string
	// TTL of zero is DefaultTokenTTL.
	TTL time.Duration
	// Reissue makes a token for a cluster that is there already; its older tokens end.
	Reissue bool
	// UID, if set, is that of the cluster as the caller saw it.
	UID    string
	Reason string
}

// Join is a token and the cluster that it joins.
type Join struct {
	Token    string
	Expires  time.Time
	Cluster  *storev1.ClusterRecord
	Revision int64
}

func (q *JoinRequest) check() error {
	if err := fleet.ValidateLabel(string(q.Cluster)); err != nil {
		return fleet.Invalid("name", err.Error())
	}
	if q.TTL == 0 {
		q.TTL = DefaultTokenTTL
	}
	if q.TTL < time.Second || q.TTL > MaxTokenTTL {
		return fleet.Invalidf("ttl", "%s is out of range; use 1s to %s", q.TTL, "24h")
	}
	return ValidateLabels(q.Labels)
}

// ValidateLabels checks labels as Kubernetes does.
func ValidateLabels(labels map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if errs := validation.IsQualifiedName(k); len(errs) > 0 {
			return fleet.Invalidf("labels", "key %.80q: %s", k, errs[0])
		}
		if errs := validation.IsValidLabelValue(labels[k]); len(errs) > 0 {
			return fleet.Invalidf("labels["+k+"]", "%.80q: %s", labels[k], errs[0])
		}
	}
	return nil
}

// CreateJoin makes the cluster, or finds it when the request says Reissue, and a token for it, in one transaction. Only a
// hash of the secret is kept.
func (r *Registry) CreateJoin(ctx context.Context, caller rpc.Caller, q JoinRequest) (Join, error) {
	if err := q.check(); err != nil {
		return Join{}, err
	}
	out, token := r.newToken(caller, q)
	uid := newUID()
	rev, err := r.commit(ctx, func(w store.Writer) error {
		rec, err := joined(w, q)
		if err != nil {
			return err
		}
		if rec == nil {
			put, err := putCluster(w, &v1.Cluster{Metadata: &v1.Metadata{Name: string(q.Cluster), Labels: q.Labels}},
				&v1.Metadata{Uid: uid, CreationTimestamp: token.GetToken().GetMetadata().GetCreationTimestamp(), ChangedBy: caller.String(), ChangeReason: q.Reason})
			if err != nil {
				return err
			}
			rec = put.Record
			dropTokens(w, q.Cluster) // two that make the cluster are not made at once
		} else {
			endTokens(w, q.Cluster)
		}
		out.Cluster = proto.CloneOf(rec)
		putToken(w, token)
		return nil
	})
	out.Revision = rev
	if err != nil {
		return Join{}, err
	}
	return out, nil
}

// newToken makes a token, which counts when its record is put.
func (r *Registry) newToken(caller rpc.Caller, q JoinRequest) (Join, *storev1.TokenRecord) {
	token, now := jointoken.New(q.Cluster, r.ca.Pin()), r.now()
	hash, expires := token.SecretHash(), now.Add(q.TTL)
	return Join{Token: token.String(), Expires: expires}, &storev1.TokenRecord{SecretHash: hash[:], Token: &v1.Token{
		ApiVersion: fleet.APIVersion, Kind: "Token", Cluster: string(q.Cluster), Expires: timestamppb.New(expires),
		Metadata: &v1.Metadata{Name: token.ID, CreationTimestamp: timestamppb.New(now), ChangedBy: caller.String(), ChangeReason: q.Reason}}}
}

// putToken makes a token good. It is the only one of its cluster that may be redeemed, for those before it end first.
func putToken(w store.Writer, token *storev1.TokenRecord) {
	w.Put(tokenKey(token.GetToken().GetMetadata().GetName()), token)
}

// joined is the cluster's record if a token may be made for it, nil if there is no cluster yet.
func joined(r store.Reader, q JoinRequest) (*storev1.ClusterRecord, error) {
	rec, ok := cluster(r, q.Cluster)
	if err := sameCluster(rec, q.Cluster, q.UID); err != nil {
		return nil, err
	}
	switch {
	case !ok:
		return nil, nil
	case !q.Reissue:
		return nil, fleet.With(fleet.Errorf(fleet.ErrExists, "cluster %s is registered already; for a new token run: towline cluster join %s --reissue",
			q.Cluster, q.Cluster), fleet.Hint{About: q.Cluster.Object()})
	case rec.GetLock() != nil:
		return nil, fleet.Forbids(q.Cluster.Object(), "cluster %s is locked; to let it in with a new identity run: towline cluster unlock %s --reissue", q.Cluster, q.Cluster)
	case rec.GetRemoving() != "":
		return nil, fleet.Forbids(q.Cluster.Object(), "cluster %s is being removed; wait until it is gone, or run: towline cluster remove %s --force", q.Cluster, q.Cluster)
	case len(q.Labels) > 0 && !maps.Equal(q.Labels, rec.GetCluster().GetMetadata().GetLabels()):
		return nil, fleet.Forbids(q.Cluster.Object(), "cluster %s has other labels; change them with: towline cluster label %s", q.Cluster, q.Cluster)
	}
	return rec, nil
}

// endTokens deletes the tokens of a cluster that nobody redeemed. One that another hub makes in the same moment is among them, or is not made.
func endTokens(w store.Writer, c fleet.ClusterName) {
	w.Unchanged(store.TokenPrefix)
	dropTokens(w, c)
}

func dropTokens(w store.Writer, c fleet.ClusterName) {
	for _, key := range unusedTokens(w, c) {
		w.Delete(key)
	}
}

// unusedTokens are the keys of the cluster's tokens that nobody redeemed, at most as many as fit the transaction.
func unusedTokens(r store.Reader, c fleet.ClusterName) (keys []string) {
	store.Scan(r, store.TokenPrefix, func(t *storev1.TokenRecord, e store.Entry) bool {
		if t.GetToken().GetCluster() == string(c) && t.GetUsed() == nil {
			keys = append(keys, e.Key)
		}
		return len(keys) < store.MaxOps/2
	})
	return keys
}

// Tokens are the join tokens, sorted by cluster, then by end.
func (r *Registry) Tokens(ctx context.Context) ([]*v1.Token, error) {
	var out []*v1.Token
	now := r.now()
	err := r.store.View(ctx, 0, func(rd store.Reader) error {
		store.Scan(rd, store.TokenPrefix, func(t *storev1.TokenRecord, e store.Entry) bool {
			c := proto.CloneOf(t.GetToken())
			c.State = tokenState(t, now)
			c.Metadata.ResourceVersion = e.ModRevision
			out = append(out, c)
			return true
		})
		return nil
	})
	slices.SortFunc(out, func(a, b *v1.Token) int {
		return cmp.Or(cmp.Compare(a.GetCluster(), b.GetCluster()), a.GetExpires().AsTime().Compare(b.GetExpires().AsTime()))
	})
	return out, err
}

func tokenState(t *storev1.TokenRecord, now time.Time) string {
	switch {
	case t.GetUsed() != nil:
		return TokenUsed
	case now.After(t.GetToken().GetExpires().AsTime()):
		return TokenExpired
	}
	return TokenUnused
}

// DeleteToken ends a token.
func (r *Registry) DeleteToken(ctx context.Context, id string) (int64, error) {
	return r.commit(ctx, func(w store.Writer) error {
		if _, ok := w.Get(tokenKey(id)); !ok {
			return fleet.NotFound(fleet.Object{Kind: "Token", Name: id}, "join token %.40q: there is none; see: towline get tokens", id)
		}
		w.Delete(tokenKey(id))
		return nil
	})
}

// forgetTokens deletes the tokens that ended long ago.
func (r *Registry) forgetTokens(ctx context.Context) error {
	limit := r.now().Add(-tokenMemory)
	var old []string
	collect := func(rd store.Reader) error {
		old = old[:0]
		store.Scan(rd, store.TokenPrefix, func(t *storev1.TokenRecord, e store.Entry) bool {
			if t.GetToken().GetExpires().AsTime().Before(limit) {
				old = append(old, e.Key)
			}
			return len(old) < store.MaxOps
		})
		return nil
	}
	if err := r.store.View(ctx, 0, collect); err != nil || len(old) == 0 {
		return err
	}
	_, err := r.commit(ctx, func(w store.Writer) error {
		if err := collect(w); err != nil {
			return err
		}
		for _, k := range old {
			w.Delete(k)
		}
		return nil
	})
	return err
}

// Revoke ends the identity of a cluster: its certificates and its unused tokens. With a UID it is the cluster of that, and
// no other one of the name.
func (r *Registry) Revoke(ctx context.Context, caller rpc.Caller, c fleet.ClusterName, uid, reason string) (int64, error) {
	rev, err := r.commit(ctx, func(w store.Writer) error {
		rec, err := meant(w, c, uid)
		if err != nil {
			return err
		}
		endTokens(w, c) // of one that is revoked as well: there may be one since
		if rec.GetRevoked() && len(rec.GetCertificates()) == 0 {
			return nil
		}
		if rec.GetRemoving() != "" && !rec.GetRevoked() { // its agent is to stop, so that nobody waits for it any more
			rec.Removing, rec.Cluster.Metadata.DeletionTimestamp = "", nil
		}
		rec.Revoked, rec.Certificates = true, nil
		cutSession(w, c, r.now())
		changedBy(rec, caller.String(), reason)
		w.Put(store.ClusterKey(c), rec)
		return nil
	})
	if err != nil {
		return 0, err
	}
	r.log.Info("cluster revoked", "cluster", c, "by", caller)
	return rev, nil
}

// sameCluster checks that a record is of the cluster of a UID; any is one of no UID.
func sameCluster(rec *storev1.ClusterRecord, c fleet.ClusterName, uid string) error {
	return fleet.SameUID(c.Object(), rec.GetCluster().GetMetadata().GetUid(), uid)
}

func tokenKey(id string) string { return store.TokenPrefix + id }

// newUID is a random UUID.
func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
