package rollouts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// hooks calls the webhooks of the hub as a Git server does, which trusts the certificate that the hub shows.
type hooks struct {
	t       *testing.T
	address string
	client  *http.Client
}

// takeHooks starts the hub anew so that it takes webhooks.
func (w *world) takeHooks() *hooks {
	w.t.Helper()
	address, err := lab.FreeAddress()
	must(w.t, err)
	dir := w.t.TempDir()
	cert, key := filepath.Join(dir, "hooks.crt"), filepath.Join(dir, "hooks.key")
	roots := x509.NewCertPool()
	roots.AddCert(certificate(w.t, cert, key))
	w.Hub.Args = append(w.Hub.Args, "--hooks", address, "--hooks-cert", cert, "--hooks-key", key)
	w.killHub()
	h := &hooks{t: w.t, address: address, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}}
	return h
}

// certificate writes one for 127.0.0.1, and its key.
func certificate(t *testing.T, certFile, keyFile string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hooks"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	out, err := x509.ParseCertificate(der)
	must(t, err)
	return out
}

// call tells of a push to a module, signed as GitHub does, and must be answered with the code.
func (h *hooks) call(module, key, commit string, code int) {
	h.t.Helper()
	body := `{"ref": "refs/heads/main", "after": "` + commit + `"}`
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, "https://"+h.address+"/hooks/default/"+module, strings.NewReader(body))
	must(h.t, err)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp, err := h.client.Do(req)
	must(h.t, err)
	must(h.t, resp.Body.Close())
	if resp.StatusCode != code {
		h.t.Fatalf("a call for module %s was answered with %d, want %d", module, resp.StatusCode, code)
	}
}
