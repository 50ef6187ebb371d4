package hub_test

import (
	"crypto/tls"
	"errors"
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

func (w *world) resync(name string) (*towlinev1.ResyncModuleResponse, error) {
	w.t.Helper()
	return w.Modules.ResyncModule(w.ctx, &towlinev1.ResyncModuleRequest{Name: name, Reason: "pushed"})
}

// following is a module that follows a branch of a server.
func following(name, server string) *towlinev1.Module {
	m := module(name, nil)
	m.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: server + "/repo.git", Ref: &towlinev1.GitRef{Branch: "main"}, Path: "deploy"},
		Follow: &towlinev1.Follow{}}
	return m
}

// TestFollowedSignature: a module that follows a branch keeps what it has when that moves to a commit nobody has signed, and says so;
// the next one that is signed is rolled out. Keys that are none are refused at the put.
func TestFollowedSignature(t *testing.T) {
	s := sourcetest.NewSigner(t, "ssh-keygen")
	if s == nil {
		t.Skip("git or ssh-keygen is not here")
	}
	w := newWorld(t, true)
	w.join("a", nil, nil)
	file, line := s.SSH("ed25519")
	s.Commit(configMapText("1"), "ssh", file)
	srv := httptest.NewServer(s.Repo().Handler())
	t.Cleanup(srv.Close)
	m := following("shop", srv.URL)
	m.Spec.Source.Git.Path = ""
	m.Spec.Source.Verify = &towlinev1.Verify{SshKeys: []string{"nonsense"}}
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m}); err == nil || !strings.Contains(err.Error(), "spec.source.verify.sshKeys: [0]") {
		t.Fatalf("a key that is none: %v", err)
	}
	m.Spec.Source.Verify.SshKeys = []string{line}
	w.await("shop", w.put(m).GetRevision())
	unsigned := s.Commit(configMapText("2"), "", "")
	if _, err := w.resync("shop"); err == nil || !strings.Contains(err.Error(), "main@sha1:"+unsigned+" is not taken: it has no signature") {
		t.Fatalf("a commit without a signature: %v", err)
	}
	st := w.module("shop").GetStatus()
	if st.GetFollow().GetReason() != "Unverified" || st.GetRevision() != 1 {
		t.Errorf("follows: %v, revision %d", st.GetFollow(), st.GetRevision())
	}
	signed := s.Commit(configMapText("3"), "ssh", file)
	came, err := w.resync("shop")
	must(t, err)
	if came.GetResolvedRef() != "main@sha1:"+signed {
		t.Errorf("a commit with a signature: %v", came)
	}
	w.await("shop", came.GetRevision())
	_, other := s.SSH("ed25519")
	m.Spec.Source.Verify.SshKeys = []string{other}
	w.put(m)
	w.until("shop", 3, func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetState() == "Failed" && strings.Contains(r.GetStatus().GetFacts().GetDetail(), "by another key")
	})
}

// TestResync: a branch that moved is rolled out when somebody asks, by a start like that of a put: it waits for an approval, says who
// asked and which commit it is, and what was rolled back comes back only because somebody asks.
func TestResync(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	first := repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	w.await("shop", w.put(following("shop", srv.URL)).GetRevision())
	if came, err := w.resync("shop"); err != nil || came.GetResult() != "Unchanged" || came.GetResolvedRef() != "main@sha1:"+first {
		t.Fatalf("nothing moved: %v, %v", came, err)
	}
	if f := w.module("shop").GetStatus().GetFollow(); f.GetLooked() == nil || f.GetNext() == nil || f.GetResolvedRef() != "main@sha1:"+first || f.GetReason() != "" {
		t.Errorf("follows: %v", f)
	}
	second := repo.Branch("main", deployed(configMap("2")))
	came, err := w.resync("shop")
	must(t, err)
	if came.GetResult() != "Started" || came.GetRollout() != "shop/2" || came.GetResolvedRef() != "main@sha1:"+second {
		t.Fatalf("moved: %v", came)
	}
	ro := w.await("shop", came.GetRevision())
	rev := w.revision("shop", 2)
	if ro.GetStatus().GetStartedBy() == "" || ro.GetStatus().GetStartReason() != "pushed" || rev.GetResolvedRef() != "main@sha1:"+second || rev.GetMetadata().GetChangeReason() != "pushed" {
		t.Errorf("rollout by %s (%s), revision of %s", ro.GetStatus().GetStartedBy(), ro.GetStatus().GetStartReason(), rev.GetResolvedRef())
	}
	_, err = w.Rollouts.RollBackRollout(w.ctx, &towlinev1.RollBackRolloutRequest{Module: "shop", Reason: "broken"})
	must(t, err)
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolledBack() })
	if c := s.GetConditions()[1]; s.GetFollow().GetSuspendedRevision() != 2 || c.GetType() != "Following" || c.GetStatus() != "False" || c.GetReason() != "RolledBack" {
		t.Errorf("rolled back: %v, %v", s.GetFollow(), s.GetConditions())
	}
	if came, err = w.resync("shop"); err != nil || came.GetRollout() != "shop/3" {
		t.Fatalf("asked for what was rolled back: %v, %v", came, err)
	}
	if ro := w.await("shop", came.GetRevision()); ro.GetRevision() != 2 {
		t.Errorf("it is r%d", ro.GetRevision())
	}
}

