package registry_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/rpc/clientconfig"
)

// restarted is the hub after a start with the CA that is in its directory, over the same store.
func (w *world) restarted(s store.Store) *world {
	w.t.Helper()
	ca, err := registry.OpenCA(w.dir, w.clock.time)
	if err != nil {
		w.t.Fatal(err)
	}
	next := (&world{t: w.t, ca: ca, dir: w.dir, clock: w.clock}).with(s)
	if err := next.TakeCA(w.t.Context(), false); err != nil {
		w.t.Fatal(err)
	}
	return next
}

// comes is the start of a hub with a CA over the store.
func (w *world) comes(ca *registry.CA, adopt bool) error {
	return (&world{t: w.t, ca: ca, dir: w.dir, clock: w.clock}).with(w.store).TakeCA(w.t.Context(), adopt)
}

func (w *world) rotate() *world {
	w.t.Helper()
	if _, err := registry.RotateCA(w.dir, w.clock.time); err != nil {
		w.t.Fatal(err)
	}
	return w.restarted(w.store)
}

// agent is one that has a bundle, renews when half of its certificate's life is over, and recovers when it has ended.
type agent struct {
	name, uid string
	identity
	bundle [][]byte
}

func (a *agent) tls(w *world) *tls.Config {
	pool := x509.NewCertPool()
	for _, der := range a.bundle {
		ca, err := x509.ParseCertificate(der)
		if err != nil {
			w.t.Fatal(err)
		}
		pool.AddCert(ca)
	}
	conf := rpc.ClientTLS{CAs: pool, Now: w.clock.time}
	if w.time().Before(a.leaf.NotAfter) {
		conf.Certificate = &tls.Certificate{Certificate: [][]byte{a.leaf.Raw}, PrivateKey: a.key, Leaf: a.leaf}
	}
	return conf.Config()
}

// enrolled is an agent that joined over the wire, with a token of a time before.
func (w *world) enrolled(addr, token string, name fleet.ClusterName) *agent {
	w.t.Helper()
	key := newKey(w.t)
	out := &agent{name: string(name), uid: "uid-" + string(name)}
	got, err := w.client(addr, rpc.PinnedTLS(pin(w.t, token), w.clock.time)).Enroll(call(w.t), &agentv1.EnrollRequest{Token: token, Csr: csr(w.t, key), ClusterUid: out.uid})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := rpc.PinnedCAs(got.GetCa(), pin(w.t, token)); err != nil {
		w.t.Fatal(err)
	}
	out.identity, out.bundle = w.identity(key, registry.Identity{Certificates: got.GetCertificates()}), got.GetCa()
	return out
}

// turn is one renewal of the agent, or its recovery, and a session with what it got.
func (a *agent) turn(w *world, addr string) error {
	key := newKey(w.t)
	client := w.client(addr, a.tls(w))
	var got interface {
		GetCertificates() [][]byte
		GetCa() [][]byte
	}
	var err error
	if w.time().Before(a.leaf.NotAfter) {
		got, err = client.Renew(call(w.t), &agentv1.RenewRequest{Csr: csr(w.t, key)})
	} else {
		e := w.recovery(a.identity, a.uid, key)
		got, err = client.Recover(call(w.t), &agentv1.RecoverRequest{Certificate: e.Certificate, Csr: e.CSR, ClusterUid: a.uid, Proof: e.Proof})
	}
	if err != nil {
		return fmt.Errorf("%s, %s of %s: %w", a.name, w.time(), a.leaf.NotAfter, err)
	}
	a.identity, a.bundle = w.identity(key, registry.Identity{Certificates: got.GetCertificates()}), got.GetCa()
	_, err = w.open(a.identity, "i", a.uid, false)
	return err
}

