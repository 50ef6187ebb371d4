package clientconfig_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

func TestMergeKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "config")
	prod := clientconfig.Context{Name: "prod", Server: "hub:7444", CAData: []byte("x"), Token: "towline_u_1"}
	local := clientconfig.Context{Name: clientconfig.Local, Server: "127.0.0.1:7444", CertificateData: []byte("c"), KeyData: []byte("k")}
	for _, c := range []clientconfig.Context{prod, {Name: clientconfig.Local, Server: "old"}, local} {
		if err := clientconfig.Merge(path, c); err != nil {
			t.Fatal(err)
		}
	}
	got, err := clientconfig.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := &clientconfig.Config{APIVersion: "towline.dev/v1", Kind: "Config", CurrentContext: "prod", Contexts: []clientconfig.Context{prod, local}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if c, err := got.Context(""); err != nil || c.Name != "prod" {
		t.Errorf("current: %v, %v", c.Name, err)
	}
	if _, err := got.Context("dev"); !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "[prod local]") {
		t.Errorf("got %v", err)
	}
}

func TestLoadNamesTheFileAndTheField(t *testing.T) {
	dir := t.TempDir()
	if _, err := clientconfig.Load(filepath.Join(dir, "none")); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("missing: %v", err)
	}
	for body, want := range map[string]string{
		"apiVersion: towline.dev/v1\nkind: Config\ncontext: []\n":    `unknown field "context"`,
		"apiVersion: v1\nkind: Config\nclusters: []\n":               "config-file: ",
		"apiVersion: v1\nkind: Config\ncontexts: []\n":               `has apiVersion "v1"`,
		"apiVersion: towline.dev/v1\nkind: Config\ncontexts: [{name": "config-file: ",
	} {
		path := filepath.Join(dir, "config-file")
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := clientconfig.Load(path); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v", body, err)
		}
	}
}

func TestPath(t *testing.T) {
	t.Setenv("HOME", "/home/ana")
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv(clientconfig.Env, "")
	if p, _ := clientconfig.Path(""); p != "/home/ana/.config/towline/config" {
		t.Errorf("default %s", p)
	}
	t.Setenv(clientconfig.Env, "/x")
	if p, _ := clientconfig.Path(""); p != "/x" {
		t.Errorf("env %s", p)
	}
	if p, _ := clientconfig.Path("/y"); p != "/y" {
		t.Errorf("flag %s", p)
	}
}

// TestUseAfterARotation: the file that a hub writes after its CA was rotated has the old CA and the new one, and is that of the same hub. A hub that
// shares none is another one.
func TestUseAfterARotation(t *testing.T) {
	ca := func() []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	before, after, other := ca(), ca(), ca()
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	for i, of := range []struct {
		ca []byte
		ok bool
	}{{before, true}, {slices.Concat(after, before), true}, {after, true}, {before, false}, {other, false}, {slices.Concat(other, after), true}} {
		from := filepath.Join(dir, fmt.Sprint("admin", i))
		if err := clientconfig.New(clientconfig.Context{Name: clientconfig.Local, Server: fmt.Sprint("hub:", i), CAData: of.ca}).Save(from); err != nil {
			t.Fatal(err)
		}
		_, err := clientconfig.Use(path, from, "")
		if of.ok != (err == nil) || !of.ok && !errors.Is(err, fleet.ErrExists) {
			t.Errorf("%d: %v", i, err)
		}
		got, err := clientconfig.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if c, _ := got.Context(""); of.ok != bytes.Equal(c.CAData, of.ca) {
			t.Errorf("%d: in use is that of %s", i, c.Server)
		}
	}
}

// TestUseKeepsWhoOneIs: a certificate or a token may stand in the file alone. A context of the hub with that of somebody else is not put in its place, as
// that of a viewer whom one has just made; one's own that was made anew is.
func TestUseKeepsWhoOneIs(t *testing.T) {
	certificate := func(user string) []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: user}}
		der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	admin, again, ana := clientconfig.Context{CertificateData: certificate("admin")}, clientconfig.Context{CertificateData: certificate("admin")}, clientconfig.Context{CertificateData: certificate("ana")}
	token, other := clientconfig.Context{Token: "towline_u_1"}, clientconfig.Context{Token: "towline_u_2"}
	for name, tc := range map[string]struct {
		old, next clientconfig.Context
		as        string
		want      string // of the error
		keeps     string // of that of a user who is to be made
	}{
		"made anew":                  {admin, again, "dev", "", `has the certificate of "admin", and would have a token in its place; save to another file`},
		"the same":                   {admin, admin, "", "", `has the certificate of "admin"`},
		"of somebody else":           {admin, ana, "", `has the certificate of "admin", and would have the certificate of "ana" in its place; merge with another name: --name NAME`, `has the certificate of "admin"`},
		"a token for a certificate":  {admin, token, "dev", `has the certificate of "admin", and would have a token in its place`, `has the certificate of "admin"`},
		"a certificate for a token":  {token, admin, "dev", "has a token, and would have the certificate of \"admin\" in its place", ""},
		"a token that is made anew":  {token, other, "", "", ""},
		"a token by the name of one": {token, other, "dev", "has a token, and would have a token in its place", ""},
		"the same token":             {token, token, "dev", "", ""},
		"nothing":                    {clientconfig.Context{}, token, "dev", "", ""},
		"what is no certificate":     {clientconfig.Context{CertificateData: []byte("x")}, token, "", "has a certificate, and would have a token", "has a certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, from := filepath.Join(dir, "config"), filepath.Join(dir, "from")
			tc.old.Name, tc.next.Name = "dev", "dev"
			if tc.as != "" {
				tc.next.Name = "theirs"
			}
			for at, c := range map[string]clientconfig.Context{path: tc.old, from: tc.next} {
				c.Server, c.CAData = "hub:7444", []byte("ca")
				if err := clientconfig.New(c).Save(at); err != nil {
					t.Fatal(err)
				}
			}
			check := func(err error, want string) {
				if (err == nil) != (want == "") || want != "" && (!errors.Is(err, fleet.ErrExists) || !strings.Contains(err.Error(), want)) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			check(clientconfig.Keeps(path, clientconfig.Context{Name: "dev", CAData: []byte("ca")}), tc.keeps)
			_, err := clientconfig.Use(path, from, tc.as)
			check(err, tc.want)
		})
	}
}
