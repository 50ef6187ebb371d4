package registry

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// caNextFile holds a whole new CA, its key too, from when it is made until it stands in ca.key and ca.crt: a rotation that is cut short
// is finished by the next who opens the CA, or was none.
const caNextFile = "ca.next"

// RotateCA makes a new CA that takes the place of the one in the directory. Each signs the key of the other, so that who trusts one
// trusts what the other signed. The hubs of the store trust both from the start of the first one that has it.
func RotateCA(dir string, now func() time.Time) (pin [32]byte, err error) {
	old, err := OpenCA(dir, now)
	if err != nil {
		return pin, err
	}
	next := &CA{now: old.now}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pin, fmt.Errorf("CA: %w", err)
	}
	next.key = key
	if next.cert, err = next.selfSigned(pkix.Name{CommonName: fmt.Sprintf("towline CA of %s", next.now().UTC().Format("2006-01-02 15:04:05"))}); err != nil {
		return pin, err
	}
	for _, pair := range [][2]*CA{{next, old}, {old, next}} {
		l, err := link(pair[0].cert, pair[0].key.Public(), pair[1])
		if err != nil {
			return pin, err
		}
		next.links = append(next.links, l)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pin, fmt.Errorf("CA: %w", err)
	}
	whole := append(next.pem(), clientconfig.KeyPEM(keyDER)...)
	if err := writeFile(filepath.Join(dir, caNextFile), whole, 0o600); err != nil {
		return pin, err
	}
	return next.Pin(), finishRotation(dir)
}

// pem are the CA's certificate and its links, as ca.crt has them.
func (c *CA) pem() (out []byte) {
	out = append(out, clientconfig.CertificatePEM(c.cert.Raw)...)
	for _, l := range c.links {
		out = append(out, clientconfig.CertificatePEM(l.Raw)...)
	}
	return out
}

// link is a certificate of a CA's key by another CA.
func link(of *x509.Certificate, key crypto.PublicKey, by *CA) (*x509.Certificate, error) {
	now := by.now()
	t := &x509.Certificate{SerialNumber: serial(), RawSubject: of.RawSubject, SubjectKeyId: of.SubjectKeyId, NotBefore: now.Add(-backdate),
		NotAfter: earlier(of.NotAfter, by.cert.NotAfter), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, key, by.key)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	return x509.ParseCertificate(der)
}

// finishRotation puts a new CA that is whole into its place; none: there is nothing to do.
func finishRotation(dir string) error {
	path := filepath.Join(dir, caNextFile)
	whole, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	var certs, key []byte
	for rest := whole; ; {
		block, more := pem.Decode(rest)
		if block == nil {
			break
		}
		if rest = more; block.Type == "CERTIFICATE" {
			certs = append(certs, pem.EncodeToMemory(block)...)
		} else {
			key = pem.EncodeToMemory(block)
		}
	}
	if len(certs) == 0 || len(key) == 0 {
		return fleet.Errorf(fleet.ErrCorrupt, "CA: %s is not whole: it is of a rotation that was cut short; delete it, and rotate again", path)
	}
	if err := writeFile(filepath.Join(dir, caKeyFile), key, 0o600); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, caCertFile), certs, 0o644); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("CA: %w", err)
	}
	return nil
}

// linksOf are the certificates after the CA's own that lead to it or from it.
func linksOf(own *x509.Certificate, rest []byte) (out []*x509.Certificate) {
	for {
		block, more := pem.Decode(rest)
		if block == nil {
			return out
		}
		rest = more
		c, err := x509.ParseCertificate(block.Bytes)
		if err == nil && (bytes.Equal(c.RawSubjectPublicKeyInfo, own.RawSubjectPublicKeyInfo) || c.CheckSignatureFrom(own) == nil) {
			out = append(out, c)
		}
	}
}
