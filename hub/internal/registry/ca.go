package registry

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/clientconfig"
	"towline.dev/towline/pkg/rpc/jointoken"
)

const (
	caLife     = 10 * 365 * 24 * time.Hour
	serverLife = 90 * 24 * time.Hour
	adminLife  = 365 * 24 * time.Hour
	agentLife  = 24 * time.Hour
	// backdate forgives clocks that are late.
	backdate = 5 * time.Minute
	// adminRenew is how long before its end the admin's certificate is made anew at a start.
	adminRenew = 30 * 24 * time.Hour

	trustDomain = "towline"
	rolePrefix  = "towline:role:"
	caKeyFile   = "ca.key"
	caCertFile  = "ca.crt"

	// AdminName is the user whose identity is the client certificate that the hub makes at its first start.
	AdminName = "admin"

	// hubName is who did what the hub does by itself, in locks and in the audit. No user may have it.
	hubName = "hub"
)

// CA signs every certificate of a hub.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	// links are certificates of its key by the CA before it, and of that one's by its own.
	links []*x509.Certificate
	now   func() time.Time

	mu     sync.Mutex
	trust  trust
	names  []string
	server *tls.Certificate
	hub    *tls.Certificate
}

// OpenCA reads ca.key and ca.crt in the directory; both are made if neither is there. now may be nil.
func OpenCA(dir string, now func() time.Time) (*CA, error) {
	if now == nil {
		now = time.Now
	}
	c := &CA{now: now, names: []string{rpc.ServerName, "localhost", "127.0.0.1", "::1"}}
	if err := finishRotation(dir); err != nil {
		return nil, err
	}
	keyPath, certPath := filepath.Join(dir, caKeyFile), filepath.Join(dir, caCertFile)
	if err := c.openKey(keyPath, certPath); err != nil {
		return nil, err
	}
	if err := c.openCert(certPath); err != nil {
		return nil, err
	}
	c.trust = trust{certs: []*x509.Certificate{c.cert}, pool: x509.NewCertPool()}
	c.trust.pool.AddCert(c.cert)
	return c, c.check(keyPath, certPath)
}

func (c *CA) openKey(path, certPath string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(certPath); err == nil {
			return fleet.Errorf(fleet.ErrPrecondition, "CA: %s is there and %s is missing; put the key back (with a new one every agent would have to join again)", certPath, path)
		}
		return c.makeKey(path)
	}
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	if c.key, err = parseKey(b); err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "CA: %s: %v", path, err)
	}
	return nil
}

func (c *CA) makeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	c.key = key
	return writeFile(path, clientconfig.KeyPEM(der), 0o600)
}

// openCert makes the certificate when only the key is there: a start that was cut short.
func (c *CA) openCert(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c.makeCert(path)
	}
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return fleet.Errorf(fleet.ErrCorrupt, "CA: %s: no certificate in PEM", path)
	}
	if c.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "CA: %s: %v", path, err)
	}
	c.links = linksOf(c.cert, rest)
	return nil
}

func (c *CA) makeCert(path string) (err error) {
	if c.cert, err = c.selfSigned(pkix.Name{CommonName: "towline CA"}); err != nil {
		return err
	}
	return writeFile(path, c.pem(), 0o644)
}

func (c *CA) selfSigned(name pkix.Name) (*x509.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               name,
		NotBefore:             c.now().Add(-backdate),
		NotAfter:              c.now().Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, c.key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	return x509.ParseCertificate(der)
}

func (c *CA) check(keyPath, certPath string) error {
	pub, ok := c.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	switch {
	case !ok || !pub.Equal(c.cert.PublicKey):
		return fleet.Errorf(fleet.ErrInvalid, "CA: %s is not the key of %s", keyPath, certPath)
	case !c.cert.IsCA || c.cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return fleet.Errorf(fleet.ErrInvalid, "CA: %s may not sign certificates", certPath)
	case c.now().After(c.cert.NotAfter):
		return fleet.Errorf(fleet.ErrPrecondition, "CA: %s ended on %s", certPath, c.cert.NotAfter.Format(time.DateOnly))
	}
	return nil
}

func parseKey(b []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("no private key in PEM")
	}
	if k, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	if k, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", k)
	}
	return s, nil
}

// Pin is what join tokens carry.
func (c *CA) Pin() [32]byte { return jointoken.Pin(c.cert) }

// DER are the CAs that are trusted, its own first.
func (c *CA) DER() [][]byte { return ders(c.trusted().certs) }

// Pool trusts them.
func (c *CA) Pool() *x509.CertPool { return c.trusted().pool }

// bundle is the PEM of the CAs that are trusted.
func (c *CA) bundle() (out []byte) {
	for _, der := range c.DER() {
		out = append(out, clientconfig.CertificatePEM(der)...)
	}
	return out
}

// Advertise adds hosts or addresses, with or without a port, that the server certificate names.
func (c *CA) Advertise(hosts ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range hosts {
		if host, _, err := net.SplitHostPort(h); err == nil {
			h = host
		}
		if h != "" && !slices.Contains(c.names, h) {
			c.names, c.server = append(c.names, h), nil
		}
	}
}

