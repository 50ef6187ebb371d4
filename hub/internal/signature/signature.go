// Package signature tells whether a Git object or an artifact of a registry is signed by one of the keys that a source lists. Every function
// is pure: the time is a value. It must not know where what is signed comes from, nor what becomes of it.
package signature

import (
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"golang.org/x/crypto/ssh"

	"towline.dev/towline/pkg/fleet"
)

// List are keys as a source lists them.
type List struct{ PGP, SSH, Cosign []string }

// Keys are those that were read. The zero Keys sign nothing.
type Keys struct {
	pgp    openpgp.EntityList
	blocks []string // of pgp, as they are listed: one may say of a key of another that it is revoked
	ssh    []sshKey
	cosign []cosignKey
}

// Read reads the keys of a list; an error names the field and what is wrong with it.
func Read(l List) (k Keys, err error) {
	for i, text := range l.PGP {
		in, err := readPGP(text)
		if err != nil {
			return Keys{}, fleet.Invalidf("pgpKeys", "[%d] %s", i, err)
		}
		k.pgp, k.blocks = append(k.pgp, in...), append(k.blocks, text)
	}
	for i, text := range l.SSH {
		in, err := readSSH(text)
		if err != nil {
			return Keys{}, fleet.Invalidf("sshKeys", "[%d] %s", i, err)
		}
		k.ssh = append(k.ssh, in...)
	}
	for i, text := range l.Cosign {
		in, err := readCosign(text)
		if err != nil {
			return Keys{}, fleet.Invalidf("cosignKeys", "[%d] %s", i, err)
		}
		k.cosign = append(k.cosign, in...)
	}
	return k, nil
}

// Any reports that there is a key.
func (k Keys) Any() bool { return len(k.pgp)+len(k.ssh)+len(k.cosign) > 0 }

// rulesID names the rules by which signatures are checked: what was taken by others is checked anew.
const rulesID = "2"

// ID names the keys and which of them count at a time: what was signed by one of them is so for as long as the ID is the same.
func (k Keys) ID(now time.Time) string {
	parts := append([]string{rulesID}, k.blocks...)
	for _, e := range k.pgp {
		parts = append(parts, usablePGP(e, now)...)
	}
	for _, s := range k.ssh {
		parts = append(parts, s.String(), s.line)
	}
	for _, c := range k.cosign {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, "\n")
}

// String lists the fingerprints, for people.
func (k Keys) String() string {
	var names []string
	for _, e := range k.pgp {
		names = append(names, pgpName(e.PrimaryKey))
	}
	for _, s := range k.ssh {
		names = append(names, s.String())
	}
	for _, c := range k.cosign {
		names = append(names, c.String())
	}
	const few = 5
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// Proof says that something is signed.
type Proof struct {
	// By is the fingerprint of the key.
	By string
	// Lasts is false of a signature that ends by itself, before its key does.
	Lasts bool
}

// unsigned is why something does not count as signed.
func unsigned(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrDenied, format, args...)
}

// sshName is a key's fingerprint as ssh-keygen -l prints it.
func sshName(k ssh.PublicKey) string { return "SSH " + ssh.FingerprintSHA256(k) }
