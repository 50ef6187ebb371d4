package registry_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/jointoken"
)

func TestATokenRacedBySixtyFourAgentsGivesOneIdentity(t *testing.T) {
	w := newWorld(t)
	token := w.token("prod-eu-01", false)
	var wg sync.WaitGroup
	got := make([]error, 64)
	start := make(chan struct{})
	for i := range got {
		request := csr(t, newKey(t))
		wg.Go(func() {
			<-start
			_, got[i] = w.Enroll(t.Context(), registry.Enrollment{Token: token, CSR: request, ClusterUID: "uid-1", Remote: string(rune('a' + i))})
		})
	}
	close(start)
	wg.Wait()
	won := 0
	for _, err := range got {
		if err == nil {
			won++
		} else if !errors.Is(err, fleet.ErrDenied) && !errors.Is(err, fleet.ErrExhausted) {
			t.Errorf("a loser got %v", err)
		}
	}
	if certs := w.cluster("prod-eu-01").GetCertificates(); won != 1 || len(certs) != 1 {
		t.Errorf("%d won, %d certificates", won, len(certs))
	}
}

func TestALostReplyDoesNoHarm(t *testing.T) {
	w := newWorld(t)
	token, key := w.token("a", false), newKey(t)
	first, err := w.enroll(token, "uid-1", key)
	if err != nil {
		t.Fatal(err)
	}
	for _, away := range []time.Duration{time.Minute, time.Hour} { // the hub was
		w.pass(away)
		again, err := w.enroll(token, "uid-1", key)
		if err != nil || !again.leaf.Equal(first.leaf) {
			t.Errorf("%s later: %v", away, err)
		}
	}
	if _, err := w.enroll(token, "uid-2", key); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("from another cluster: %v", err)
	}
	w.pass(first.leaf.NotAfter.Sub(first.leaf.NotBefore))
	if _, err := w.enroll(token, "uid-1", key); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("when it has ended: %v", err)
	}
}

func TestTokensThatAreNoGood(t *testing.T) {
	w := newWorld(t)
	good, err := jointoken.Parse(w.token("prod-eu-07", false))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*jointoken.Token)) string {
		c := good
		change(&c)
		return c.String()
	}
	forged := with(func(c *jointoken.Token) { c.Secret[3] ^= 1 })
	for name, c := range map[string]struct {
		token, want string
		kind        error
	}{
		"wrong secret":  {forged, "join token is not valid here", fleet.ErrDenied},
		"unknown":       {jointoken.New("prod-eu-07", w.ca.Pin()).String(), "was used or ended more than a day ago", fleet.ErrDenied}, // as one that was forgotten
		"other cluster": {with(func(c *jointoken.Token) { c.Cluster = "prod-eu-08" }), "join token is not valid here", fleet.ErrDenied},
		"other hub":     {with(func(c *jointoken.Token) { c.CAPin[0] ^= 1 }), "made by another hub", fleet.ErrDenied},
		"no token":      {"hello", "not a join token", fleet.ErrInvalid},
	} {
		if _, err := w.enroll(c.token, "uid-1", newKey(t)); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	w.pass(18 * time.Minute)
	_, err = w.enroll(good.String(), "uid-1", newKey(t))
	const want = "join token for prod-eu-07 expired 3m ago; run: towline cluster join prod-eu-07 --reissue"
	if err == nil || err.Error() != want {
		t.Errorf("expired:\n got %v\nwant %s", err, want)
	}
}

