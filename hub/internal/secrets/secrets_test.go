package secrets

import (
	"bytes"
	"encoding/base64"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// line is a key of one byte, as it stands in a file.
func line(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, keyBytes)) + "\n"
}

func keysOf(t *testing.T, text string) *Keys {
	t.Helper()
	k, err := parseKeys([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var values = map[string][]byte{"token": []byte("canary"), "empty": {}, "binary": {0, 1, 255}}

// TestSealedOpens: what is sealed opens as what it is, with its key wherever that stands, and shows nothing of itself.
func TestSealedOpens(t *testing.T) {
	old := keysOf(t, line(1))
	sealed, err := old.Seal("default", "repo", fleet.SecretScope{}, values)
	if err != nil {
		t.Fatal(err)
	}
	again, err := old.Seal("default", "repo", fleet.SecretScope{}, values)
	if err != nil || bytes.Equal(again.GetSealed(), sealed.GetSealed()) || bytes.Equal(again.GetNonce(), sealed.GetNonce()) {
		t.Errorf("the same values are sealed alike: %v", err)
	}
	stored, err := proto.Marshal(sealed)
	if err != nil || bytes.Contains(stored, []byte("canary")) || bytes.Contains(stored, []byte("token")) {
		t.Errorf("what is stored shows values: %v", err)
	}
	rotated := keysOf(t, "# the new one\n"+line(2)+"\n"+line(1))
	if rotated.NewestID() == old.NewestID() {
		t.Error("two keys have one name")
	}
	for _, k := range []*Keys{old, rotated} {
		got, err := k.Open("default", "repo", fleet.SecretScope{}, sealed)
		if err != nil || !maps.EqualFunc(got, values, bytes.Equal) {
			t.Errorf("opened %v: %v", got, err)
		}
	}
}

// TestSealedIsBound: nothing opens under another name, in another project, with another key, or altered.
func TestSealedIsBound(t *testing.T) {
	k := keysOf(t, line(1)+line(2))
	sealed, err := k.Seal("default", "repo", fleet.SecretScope{}, values)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*storev1.SealedValues)) *storev1.SealedValues {
		out := proto.CloneOf(sealed)
		change(out)
		return out
	}
	for name, tc := range map[string]struct {
		keys          *Keys
		project, name string
		sealed        *storev1.SealedValues
		want          string
	}{
		"another name":    {k, "default", "repo2", sealed, fleet.SecretAltered},
		"another project": {k, "team", "repo", sealed, fleet.SecretAltered},
		"another key's name": {k, "default", "repo", with(func(s *storev1.SealedValues) { s.KeyId = keysOf(t, line(2)).NewestID() }),
			fleet.SecretAltered},
		"a bit":     {k, "default", "repo", with(func(s *storev1.SealedValues) { s.Sealed[3] ^= 1 }), fleet.SecretAltered},
		"no nonce":  {k, "default", "repo", with(func(s *storev1.SealedValues) { s.Nonce = nil }), fleet.SecretAltered},
		"cut short": {k, "default", "repo", with(func(s *storev1.SealedValues) { s.Sealed = s.Sealed[:4] }), fleet.SecretAltered},
		"nothing":   {k, "default", "repo", nil, fleet.SecretOtherKey},
		"other key": {keysOf(t, line(3)), "default", "repo", sealed, fleet.SecretOtherKey},
		"no key":    {NoKeys("lost"), "default", "repo", sealed, fleet.SecretNoKey},
	} {
		got, err := tc.keys.Open(tc.project, tc.name, fleet.SecretScope{}, tc.sealed)
		var why *Unreadable
		if !errors.As(err, &why) || why.Reason != tc.want || got != nil || !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if _, err := NoKeys("lost").Seal("team", "repo", fleet.SecretScope{}, values); !errors.Is(err, fleet.ErrPrecondition) || err.Error() != "secret team/repo: the hub cannot keep secrets: lost" {
		t.Errorf("sealed without a key: %v", err)
	}
}

// TestKeysAreRead: what is no key is said by its line, and not shown.
func TestKeysAreRead(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"none":    {"\n# nothing\n", "has no key"},
		"text":    {line(1) + "canary-key\n", "line 2 is no key: write 32 random bytes in base64, as by: openssl rand -base64 32"},
		"short":   {base64.StdEncoding.EncodeToString([]byte("canary")), "line 1 is no key"},
		"twice":   {line(1) + line(2) + line(1), "line 3 has a key that stands above it already"},
		"windows": {strings.ReplaceAll("\n"+line(1)+"  "+line(2), "\n", "\r\n"), ""},
	} {
		k, err := parseKeys([]byte(tc.text))
		switch {
		case tc.want == "":
			if err != nil || len(k.list) != 2 {
				t.Errorf("%s: %v", name, err)
			}
		case err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "canary"):
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

// TestLoad: where keys come from, and what is said at once when they do not.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, open, bad := write("good", line(1), 0o600), write("open", line(1), 0o644), write("bad", "canary-key", 0o600)
	prints := write("prints", "#!/bin/sh\ncat "+good+"\n", 0o700)
	fails := write("fails", "#!/bin/sh\necho canary-key\necho AccessDenied >&2\nexit 3\n", 0o700)
	for name, tc := range map[string]struct {
		where Where
		want  string // empty: it has keys
		log   string
	}{
		"a file":                     {where: Where{File: good}},
		"a file that all can read":   {where: Where{File: open}, log: "can be read by every user"},
		"no file":                    {where: Where{File: filepath.Join(dir, "none")}, want: "none is missing: put it back, or give --secrets-key-file the right one"},
		"a bad file":                 {where: Where{File: bad}, want: "bad: line 1 is no key"},
		"made":                       {where: Where{File: filepath.Join(dir, "sub", "made"), Make: true}},
		"missing, and needed":        {where: Where{File: filepath.Join(dir, "lost"), Make: true, Sealed: 3}, want: "lost is missing, and 3 secrets are encrypted with it: put it back from a backup"},
		"a command":                  {where: Where{Command: " " + prints + "  x "}},
		"a command that fails":       {where: Where{Command: fails}, want: "fails: exit status 3 AccessDenied"},
		"a command that prints none": {where: Where{Command: "echo canary-key"}, want: "--secrets-key-command echo: what it prints: line 1 is no key"},
		"no command":                 {where: Where{Command: "/nowhere/kms"}, want: "--secrets-key-command /nowhere/kms"},
		"a blank command":            {where: Where{Command: "  "}, want: "--secrets-key-command is blank"},
		"both":                       {where: Where{File: good, Command: prints}, want: "keep one of them"},
		"neither":                    {where: Where{}, want: "start the hub with --secrets-key-file or --secrets-key-command"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			tc.where.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			k := Load(t.Context(), tc.where)
			if tc.want == "" && (k.NewestID() == "" || k.Problem() != "") || tc.want != "" && (k.NewestID() != "" || !strings.Contains(k.Problem(), tc.want)) {
				t.Errorf("key %q, problem %s, want %s", k.NewestID(), k.Problem(), tc.want)
			}
			if tc.want != "" && !strings.Contains(log.String(), "the hub has no key for secrets") || !strings.Contains(log.String(), tc.log) ||
				strings.Contains(log.String()+k.Problem(), "canary") {
				t.Errorf("log: %s", &log)
			}
			if tc.where.Make && tc.want == "" {
				made(t, tc.where, k)
			}
		})
	}
}

// made: the file is this user's alone, and is what the next start reads.
func made(t *testing.T, where Where, k *Keys) {
	t.Helper()
	info, err := os.Stat(where.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v: %v", info, err)
	}
	where.Sealed = 2
	if again := Load(t.Context(), where); again.NewestID() != k.NewestID() {
		t.Errorf("the next start has another key: %s", again.Problem())
	}
	left, err := os.ReadDir(filepath.Dir(where.File))
	if err != nil || len(left) != 1 {
		t.Errorf("left beside it: %v %v", left, err)
	}
}

// TestSealedForSomeClusters: what is sealed for some clusters opens for no others, and not for all.
func TestSealedForSomeClusters(t *testing.T) {
	k := keysOf(t, line(1))
	prod := fleet.SecretScope{Labels: "env=prod"}
	sealed, err := k.Seal("default", "db", prod, map[string][]byte{"a": []byte("b")})
	if err != nil {
		t.Fatal(err)
	}
	for _, scope := range []fleet.SecretScope{prod, {}, {Cluster: "env=prod"}, {Labels: "env=dev"}} {
		got, err := k.Open("default", "db", scope, sealed)
		if (err == nil) != (scope == prod) || err == nil && string(got["a"]) != "b" {
			t.Errorf("%+v: %q %v", scope, got, err)
		}
	}
}
