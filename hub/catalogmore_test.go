package hub_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// TestCatalogByWebhook: a call that is signed with the secret has the catalog looked at; others are refused as for modules. The secret is said
// to be used, and what is written is in the log as the catalog's.
func TestCatalogByWebhook(t *testing.T) {
	var log lockedBuffer
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := &catalogWorld{repo: sourcetest.NewRepo(t), world: newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.Hooks, o.Log = true, hooks, slog.New(slog.NewTextHandler(&log, nil))
	})}
	w.join("a", nil, nil)
	srv := httptest.NewServer(w.repo.Handler())
	t.Cleanup(srv.Close)
	w.url = srv.URL + "/repo.git"
	w.setSecret("webhook", "webhook", "of the repository")
	w.push("shop=1")
	c := w.catalog()
	c.Spec.Source.Follow = &towlinev1.Follow{Webhook: true}
	w.putCatalog(c)
	if s := w.applied(1); s.GetNext() == nil {
		t.Errorf("followed, and is not looked at: %v", s)
	}
	w.await("shop", 0)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	call := func(path, token string) int {
		req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, "https://"+hooks.Addr().String()+"/hooks/default/"+path, strings.NewReader(`{}`))
		must(t, err)
		req.Header.Set("X-Gitlab-Token", token)
		resp, err := client.Do(req)
		must(t, err)
		must(t, resp.Body.Close())
		return resp.StatusCode
	}
	w.push("shop=2", "news=1")
	if a, b, m := call("catalogs/team", "wrong"), call("catalogs/none", "of the repository"), call("team", "of the repository"); a != http.StatusForbidden || b != a || m != a {
		t.Errorf("refused by %d, %d and %d", a, b, m)
	}
	if code := call("catalogs/team", "of the repository"); code != http.StatusAccepted {
		t.Fatalf("answered %d", code)
	}
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetSucceededRevision() == 2 })
	used, err := w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: "webhook"})
	must(t, err)
	if got := used.GetSecret().GetUsedBy(); len(got) != 1 || got[0] != "catalog/team" {
		t.Errorf("used by %v", got)
	}
	if _, err := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "webhook"}); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "catalog/team") {
		t.Errorf("a secret that is used: %v", err)
	}
	if text := log.String(); !bytes.Contains([]byte(text), []byte("caller=catalog/team method=PutModule subject=default/shop")) {
		t.Errorf("no audit entry in\n%s", text)
	}
}

// TestCatalogIsRefused: what no catalog can be, with the field; a viewer puts none; a project with one stays.
func TestCatalogIsRefused(t *testing.T) {
	w := newCatalogWorld(t)
	for name, c := range map[string]struct {
		says   string
		change func(*towlinev1.Catalog)
	}{
		"no source": {"catalog team: spec.source: set exactly one of", func(c *towlinev1.Catalog) { c.Spec.Source = nil }},
		"a chart": {"spec.source.helm: is a chart", func(c *towlinev1.Catalog) {
			c.Spec.Source = &towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "https://x.test", Chart: "a"}}
		}},
		"an upload":  {"spec.source.upload: is for modules", func(c *towlinev1.Catalog) { c.Spec.Source = &towlinev1.Source{Upload: &towlinev1.UploadSource{}} }},
		"outside":    {"spec.path", func(c *towlinev1.Catalog) { c.Spec.Path = "../x" }},
		"no project": {"project none does not exist", func(c *towlinev1.Catalog) { c.Metadata.Project = "none" }},
		"no spec":    {"spec: is required", func(c *towlinev1.Catalog) { c.Spec = nil }},
		"a key that is none": {"catalog team: spec.source.verify.sshKeys: [0]", func(c *towlinev1.Catalog) {
			c.Spec.Source.Verify = &towlinev1.Verify{SshKeys: []string{"nonsense"}}
		}},
		"an old face": {"another one by now", func(c *towlinev1.Catalog) { c.Metadata.Uid = "x" }},
	} {
		in := w.catalog()
		c.change(in)
		if _, err := w.Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: in}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "vera", Role: "viewer"})
	must(t, err)
	if _, err := w.as(user.GetToken()).Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: w.catalog()}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a viewer: %v", err)
	}
	_, err = w.Identity.PutProject(w.ctx, &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web"}}})
	must(t, err)
	in := w.catalog()
	in.Metadata.Project = "web"
	w.push("shop=1")
	w.putCatalog(in)
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Project: "web"})
	must(t, err)
	for there := false; !there; {
		m, err := st.Recv()
		must(t, err)
		there = m.GetModule() != nil
	}
	if _, err := w.Identity.DeleteProject(w.ctx, &towlinev1.DeleteProjectRequest{Name: "web"}); err == nil || !strings.HasSuffix(err.Error(), "project web has 1 module; delete it first") {
		t.Errorf("a project is deleted with what it has, or not said to have one: %v", err)
	}
}
