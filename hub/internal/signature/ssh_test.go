package signature

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshLine is a new key as the line of a .pub file.
func sshLine(t *testing.T) string {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// TestOptionsOfSigners: an option is held to or refused, with names in front of it and without, and never passed over.
func TestOptionsOfSigners(t *testing.T) {
	line := sshLine(t)
	for options, want := range map[string]string{
		``:                                        "",
		"a@b \t":                                  "",
		`no-reply@example.com `:                   "",
		`from,principals `:                        "",
		`"a b",c@d `:                              "",
		`namespaces="git" `:                       "",
		`a@b namespaces="g?t,!file" `:             "",
		`a@b NAMESPACES="*" `:                     "",
		`a@b namespaces="!git,*" `:                `option "namespaces": namespaces "!git,*" leaves out git`,
		`a@b namespaces="*,!g*" `:                 "leaves out git",
		`a@b namespaces="!file" `:                 "leaves out git",
		`a@b namespaces="[g]it" `:                 "leaves out git",
		`a@b namespaces="" `:                      "leaves out git",
		`namespaces="file" `:                      `option "namespaces": namespaces "file" leaves out git`,
		`"a b" namespaces="file" `:                "leaves out git",
		`a@b namespaces="git",namespaces="file" `: `option "namespaces" is there twice`,
		`a@b namespaces=git `:                     `option "namespaces": write it as namespaces="VALUE"`,
		`namespaces=git `:                         `write it as namespaces="VALUE"`,
		`a@b namespaces `:                         `write it as namespaces="VALUE"`,
		`cert-authority `:                         `option "cert-authority": is an authority of certificates`,
		`a@b cert-authority,namespaces="git" `:    "is an authority of certificates",
		`a@b namespaces="git",Cert-Authority `:    "is an authority of certificates",
		`restrict `:                               `option "restrict" is not known: namespaces, valid-after and valid-before are`,
		`command="x" `:                            `option "command" is not known`,
		`expiry-time="20200101" `:                 `option "expiry-time" is not known`,
		`of-tomorrow="x" `:                        `option "of-tomorrow" is not known`,
		`a@b valid-before="20200101", `:           `option "" is not known`,
		`a@b valid-before="tomorrow" `:            `option "valid-before": "tomorrow" is no time`,
		`valid-before=20200101 `:                  `write it as valid-before="VALUE"`,
		`a@b valid-after="20200101Z",valid-before="20200101Z" `: `"valid-before" is not after "valid-after"`,
		`a@b c@d `:                    `option "c@d" is not known`,
		`a@b c@d valid-after="2020" `: "is no SSH public key",
		`a@b "`:                       "is no SSH public key",
	} {
		_, err := readSSH("# signers\n" + options + line + "\n")
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", options, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "line 2: ") || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", options, err, want)
		}
	}
}

// TestTimesOfSigners: they are held to without names, too, and by the time that is passed in.
func TestTimesOfSigners(t *testing.T) {
	year := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	line := sshLine(t)
	for options, want := range map[string][2]time.Time{
		`valid-before="20200101" `:                                             {{}, year},
		`Valid-After="20200101000000UTC" `:                                     {year, {}},
		`a@b valid-after="202001010000z",valid-before="2021010100Z" `:          {},
		`* valid-after="20200101Z",namespaces="git",valid-before="20200102Z" `: {year, year.AddDate(0, 0, 1)},
	} {
		keys, err := readSSH(options + line)
		if want == [2]time.Time{} {
			if err == nil {
				t.Errorf("%s is taken", options)
			}
			continue
		}
		if err != nil || !keys[0].after.Equal(want[0]) || !keys[0].before.Equal(want[1]) {
			t.Errorf("%s: %v, %v", options, keys, err)
		}
	}
}

// TestSignersAreThoseOfOpenSSH: whom ssh-keygen takes by a line of allowed_signers is taken, and nobody else.
func TestSignersAreThoseOfOpenSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is not here")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	keygen := func(stdin string, args ...string) error {
		cmd := exec.CommandContext(t.Context(), "ssh-keygen", args...)
		cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(os.Environ(), "TZ=UTC")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	const text = "tree\n"
	if err := keygen("", "-q", "-t", "ed25519", "-N", "", "-f", at("id")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("text"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keygen("", "-Y", "sign", "-q", "-n", gitNamespace, "-f", at("id"), at("text")); err != nil {
		t.Fatal(err)
	}
	pub, err := os.ReadFile(at("id.pub"))
	if err != nil {
		t.Fatal(err)
	}
	armored, err := os.ReadFile(at("text.sig"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a@b", "*", `"a@b"`, "c@d,a@b", "*@b"}
	options := []string{`namespaces="git"`, `namespaces="file,git"`, `namespaces="!git,*"`, `namespaces="*,!file"`, `namespaces="g?t"`, `namespaces="[g]it"`,
		`namespaces="file"`, `namespaces="git, file"`, `namespaces=" git"`, `namespaces=git`, `NameSpaces="git"`, `valid-after="20200101Z"`, `valid-after="20220101Z"`,
		`valid-before="20220101Z"`, `valid-before="20200101000000Z"`, `valid-before="20210601"`, `valid-after="20210601"`, `cert-authority`, `restrict`, `valid-before="x"`}
	r := mathrand.New(mathrand.NewPCG(1, 2))
	when, taken := time.Date(2021, 6, 1, 0, 0, 0, 0, time.UTC), 0
	for range 150 {
		var list []string
		for range r.IntN(4) {
			list = append(list, options[r.IntN(len(options))])
		}
		line := names[r.IntN(len(names))] + " " + strings.Join(list, ",") + " " + string(pub)
		if err := os.WriteFile(at("signers"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		theirs := keygen(text, "-Y", "verify", "-f", at("signers"), "-I", "a@b", "-n", gitNamespace, "-O", "verify-time=20210601", "-s", at("text.sig"))
		keys, ours := Read(List{SSH: []string{line}})
		if ours == nil {
			_, ours = keys.bySSH(when, []byte(text), armored)
		}
		if (theirs == nil) != (ours == nil) {
			t.Errorf("%q: ssh-keygen says %v, and we %v", line, theirs, ours)
		}
		if ours == nil {
			taken++
		}
	}
	if taken == 0 {
		t.Error("nobody is taken")
	}
}
