package hub_test

import (
	"crypto/tls"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// A catalog is put, resynced and called at a hub that does not lead; the one that leads does it, and what it did is shown where it was
// asked for at once.
func TestCatalogAtAHubThatDoesNotLead(t *testing.T) {
	etcd, key := ownEtcd(t), filepath.Join(t.TempDir(), "secrets.key")
	must(t, os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600))
	hooks, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	leader := sharing(t, etcd, shared, func(o *hub.Options) { o.SecretsKeyFile = key })
	leader.await("first", leader.put(module("first", configMap("1"))).GetRevision())
	w := &catalogWorld{repo: sourcetest.NewRepo(t), world: leader.beside(etcd, func(o *hub.Options) { o.SecretsKeyFile, o.Hooks = key, hooks })}
	srv := httptest.NewServer(w.repo.Handler())
	t.Cleanup(srv.Close)
	w.url = srv.URL + "/repo.git"
	w.setSecret("webhook", "webhook", "of the repository")
	w.push("shop=1")
	c := w.catalog()
	c.Spec.Source.Follow = &towlinev1.Follow{Webhook: true}
	w.putCatalog(c)
	w.applied(1)

	w.push("shop=1", "cart=1")
	if came := w.synced("Applied"); !slices.Equal(came.GetCreated(), []string{"cart"}) || came.GetCatalog().GetStatus().GetModules() != 2 {
		t.Errorf("resynced: %v", came)
	}
	if all := w.modules(); !strings.Contains(all, "cart") {
		t.Errorf("the hub that was asked has %s", all)
	}
	by := w.module("cart").GetMetadata().GetChangedBy()
	if by != "catalog/team" {
		t.Errorf("cart was put by %s", by)
	}

	w.push("shop=2", "cart=1")
	w.callHook(hooks.Addr().String(), "catalogs/team", "of the repository")
	w.eventually(func() bool { return w.value("shop") == "2" })
}

// callHook calls a webhook with its token. What the hub that leads has not heard in time on a busy machine is told it again.
func (w *world) callHook(hooks, path, token string) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, "https://"+hooks+"/hooks/default/"+path, strings.NewReader(`{}`))
	must(w.t, err)
	req.Header.Set("X-Gitlab-Token", token)
	resp, err := client.Do(req)
	must(w.t, err)
	must(w.t, resp.Body.Close())
	if resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusServiceUnavailable {
		w.t.Fatalf("the call of %s was answered with %d", path, resp.StatusCode)
	}
}