// states are the CAs of the store: retired, or how many need it.
func (w *world) states() (out []string) {
	w.t.Helper()
	all, err := w.Authorities(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range all {
		if a.GetRetired() != nil {
			out = append(out, "retired")
		} else {
			out = append(out, fmt.Sprint(a.GetNeeded()))
		}
	}
	return out
}

// Thirty days with certificates of a day, two rotations of the CA, and a cluster that is away over the second one with a certificate that
// ends meanwhile: no call fails for an identity, and of the CAs the newest is left once the last that needs another has come.
func TestThirtyDaysWithTwoRotations(t *testing.T) {
	w := newWorld(t).restartedFirst()
	addr := w.server()
	agents := []*agent{}
	for _, name := range []fleet.ClusterName{"a", "b", "away"} {
		agents = append(agents, w.enrolled(addr, w.token(name, false), name))
	}
	for half := range 60 {
		switch day := float64(half) / 2; day {
		case 5, 17:
			name := fleet.ClusterName(fmt.Sprintf("late%v", day))
			token := w.token(name, false) // used after the rotation
			w = w.rotate()
			addr = w.server()
			agents = append(agents, w.enrolled(addr, token, name))
		}
		for _, a := range agents {
			if a.name == "away" && half > 28 && half < 50 {
				continue
			}
			if err := a.turn(w, addr); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		switch half {
		case 13:
			if got := fmt.Sprint(w.states()); got != "[retired 0]" {
				t.Errorf("a day after the first rotation: %s", got)
			}
		case 45:
			if got := fmt.Sprint(w.states()); got != "[retired 1 0]" {
				t.Errorf("while a cluster is away: %s", got)
			}
		}
		w.pass(12 * time.Hour)
	}
	if got := fmt.Sprint(w.states()); got != "[retired retired 0]" {
		t.Errorf("in the end: %s", got)
	}
	for _, a := range agents {
		if len(a.bundle) != 1 || string(a.bundle[0]) != string(w.ca.DER()[0]) {
			t.Errorf("%s trusts %d CAs", a.name, len(a.bundle))
		}
	}
}

// restartedFirst has the store know the CA, as the start of a hub does.
func (w *world) restartedFirst() *world { return w.restarted(w.store) }

// Seven days without a hub, over which every certificate ends: all come back by themselves, also to a hub that has another CA then.
func TestSevenDaysWithoutAHub(t *testing.T) {
	w := newWorld(t).restartedFirst()
	addr := w.server()
	var agents []*agent
	for i := range 20 {
		name := fleet.ClusterName(fmt.Sprintf("c%d", i))
		agents = append(agents, w.enrolled(addr, w.token(name, false), name))
	}
	w.pass(7 * 24 * time.Hour)
	w = w.rotate()
	addr = w.server()
	for _, a := range agents {
		for range 2 {
			if err := a.turn(w, addr); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// People know a hub by the CA that their configuration has, and it them by certificates of the old one, until those end or are revoked.
func TestPeopleAndTheRotation(t *testing.T) {
	w := newWorld(t).restartedFirst()
	w.run()
	path := filepath.Join(w.dir, "admin.yaml")
	before, err := w.ca.EnsureAdmin(path, "127.0.0.1:7444", w.revoked)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Certificate(w.stateOf(before)); err != nil {
		t.Fatal(err)
	}
	w.list(1)
	w = w.rotate()
	if _, err := w.Certificate(w.stateOf(before)); err != nil {
		t.Errorf("a certificate of the old CA: %v", err)
	}
	after, err := w.ca.EnsureAdmin(path, "127.0.0.1:7444", w.revoked)
	if err != nil || string(after.CertificateData) == string(before.CertificateData) || strings.Count(string(after.CAData), "BEGIN") != 2 {
		t.Errorf("the admin's configuration is not of the new CA, with both to trust: %v", err)
	}
	mine := filepath.Join(t.TempDir(), "config")
	if err := clientconfig.New(before).Save(mine); err != nil {
		t.Fatal(err)
	}
	if _, err := clientconfig.Use(mine, path, ""); err != nil {
		t.Errorf("whoever has the configuration of before cannot use that of after: %v", err)
	}
	server, err := w.ca.Server()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]clientconfig.Context{"before": before, "after": after} {
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(c.CAData))
		for _, der := range server.Certificate[1:] {
			x, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			between.AddCert(x)
		}
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: rpc.ServerName, CurrentTime: w.time()}); err != nil {
			t.Errorf("who has the configuration of %s does not know the hub: %v", name, err)
		}
	}
	if got := fmt.Sprint(w.states()); got != "[1 0]" {
		t.Errorf("who needs the CAs: %s", got)
	}
	cert, err := before.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	state := w.stateOf(before)
	if _, _, err := w.RevokeCertificate(t.Context(), ana, fmt.Sprintf("%032x", cert.Leaf.SerialNumber), "rotated"); err != nil {
		t.Fatal(err)
	}
	if err := w.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(w.states()); got != "[retired 0]" {
		t.Errorf("nobody needs the old one: %s", got)
	}
	if _, err := w.Certificate(state); err == nil {
		t.Error("the old CA is still trusted")
	}
}

// A rotation that a crash cuts short was none, or is finished by who opens the CA next.
func TestRotationThatIsCutShort(t *testing.T) {
	for name, undo := range map[string]func(t *testing.T, dir string, old, next map[string][]byte){
		"before the key is in place": func(t *testing.T, dir string, old, next map[string][]byte) { put(t, dir, old) },
		"before the certificate is": func(t *testing.T, dir string, old, next map[string][]byte) {
			put(t, dir, map[string][]byte{"ca.crt": old["ca.crt"]})
		},
		"before the rest is put away": func(t *testing.T, dir string, old, next map[string][]byte) {},
	} {
		w := newWorld(t).restartedFirst()
		id := w.join("a", "uid-a")
		old := read(t, w.dir)
		want, err := registry.RotateCA(w.dir, w.clock.time)
		if err != nil {
			t.Fatal(err)
		}
		next := read(t, w.dir)
		put(t, w.dir, map[string][]byte{"ca.next": append(append([]byte{}, next["ca.crt"]...), next["ca.key"]...)})
		undo(t, w.dir, old, next)
		w2 := w.restarted(w.store)
		if w2.ca.Pin() != want {
			t.Errorf("%s: it starts with the old CA", name)
		}
		if _, err := os.Stat(filepath.Join(w.dir, "ca.next")); err == nil {
			t.Errorf("%s: the key lies about", name)
		}
		if _, err := w2.Certificate(w2.state(id)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := newWorld(t).restartedFirst()
	put(t, w.dir, map[string][]byte{"ca.next": []byte("half")})
	if _, err := registry.OpenCA(w.dir, w.clock.time); err == nil || !strings.Contains(err.Error(), "delete it, and rotate again") {
		t.Errorf("half a CA: %v", err)
	}
}

// A hub does not start with a CA that the store does not know, nor with one that took its leave; one of a store that was put back from
// before the rotation takes the newer one.
func TestCAThatIsNotOfTheStore(t *testing.T) {
	w := newWorld(t).restartedFirst()
	other := newWorld(t)
	if err := w.comes(other.ca, false); err == nil || !strings.Contains(err.Error(), "the store belongs to the CA") {
		t.Errorf("another CA: %v", err)
	}
	first := w.ca
	w = w.rotate()
	if err := w.comes(first, false); err != nil {
		t.Errorf("a hub that shares the store and has the old one yet: %v", err)
	}
	if err := w.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.comes(first, false); err == nil || !strings.Contains(err.Error(), "took its leave") {
		t.Errorf("one that took its leave: %v", err)
	}
	before := newWorld(t) // another store, which knows the first one only
	if err := before.comes(first, false); err != nil {
		t.Fatal(err)
	}
	if err := before.comes(w.ca, false); err != nil {
		t.Errorf("the newer one, of a store that was put back: %v", err)
	}
	if err := w.comes(other.ca, true); err != nil {
		t.Errorf("to begin anew: %v", err)
	}
}

// The flag that was once needed to begin anew stays among the hub's arguments, and the CA is rotated: no agent has to join again for that.
func TestRotationUnderAdoptCA(t *testing.T) {
	w := newWorld(t).restartedFirst()
	if _, err := registry.RotateCA(w.dir, w.clock.time); err != nil {
		t.Fatal(err)
	}
	next, err := registry.OpenCA(w.dir, w.clock.time)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.comes(next, true); err != nil {
		t.Fatal(err)
	}
	if states := w.states(); len(states) != 2 || slices.Contains(states, "retired") {
		t.Errorf("the store trusts %q, want the CA of before, too", states)
	}
}

func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range []string{"ca.crt", "ca.key"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = b
	}
	return out
}

func put(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamagedAuthoritiesAreAdopted: where the record of the CAs cannot be read, a hub starts with the CA that the agents know, as it says itself.
func TestDamagedAuthoritiesAreAdopted(t *testing.T) {
	b := memory.New()
	w := newWorldOn(t, b)
	comes := func(adopt bool) {
		t.Helper()
		if err := w.comes(w.ca, adopt); err != nil {
			t.Fatal(err)
		}
	}
	comes(false)
	storetest.Damage(t, b, store.CAKey)
	if _, err := w.store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.comes(w.ca, false); !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "--adopt-ca") {
		t.Errorf("without the flag: %v", err)
	}
	comes(true)
	comes(false)
}
