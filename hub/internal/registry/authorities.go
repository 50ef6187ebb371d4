package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// maxAuthorities is how many CAs the store remembers; retired ones go first.
const maxAuthorities = 5

var errDamagedCAs = fleet.Errorf(fleet.ErrCorrupt, "the store's record of its CAs is damaged: start the hub once with --adopt-ca and the ca.crt and ca.key that the agents know; after an unfinished rotation those of before it have to join again")

// TakeCA has the store know the CA that the hub starts with, and is called before anything is served. It is one that the store trusts, or takes the place of one by a certificate
// of that: a rotation. With any other the hub would serve nobody, and does not start, unless adopt says that all are to begin anew.
func (r *Registry) TakeCA(ctx context.Context, adopt bool) error {
	now := r.now()
	rev, err := r.store.Update(ctx, func(w store.Writer) error {
		var old *storev1.Authorities
		switch damaged := store.DamageOf(w, store.CAKey) != nil; {
		case !damaged:
			old, _, _ = store.Get[*storev1.Authorities](w, store.CAKey)
		case !adopt:
			return errDamagedCAs
		}
		next, err := taken(old, r.ca, adopt, now)
		if err != nil || proto.Equal(next, old) {
			return err
		}
		w.Put(store.CAKey, next)
		return nil
	})
	if err != nil {
		return err
	}
	return r.store.View(ctx, rev, func(rd store.Reader) error { return r.ca.follow(rd) })
}

// taken are the authorities of a store when a hub comes with a CA.
func taken(old *storev1.Authorities, ca *CA, adopt bool, now time.Time) (*storev1.Authorities, error) {
	mine := &storev1.Authority{Certificate: ca.cert.Raw, Added: timestamppb.New(now)}
	for _, l := range ca.links {
		mine.Links = append(mine.Links, l.Raw)
	}
	all := old.GetAuthorities()
	if len(all) == 0 {
		return &storev1.Authorities{Authorities: []*storev1.Authority{mine}}, nil
	}
	at := slices.IndexFunc(all, func(a *storev1.Authority) bool { return bytes.Equal(a.GetCertificate(), ca.cert.Raw) })
	switch {
	case at >= 0 && all[at].GetRetired() == nil:
		return old, nil
	case at < 0 && succeeds(all, ca):
		// The CA after a rotation, also where the flag was forgotten among the arguments: nobody has to join again for it.
	case adopt:
		return &storev1.Authorities{Authorities: []*storev1.Authority{mine}}, nil
	case at >= 0:
		return nil, fleet.Errorf(fleet.ErrPrecondition, "the CA in --ca-dir took its leave from this store on %s: put ca.crt and ca.key of the CA after it there (SHA-256 of the public key: %x)",
			all[at].GetRetired().AsTime().Format(time.DateOnly), pinOf(all[len(all)-1]))
	default:
		return nil, fleet.Errorf(fleet.ErrPrecondition, "the store belongs to the CA %x, and the one in --ca-dir is %x (SHA-256 of the public key): every agent and every client would be refused. "+
			"Put ca.crt and ca.key of that store there; or, if all are to join again with the new one, start once with --adopt-ca", pinOf(all[len(all)-1]), ca.Pin())
	}
	next := proto.CloneOf(old)
	next.Authorities = append(next.Authorities, mine)
	for len(next.Authorities) > maxAuthorities && next.Authorities[0].GetRetired() != nil {
		next.Authorities = next.Authorities[1:]
	}
	return next, nil
}

// succeeds reports that a CA which the store trusts has signed the key of this one.
func succeeds(all []*storev1.Authority, ca *CA) bool {
	for _, a := range all {
		by, err := x509.ParseCertificate(a.GetCertificate())
		if err != nil || a.GetRetired() != nil {
			continue
		}
		for _, l := range ca.links {
			if bytes.Equal(l.RawSubjectPublicKeyInfo, ca.cert.RawSubjectPublicKeyInfo) && l.CheckSignatureFrom(by) == nil {
				return true
			}
		}
	}
	return false
}

func pinOf(a *storev1.Authority) []byte {
	c, err := x509.ParseCertificate(a.GetCertificate())
	if err != nil {
		return nil
	}
	pin := jointoken.Pin(c)
	return pin[:]
}

