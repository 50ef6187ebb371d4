package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEtcdAccessComesFromFlagsAndEnvironment(t *testing.T) {
	env := map[string]string{EtcdUserEnv: "of-env", EtcdPasswordEnv: "word-of-env"}
	get := func(name string) string { return env[name] }
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("word of file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		given          EtcdAccess
		user, password string
		says           string
	}{
		"environment":       {EtcdAccess{}, "of-env", "word-of-env", ""},
		"flags win":         {EtcdAccess{User: "of-flag", PasswordFile: file}, "of-flag", "word of file", ""},
		"user only":         {EtcdAccess{User: "of-flag"}, "of-flag", "word-of-env", ""},
		"no such file":      {EtcdAccess{PasswordFile: file + "x"}, "", "", "the password for etcd: open " + file + "x"},
		"file with nothing": {EtcdAccess{PasswordFile: os.DevNull}, "", "", "is empty"},
	} {
		got, err := tc.given.fromEnvironment(get).access()
		switch {
		case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: error %v, want %q", name, err, tc.says)
		case tc.says == "" && (err != nil || got.Username != tc.user || got.Password != tc.password):
			t.Errorf("%s: user %q, password %q, %v", name, got.Username, got.Password, err)
		}
	}
}
