package signature

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"towline.dev/towline/pkg/fleet"
)

// readPGP reads an armored block of public keys.
func readPGP(text string) (openpgp.EntityList, error) {
	const how = "export it with gpg --armor --export KEY"
	block, err := armor.Decode(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("is no armored PGP key: %s", how)
	}
	if block.Type != openpgp.PublicKeyType {
		return nil, fmt.Errorf("is a %s, not a public key: %s", strings.ToLower(fleet.Clip(block.Type, 40)), how)
	}
	keys, err := openpgp.ReadKeyRing(block.Body)
	if err != nil || len(keys) == 0 {
		return nil, fmt.Errorf("cannot be read: %s", how)
	}
	for _, e := range keys {
		if self, _ := e.PrimarySelfSignature(); self == nil {
			return nil, fmt.Errorf("key %s has no signature of its own: %s", pgpName(e.PrimaryKey), how)
		}
	}
	return keys, nil
}

// pgpName is a key's fingerprint as gpg prints it.
func pgpName(k *packet.PublicKey) string { return fmt.Sprintf("PGP %X", k.Fingerprint) }

// usablePGP are the fingerprints of an entity's keys that sign at a time.
func usablePGP(e *openpgp.Entity, now time.Time) (names []string) {
	keys := []*packet.PublicKey{e.PrimaryKey}
	for _, s := range e.Subkeys {
		keys = append(keys, s.PublicKey)
	}
	for _, k := range keys {
		if _, ok := e.SigningKeyById(now, k.KeyId); ok {
			names = append(names, pgpName(k))
		}
	}
	return names
}

// byPGP checks a detached signature.
func (k Keys) byPGP(now time.Time, payload, armored []byte) (Proof, error) {
	if len(k.pgp) == 0 {
		return Proof{}, unsigned("it has a PGP signature, and no pgpKeys are listed")
	}
	block, err := armor.Decode(bytes.NewReader(armored))
	if err != nil || block.Type != openpgp.SignatureType {
		return Proof{}, unsigned("its PGP signature cannot be read")
	}
	sig, signer, err := openpgp.VerifyDetachedSignature(k.pgp, bytes.NewReader(payload), block.Body, &packet.Config{Time: func() time.Time { return now }})
	switch {
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		return Proof{}, unsigned("its PGP signature is by another key")
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return Proof{}, unsigned("it is signed by %s, which has expired", pgpName(signer.PrimaryKey))
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return Proof{}, unsigned("it is signed by %s, which is revoked", pgpName(signer.PrimaryKey))
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return Proof{}, unsigned("its signature by %s has expired", pgpName(signer.PrimaryKey))
	case err != nil:
		return Proof{}, unsigned("its PGP signature is not one of its content: %s", fleet.Clip(err.Error(), 100))
	}
	return Proof{By: pgpName(signer.PrimaryKey), Lasts: sig.SigLifetimeSecs == nil || *sig.SigLifetimeSecs == 0}, nil
}