func TestGuessingIsRateLimitedAndHonestAgentsAreNot(t *testing.T) {
	w := newWorld(t)
	guess := func(remote string) error {
		_, err := w.Enroll(t.Context(), registry.Enrollment{Token: jointoken.New("a", w.ca.Pin()).String(), CSR: csr(t, newKey(t)), ClusterUID: "u", Remote: remote})
		return err
	}
	for range 10 {
		if err := guess("192.0.2.7:1"); !errors.Is(err, fleet.ErrDenied) {
			t.Fatal(err)
		}
	}
	if err := guess("192.0.2.7:2"); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("the eleventh guess: %v", err)
	}
	if err := guess("192.0.2.8:1"); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("another address: %v", err)
	}
	for i := range 40 {
		w.join(fleet.ClusterName("c-"+string(rune('a'+i%26))+string(rune('a'+i/26))), fmt.Sprint("uid-", i))
	}
}

// Whoever has a token that is good joins, and is answered again if the answer was lost, whatever others do at its address, and that is one
// entry of the audit; with one that is used or has ended it is as with none.
func TestJoinsBesideGuesses(t *testing.T) {
	w := newWorld(t)
	var entries []*v1.AuditEntry
	w.audits(func(_ context.Context, e *v1.AuditEntry) {
		if e.GetMethod() == "Enroll" && e.GetResult() == "OK" {
			entries = append(entries, e)
		}
	})
	token, late, key := w.token("a", false), w.token("b", false), newKey(t)
	guess := func() error {
		_, err := w.enroll(jointoken.New("a", w.ca.Pin()).String(), "u", newKey(t))
		return err
	}
	for range 20 {
		_ = guess()
	}
	for range 5 {
		if _, err := w.enroll(token, "uid-a", key); err != nil {
			t.Errorf("whoever has the token is kept out by others at its address: %v", err)
		}
	}
	if len(entries) != 1 {
		t.Errorf("%d entries: %v", len(entries), entries)
	}
	if _, err := w.enroll(token, "uid-a", newKey(t)); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("with a token that another key has used: %v", err)
	}
	w.pass(18 * time.Minute)
	for range 20 {
		_ = guess()
	}
	if _, err := w.enroll(late, "uid-b", newKey(t)); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("with a token that has ended: %v", err)
	}
	if err := guess(); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("guesses are not limited: %v", err)
	}
}

// One who has a token that is good, and is refused for another reason, pushes nobody else's refusals out of the audit.
func TestJoinThatIsRefusedAgainIsOneEntry(t *testing.T) {
	w := newWorld(t)
	entries := 0
	w.audits(func(_ context.Context, e *v1.AuditEntry) {
		if e.GetResult() != "OK" {
			entries++
		}
	})
	token := w.token("a", false)
	for range 20 {
		if _, err := w.enroll(token, "", newKey(t)); !errors.Is(err, fleet.ErrInvalid) {
			t.Fatal(err)
		}
	}
	if entries != 1 {
		t.Errorf("%d entries", entries)
	}
}

func TestOneKubernetesClusterIsRegisteredOnce(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	if _, err := w.enroll(w.token("b", false), "uid-1", newKey(t)); !errors.Is(err, fleet.ErrExists) || !strings.Contains(err.Error(), "registered as a already") {
		t.Errorf("got %v", err)
	}
	// The other cluster joins between the decision and the commit.
	first, second := w.token("c", false), w.token("d", false)
	late := &intruder{Store: w.store, do: func() {
		if _, err := w.enroll(first, "uid-2", newKey(t)); err != nil {
			t.Error(err)
		}
	}}
	if _, err := w.with(late).enroll(second, "uid-2", newKey(t)); !errors.Is(err, fleet.ErrExists) || !late.done {
		t.Errorf("two at once: %v", err)
	}
}

// What is ordered between the decision and the commit, as a removal that is ordered again, is of the cluster that has the name until then.
func TestAnotherClusterIsGivenNothingOfTheMomentBefore(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	var last uint64
	order := &intruder{Store: w.store, do: func() {
		if _, err := storetest.All(w.store).Update(t.Context(), func(wr store.Writer) error {
			last = record.NextGeneration(wr)
			return nil
		}); err != nil {
			t.Error(err)
		}
	}}
	if _, err := w.with(order).enroll(w.token("a", true), "uid-2", newKey(t)); err != nil || !order.done {
		t.Fatal(err)
	}
	if got := w.cluster("a").GetAnewGeneration(); got != last {
		t.Errorf("what was ordered up to %d is of the cluster before, and not up to %d", got, last)
	}
}

