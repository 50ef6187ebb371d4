package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// retireGrace is how long a certificate is still accepted after its successor was used: calls on the connection before
// it end in peace.
const retireGrace = 2 * time.Minute

// VerifyConnection is for tls.Config: it refuses an identity that this hub has ended. A connection without an identity,
// or with one that the hub does not know, is let through: it can do nothing but join, and its calls are told why.
func (r *Registry) VerifyConnection(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	if _, err := r.Certificate(state); errors.Is(err, fleet.ErrDenied) {
		return err
	}
	return nil
}

// Certificate says who shows the certificate. It reads the read model only.
func (r *Registry) Certificate(state tls.ConnectionState) (rpc.Caller, error) {
	if len(state.PeerCertificates) == 0 || !ours(state.VerifiedChains, r.current().certs) {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the client certificate is not from this hub's CA")
	}
	leaf := state.PeerCertificates[0]
	kind, name, err := subjectOf(leaf)
	if err != nil {
		return rpc.Caller{}, err
	}
	switch kind {
	case rpc.KindUser:
		return r.person(leaf, name)
	case rpc.KindHub:
		return rpc.Caller{Kind: rpc.KindHub, Name: name, CertSerial: serialHex(leaf)}, nil
	}
	caller := rpc.Caller{Kind: rpc.KindAgent, Name: name, Cluster: fleet.ClusterName(name), CertSerial: serialHex(leaf), Leaf: leaf}
	if err := r.Check(caller, leaf); err != nil {
		return rpc.Caller{}, err
	}
	return caller, nil
}

// ours reports whether a chain that crypto/tls verified ends in one of the CAs.
func ours(chains [][]*x509.Certificate, cas []*x509.Certificate) bool {
	for _, chain := range chains {
		if len(chain) > 1 && slices.ContainsFunc(cas, chain[len(chain)-1].Equal) {
			return true
		}
	}
	return false
}

// subjectOf reads who a certificate of ours is for: its one URI, which the common name must repeat.
func subjectOf(leaf *x509.Certificate) (rpc.Kind, string, error) {
	if len(leaf.URIs) == 1 && leaf.URIs[0].Scheme == "spiffe" && leaf.URIs[0].Host == trustDomain {
		path, name := leaf.URIs[0].Path, leaf.Subject.CommonName
		switch {
		case path == "/cluster/"+name && fleet.ValidateLabel(name) == nil:
			return rpc.KindAgent, name, nil
		case path == "/user/"+name && fleet.ValidateLabel(name) == nil:
			return rpc.KindUser, name, nil
		case path == "/hub/"+name && fleet.ValidateLabel(name) == nil:
			return rpc.KindHub, name, nil
		}
	}
	return "", "", fleet.Errorf(fleet.ErrUnknownUser, "the client certificate names no cluster and no user")
}

// person is who shows the client certificate, unless that was revoked. Its first use is noted.
func (r *Registry) person(leaf *x509.Certificate, name string) (rpc.Caller, error) {
	caller, err := user(leaf, name, r.now())
	if err != nil {
		return rpc.Caller{}, err
	}
	known := false
	err = r.store.View(context.Background(), 0, func(rd store.Reader) error {
		known, err = usable(rd, caller)
		return err
	})
	if err != nil {
		return rpc.Caller{}, err
	}
	if !known {
		r.firsts.add(listed(leaf, caller))
	}
	return caller, nil
}

// user is a person with a client certificate: the role is in it.
func user(leaf *x509.Certificate, name string, now time.Time) (rpc.Caller, error) {
	if now.After(leaf.NotAfter) {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the client certificate of user %s ended %s ago; run on the hub: towline-hub admin-cert", name, ago(now.Sub(leaf.NotAfter)))
	}
	for _, ou := range leaf.Subject.OrganizationalUnit {
		if word, ok := strings.CutPrefix(ou, rolePrefix); ok {
			role, err := rpc.ParseRole(word)
			return rpc.Caller{Kind: rpc.KindUser, Name: name, Role: role, CertSerial: serialHex(leaf)}, err
		}
	}
	return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the client certificate of user %s names no role", name)
}

