package signature

import (
	"bufio"
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"towline.dev/towline/pkg/fleet"
)

// readPGP reads armored blocks of public keys, one behind the other.
func readPGP(text string) (keys openpgp.EntityList, err error) {
	const how = "export it with gpg --armor --export KEY"
	rest := bufio.NewReader(strings.NewReader(text))
	for blocks := 0; ; blocks++ {
		block, err := armor.Decode(rest)
		if errors.Is(err, io.EOF) && blocks > 0 {
			return keys, nil
		}
		if err != nil {
			return nil, fmt.Errorf("is no armored PGP key: %s", how)
		}
		if block.Type != openpgp.PublicKeyType {
			return nil, fmt.Errorf("is a %s, not a public key: %s", strings.ToLower(fleet.Clip(block.Type, 40)), how)
		}
		in, err := openpgp.ReadKeyRing(block.Body)
		if err != nil || len(in) == 0 {
			return nil, fmt.Errorf("cannot be read: %s", how)
		}
		for _, e := range in {
			if self, _ := e.PrimarySelfSignature(); self == nil {
				return nil, fmt.Errorf("key %s has no signature of its own: %s", pgpName(e.PrimaryKey), how)
			}
		}
		keys = append(keys, in...)
	}
}

// pgpName is a key's fingerprint as gpg prints it.
func pgpName(k *packet.PublicKey) string { return fmt.Sprintf("PGP %X", k.Fingerprint) }

// pgpKeys are the keys of an entity.
func pgpKeys(e *openpgp.Entity) []*packet.PublicKey {
	keys := []*packet.PublicKey{e.PrimaryKey}
	for _, s := range e.Subkeys {
		keys = append(keys, s.PublicKey)
	}
	return keys
}

// usablePGP are the fingerprints of an entity's keys that sign at a time.
func usablePGP(e *openpgp.Entity, now time.Time) (names []string) {
	for _, k := range pgpKeys(e) {
		if _, ok := e.SigningKeyById(now, k.KeyId); ok {
			names = append(names, pgpName(k))
		}
	}
	return names
}

// byPGP checks a detached signature. The same key may be listed as it was and as it is now: one that is good is enough, but for one that is revoked.
func (k Keys) byPGP(now time.Time, payload, armored []byte) (proof Proof, err error) {
	if len(k.pgp) == 0 {
		return Proof{}, unsigned("it has a PGP signature, and no pgpKeys are listed")
	}
	var sig []byte
	block, err := armor.Decode(bytes.NewReader(armored))
	if err == nil && block.Type == openpgp.SignatureType {
		sig, err = io.ReadAll(block.Body)
	}
	if err != nil || sig == nil {
		return Proof{}, unsigned("its PGP signature cannot be read")
	}
	good, why := false, unsigned("its PGP signature is by another key")
	for _, e := range k.pgp {
		p, err := signedPGP(e, now, payload, sig)
		switch {
		case errors.Is(err, pgperrors.ErrKeyRevoked):
			return Proof{}, unsigned("it is signed by %s, which is revoked", pgpName(e.PrimaryKey))
		case errors.Is(err, pgperrors.ErrUnknownIssuer):
		case err != nil:
			why = whyNotPGP(e, err)
		default:
			good, proof = true, p
		}
	}
	if !good {
		return Proof{}, why
	}
	return proof, nil
}

// signedPGP checks a signature by the keys of an entity.
func signedPGP(e *openpgp.Entity, now time.Time, payload, sig []byte) (Proof, error) {
	config := &packet.Config{Time: func() time.Time { return now }}
	s, _, err := openpgp.VerifyDetachedSignature(openpgp.EntityList{e}, bytes.NewReader(payload), bytes.NewReader(sig), config)
	if err != nil {
		return Proof{}, err
	}
	if s.Hash == crypto.SHA1 {
		return Proof{}, unsigned("its signature by %s is by SHA-1, which is not safe any more", pgpName(e.PrimaryKey))
	}
	for _, k := range pgpKeys(e) {
		if bits, err := k.BitLength(); s.CheckKeyIdOrFingerprint(k) && isLong(k.PubKeyAlgo) && (err != nil || bits < minRSA) {
			return Proof{}, unsigned("it is signed by %s, a key of %d bits; at least %d are needed", pgpName(k), bits, minRSA)
		}
	}
	return Proof{By: pgpName(e.PrimaryKey), Lasts: s.SigLifetimeSecs == nil || *s.SigLifetimeSecs == 0}, nil
}

// isLong reports that keys of a kind are only safe if they are long.
func isLong(kind packet.PublicKeyAlgorithm) bool {
	return kind == packet.PubKeyAlgoRSA || kind == packet.PubKeyAlgoRSASignOnly || kind == packet.PubKeyAlgoDSA
}

func whyNotPGP(e *openpgp.Entity, err error) error {
	switch {
	case errors.Is(err, fleet.ErrDenied):
		return err
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return unsigned("it is signed by %s, which has expired", pgpName(e.PrimaryKey))
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return unsigned("its signature by %s has expired", pgpName(e.PrimaryKey))
	}
	return unsigned("its PGP signature is not one of its content: %s", fleet.Clip(err.Error(), 100))
}