// follow trusts what the store does, if that has changed.
func (c *CA) follow(r store.Reader) error {
	rec, e, ok := store.Get[*storev1.Authorities](r, store.CAKey)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trust.revision == e.ModRevision {
		return nil
	}
	next := trust{revision: e.ModRevision, rotated: len(rec.GetAuthorities()) > 1, certs: []*x509.Certificate{c.cert}, pool: x509.NewCertPool()}
	next.pool.AddCert(c.cert)
	retired := map[string]bool{}
	for _, a := range rec.GetAuthorities() {
		cert, err := x509.ParseCertificate(a.GetCertificate())
		if err != nil {
			return fleet.Errorf(fleet.ErrCorrupt, "CA: %s: %v", store.CAKey, err)
		}
		if a.GetRetired() != nil {
			retired[string(cert.RawSubjectPublicKeyInfo)] = true
		} else if !cert.Equal(c.cert) {
			next.certs = append(next.certs, cert)
			next.pool.AddCert(cert)
		}
	}
	for _, a := range rec.GetAuthorities() {
		for _, der := range a.GetLinks() {
			if l, err := x509.ParseCertificate(der); err == nil && !retired[string(l.RawSubjectPublicKeyInfo)] && c.now().Before(l.NotAfter) {
				next.links = append(next.links, der)
			}
		}
	}
	c.trust, c.server, c.hub = next, nil, nil
	return nil
}

// trust is whose certificates a hub takes: those of its own CA first, and of the others of its store.
type trust struct {
	revision int64
	rotated  bool
	certs    []*x509.Certificate
	pool     *x509.CertPool
	// links lead from one CA to another; they go with the hub's own certificate, so that who trusts one CA trusts a hub of another.
	links [][]byte
}

func (c *CA) trusted() trust {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trust
}

// current is whose certificates this hub takes as the store says now. It does no I/O.
func (r *Registry) current() trust {
	if err := r.store.View(context.Background(), 0, func(rd store.Reader) error { return r.ca.follow(rd) }); err != nil {
		r.log.Warn("which CAs to trust is not read; it goes on with those of before", "error", err)
	}
	return r.ca.trusted()
}

// ClientCAs sign the certificates that are taken now. The pool is another one only when they have changed.
func (r *Registry) ClientCAs() *x509.CertPool { return r.current().pool }

// Announced are the CAs that agents are told to trust; none while there never was another one than that which they joined with.
func (r *Registry) Announced() [][]byte {
	if t := r.current(); t.rotated {
		return ders(t.certs)
	}
	return nil
}

func ders(certs []*x509.Certificate) (out [][]byte) {
	for _, c := range certs {
		out = append(out, c.Raw)
	}
	return out
}

// holder is somebody who needs a CA, until a time.
type holder struct {
	who   string
	until time.Time
}

// holders are those that need the authority at an index: whose certificate is of it, who may come with a token of before the newest, and
// hubs that sign with it. Certificates of before any rotation name no CA: they are of the oldest.
func holders(r store.Reader, all []*storev1.Authority, at int, now time.Time) (out []holder) {
	cert, err := x509.ParseCertificate(all[at].GetCertificate())
	if err != nil {
		return []holder{{"its certificate cannot be read", time.Time{}}}
	}
	of := func(id []byte) bool { return bytes.Equal(id, cert.SubjectKeyId) || len(id) == 0 && at == 0 }
	store.Scan(r, store.ClusterPrefix, func(rec *storev1.ClusterRecord, e store.Entry) bool {
		if until := needs(rec, of); until.After(now) {
			out = append(out, holder{"cluster " + e.Key[len(store.ClusterPrefix):], until})
		}
		return true
	})
	store.Scan(r, store.CertPrefix, func(rec *storev1.CertificateRecord, _ store.Entry) bool {
		c := rec.GetCertificate()
		if c.GetRevoked() == nil && c.GetExpires().AsTime().After(now) && of(rec.GetAuthority()) {
			out = append(out, holder{fmt.Sprintf("user %s, certificate %s", c.GetUser(), c.GetMetadata().GetName()), c.GetExpires().AsTime()})
		}
		return true
	})
	newest := all[len(all)-1].GetAdded().AsTime()
	store.Scan(r, store.TokenPrefix, func(t *storev1.TokenRecord, _ store.Entry) bool {
		made, end := t.GetToken().GetMetadata().GetCreationTimestamp().AsTime(), t.GetToken().GetExpires().AsTime()
		if !made.After(newest) && end.After(now) && t.GetUsed() == nil {
			out = append(out, holder{"join token of cluster " + t.GetToken().GetCluster(), end})
		}
		return true
	})
	sum := sha256.Sum256(cert.Raw)
	store.Scan(r, store.PeerPrefix, func(h *storev1.HubRecord, _ store.Entry) bool {
		if bytes.Equal(h.GetCa(), sum[:]) {
			out = append(out, holder{"hub " + h.GetInstance() + " at " + h.GetAddress() + ", which signs with it", time.Time{}})
		}
		return true
	})
	return out
}

