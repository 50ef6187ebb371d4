package registry

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// States of a person's certificate.
const (
	CertificateValid   = "Valid"
	CertificateRevoked = "Revoked"
	CertificateExpired = "Expired"
)

// certificateMemory is how long a person's certificate is listed after its end. A revocation is needed until then only.
const certificateMemory = 30 * 24 * time.Hour

// maxFirsts bounds the certificates that wait to be listed; each was signed by this hub's CA, so that they are few.
const maxFirsts = 1000

// firsts are certificates of people that were seen on a path that does no I/O.
type firsts struct {
	wake    chan struct{}
	mu      sync.Mutex
	pending map[string]*storev1.CertificateRecord
}

func (f *firsts) add(c *storev1.CertificateRecord) {
	f.mu.Lock()
	if len(f.pending) < maxFirsts {
		f.pending[c.GetCertificate().GetMetadata().GetName()] = c
	}
	f.mu.Unlock()
	dirty.Poke(f.wake)
}

func (f *firsts) take() []*storev1.CertificateRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*storev1.CertificateRecord
	for _, c := range f.pending {
		out = append(out, c)
	}
	clear(f.pending)
	return out
}

// listed is how a certificate is stored.
func listed(leaf *x509.Certificate, caller rpc.Caller) *storev1.CertificateRecord {
	issued := timestamppb.New(leaf.NotBefore.Add(backdate))
	return &storev1.CertificateRecord{Authority: leaf.AuthorityKeyId, Certificate: &v1.Certificate{ApiVersion: fleet.APIVersion, Kind: "Certificate", User: caller.Name, Role: string(caller.Role), Issued: issued,
		Expires: timestamppb.New(leaf.NotAfter), Metadata: &v1.Metadata{Name: caller.CertSerial, Uid: newUID(), Generation: 1, CreationTimestamp: issued}}}
}

// usable says why a person's certificate is not taken any more; known is false of one that is not listed. One whose record
// cannot be read may be revoked, and is not taken.
func usable(r store.Reader, caller rpc.Caller) (known bool, err error) {
	key := certificateKey(caller.CertSerial)
	rec, _, ok := store.Get[*storev1.CertificateRecord](r, key)
	switch {
	case ok && rec.GetCertificate().GetRevoked() != nil:
		return true, fleet.Errorf(fleet.ErrDenied, "the client certificate of user %s (serial %s) is revoked; for another one run on the hub: towline-hub admin-cert",
			caller.Name, caller.CertSerial)
	case !ok && store.DamageOf(r, key) != nil:
		return true, fleet.Errorf(fleet.ErrDenied, "the hub's record of the client certificate of user %s (serial %s) is damaged, so that it may be revoked; for another one run on the hub: towline-hub admin-cert",
			caller.Name, caller.CertSerial)
	}
	return ok, nil
}

// list notes certificates that were used for the first time.
func (r *Registry) list(ctx context.Context) {
	for chunk := range slices.Chunk(r.firsts.take(), store.MaxOps) {
		_, err := r.commit(ctx, func(w store.Writer) error {
			for _, c := range chunk {
				key := certificateKey(c.GetCertificate().GetMetadata().GetName())
				if _, ok := w.Get(key); !ok && store.DamageOf(w, key) == nil {
					w.Put(key, c)
				}
			}
			return nil
		})
		if err != nil && ctx.Err() == nil { // the next call with them says it again
			r.log.Warn("certificates of people are not listed yet", "error", err)
		}
	}
}

