package registry

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

const (
	// repeatWindow is how long after its use a token gives the same key the same certificate, though that is in use: a lost reply does no harm.
	repeatWindow = 10 * time.Minute
	maxUID       = 128
)

// Enrollment is what an agent asks with its token.
type Enrollment struct {
	Token        string
	CSR          []byte
	ClusterUID   string
	AgentVersion string
	Remote       string
}

// Identity is what it gets.
type Identity struct {
	Cluster fleet.ClusterName
	// Certificates are DER, leaf first.
	Certificates [][]byte
	CA           [][]byte
	HubID        string
}

// attempt is an enrollment whose parts have been read.
type attempt struct {
	token   jointoken.Token
	uid     string
	keyHash [32]byte
	now     time.Time
}

// Enroll redeems a token: in one transaction the token is used, the cluster's UID is pinned and the certificate is
// recorded. Exactly one key can win; the winner may ask again.
func (r *Registry) Enroll(ctx context.Context, e Enrollment) (Identity, error) {
	now := r.now()
	proved := r.proved(ctx, e, now) // whoever has a token that is good is not kept out by others at its address
	if !proved && !r.failures.allowed(e.Remote, now) {
		return Identity{}, tooMany("join")
	}
	out, again, err := r.enroll(ctx, e, now)
	if err == nil && !again || err != nil && (!proved || r.refusals.tell(claimed(e), status.Code(rpc.ToStatus(err)), now)) { // a lost reply is asked for again
		r.recordEnrolment(ctx, e, out, err)
	}
	if errors.Is(err, fleet.ErrDenied) || errors.Is(err, fleet.ErrInvalid) {
		r.failures.failed(e.Remote, now)
	}
	return out, err
}

// proved reports that the join token may be used by whoever sends it, as far as this hub's read model tells.
func (r *Registry) proved(ctx context.Context, e Enrollment, now time.Time) (good bool) {
	token, err := jointoken.Parse(e.Token)
	if err != nil {
		return false
	}
	a := attempt{token: token, uid: e.ClusterUID, now: now}
	_ = r.store.View(ctx, 0, func(rd store.Reader) error { // of a store that does not answer the join itself says so
		rec, err := a.record(rd)
		switch {
		case err != nil:
		case rec.GetUsed() == nil:
			good = !now.After(rec.GetToken().GetExpires().AsTime())
		default:
			var err error
			if _, a.keyHash, err = publicKey(e.CSR); err == nil {
				of, _ := cluster(rd, token.Cluster)
				good = a.repeats(rec, of) != nil
			}
		}
		return nil
	})
	return good
}

// claimed is the cluster that a join token is for, whether it is good or not.
func claimed(e Enrollment) fleet.ClusterName {
	token, err := jointoken.Parse(e.Token)
	if err != nil {
		return ""
	}
	return token.Cluster
}

// recordEnrolment records who enrolled, or was refused.
func (r *Registry) recordEnrolment(ctx context.Context, e Enrollment, id Identity, err error) {
	cluster := id.Cluster
	if err != nil {
		cluster = claimed(e)
	}
	r.record(ctx, "Enroll", e.Remote, "cluster "+string(cluster), cluster, err)
}

// record records what an agent was given, or refused, at an address. caller is who it is if it was given it.
func (r *Registry) record(ctx context.Context, method, remote, caller string, c fleet.ClusterName, err error) {
	if r.audit == nil {
		return
	}
	entry := &v1.AuditEntry{Remote: remote, Method: method, Subject: string(c), Result: status.Code(rpc.ToStatus(err)).String()}
	if err == nil {
		entry.Caller = caller
	} else {
		entry.Detail = fleet.Clip(err.Error(), 256)
	}
	r.audit(ctx, entry)
}

// tooMany is of an address from which too much has failed.
func tooMany(what string) error {
	return fleet.With(fleet.Errorf(fleet.ErrExhausted, "%s: too many failed attempts from this address; try again in a minute", what), fleet.Hint{RetryAfter: time.Minute})
}

