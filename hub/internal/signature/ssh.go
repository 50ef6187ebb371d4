package signature

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"path"
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
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := readSSHLine(line)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("has no key: write the line of a .pub file")
	}
	return keys, nil
}

func readSSHLine(line string) (sshKey, error) {
	pub, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if first, _, _ := strings.Cut(line, " "); err != nil || len(options) > 0 && !strings.HasPrefix(first, "ssh-") {
		pub, _, options, rest, err = ssh.ParseAuthorizedKey([]byte(afterNames(line)))
	}
	if err != nil || len(rest) > 0 {
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
	for _, option := range options {
		if err := k.allow(option); err != nil {
			return sshKey{}, fmt.Errorf("%s: %w", k, err)
		}
	}
	return k, nil
}

// typeDSA is the type of keys that were given up.
const typeDSA = "ssh-dss"

// afterNames is a line of an allowed_signers file behind the names, which may be in quotes.
func afterNames(line string) string {
	quoted := false
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case (c == ' ' || c == '\t') && !quoted:
			return strings.TrimSpace(line[i:])
		}
	}
	return ""
}

// allow takes an option of an allowed_signers file.
func (k *sshKey) allow(option string) (err error) {
	name, value, _ := strings.Cut(option, "=")
	value = strings.Trim(value, `"`)
	switch strings.ToLower(name) {
	case "namespaces":
		for _, pattern := range strings.Split(value, ",") {
			if ok, err := path.Match(pattern, gitNamespace); err == nil && ok {
				return nil
			}
		}
		return fmt.Errorf("namespaces %q leaves out %s", fleet.Clip(value, 40), gitNamespace)
	case "valid-after":
		k.after, err = signersTime(value)
		return err
	case "valid-before":
		k.before, err = signersTime(value)
		return err
	case "cert-authority":
		return errors.New("is an authority of certificates, which are not read: list the keys themselves")
	}
	return fmt.Errorf("option %q is not known: namespaces, valid-after and valid-before are", fleet.Clip(name, 40))
}

// signersTime reads a time as ssh-keygen writes it. Without a Z it is the local one of who wrote it, which is not known here: it is taken as UTC.
func signersTime(text string) (time.Time, error) {
	text = strings.TrimSuffix(text, "Z")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: write YYYYMMDD, or YYYYMMDDHHMMSSZ", fleet.Clip(text, 40))
}

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
