// Package jointoken owns the text form of a join token: which cluster it joins, the secret that proves it and the pin of
// the hub's CA, by which an agent knows the hub before it has any certificate. It must not know who issues or redeems
// tokens.
package jointoken

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"hash/crc32"
	"log/slog"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

const (
	family    = "towline"
	prefix    = family + "1."
	idBytes   = 8
	sumBytes  = 4
	headBytes = 1 + idBytes + sha256.Size + sha256.Size
	minLength = headBytes + 1 + sumBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Token lets the agent of one cluster ask for its first certificate, once.
type Token struct {
	// ID names the token; it is no secret. Sixteen hex digits.
	ID string
	// Secret proves it.
	Secret [32]byte
	// Cluster is the cluster that it joins.
	Cluster fleet.ClusterName
	// CAPin is the SHA-256 of the SubjectPublicKeyInfo of the hub's CA.
	CAPin [32]byte
}

// New draws a token for the cluster.
func New(cluster fleet.ClusterName, caPin [32]byte) Token {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand
	t := Token{ID: hex.EncodeToString(id[:]), Cluster: cluster, CAPin: caPin}
	_, _ = rand.Read(t.Secret[:])
	return t
}

// Pin is the CAPin of a CA certificate.
func Pin(ca *x509.Certificate) [32]byte { return sha256.Sum256(ca.RawSubjectPublicKeyInfo) }

// SecretHash is what the hub keeps of the secret.
func (t Token) SecretHash() [32]byte {
	return sha256.Sum256(append([]byte("towline join token\x00"+t.ID+"\x00"), t.Secret[:]...))
}

// String is the form that people paste: towline1.<base64url>. It holds the secret.
func (t Token) String() string {
	id, err := hex.DecodeString(t.ID)
	if err != nil || len(id) != idBytes || t.Cluster == "" || len(t.Cluster) > 63 {
		return ""
	}
	b := make([]byte, 0, headBytes+len(t.Cluster)+sumBytes)
	b = append(b, byte(len(t.Cluster)))
	b = append(b, id...)
	b = append(b, t.Secret[:]...)
	b = append(b, t.CAPin[:]...)
	b = append(b, t.Cluster...)
	return prefix + base64.RawURLEncoding.EncodeToString(append(b, sum(b)...))
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", t.ID), slog.String("cluster", string(t.Cluster)))
}

// Parse reads a token; blanks around it and line breaks inside, as a terminal leaves them, do not matter.
func Parse(s string) (Token, error) {
	s = strings.Join(strings.Fields(s), "")
	body, err := body(s)
	if err != nil {
		return Token{}, err
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return Token{}, broken(body)
	}
	if len(b) < minLength {
		return Token{}, truncated()
	}
	cluster := int(b[0])
	switch want := headBytes + cluster + sumBytes; {
	case len(b) < want:
		return Token{}, truncated()
	case len(b) > want:
		return Token{}, damaged()
	}
	payload, check := b[:len(b)-sumBytes], b[len(b)-sumBytes:]
	if string(sum(payload)) != string(check) {
		return Token{}, damaged()
	}
	return decode(payload)
}

func body(s string) (string, error) {
	version, body, found := strings.Cut(s, ".")
	switch {
	case s == "":
		return "", fleet.Invalid("join token", "is empty; run: towline cluster join NAME")
	case version+"." == prefix:
		return body, nil
	case !found && strings.HasPrefix(prefix, s):
		return "", truncated()
	case found && strings.HasPrefix(version, family):
		return "", fleet.Invalidf("join token", "has version %.20q, and this program knows %q; update it", version, family+"1")
	}
	return "", fleet.Invalidf("join token", "this is not a join token; one begins with %q and comes from: towline cluster join NAME", prefix)
}

func decode(b []byte) (Token, error) {
	t := Token{ID: hex.EncodeToString(b[1 : 1+idBytes])}
	copy(t.Secret[:], b[1+idBytes:])
	copy(t.CAPin[:], b[1+idBytes+len(t.Secret):])
	t.Cluster = fleet.ClusterName(b[headBytes:])
	if err := fleet.ValidateLabel(string(t.Cluster)); err != nil {
		return Token{}, damaged()
	}
	return t, nil
}

// broken tells a token that was cut inside a group of four characters from one with characters that are none of its own.
func broken(body string) error {
	for _, c := range body {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", c) {
			return damaged()
		}
	}
	return truncated()
}

func truncated() error {
	return fleet.Invalid("join token", "is cut short; copy all of it, on one line")
}

func damaged() error {
	return fleet.Invalid("join token", "is damaged; copy it again, or run: towline cluster join NAME --reissue")
}

func sum(b []byte) []byte {
	c := crc32.Checksum(b, castagnoli)
	return []byte{byte(c >> 24), byte(c >> 16), byte(c >> 8), byte(c)}
}