// Check says why an agent's certificate is not valid now. A certificate that was replaced and comes back means that the
// agent's state was copied: that is put on the cluster.
func (r *Registry) Check(caller rpc.Caller, leaf *x509.Certificate) error {
	var rec *storev1.ClusterRecord
	now := r.now()
	err := r.store.View(context.Background(), 0, func(rd store.Reader) error {
		if rec, _, _ = store.Get[*storev1.ClusterRecord](rd, store.ClusterKey(caller.Cluster)); rec != nil {
			rec = regained(rd, rec, caller, now)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if rec == nil {
		if r.strangers.add(caller.Cluster, now) {
			r.onStranger()
		}
		return unregistered(caller.Cluster)
	}
	err = standing(rec, caller.Cluster, caller.CertSerial, now)
	if err == nil || rec.GetRevoked() || rec.GetLock() != nil {
		return err
	}
	issued := leaf.NotBefore.Add(backdate)
	switch known := find(rec, caller.CertSerial); {
	case known != nil && !errors.Is(err, fleet.ErrDenied): // expired
		return err
	case known == nil && former(rec, issued):
		r.alarms.add(caller.Cluster, alarm{code: fleet.AttentionFormer})
		if rec.GetJoined() == nil {
			return err
		}
		return succeededBy(caller.Cluster)
	case known == nil && issued.After(newest(rec)) && now.Sub(issued) < time.Minute:
		return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: this hub has not read of the agent's new certificate yet; try again", caller.Cluster)
	case known == nil && issued.After(newest(rec)):
		r.alarms.add(caller.Cluster, alarm{code: fleet.AttentionUnknownCert})
		return err
	}
	if !now.After(leaf.NotAfter) {
		r.alarms.add(caller.Cluster, alarm{fleet.AttentionCopied, issued})
	}
	return replaced(caller.Cluster)
}

// former reports that a certificate is of a time before the cluster joined last, or before there was the one that has the name now. A person has
// ended that identity, so that to see it says of nobody that he has a copy of the one that is in use, nor that this store is an older one.
func former(rec *storev1.ClusterRecord, issued time.Time) bool {
	since := rec.GetJoined().AsTime()
	if made := rec.GetCluster().GetMetadata().GetCreationTimestamp().AsTime(); made.After(since) {
		since = made
	}
	return issued.Before(since.Add(-time.Minute)) // the first one of a join is made and noted in two moments
}

// superseded reports that a certificate was used which is newer than one of that time. Without that the agent may never have had a newer
// one: of those that wait for their first use the record keeps a few.
func superseded(rec *storev1.ClusterRecord, issued time.Time) bool {
	return slices.ContainsFunc(rec.GetCertificates(), func(c *storev1.Certificate) bool {
		return c.GetActive() && c.GetIssued().AsTime().Truncate(time.Second).After(issued)
	})
}

// newest is when the youngest certificate of the record was issued.
func newest(rec *storev1.ClusterRecord) time.Time {
	t := rec.GetJoined().AsTime()
	for _, c := range rec.GetCertificates() {
		if i := c.GetIssued().AsTime(); i.After(t) {
			t = i
		}
	}
	return t.Truncate(time.Second)
}

func find(rec *storev1.ClusterRecord, serial string) *storev1.Certificate {
	for _, c := range rec.GetCertificates() {
		if c.GetSerial() == serial {
			return c
		}
	}
	return nil
}

// standing says why the certificate is not valid, by the record alone.
func standing(rec *storev1.ClusterRecord, c fleet.ClusterName, serial string, now time.Time) error {
	switch {
	case rec.GetRevoked():
		return revoked(c)
	case rec.GetLock() != nil:
		return Locked(c)
	}
	cert := find(rec, serial)
	if cert == nil {
		return fleet.Errorf(fleet.ErrUnknownUser, "cluster %s: this hub does not know the agent's certificate; run: towline cluster join %s --reissue", c, c)
	}
	if end := cert.GetNotAfter().AsTime(); now.After(end) {
		if len(cert.GetDer()) == 0 {
			return replaced(c)
		}
		return fleet.Errorf(fleet.ErrUnknownUser, "cluster %s: the agent's certificate expired %s ago; run: towline cluster join %s --reissue", c, ago(now.Sub(end)), c)
	}
	return nil
}

func replaced(c fleet.ClusterName) error {
	return fleet.Errorf(fleet.ErrDenied, "cluster %s: this certificate was replaced by a newer one: the agent's state was copied or restored; run: towline cluster join %s --reissue", c, c)
}

func succeededBy(c fleet.ClusterName) error {
	return fleet.Errorf(fleet.ErrDenied, "cluster %s: has joined anew since this certificate was given: stop this agent; or, to have it take the place of the one that joined, run: towline cluster join %s --reissue", c, c)
}

func revoked(c fleet.ClusterName) error {
	return fleet.Errorf(fleet.ErrDenied, "cluster %s: is revoked; for a new identity run: towline cluster join %s --reissue", c, c)
}

func unregistered(c fleet.ClusterName) error {
	return fleet.Errorf(fleet.ErrUnknownUser, "cluster %s: is not registered with this hub; run: towline cluster join %s", c, c)
}

// activate marks the certificate as used; those before it end after a grace. It reports whether the record changed.
func activate(rec *storev1.ClusterRecord, serial string, now time.Time) bool {
	cert := find(rec, serial)
	if cert == nil || cert.GetActive() {
		return false
	}
	cert.Active = true
	end := now.Add(retireGrace)
	keep := rec.Certificates[:0]
	for _, c := range rec.GetCertificates() {
		switch {
		case c.GetSerial() == serial:
		case c.GetNotAfter().AsTime().Before(now):
			continue
		case !c.GetActive() && c.GetIssued().AsTime().After(cert.GetIssued().AsTime()): // asked for since
		case !c.GetActive():
			continue
		case c.GetNotAfter().AsTime().After(end):
			c.NotAfter, c.Der = timestamppb.New(end), nil
		}
		keep = append(keep, c)
	}
	rec.Certificates = keep
	return true
}