// enroll says, too, that the same key was given the certificate before.
func (r *Registry) enroll(ctx context.Context, e Enrollment, now time.Time) (out Identity, again bool, err error) {
	token, err := jointoken.Parse(e.Token)
	if err != nil {
		return Identity{}, false, err
	}
	if !slices.ContainsFunc(r.current().certs, func(c *x509.Certificate) bool { return jointoken.Pin(c) == token.CAPin }) {
		return Identity{}, false, fleet.Errorf(fleet.ErrDenied, "join token for %s was made by another hub", token.Cluster)
	}
	a := attempt{token: token, uid: e.ClusterUID, now: now}
	// Nothing costs much before the secret has been proved.
	if err := r.prove(ctx, a); err != nil {
		return Identity{}, false, err
	}
	pub, hash, err := publicKey(e.CSR)
	if err != nil {
		return Identity{}, false, err
	}
	if err := checkUID(e.ClusterUID); err != nil {
		return Identity{}, false, err
	}
	leaf, err := r.ca.agent(token.Cluster, pub)
	if err != nil {
		return Identity{}, false, fmt.Errorf("cluster %s: certificate: %w", token.Cluster, err)
	}
	a.keyHash = hash
	var der []byte
	_, err = r.commit(ctx, func(w store.Writer) error {
		der, err = a.redeem(w, leaf)
		return err
	})
	if err != nil {
		return Identity{}, false, err
	}
	if again = !bytes.Equal(der, leaf.Raw); !again {
		r.log.Info("cluster joined", "cluster", token.Cluster, "uid", e.ClusterUID, "agent", e.AgentVersion, "remote", e.Remote)
	}
	return r.identity(token.Cluster, der), again, nil
}

func (r *Registry) identity(c fleet.ClusterName, der []byte) Identity {
	return Identity{Cluster: c, Certificates: [][]byte{der}, CA: ders(r.current().certs), HubID: r.hubID}
}

func checkUID(uid string) error {
	if uid == "" || len(uid) > maxUID {
		return fleet.Invalidf("cluster_uid", "has %d characters; the agent sends the UID of the kube-system namespace", len(uid))
	}
	for _, c := range []byte(uid) {
		if c <= ' ' || c > '~' || c == '/' {
			return fleet.Invalid("cluster_uid", "is no UID of a namespace")
		}
	}
	return nil
}

// prove finds the token; one that this hub's read model lacks may have been made a moment ago through another hub.
func (r *Registry) prove(ctx context.Context, a attempt) error {
	look := func(rd store.Reader) error {
		_, err := a.record(rd)
		return err
	}
	if err := r.store.View(ctx, 0, look); !errors.Is(err, fleet.ErrDenied) {
		return err
	}
	rev, err := r.store.Barrier(ctx)
	if err != nil {
		return err
	}
	return r.store.View(ctx, rev, look)
}

// record compares the secret with the token's. A token that never was and a wrong secret get one answer.
func (a *attempt) record(rd store.Reader) (*storev1.TokenRecord, error) {
	rec, _, ok := store.Get[*storev1.TokenRecord](rd, tokenKey(a.token.ID))
	want := a.token.SecretHash()
	same := subtle.ConstantTimeCompare(rec.GetSecretHash(), want[:]) == 1
	if !ok || !same || rec.GetToken().GetCluster() != string(a.token.Cluster) {
		return nil, fleet.Errorf(fleet.ErrDenied, "join token is not valid here: it was never made, was used or ended more than a day ago, was deleted, or was replaced by a newer one; run: towline cluster join NAME --reissue")
	}
	return rec, nil
}

