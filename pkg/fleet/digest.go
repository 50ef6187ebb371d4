package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest is a SHA-256. The zero Digest means none.
type Digest [sha256.Size]byte

// DigestOf is the SHA-256 of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// IsZero reports that there is none.
func (d Digest) IsZero() bool { return d == Digest{} }

// String is lower-case hex; empty for none.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return hex.EncodeToString(d[:])
}

// Short is the first twelve hex digits, for people.
func (d Digest) Short() string {
	if d.IsZero() {
		return "none"
	}
	return hex.EncodeToString(d[:6])
}

// Bytes is the wire form: 32 bytes, or none.
func (d Digest) Bytes() []byte {
	if d.IsZero() {
		return nil
	}
	return d[:]
}

// DigestFromBytes reads the wire form; no bytes are the zero Digest.
func DigestFromBytes(b []byte) (Digest, error) {
	var d Digest
	if len(b) == 0 {
		return d, nil
	}
	if len(b) != len(d) {
		return d, fmt.Errorf("digest has %d bytes, not %d", len(b), len(d))
	}
	copy(d[:], b)
	return d, nil
}

// ParseDigest reads hex, with or without "sha256:" in front.
func ParseDigest(s string) (Digest, error) {
	if len(s) > 7 && s[:7] == "sha256:" {
		s = s[7:]
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != sha256.Size {
		return Digest{}, fmt.Errorf("%.80q is no SHA-256: write 64 hex digits", s)
	}
	return DigestFromBytes(b)
}
