package registry

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// recoverEvery is how soon a cluster gets a certificate for another key by one that has ended: one whose reply was lost comes with the same key.
const recoverEvery = time.Minute

// Recovery is what an agent asks whose certificate has ended.
type Recovery struct {
	Certificate []byte
	CSR         []byte
	ClusterUID  string
	Proof       []byte
	Remote      string
}

// Recover gives an agent whose certificate has ended the next one, as Renew would have done in time. It is for the certificate that the
// agent used last, or was given since, for the cluster that it was given in, and for as long as rpc.RecoveryWindow; the identity must
// not be revoked. It gives nothing else: what the agent may do is judged by the new certificate.
func (r *Registry) Recover(ctx context.Context, e Recovery) (Identity, error) {
	now := r.now()
	caller, err := r.ended(e, now)
	if caller.Cluster == "" { // whoever has the key is not kept out by others at its address
		if !r.failures.allowed(e.Remote, now) {
			return Identity{}, tooMany("recovery")
		}
		r.failures.failed(e.Remote, now)
		return Identity{}, err
	}
	var out Identity
	var again bool
	if err == nil {
		out, again, err = r.recover(ctx, e, caller, now)
	}
	if !again && (err == nil || r.refusals.tell(caller.Cluster, status.Code(rpc.ToStatus(err)), now)) { // a lost reply is asked for again
		r.record(ctx, "Recover", e.Remote, caller.String(), caller.Cluster, err)
	}
	return out, err
}

// ended says whose certificate it is that has ended, if whoever asks has its key. The rest is for the cluster's record to say.
func (r *Registry) ended(e Recovery, now time.Time) (rpc.Caller, error) {
	if len(e.Certificate) == 0 || len(e.Certificate) > maxCSR {
		return rpc.Caller{}, fleet.Invalidf("certificate", "has %d bytes; at most %d", len(e.Certificate), maxCSR)
	}
	leaf, err := x509.ParseCertificate(e.Certificate)
	if err != nil {
		return rpc.Caller{}, fleet.Invalidf("certificate", "is none: %v", err)
	}
	// Of its own time: it was good once. Whether it may still be used is asked below.
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: r.ClientCAs(), CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || !ours(chains, r.current().certs) {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the certificate is not from this hub's CA")
	}
	kind, name, err := subjectOf(leaf)
	if err != nil {
		return rpc.Caller{}, err
	}
	if kind != rpc.KindAgent {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrDenied, "only agents get a new certificate by one that has ended")
	}
	pub, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !ecdsa.VerifyASN1(pub, rpc.RecoveryDigest(e.Certificate, e.CSR, e.ClusterUID), e.Proof) {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrDenied, "cluster %s: the request is not signed by the key of the certificate", name)
	}
	caller := rpc.Caller{Kind: rpc.KindAgent, Name: name, Cluster: fleet.ClusterName(name), CertSerial: serialHex(leaf), Leaf: leaf}
	if past := now.Sub(leaf.NotAfter); past > rpc.RecoveryWindow {
		return caller, fleet.Errorf(fleet.ErrDenied, "cluster %s: the agent's certificate expired %s ago, and is renewed for %d days after its end; run: towline cluster join %s --reissue",
			name, ago(past), int(rpc.RecoveryWindow.Hours()/24), name)
	}
	if leaf.NotAfter.Sub(now) > agentLife/2 {
		return caller, fleet.Errorf(fleet.ErrPrecondition, "cluster %s: the certificate has not ended by the hub's clock, which says %s: compare the clocks",
			name, now.UTC().Format(time.RFC3339))
	}
	return caller, nil
}

// recover says, too, that the same key was given the certificate before.
func (r *Registry) recover(ctx context.Context, e Recovery, caller rpc.Caller, now time.Time) (out Identity, again bool, err error) {
	pub, hash, err := publicKey(e.CSR)
	if err != nil {
		return Identity{}, false, err
	}
	leaf, err := r.ca.agent(caller.Cluster, pub)
	if err != nil {
		return Identity{}, false, fmt.Errorf("cluster %s: certificate: %w", caller.Cluster, err)
	}
	var der []byte
	var seen string
	_, err = r.commit(ctx, func(w store.Writer) error {
		der, seen, err = recoverIn(w, caller, e.ClusterUID, certificate(leaf, hash, now), now)
		return err
	})
	if seen != "" {
		r.alarms.add(caller.Cluster, alarm{seen, caller.Leaf.NotBefore.Add(backdate)})
	}
	if err != nil {
		return Identity{}, false, err
	}
	if again = !bytes.Equal(der, leaf.Raw); !again {
		r.log.Info("certificate renewed after its end", "cluster", caller.Cluster, "ended", caller.Leaf.NotAfter, "remote", e.Remote)
	}
	return r.identity(caller.Cluster, der), again, nil
}

// recoverIn records the next certificate, or finds the one that the same key was given. seen is what a
// person must look at: of one that was replaced by another long ago somebody has a copy.
func recoverIn(w store.Writer, caller rpc.Caller, uid string, next *storev1.Certificate, now time.Time) (der []byte, seen string, err error) {
	c := caller.Cluster
	rec, ok := cluster(w, c)
	switch {
	case !ok:
		return nil, "", unregistered(c)
	case rec.GetRevoked():
		return nil, "", Revoked(rec, revoked(c))
	case rec.GetLock() != nil:
		return nil, "", Locked(c)
	case rec.GetUid() != uid:
		return nil, "", fleet.Errorf(fleet.ErrDenied, "cluster %s: cluster UID differs: joined as %s, and the agent is in %.64q; run: towline cluster join %s --reissue", c, rec.GetUid(), uid, c)
	}
	// A store that was restored may have lost a certificate that has ended since.
	rec = regained(w, rec, caller, earlier(now, caller.Leaf.NotAfter))
	old := find(rec, caller.CertSerial)
	if old == nil && former(rec, caller.Leaf.NotBefore.Add(backdate)) {
		return nil, fleet.AttentionFormer, succeededBy(c)
	}
	if old == nil || len(old.GetDer()) == 0 {
		return nil, fleet.AttentionCopied, replaced(c)
	}
	for _, have := range rec.GetCertificates() {
		switch {
		case have == old || !have.GetIssued().AsTime().After(old.GetIssued().AsTime()):
		case have.GetActive(): // in use for at least its grace
			return nil, fleet.AttentionCopied, replaced(c)
		case bytes.Equal(have.GetKeyHash(), next.GetKeyHash()) && have.GetNotAfter().AsTime().Sub(now) > agentLife/2:
			return have.GetDer(), "", nil
		case now.Sub(have.GetIssued().AsTime()) < recoverEvery && have.GetNotAfter().AsTime().After(now):
			return nil, "", fleet.With(fleet.Errorf(fleet.ErrExhausted, "cluster %s: a certificate was given to another key a moment ago; try again in a minute", c), fleet.Hint{RetryAfter: recoverEvery})
		}
	}
	rec.Certificates = append(tidy(rec.GetCertificates(), caller.CertSerial, now), next)
	w.Put(store.ClusterKey(c), rec)
	return next.GetDer(), "", nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