// redeem returns the certificate's DER: leaf, or the one that the same key got before.
func (a *attempt) redeem(w store.Writer, leaf *x509.Certificate) ([]byte, error) {
	token, err := a.record(w)
	if err != nil {
		return nil, err
	}
	c := a.token.Cluster
	rec, ok := cluster(w, c)
	switch {
	case !ok:
		return nil, fleet.Errorf(fleet.ErrNotFound, "cluster %s: was removed from the hub; run: towline cluster join %s", c, c)
	case rec.GetRemoving() != "":
		return nil, fleet.Errorf(fleet.ErrPrecondition, "cluster %s: is being removed from the hub", c)
	case rec.GetLock() != nil:
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s: is locked; its agent may join after: towline cluster unlock %s", c, c)
	case token.GetUsed() != nil:
		return a.again(token, rec)
	}
	if expires := token.GetToken().GetExpires().AsTime(); a.now.After(expires) {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "join token for %s expired %s ago; run: towline cluster join %s --reissue", c, ago(a.now.Sub(expires)), c)
	}
	if err := a.unclaimed(w); err != nil {
		return nil, err
	}
	used := proto.CloneOf(token)
	used.Used, used.KeyHash = timestamppb.New(a.now), a.keyHash[:]
	w.Put(tokenKey(a.token.ID), used)
	endSession(w, c, a.now)
	if rec.GetUid() != "" && rec.GetUid() != a.uid {
		record.TakeName(w, c, rec)
	}
	rec.Uid, rec.Revoked, rec.Joined = a.uid, false, timestamppb.New(a.now)
	rec.JoinGeneration++
	rec.Attention, rec.AttentionAt, rec.Regressed = "", nil, ""
	rec.Certificates = []*storev1.Certificate{certificate(leaf, a.keyHash, a.now)}
	w.Put(store.ClusterKey(c), rec)
	return leaf.Raw, nil
}

// again answers one who comes with a used token.
func (a *attempt) again(token *storev1.TokenRecord, rec *storev1.ClusterRecord) ([]byte, error) {
	if cert := a.repeats(token, rec); cert != nil {
		return cert.GetDer(), nil
	}
	why := "for a certificate that is in use, has ended, or was replaced or revoked since"
	switch {
	case !bytes.Equal(token.GetKeyHash(), a.keyHash[:]):
		why = "by another key"
	case a.uid != rec.GetUid():
		why = "by another cluster"
	}
	return nil, fleet.Errorf(fleet.ErrDenied, "join token for %s was used %s ago %s, and can be used once; run: towline cluster join %s --reissue",
		a.token.Cluster, ago(a.now.Sub(token.GetUsed().AsTime())), why, a.token.Cluster)
}

// repeats is the certificate that the same key was given for its token, if it may have it again: for a while, and for as long as nobody has
// used that, it has not ended and the token is known yet. Without the key it is of no use. nil: there is none.
func (a *attempt) repeats(token *storev1.TokenRecord, rec *storev1.ClusterRecord) *storev1.Certificate {
	if !bytes.Equal(token.GetKeyHash(), a.keyHash[:]) || a.uid != rec.GetUid() {
		return nil
	}
	for _, cert := range rec.GetCertificates() {
		may := !cert.GetActive() && a.now.Before(cert.GetNotAfter().AsTime()) || a.now.Sub(token.GetUsed().AsTime()) <= repeatWindow
		if may && bytes.Equal(cert.GetKeyHash(), a.keyHash[:]) && len(cert.GetDer()) > 0 {
			return cert
		}
	}
	return nil
}

// unclaimed makes sure that no other registered cluster has this UID or this key. The guard makes two joins with one UID
// meet: the later one runs again and sees the earlier one.
func (a *attempt) unclaimed(w store.Writer) error {
	guard := store.GuardKey(a.uid)
	var err error
	store.Scan(w, store.ClusterPrefix, func(rec *storev1.ClusterRecord, e store.Entry) bool {
		other := e.Key[len(store.ClusterPrefix):]
		if other == string(a.token.Cluster) {
			return true
		}
		if rec.GetUid() == a.uid && !rec.GetRevoked() {
			err = fleet.Errorf(fleet.ErrExists, "cluster %s: this Kubernetes cluster is registered as %s already (UID %s); run the agent there, or: towline cluster remove %s", a.token.Cluster, other, a.uid, other)
		}
		if holds(rec, a.keyHash) {
			err = fleet.Errorf(fleet.ErrDenied, "cluster %s: the agent's key is that of cluster %s; start the agent with a state directory of its own", a.token.Cluster, other)
		}
		return err == nil
	})
	record.Count(w, guard)
	return err
}