// Certificates are those of people, sorted by serial number.
func (r *Registry) Certificates(ctx context.Context) ([]*v1.Certificate, error) {
	var out []*v1.Certificate
	now := r.now()
	err := r.store.View(ctx, 0, func(rd store.Reader) error {
		store.Scan(rd, store.CertPrefix, func(c *storev1.CertificateRecord, e store.Entry) bool {
			out = append(out, shownCertificate(c, e.ModRevision, now))
			return true
		})
		return nil
	})
	slices.SortFunc(out, func(a, b *v1.Certificate) int {
		return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return out, err
}

func shownCertificate(rec *storev1.CertificateRecord, rev int64, now time.Time) *v1.Certificate {
	c := proto.CloneOf(rec.GetCertificate())
	c.Metadata.ResourceVersion = rev
	switch c.State = CertificateValid; {
	case c.GetRevoked() != nil:
		c.State = CertificateRevoked
	case now.After(c.GetExpires().AsTime()):
		c.State = CertificateExpired
	}
	return c
}

// RevokeCertificate ends a person's certificate, and by that all that is under way with it. It need not have been used.
func (r *Registry) RevokeCertificate(ctx context.Context, caller rpc.Caller, serial, reason string) (*v1.Certificate, int64, error) {
	serial, err := parseSerial(serial)
	if err != nil {
		return nil, 0, err
	}
	now := r.now()
	var next *storev1.CertificateRecord
	rev, err := r.commit(ctx, func(w store.Writer) error {
		next = &storev1.CertificateRecord{Certificate: &v1.Certificate{ApiVersion: fleet.APIVersion, Kind: "Certificate",
			Expires:  timestamppb.New(now.Add(adminLife)), // of one that was never seen: it has ended by then
			Metadata: &v1.Metadata{Name: serial, Uid: newUID(), CreationTimestamp: timestamppb.New(now)}}}
		if old, _, ok := store.Get[*storev1.CertificateRecord](w, certificateKey(serial)); ok {
			next = proto.CloneOf(old)
		}
		if next.GetCertificate().GetRevoked() != nil {
			return nil
		}
		meta := next.GetCertificate().GetMetadata()
		meta.Generation++
		meta.ChangedBy, meta.ChangeReason = caller.String(), reason
		next.Certificate.Revoked = timestamppb.New(now)
		w.Put(certificateKey(serial), next)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	r.log.Info("certificate revoked", "serial", serial, "user", next.GetCertificate().GetUser(), "by", caller)
	return shownCertificate(next, rev, now), rev, nil
}

// Revoked reports whether a person's certificate is not taken any more, by its serial number.
func (r *Registry) Revoked(ctx context.Context, serial string) (revoked bool, err error) {
	err = r.store.View(ctx, 0, func(rd store.Reader) error {
		_, err := usable(rd, rpc.Caller{Name: AdminName, CertSerial: serial})
		revoked = err != nil
		return nil
	})
	return revoked, err
}

// parseSerial reads a serial number as this hub or openssl prints it.
func parseSerial(s string) (string, error) {
	hexed := strings.ToLower(strings.ReplaceAll(s, ":", ""))
	if b, err := hex.DecodeString(hexed); err != nil || len(b) != 16 {
		return "", fleet.Invalidf("serial", "%.80q is no serial number of a certificate of this hub: 32 hexadecimal digits; see: towline get certificates", s)
	}
	return hexed, nil
}

// forgetCertificates takes those off the list that ended long ago.
func (r *Registry) forgetCertificates(ctx context.Context) error {
	limit := r.now().Add(-certificateMemory)
	var old []string
	if err := r.store.View(ctx, 0, func(rd store.Reader) error {
		store.Scan(rd, store.CertPrefix, func(c *storev1.CertificateRecord, e store.Entry) bool {
			if c.GetCertificate().GetExpires().AsTime().Before(limit) {
				old = append(old, e.Key)
			}
			return len(old) < store.MaxOps
		})
		return nil
	}); err != nil || len(old) == 0 {
		return err
	}
	_, err := r.commit(ctx, func(w store.Writer) error {
		for _, k := range old { // a record is never made anew under the serial number of one that has ended
			w.Delete(k)
		}
		return nil
	})
	return err
}

func certificateKey(serial string) string { return store.CertPrefix + serial }
