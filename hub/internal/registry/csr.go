package registry

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"

	"towline.dev/towline/pkg/fleet"
)

// maxCSR bounds what is parsed; a request of an agent has some 200 bytes.
const maxCSR = 16 << 10

// publicKey is all that counts of a certificate request. The kind and size of the key are checked before its signature,
// which would cost time for a giant one.
func publicKey(der []byte) (pub crypto.PublicKey, hash [32]byte, err error) {
	if len(der) == 0 || len(der) > maxCSR {
		return nil, hash, fleet.Invalidf("csr", "has %d bytes; at most %d", len(der), maxCSR)
	}
	req, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, hash, fleet.Invalidf("csr", "is no certificate request: %v", err)
	}
	if err := checkKey(req.PublicKey); err != nil {
		return nil, hash, err
	}
	if err := req.CheckSignature(); err != nil {
		return nil, hash, fleet.Invalidf("csr", "its signature is not of its key: %v", err)
	}
	return req.PublicKey, sha256.Sum256(req.RawSubjectPublicKeyInfo), nil
}

func checkKey(pub crypto.PublicKey) error {
	const allowed = "use ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 4096 bits"
	switch k := pub.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
		return fleet.Invalidf("csr", "a key on curve %s is not accepted; %s", k.Curve.Params().Name, allowed)
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= 2048 && n <= 4096 && k.E >= 3 && k.E <= 1<<31-1 {
			return nil
		}
		return fleet.Invalidf("csr", "an RSA key of %d bits is not accepted; %s", k.N.BitLen(), allowed)
	}
	return fleet.Invalidf("csr", "a key of this kind is not accepted; %s", allowed)
}
