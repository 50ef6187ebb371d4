package signature

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"towline.dev/towline/pkg/fleet"
)

// gitNamespace is what git has ssh-keygen sign with: a signature of a file, or of a mail, is none of a commit.
const gitNamespace = "git"

// sshKey is a key that may sign.
type sshKey struct {
	ssh.PublicKey
	line          string // as it is listed: what it may sign belongs to it
	after, before time.Time
}

func (k sshKey) String() string { return sshName(k.PublicKey) }

// readSSH reads lines of public keys, or of allowed signers. Empty lines and comments do not count.
func readSSH(text string) (keys []sshKey, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := readSSHLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("has no key: write the line of a .pub file")
	}
	return keys, nil
}

func readSSHLine(line string) (sshKey, error) {
	pub, options, ok := cutSigner(line)
	if !ok {
		return sshKey{}, fmt.Errorf("%q is no SSH public key: write the line of a .pub file, or of an allowed_signers file", fleet.Clip(line, 40))
	}
	k := sshKey{PublicKey: pub, line: line}
	if _, is := pub.(*ssh.Certificate); is {
		return sshKey{}, fmt.Errorf("%s is a certificate: list the key itself", k)
	}
	if c, is := pub.(ssh.CryptoPublicKey); is {
		if r, is := c.CryptoPublicKey().(*rsa.PublicKey); is && r.N.BitLen() < minRSA {
			return sshKey{}, fmt.Errorf("%s is an RSA key of %d bits; at least %d are needed", k, r.N.BitLen(), minRSA)
		}
	}
	if pub.Type() == typeDSA {
		return sshKey{}, fmt.Errorf("%s is a DSA key, which is not safe any more", k)
	}
	if err := k.allow(options); err != nil {
		return sshKey{}, fmt.Errorf("%s: %w", k, err)
	}
	return k, nil
}

// typeDSA is the type of keys that were given up.
const typeDSA = "ssh-dss"

// bySSH checks a signature in the format of ssh-keygen -Y sign. When is the time that what is signed says of itself, by which git judges
// how long a key may sign.
func (k Keys) bySSH(when time.Time, payload, armored []byte) (Proof, error) {
	if len(k.ssh) == 0 {
		return Proof{}, unsigned("it has an SSH signature, and no sshKeys are listed")
	}
	sig, err := sshsig.Unarmor(armored)
	if err != nil {
		return Proof{}, unsigned("its SSH signature cannot be read: %s", fleet.Clip(err.Error(), 100))
	}
	if sig.Signature.Format == ssh.KeyAlgoRSA {
		return Proof{}, unsigned("its SSH signature is by SHA-1, which is not safe any more")
	}
	why := unsigned("its SSH signature is by another key, %s", sshName(sig.PublicKey))
	for _, key := range k.ssh {
		if !bytes.Equal(key.Marshal(), sig.PublicKey.Marshal()) {
			continue
		}
		err := sshsig.Verify(bytes.NewReader(payload), sig, key.PublicKey, sig.HashAlgorithm, gitNamespace)
		switch {
		case errors.Is(err, sshsig.ErrNamespaceMismatch):
			why = unsigned("its signature by %s is for %q, not for %s", key, fleet.Clip(sig.Namespace, 40), gitNamespace)
		case err != nil:
			why = unsigned("its signature by %s is not one of its content", key)
		case !key.after.IsZero() && when.Before(key.after):
			why = unsigned("it is signed by %s, which may sign from %s on, and is of %s", key, day(key.after), day(when))
		case !key.before.IsZero() && when.After(key.before):
			why = unsigned("it is signed by %s, which may sign until %s, and is of %s", key, day(key.before), day(when))
		default:
			return Proof{By: key.String(), Lasts: true}, nil
		}
	}
	return Proof{}, why
}

func day(t time.Time) string { return t.UTC().Format(time.RFC3339) }
