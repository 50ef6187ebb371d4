package signature

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

const tree = "0123456789012345678901234567890123456789"

// commitBy is a commit that is signed as git does it.
func commitBy(t *testing.T, e *openpgp.Entity, cfg *packet.Config) []byte {
	t.Helper()
	head := "tree " + tree + "\nauthor Ana <ana@example.com> 1600000000 +0100\ncommitter Ana <ana@example.com> 1600000000 +0100"
	message := "\n\nchange\n\ngpgsig is a word\n"
	var sig bytes.Buffer
	if err := openpgp.ArmoredDetachSign(&sig, e, strings.NewReader(head+message), cfg); err != nil {
		t.Fatal(err)
	}
	return []byte(head + "\ngpgsig " + strings.ReplaceAll(sig.String(), "\n", "\n ") + message)
}

func newKey(t *testing.T, cfg *packet.Config) (*openpgp.Entity, Keys) {
	t.Helper()
	e, err := openpgp.NewEntity("Ana", "", "ana@example.com", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err == nil {
		err = e.Serialize(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	k, err := Read(List{PGP: []string{b.String()}})
	if err != nil {
		t.Fatal(err)
	}
	return e, k
}

// TestKeysEnd: what a key that expires has signed is signed until then, and is asked about anew after: its ID is another one.
func TestKeysEnd(t *testing.T) {
	start := time.Now().Add(-time.Hour)
	cfg := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: 7200, Time: func() time.Time { return start }}
	e, k := newKey(t, cfg)
	raw := commitBy(t, e, cfg)
	within, after := start.Add(time.Hour), start.Add(3*time.Hour)
	if proof, err := k.Commit(within, raw, tree); err != nil || !proof.Lasts || !strings.HasPrefix(proof.By, "PGP ") {
		t.Errorf("within its time: %v, %v", proof, err)
	}
	if _, err := k.Commit(after, raw, tree); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("after its time: %v", err)
	}
	if k.ID(within) == k.ID(after) || k.ID(within) == "" {
		t.Errorf("its ID stays %q", k.ID(within))
	}
	short := *cfg
	short.SigLifetimeSecs = 1800
	if _, err := k.Commit(start.Add(time.Hour), commitBy(t, e, &short), tree); err == nil || !strings.Contains(err.Error(), "its signature by PGP") {
		t.Errorf("after the signature's time: %v", err)
	}
	if proof, err := k.Commit(start.Add(time.Minute), commitBy(t, e, &short), tree); err != nil || proof.Lasts {
		t.Errorf("a signature that ends lasts: %v, %v", proof, err)
	}
}

// TestCommitsThatAreChanged: each byte of a signed commit counts, but for those of the signature and of signatures of other formats.
func TestCommitsThatAreChanged(t *testing.T) {
	cfg := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA}
	e, k := newKey(t, cfg)
	raw, now := commitBy(t, e, cfg), time.Now()
	if _, err := k.Commit(now, raw, tree); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Commit(now, raw, strings.Repeat("a", 40)); err == nil {
		t.Error("another tree is taken")
	}
	other := bytes.Replace(raw, []byte("\ngpgsig "), []byte("\ngpgsig-sha256 x\n y\ngpgsig "), 1)
	if _, err := k.Commit(now, other, tree); err != nil {
		t.Errorf("with a signature of another format: %v", err)
	}
	for name, changed := range map[string][]byte{
		"another message":   append(bytes.Clone(raw), 'x'),
		"a header more":     bytes.Replace(raw, []byte("\ngpgsig "), []byte("\nparent "+tree+"\ngpgsig "), 1),
		"two signatures":    bytes.Replace(raw, []byte("\ngpgsig "), []byte("\ngpgsig x\ngpgsig "), 1),
		"no signature":      []byte("tree " + tree + "\n\ngpgsig -----BEGIN PGP SIGNATURE-----\n"),
		"a signature of it": []byte("tree " + tree + "\ngpgsig nonsense\n\nx\n"),
		"nothing":           nil,
	} {
		if proof, err := k.Commit(now, changed, tree); err == nil {
			t.Errorf("%s is taken, by %s", name, proof.By)
		}
	}
}

// FuzzCommit: no bytes make it panic, or are taken for signed.
func FuzzCommit(f *testing.F) {
	const sig = "-----BEGIN %s SIGNATURE-----\n\nAAAA\n-----END %s SIGNATURE-----\n"
	for _, kind := range []string{"PGP", "SSH"} {
		s := fmt.Sprintf(sig, kind, kind)
		f.Add([]byte("tree " + tree + "\ncommitter a <b> 1 +0000\ngpgsig " + strings.ReplaceAll(s, "\n", "\n ") + "\n\nx\n"))
		f.Add([]byte("object " + tree + "\ntype commit\ntag v1\ntagger a <b> 1 +0000\n\nx\n" + s))
	}
	k, err := Read(List{SSH: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHbrPqdV3SLGYkYd3ALgAyWfnXkIhDhD1nC9LaDDQ8Nj"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := k.Commit(time.Unix(1, 0), raw, tree); err == nil {
			t.Error("a commit is taken")
		}
		if _, err := k.Tag(time.Unix(1, 0), raw, "v1", tree); err == nil {
			t.Error("a tag is taken")
		}
		if _, err := k.Bundle("sha256:x", raw); err == nil {
			t.Error("a bundle is taken")
		}
	})
}
