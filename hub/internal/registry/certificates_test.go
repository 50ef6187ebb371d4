package registry_test

import (
	"crypto/tls"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// revoked is for EnsureAdmin.
func (w *world) revoked(serial string) bool {
	w.t.Helper()
	yes, err := w.Revoked(w.t.Context(), serial)
	if err != nil {
		w.t.Fatal(err)
	}
	return yes
}

// admin is a new certificate of the admin.
func (w *world) admin() tls.ConnectionState {
	w.t.Helper()
	c, err := w.ca.IssueAdmin("127.0.0.1:7444")
	if err != nil {
		w.t.Fatal(err)
	}
	return w.stateOf(c)
}

func (w *world) stateOf(c clientconfig.Context) tls.ConnectionState {
	w.t.Helper()
	cert, err := c.Certificate()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.state(identity{leaf: cert.Leaf})
}

// list waits until as many certificates of people are listed, and gives their states by serial number.
func (w *world) list(n int) map[string]string {
	w.t.Helper()
	sub := w.store.Subscribe(nil, store.CertPrefix)
	defer sub.Stop()
	deadline := time.After(time.Minute)
	for {
		all, err := w.Certificates(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if len(all) == n {
			out := map[string]string{}
			for _, c := range all {
				out[c.GetMetadata().GetName()] = c.GetUser() + " " + c.GetRole() + " " + c.GetState()
			}
			return out
		}
		select {
		case <-sub.C():
			sub.Take()
		case <-deadline:
			w.t.Fatalf("%d certificates are listed, want %d", len(all), n)
		}
	}
}

func TestCertificatesOfPeopleAreListedAndRevoked(t *testing.T) {
	w := newWorld(t)
	w.run()
	stolen, other := w.admin(), w.admin()
	caller, err := w.Certificate(stolen)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := w.Certificate(other)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.list(2); got[caller.CertSerial] != "admin admin Valid" || got[mine.CertSerial] != "admin admin Valid" {
		t.Errorf("listed: %v", got)
	}
	colons := strings.ToUpper(caller.CertSerial[:2] + ":" + caller.CertSerial[2:]) // as openssl prints it
	if c, _, err := w.RevokeCertificate(t.Context(), mine, colons, "laptop stolen"); err != nil || c.GetState() != registry.CertificateRevoked ||
		c.GetMetadata().GetChangedBy() != "admin" || c.GetMetadata().GetChangeReason() != "laptop stolen" {
		t.Fatalf("%v, %v", c, err)
	}
	again := w.with(w.store) // the hub starts anew
	for _, hub := range []*world{w, again} {
		if err := hub.VerifyConnection(stolen); !errors.Is(err, fleet.ErrDenied) {
			t.Errorf("a handshake with it: %v", err)
		}
		if _, err := hub.Certificate(stolen); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), caller.CertSerial) {
			t.Errorf("a call with it: %v", err)
		}
		if _, err := hub.Certificate(other); err != nil {
			t.Errorf("another one of the same person: %v", err)
		}
	}
	w.pass(366 * 24 * time.Hour)
	if got := w.list(2); got[caller.CertSerial] != "admin admin Revoked" || got[mine.CertSerial] != "admin admin Expired" {
		t.Errorf("after their end: %v", got)
	}
}

func TestCertificateIsRevokedBeforeItIsUsed(t *testing.T) {
	w := newWorld(t)
	w.run()
	path := filepath.Join(w.dir, "admin.yaml")
	first, err := w.ca.EnsureAdmin(path, "127.0.0.1:7444", w.revoked)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := first.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	serial := cert.Leaf.SerialNumber.Text(16)
	if len(serial)%2 == 1 {
		serial = "0" + serial
	}
	if _, _, err := w.RevokeCertificate(t.Context(), ana, serial, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Certificate(w.stateOf(first)); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a call with it: %v", err)
	}
	next, err := w.ca.EnsureAdmin(path, "127.0.0.1:7444", w.revoked)
	if err != nil || string(next.CertificateData) == string(first.CertificateData) {
		t.Fatalf("the hub's next start keeps it: %v", err)
	}
	if _, err := w.Certificate(w.stateOf(next)); err != nil {
		t.Errorf("the new one: %v", err)
	}
	for _, bad := range []string{"", "12", "zz", strings.Repeat("0", 31) + "g", strings.Repeat("0", 34)} {
		if _, _, err := w.RevokeCertificate(t.Context(), ana, bad, ""); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("serial %q: %v", bad, err)
		}
	}
}