// TestResyncOfWhatCannotBeHad: a server that is away, or a branch that cannot be rendered, changes nothing and starts nothing; the module
// says so with its reason until the source is back.
func TestResyncOfWhatCannotBeHad(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	w.await("shop", w.put(following("shop", srv.URL)).GetRevision())
	repo.Branch("main", map[string]any{"deploy/a.yaml": "kind: ConfigMap"})
	if _, err := w.resync("shop"); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "module shop") {
		t.Errorf("what is no manifest: %v", err)
	}
	s := w.module("shop").GetStatus()
	if f := s.GetFollow(); f.GetReason() != "Invalid" || f.GetSince() == nil || !strings.Contains(f.GetMessage(), "a.yaml") || s.GetRollout() != "shop/1" || s.GetRolloutState() != "Succeeded" {
		t.Errorf("follows: %v; rollout %s %s", f, s.GetRollout(), s.GetRolloutState())
	}
	repo.Branch("main", deployed(configMap("1")))
	if came, err := w.resync("shop"); err != nil || came.GetResult() != "Unchanged" {
		t.Errorf("back: %v, %v", came, err)
	}
	if f := w.module("shop").GetStatus().GetFollow(); f.GetReason() != "" || f.GetSince() != nil {
		t.Errorf("follows: %v", f)
	}
	if _, err := w.resync("none"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	w.await("inline", w.put(listing("inline", "x")).GetRevision())
	if _, err := w.resync("inline"); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "its source is inline") {
		t.Errorf("inline: %v", err)
	}
}

// TestWebhook: a call that is signed with the module's secret has the branch looked at, and what moved is rolled out, started by it.
func TestWebhook(t *testing.T) {
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Hooks = true, hooks })
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	m := following("shop", srv.URL)
	m.Spec.Source.Follow.Webhook = true
	put := w.put(m)
	if notes := put.GetWarnings(); len(notes) != 1 || notes[0].GetCode() != fleet.WarnNoWebhookKey {
		t.Errorf("warnings %v", notes)
	}
	w.await("shop", put.GetRevision())
	_, err = w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "webhook", Values: map[string][]byte{"webhook": []byte("of the repository")}})
	must(t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(client.CloseIdleConnections)
	call := func(module, token string) int {
		req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, "https://"+hooks.Addr().String()+"/hooks/default/"+module, strings.NewReader(`{"after": "of nobody's business"}`))
		must(t, err)
		req.Header.Set("X-Gitlab-Token", token)
		resp, err := client.Do(req)
		must(t, err)
		must(t, resp.Body.Close())
		return resp.StatusCode
	}
	second := repo.Branch("main", deployed(configMap("2")))
	if a, b := call("shop", "wrong"), call("none", "of the repository"); a != http.StatusForbidden || b != a {
		t.Errorf("refused by %d and %d", a, b)
	}
	if code := call("shop", "of the repository"); code != http.StatusAccepted {
		t.Fatalf("answered %d", code)
	}
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetSucceededRevision() == 2 })
	ro, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"})
	must(t, err)
	if st := ro.GetRollout().GetStatus(); st.GetStartedBy() != "webhook" || st.GetStartReason() != "main@sha1:"+second || s.GetRollout() != "shop/2" {
		t.Errorf("started by %s: %s", st.GetStartedBy(), st.GetStartReason())
	}
}

// configMapText is the one file of configMap.
func configMapText(value string) string {
	for _, text := range configMap(value) {
		return text
	}
	return ""
}
