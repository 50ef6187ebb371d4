package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

// ServerName is the name that every hub's certificate has, so that clients need not know by which address they reach it.
const ServerName = "towline-hub"

// ServerTLS is what a listener's TLS needs.
type ServerTLS struct {
	// Certificate gives the certificate to show, its chain up to the CA, which agents that join know by its pin.
	Certificate func() (*tls.Certificate, error)
	// ClientCAs sign client certificates. It is asked at each handshake, does no I/O, and gives another pool only when they have changed.
	ClientCAs func() *x509.CertPool
	// Verify refuses a connection, a resumed one too, when it returns an error. It does no I/O.
	Verify func(tls.ConnectionState) error
	// Now defaults to time.Now.
	Now func() time.Time
}

// Config is TLS 1.3 with an optional client certificate: what may be called without one is for the interceptors to say.
// Session tickets are allowed, because Verify is asked on resumption too.
func (s ServerTLS) Config() (*tls.Config, error) {
	if s.Certificate == nil || s.ClientCAs == nil || s.Verify == nil {
		return nil, fmt.Errorf("rpc: Certificate, ClientCAs and Verify are required")
	}
	first := s.ClientCAs()
	base := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		NextProtos:       []string{"h2"},
		ClientAuth:       tls.VerifyClientCertIfGiven,
		ClientCAs:        first,
		Time:             s.Now,
		VerifyConnection: s.Verify,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate() },
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := s.ClientCAs()
		if now == first {
			return nil, nil
		}
		next := base.Clone()
		next.ClientCAs, next.GetConfigForClient = now, nil
		return next, nil
	}
	return base, nil
}

// ClientTLS is what a client of the hub needs.
type ClientTLS struct {
	// CAs are the hub's.
	CAs *x509.CertPool
	// Certificate is shown to the hub; nil: none.
	Certificate *tls.Certificate
	// ServerName is what the hub's certificate must name; empty: ServerName, which every hub has.
	ServerName string
	// Now defaults to time.Now.
	Now func() time.Time
}

// Config is TLS 1.3. Make a new one, and dial anew, when the certificate changes: a resumed session keeps the identity
// that it began with, so that the cache must not outlive the certificate.
func (c ClientTLS) Config() *tls.Config {
	out := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		RootCAs:            c.CAs,
		ServerName:         c.ServerName,
		Time:               c.Now,
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
	if out.ServerName == "" {
		out.ServerName = ServerName
	}
	if out.RootCAs == nil {
		out.RootCAs = x509.NewCertPool() // never the system's
	}
	if c.Certificate != nil {
		cert := *c.Certificate
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return out
}

// PinnedTLS is for an agent that knows the hub only by the pin in its join token: the hub must show a CA certificate with
// that pin and a certificate of that CA. now may be nil.
func PinnedTLS(pin [32]byte, now func() time.Time) *tls.Config {
	if now == nil {
		now = time.Now
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		ServerName:         ServerName,
		Time:               now,
		InsecureSkipVerify: true, // VerifyConnection does it against the pinned CA
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyPinned(s.PeerCertificates, pin, now()) },
	}
}

func verifyPinned(chain []*x509.Certificate, pin [32]byte, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("the hub shows no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	for _, ca := range chain[1:] {
		if jointoken.Pin(ca) != pin {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: ServerName, CurrentTime: now})
		return err
	}
	return fleet.Errorf(fleet.ErrDenied, "the hub at this address is not the one that made the join token: its CA has another key; check the address, or run: towline cluster join NAME --reissue")
}

// PinnedCAs picks the CA with the pin from the certificates that an enrolment returned.
func PinnedCAs(der [][]byte, pin [32]byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for _, b := range der {
		ca, err := x509.ParseCertificate(b)
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "CA certificate from the hub: %v", err)
		}
		found = found || jointoken.Pin(ca) == pin
		pool.AddCert(ca)
	}
	if !found {
		return nil, fleet.Errorf(fleet.ErrDenied, "none of the CA certificates from the hub has the pin of the join token")
	}
	return pool, nil
}
