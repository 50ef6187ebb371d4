package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// minRSA is how long an RSA key has to be.
const minRSA = 2048

// cosignKey is a public key.
type cosignKey struct {
	key  any
	name string
}

func (k cosignKey) String() string { return k.name }

// readCosign reads the public keys of a PEM text.
func readCosign(text string) (keys []cosignKey, err error) {
	rest := []byte(strings.TrimSpace(text))
	for len(rest) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("is no public key in PEM: write what is in cosign.pub")
		}
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("is a %s, not a PUBLIC KEY: write what is in cosign.pub", fleet.Clip(block.Type, 40))
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, errors.New("is no public key that can be read: write what is in cosign.pub")
		}
		switch k := key.(type) {
		case *ecdsa.PublicKey, ed25519.PublicKey:
		case *rsa.PublicKey:
			if k.N.BitLen() < minRSA {
				return nil, fmt.Errorf("is an RSA key of %d bits; at least %d are needed", k.N.BitLen(), minRSA)
			}
		default:
			return nil, fmt.Errorf("is of a kind (%T) that is not known: ECDSA, Ed25519 and RSA are", key)
		}
		keys = append(keys, cosignKey{key, fmt.Sprintf("cosign SHA256:%x", sha256.Sum256(block.Bytes))})
	}
	return keys, nil
}

// signed reports that the key signed a text.
func (k cosignKey) signed(text, sig []byte) bool {
	short, long, longest := sha256.Sum256(text), sha512.Sum384(text), sha512.Sum512(text)
	switch key := k.key.(type) {
	case *ecdsa.PublicKey: // of a longer curve by its own hash, or by SHA-256: cosign has done both
		return ecdsa.VerifyASN1(key, short[:], sig) ||
			key.Params().BitSize == 384 && ecdsa.VerifyASN1(key, long[:], sig) || key.Params().BitSize == 521 && ecdsa.VerifyASN1(key, longest[:], sig)
	case ed25519.PublicKey:
		return ed25519.Verify(key, text, sig)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, short[:], sig) == nil
	}
	return false
}

func (k Keys) byCosign(text []byte, coded string) (Proof, error) {
	sig, err := base64.StdEncoding.DecodeString(coded)
	if err != nil {
		return Proof{}, unsigned("a signature is no base64")
	}
	for _, key := range k.cosign {
		if key.signed(text, sig) {
			return Proof{By: key.String(), Lasts: true}, nil
		}
	}
	return Proof{}, unsigned("a signature is by another key, or of something else")
}

// simpleType is what cosign signs with: the same keys may sign other texts.
const simpleType = "cosign container image signature"

// Simple checks a signature of the format of simple signing: its payload, and its signature in base64, for a manifest of the digest.
// Which name the payload gives to the artifact does not count: a copy of it in another registry is the same.
func (k Keys) Simple(digest string, payload []byte, sig string) (Proof, error) {
	proof, err := k.byCosign(payload, sig)
	if err != nil {
		return Proof{}, err
	}
	var says struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	switch err := json.Unmarshal(payload, &says); {
	case err != nil:
		return Proof{}, unsigned("a signature by %s is of what cannot be read", proof.By)
	case says.Critical.Type != simpleType:
		return Proof{}, unsigned("a signature by %s is a %q, not a %q", proof.By, fleet.Clip(says.Critical.Type, 60), simpleType)
	case says.Critical.Image.Digest != digest:
		return Proof{}, unsigned("a signature by %s is of another digest, %s", proof.By, fleet.Clip(says.Critical.Image.Digest, 80))
	}
	return proof, nil
}

// What the statement of a bundle has to be: an attestation of something else is no signature.
const (
	statementType = "application/vnd.in-toto+json"
	statementKind = "https://in-toto.io/Statement/"
	predicateType = "https://sigstore.dev/cosign/sign/v1"
)

// Bundle checks a signature in a Sigstore bundle, whose envelope has a statement about the digest. What a transparency log says of it is not
// looked at.
func (k Keys) Bundle(digest string, data []byte) (Proof, error) {
	var b struct {
		Envelope struct {
			Payload    []byte `json:"payload"`
			Type       string `json:"payloadType"`
			Signatures []struct {
				Sig string `json:"sig"`
			} `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(data, &b); err != nil || len(b.Envelope.Signatures) != 1 {
		return Proof{}, unsigned("a bundle has no envelope with one signature")
	}
	proof, err := k.byCosign(envelopeText(b.Envelope.Type, b.Envelope.Payload), b.Envelope.Signatures[0].Sig)
	if err != nil {
		return Proof{}, err
	}
	var says struct {
		Kind      string `json:"_type"`
		Predicate string `json:"predicateType"`
		Subject   []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if b.Envelope.Type != statementType || json.Unmarshal(b.Envelope.Payload, &says) != nil || !strings.HasPrefix(says.Kind, statementKind) {
		return Proof{}, unsigned("a signature by %s is of no statement", proof.By)
	}
	if says.Predicate != predicateType {
		return Proof{}, unsigned("a statement by %s is %q, which is no signature", proof.By, fleet.Clip(says.Predicate, 80))
	}
	for _, s := range says.Subject {
		if "sha256:"+s.Digest["sha256"] == digest {
			return proof, nil
		}
	}
	return Proof{}, unsigned("a signature by %s is of another digest", proof.By)
}

// envelopeText is what is signed of an envelope: with lengths, so that no two type and payload are one text.
func envelopeText(kind string, payload []byte) []byte {
	head := "DSSEv1 " + strconv.Itoa(len(kind)) + " " + kind + " " + strconv.Itoa(len(payload)) + " "
	return append([]byte(head), payload...)
}