func holds(rec *storev1.ClusterRecord, keyHash [32]byte) bool {
	for _, c := range rec.GetCertificates() {
		if bytes.Equal(c.GetKeyHash(), keyHash[:]) {
			return true
		}
	}
	return false
}

func certificate(leaf *x509.Certificate, keyHash [32]byte, now time.Time) *storev1.Certificate {
	return &storev1.Certificate{Serial: serialHex(leaf), KeyHash: keyHash[:], NotAfter: timestamppb.New(leaf.NotAfter),
		Issued: timestamppb.New(now), Der: leaf.Raw, Authority: leaf.AuthorityKeyId}
}

func serialHex(c *x509.Certificate) string { return fmt.Sprintf("%032x", c.SerialNumber) }

// ago is a duration for people: 3m, 2h, 5d.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Renew gives the calling agent a certificate for another period. The one it has stays valid until the new one has been
// used; asking again with the same key gives the same certificate.
func (r *Registry) Renew(ctx context.Context, caller rpc.Caller, csr []byte) (Identity, error) {
	if caller.Kind != rpc.KindAgent || caller.Cluster == "" {
		return Identity{}, fleet.Errorf(fleet.ErrDenied, "%s: only agents renew certificates", caller)
	}
	pub, hash, err := publicKey(csr)
	if err != nil {
		return Identity{}, err
	}
	leaf, err := r.ca.agent(caller.Cluster, pub)
	if err != nil {
		return Identity{}, fmt.Errorf("cluster %s: certificate: %w", caller.Cluster, err)
	}
	now := r.now()
	var der []byte
	_, err = r.commit(ctx, func(w store.Writer) error {
		der, err = renew(w, caller, leaf, hash, now)
		return err
	})
	if err != nil {
		return Identity{}, err
	}
	return r.identity(caller.Cluster, der), nil
}

func renew(w store.Writer, caller rpc.Caller, leaf *x509.Certificate, keyHash [32]byte, now time.Time) ([]byte, error) {
	rec, ok := cluster(w, caller.Cluster)
	if !ok {
		return nil, unregistered(caller.Cluster)
	}
	rec = regained(w, rec, caller, now)
	if err := standing(rec, caller.Cluster, caller.CertSerial, now); err != nil {
		return nil, err
	}
	for _, c := range rec.GetCertificates() {
		if bytes.Equal(c.GetKeyHash(), keyHash[:]) && len(c.GetDer()) > 0 && c.GetNotAfter().AsTime().Sub(now) > agentLife/2 {
			return c.GetDer(), nil
		}
	}
	rec.Certificates = append(tidy(rec.GetCertificates(), caller.CertSerial, now), certificate(leaf, keyHash, now))
	w.Put(store.ClusterKey(caller.Cluster), rec)
	return leaf.Raw, nil
}

// maxPending is how many certificates may wait for their first use: an agent that lost a reply or its state asks again.
const maxPending = 3

// tidy drops what has ended and the oldest of those that wait, so that one more fits. The caller's own stays.
func tidy(certs []*storev1.Certificate, own string, now time.Time) []*storev1.Certificate {
	var keep []*storev1.Certificate
	pending := 0
	for _, c := range slices.Backward(certs) {
		if c.GetNotAfter().AsTime().Before(now) && c.GetSerial() != own {
			continue
		}
		if waits := !c.GetActive() && c.GetSerial() != own; waits {
			if pending++; pending >= maxPending {
				continue
			}
		}
		keep = append(keep, c)
	}
	slices.Reverse(keep)
	return keep
}
