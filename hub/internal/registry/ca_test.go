package registry_test

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

func TestTheAdminsCertificate(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "admin.yaml")
	first, err := w.ca.EnsureAdmin(path, "127.0.0.1:7444", w.revoked)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := first.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.Certificate(w.state(identity{leaf: cert.Leaf}))
	if err != nil || c.Name != "admin" || c.Role != rpc.RoleAdmin || c.Kind != rpc.KindUser {
		t.Errorf("%+v, %v", c, err)
	}
	again, err := w.ca.EnsureAdmin(path, "127.0.0.1:9999", w.revoked)
	if err != nil || string(again.CertificateData) != string(first.CertificateData) || again.Server != "127.0.0.1:9999" {
		t.Errorf("a restart made another identity: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	w.pass(340 * 24 * time.Hour)
	late, err := w.ca.EnsureAdmin(path, "127.0.0.1:9999", w.revoked)
	if err != nil || string(late.CertificateData) == string(first.CertificateData) {
		t.Errorf("near its end it was kept: %v", err)
	}
	if c, err := clientconfig.Load(path); err != nil || c.CurrentContext != "local" {
		t.Errorf("%v, %v", c, err)
	}
}

// People keep tokens and other hubs in the admin's configuration, where TOWLINE_CONFIG is that. They stay when the hub brings its own context up to
// date, and so does which one is current.
func TestTheAdminsFileKeepsWhatPeoplePutThere(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "admin.yaml")
	ensures := func(server string) clientconfig.Context {
		t.Helper()
		ctx, err := w.ca.EnsureAdmin(path, server, w.revoked)
		if err != nil {
			t.Fatal(err)
		}
		return ctx
	}
	ensures("127.0.0.1:7444")
	prod := clientconfig.Context{Name: "prod", Server: "hub.example.com:7444", Token: "shown once"}
	file, err := clientconfig.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	file.Set(prod)
	file.CurrentContext = "prod"
	if err := file.Save(path); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, 340 * 24 * time.Hour} { // it moves, then it is near its end
		w.pass(after)
		own := ensures("127.0.0.1:9999")
		file, err = clientconfig.Load(path)
		if err != nil || file.CurrentContext != "prod" || len(file.Contexts) != 2 || !reflect.DeepEqual(file.Contexts[0], own) || !reflect.DeepEqual(file.Contexts[1], prod) {
			t.Errorf("after %s: %+v, %v", after, file, err)
		}
	}
	if err := os.WriteFile(path, []byte("no configuration"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensures("127.0.0.1:9999")
	if file, err = clientconfig.Load(path); err != nil || file.CurrentContext != clientconfig.Local {
		t.Errorf("in the place of what cannot be read: %+v, %v", file, err)
	}
}

func TestTheCALastsAndTheServerCertificateIsRenewed(t *testing.T) {
	w := newWorld(t)
	again, err := registry.OpenCA(w.dir, w.clock.time)
	if err != nil || again.Pin() != w.ca.Pin() {
		t.Fatalf("another CA after a restart: %v", err)
	}
	if info, err := os.Stat(filepath.Join(w.dir, "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: %v, %v", info.Mode(), err)
	}
	w.ca.Advertise("hub.example.com:7443", "10.1.2.3:7443", "hub.example.com")
	first, err := w.ca.Server()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"towline-hub", "localhost", "127.0.0.1", "::1", "hub.example.com", "10.1.2.3"} {
		if err := first.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	w.pass(59 * 24 * time.Hour)
	if same, _ := w.ca.Server(); same != first {
		t.Error("renewed too soon")
	}
	w.pass(2 * 24 * time.Hour)
	if next, _ := w.ca.Server(); next == first || next.Leaf.NotAfter.Before(first.Leaf.NotAfter) {
		t.Error("not renewed")
	}
}

func TestACAThatIsBrokenIsNotReplaced(t *testing.T) {
	w := newWorld(t)
	key, cert := filepath.Join(w.dir, "ca.key"), filepath.Join(w.dir, "ca.crt")
	if err := os.Remove(cert); err != nil { // a first start that was cut short
		t.Fatal(err)
	}
	if again, err := registry.OpenCA(w.dir, w.clock.time); err != nil || again.Pin() != w.ca.Pin() {
		t.Errorf("without the certificate: %v", err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.OpenCA(w.dir, w.clock.time); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("without the key: %v", err)
	}
	other := newWorld(t)
	b, err := os.ReadFile(filepath.Join(other.dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.OpenCA(w.dir, w.clock.time); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("with another's key: %v", err)
	}
}

// A hub whose clock was ahead when it made its certificate shows another one once the clock is right: nobody would take
// the first before its time has come.
func TestServerCertificateOfAClockThatWasAheadIsMadeAnew(t *testing.T) {
	now := time.Now()
	ca, err := registry.OpenCA(t.TempDir(), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(24 * time.Hour)
	if _, err := ca.Server(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(-24 * time.Hour)
	c, err := ca.Server()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), CurrentTime: now}); err != nil {
		t.Error(err)
	}
}