// needs is until when the agent of a cluster may come with a certificate of an authority, one that has ended included.
func needs(rec *storev1.ClusterRecord, of func(id []byte) bool) (until time.Time) {
	if rec.GetRevoked() {
		return time.Time{}
	}
	for _, c := range rec.GetCertificates() {
		if !of(c.GetAuthority()) {
			continue
		}
		end := c.GetNotAfter().AsTime()
		if len(c.GetDer()) > 0 {
			end = end.Add(rpc.RecoveryWindow)
		}
		if end.After(until) {
			until = end
		}
	}
	return until
}

// retire lets go of the CAs that nobody needs any more. The newest stays.
func (r *Registry) retire(ctx context.Context) error {
	now := r.now()
	unneeded := func(rd store.Reader) (next *storev1.Authorities) {
		rec, _, _ := store.Get[*storev1.Authorities](rd, store.CAKey)
		for at := range max(0, len(rec.GetAuthorities())-1) {
			if rec.GetAuthorities()[at].GetRetired() == nil && len(holders(rd, rec.GetAuthorities(), at, now)) == 0 {
				if next == nil {
					next = proto.CloneOf(rec)
				}
				next.Authorities[at].Retired = timestamppb.New(now)
			}
		}
		return next
	}
	none := true
	if err := r.store.View(ctx, 0, func(rd store.Reader) error { none = unneeded(rd) == nil; return nil }); err != nil || none {
		return err
	}
	_, err := r.commit(ctx, func(w store.Writer) error {
		if next := unneeded(w); next != nil {
			w.Put(store.CAKey, next)
		}
		return nil
	})
	if err == nil {
		r.log.Info("a CA that nobody needs any more is trusted no longer")
	}
	return err
}

// maxHolders is how many of those that need a CA are told.
const maxHolders = 100

// Authorities are the CAs of the store, oldest first, and who needs each.
func (r *Registry) Authorities(ctx context.Context) (out []*v1.Authority, err error) {
	now, own := r.now(), r.ca.Pin()
	err = r.store.View(ctx, 0, func(rd store.Reader) error {
		if store.DamageOf(rd, store.CAKey) != nil {
			return errDamagedCAs
		}
		rec, _, _ := store.Get[*storev1.Authorities](rd, store.CAKey)
		for at, a := range rec.GetAuthorities() {
			x := &v1.Authority{Pin: hex.EncodeToString(pinOf(a)), Added: a.GetAdded(), Retired: a.GetRetired(), Signs: bytes.Equal(pinOf(a), own[:])}
			if c, err := x509.ParseCertificate(a.GetCertificate()); err == nil {
				x.Expires = timestamppb.New(c.NotAfter)
			}
			if at < len(rec.GetAuthorities())-1 && a.GetRetired() == nil {
				for _, h := range holders(rd, rec.GetAuthorities(), at, now) {
					if x.Needed++; len(x.Holders) < maxHolders {
						x.Holders = append(x.Holders, h.String())
					}
				}
			}
			out = append(out, x)
		}
		return nil
	})
	return out, err
}

func (h holder) String() string {
	if h.until.IsZero() {
		return h.who
	}
	return h.who + ", until " + h.until.UTC().Format(time.DateOnly)
}