// Server is the certificate that the hub shows, with the CAs that are trusted after it, and what leads from one to another. It lives in memory and is made anew when a third
// of its life is left, or when it was made by a clock that was ahead and has been put right since.
func (c *CA) Server() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh(c.server) {
		return c.server, nil
	}
	t := &x509.Certificate{Subject: pkix.Name{CommonName: rpc.ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, n := range c.names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	cert, err := c.pair(t, serverLife)
	if err != nil {
		return nil, fmt.Errorf("server certificate: %w", err)
	}
	cert.Certificate = append([][]byte{cert.Leaf.Raw}, slices.Concat(ders(c.trust.certs), c.trust.links)...)
	c.server = cert
	return cert, nil
}

// fresh reports that a certificate of serverLife need not be made anew. The caller holds mu.
func (c *CA) fresh(x *tls.Certificate) bool {
	now := c.now()
	return x != nil && now.Before(x.Leaf.NotAfter.Add(-serverLife/3)) && !now.Before(x.Leaf.NotBefore)
}

// Hub is the certificate by which a hub proves to others that it is one; it lives as that of Server does.
func (c *CA) Hub(instance string) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh(c.hub) {
		return c.hub, nil
	}
	cert, err := c.pair(&x509.Certificate{
		Subject:     pkix.Name{CommonName: instance},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: "/hub/" + instance}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, serverLife)
	if err != nil {
		return nil, fmt.Errorf("hub certificate: %w", err)
	}
	c.hub = cert
	return cert, nil
}

// pair makes a key and a certificate of the template.
func (c *CA) pair(t *x509.Certificate, life time.Duration) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := c.sign(t, key.Public(), life)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, c.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// sign fills in what all leaves have in common.
func (c *CA) sign(t *x509.Certificate, pub crypto.PublicKey, life time.Duration) (*x509.Certificate, error) {
	now := c.now()
	t.SerialNumber = serial()
	t.NotBefore, t.NotAfter = now.Add(-backdate), now.Add(life)
	if t.NotAfter.After(c.cert.NotAfter) {
		t.NotAfter = c.cert.NotAfter
	}
	t.BasicConstraintsValid = true
	t.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, pub, c.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// agent makes the certificate of a cluster: everything but the key is the hub's.
func (c *CA) agent(name fleet.ClusterName, pub crypto.PublicKey) (*x509.Certificate, error) {
	return c.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: string(name)},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: "/cluster/" + string(name)}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, pub, agentLife)
}

// IssueAdmin makes a new client certificate of the admin: a context for the hub's API at server.
func (c *CA) IssueAdmin(server string) (clientconfig.Context, error) {
	cert, err := c.pair(&x509.Certificate{
		Subject:     pkix.Name{CommonName: AdminName, OrganizationalUnit: []string{rolePrefix + string(rpc.RoleAdmin)}},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: "/user/" + AdminName}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, adminLife)
	if err != nil {
		return clientconfig.Context{}, fmt.Errorf("admin certificate: %w", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return clientconfig.Context{}, fmt.Errorf("admin certificate: %w", err)
	}
	return clientconfig.Context{Name: clientconfig.Local, Server: server, CAData: c.bundle(),
		CertificateData: clientconfig.CertificatePEM(cert.Certificate[0]), KeyData: clientconfig.KeyPEM(key)}, nil
}

// EnsureAdmin writes the admin's client configuration to path, beside what people have put there. One that is there keeps its certificate while that is of
// this CA, far from its end and not revoked, by its serial number; only its server is brought up to date.
func (c *CA) EnsureAdmin(path, server string, revoked func(serial string) bool) (clientconfig.Context, error) {
	if old, err := clientconfig.Load(path); err == nil {
		if ctx, err := old.Context(clientconfig.Local); err == nil && c.current(ctx, revoked) {
			if ctx.Server == server {
				return ctx, nil
			}
			ctx.Server = server
			return ctx, clientconfig.Put(path, ctx)
		}
	}
	ctx, err := c.IssueAdmin(server)
	if err != nil {
		return ctx, err
	}
	return ctx, clientconfig.Put(path, ctx)
}

// current reports whether the context's certificate will do for some time.
func (c *CA) current(ctx clientconfig.Context, revoked func(serial string) bool) bool {
	cert, err := ctx.Certificate()
	if err != nil || cert == nil || revoked(serialHex(cert.Leaf)) || string(ctx.CAData) != string(c.bundle()) {
		return false
	}
	own := x509.NewCertPool()
	own.AddCert(c.cert)
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: own, CurrentTime: c.now().Add(adminRenew),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

// serial is 128 random bits.
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	b[0] |= 1              // never zero, never short
	b[0] &= 0x7f           // positive within 16 bytes of DER
	return new(big.Int).SetBytes(b[:])
}

// writeFile writes a file that a crash leaves whole or absent.
func writeFile(path string, b []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".ca-*") // 0600
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	_, werr := f.Write(b)
	err = errors.Join(werr, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("CA: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