// What is decided of a cluster is decided again when another one has taken its name by the commit.
func TestOrderOfTheMomentBeforeAnotherClusterIsDecidedAgain(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	token := w.token("a", true)
	all := storetest.All(w.store)
	order := func(meanwhile func()) (last, since uint64) {
		if _, err := all.Update(t.Context(), func(wr store.Writer) error {
			last, since = record.NextGeneration(wr), record.AnewGeneration(wr, "a")
			if meanwhile != nil {
				meanwhile()
				meanwhile = nil
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return last, since
	}
	before, _ := order(nil)
	if _, since := order(func() {
		if _, err := w.enroll(token, "uid-2", newKey(t)); err != nil {
			t.Error(err)
		}
	}); since != before {
		t.Errorf("it was committed as if no other cluster had the name since %d: %d", before, since)
	}
}

// intruder does something once, after a transaction has decided and before it commits.
type intruder struct {
	store.Store
	do   func()
	done bool
}

func (i *intruder) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	return i.Store.Update(ctx, func(w store.Writer) error {
		err := fn(w)
		if !i.done {
			i.done = true
			i.do()
		}
		return err
	})
}

func TestReissue(t *testing.T) {
	w := newWorld(t)
	old := w.join("a", "uid-1")
	_, err := w.CreateJoin(t.Context(), ana, registry.JoinRequest{Cluster: "a"})
	if !errors.Is(err, fleet.ErrExists) || !strings.Contains(err.Error(), "towline cluster join a --reissue") {
		t.Errorf("without --reissue: %v", err)
	}
	first, second := w.token("a", true), w.token("a", true)
	if _, err := w.enroll(first, "uid-1", newKey(t)); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("the replaced token: %v", err)
	}
	if _, err := w.Certificate(w.state(old)); err != nil {
		t.Errorf("before the new agent came: %v", err)
	}
	w.pass(time.Second)
	if _, err := w.enroll(second, "uid-9", newKey(t)); err != nil {
		t.Fatal(err)
	}
	if c := w.cluster("a"); c.GetUid() != "uid-9" || c.GetJoinGeneration() != 2 {
		t.Errorf("uid %s, join %d", c.GetUid(), c.GetJoinGeneration())
	}
	if _, err := w.Certificate(w.state(old)); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("the old identity: %v", err)
	}
}

func TestJoinRequestsThatAreWrong(t *testing.T) {
	w := newWorld(t)
	for want, q := range map[string]registry.JoinRequest{
		"name: ":        {Cluster: "Prod_EU"},
		"ttl: 25h":      {Cluster: "a", TTL: 25 * time.Hour},
		"ttl: -1s":      {Cluster: "a", TTL: -time.Second},
		"labels: key":   {Cluster: "a", Labels: map[string]string{"a b": "c"}},
		"labels[env]: ": {Cluster: "a", Labels: map[string]string{"env": "p r"}},
	} {
		if _, err := w.CreateJoin(t.Context(), ana, q); !errors.Is(err, fleet.ErrInvalid) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestTokensAreListedWithoutSecretsAndForgotten(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	token, _ := jointoken.Parse(w.token("b", false))
	w.pass(16 * time.Minute)
	w.token("c", false)
	list, err := w.Tokens(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	for i, want := range []string{"a Used", "b Expired", "c Unused"} {
		if got := list[i].GetCluster() + " " + list[i].GetState(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if _, err := w.DeleteToken(t.Context(), token.ID); err != nil {
		t.Error(err)
	}
	if _, err := w.DeleteToken(t.Context(), token.ID); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
}

// hostile asks for all that a request must not get.
func hostile(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	ca, _ := url.Parse("spiffe://towline/cluster/prod-us-01")
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "prod-us-01", Organization: []string{"system:masters"}, OrganizationalUnit: []string{"towline:role:admin"}},
		DNSNames: []string{"towline-hub"}, EmailAddresses: []string{"a@b"}, URIs: []*url.URL{ca},
		ExtraExtensions: []pkix.Extension{
			{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}},                            // CA:true
			{Id: []int{2, 5, 29, 37}, Value: []byte{0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01}}}, // serverAuth
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestOnlyThePublicKeyOfARequestCounts(t *testing.T) {
	w := newWorld(t)
	key := newKey(t)
	id, err := w.Enroll(t.Context(), registry.Enrollment{Token: w.token("prod-eu-01", false), CSR: hostile(t, key), ClusterUID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(id.Certificates[0])
	if err != nil {
		t.Fatal(err)
	}
	if leaf.Subject.String() != "CN=prod-eu-01" || len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://towline/cluster/prod-eu-01" {
		t.Errorf("subject %s, URIs %v", leaf.Subject, leaf.URIs)
	}
	if leaf.IsCA || len(leaf.DNSNames)+len(leaf.EmailAddresses)+len(leaf.IPAddresses) > 0 ||
		len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("CA %v, DNS %v, email %v, usage %v", leaf.IsCA, leaf.DNSNames, leaf.EmailAddresses, leaf.ExtKeyUsage)
	}
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life != 24*time.Hour+5*time.Minute || !w.clock.time().Add(-5*time.Minute).Equal(leaf.NotBefore) {
		t.Errorf("from %s for %s", leaf.NotBefore, life)
	}
	if !key.PublicKey.Equal(leaf.PublicKey) || leaf.SerialNumber.BitLen() < 115 {
		t.Error("another key, or a short serial")
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	weak := func(curve elliptic.Curve) []byte {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return csr(t, k)
	}
	broken := csr(t, newKey(t))
	broken[len(broken)-3] ^= 1
	huge, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{strings.Repeat("a", 1<<20)}}, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		der  []byte
		want string
	}{
		"P-224":            {weak(elliptic.P224()), "P-224"},
		"P-521":            {weak(elliptic.P521()), "P-521"},
		"RSA-16384":        {giantRSA(t), "RSA key of 16384 bits"},
		"broken signature": {broken, "signature"},
		"trailing data":    {append(csr(t, newKey(t)), 0), "no certificate request"},
		"PEM":              {[]byte("-----BEGIN CERTIFICATE REQUEST-----"), "no certificate request"},
		"empty":            {nil, "0 bytes"},
		"a megabyte":       {huge, "at most 16384"},
	}
	token := w.token("a", false)
	for name, c := range cases {
		begin := time.Now()
		_, err := w.Enroll(t.Context(), registry.Enrollment{Token: token, CSR: c.der, ClusterUID: "u", Remote: name})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("%s: took %s", name, d)
		}
	}
	for name, key := range map[string]crypto.Signer{"ed25519": ed(t), "rsa": rsaKey(t, 2048), "p256": newKey(t)} {
		if _, err := w.enroll(w.token(fleet.ClusterName(name), false), "uid-"+name, key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func ed(t *testing.T) crypto.Signer {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// giantRSA is a request whose key claims a modulus of 16384 bits.
func giantRSA(t *testing.T) []byte {
	t.Helper()
	n := new(big.Int).SetBytes(bytes.Repeat([]byte{0xff}, 2048))
	small := rsaKey(t, 2048)
	der := csr(t, small)
	var request struct {
		Info struct {
			Version    int
			Subject    asn1.RawValue
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &request); err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	request.Info.Key = asn1.RawValue{FullBytes: key}
	if der, err = asn1.Marshal(request); err != nil {
		t.Fatal(err)
	}
	return der
}
