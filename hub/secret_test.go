package hub_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// guarded is a server that gives a manifest to who has the password.
type guarded struct {
	*httptest.Server
	password atomic.Value // string
	asked    atomic.Int32
}

func newGuarded(t *testing.T, password string) *guarded {
	t.Helper()
	g := &guarded{}
	g.password.Store(password)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.asked.Add(1)
		if user, got, _ := r.BasicAuth(); user != "ci" || got != g.password.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprint(w, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n")
	}))
	t.Cleanup(g.Close)
	return g
}

// module is fetched from the server with the secret repo.
func (g *guarded) module(name string) *towlinev1.Module {
	m := module(name, nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: g.URL + "/a.yaml", SecretName: "repo"}}
	return m
}

func (w *world) setSecret(name string, pairs ...string) *towlinev1.SetSecretResponse {
	w.t.Helper()
	resp, err := w.Secrets.SetSecret(w.ctx, setting(name, pairs...))
	must(w.t, err)
	return resp
}

// setting has the keys and values in turn.
func setting(name string, pairs ...string) *towlinev1.SetSecretRequest {
	req := &towlinev1.SetSecretRequest{Name: name, Values: map[string][]byte{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Values[pairs[i]] = []byte(pairs[i+1])
	}
	return req
}

func (w *world) secret(name string) *towlinev1.Secret {
	w.t.Helper()
	resp, err := w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: name})
	must(w.t, err)
	return resp.GetSecret()
}

// waitsForSecret watches a module until its rollout says that it waits for a secret, and returns what it says.
func (w *world) waitsForSecret(name string, min int64) string {
	w.t.Helper()
	return w.until(name, min, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "NeedsSecret" }).GetStatus().GetFacts().GetDetail()
}

// TestSourceUsesItsSecret is the life of a secret: a module waits for it, goes on by itself when it has what is needed, and takes a new
// value when it is put or tried again, not before.
func TestSourceUsesItsSecret(t *testing.T) {
	w := newWorld(t, true)
	towline := w.cli()
	w.join("a", nil, nil)
	g := newGuarded(t, "first")
	dry := proto.CloneOf(g.module("shop"))
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: dry, DryRun: true}); err == nil || !strings.Contains(err.Error(), "source.http.secretName: secret repo is not there: towline secret set repo KEY=-") {
		t.Errorf("dry run: %v", err)
	}
	put := w.put(g.module("shop"))
	if notes := put.GetWarnings(); len(notes) != 1 || notes[0].GetCode() != fleet.WarnNoSecret || notes[0].GetFacts().GetNames()[0] != "repo" {
		t.Errorf("warnings: %v", notes)
	}
	if said := w.waitsForSecret("shop", put.GetRevision()); said != "source.http.secretName: secret repo is not there: towline secret set repo KEY=-" {
		t.Errorf("without a secret: %s", said)
	}
	if out, err := towline("", "rollout", "wait", "shop", "--fail-on-wait", "--timeout", "30s"); exits(t, err) != 3 {
		t.Errorf("nobody is told that a person is waited for: %v\n%s", err, out)
	}
	set := w.setSecret("repo", "username", "ci")
	if set.GetResult() != "created" || !slices.Equal(set.GetSecret().GetUsedBy(), []string{"shop"}) {
		t.Errorf("set: %v", set)
	}
	w.until("shop", set.GetRevision(), func(r *towlinev1.Rollout) bool {
		return strings.Contains(r.GetStatus().GetFacts().GetDetail(), "secret repo: has username and no password")
	})
	if g.asked.Load() != 0 {
		t.Error("the server was asked without what it wants")
	}
	set = w.setSecret("repo", "password", "first")
	if set.GetResult() != "configured" || !slices.Equal(set.GetSecret().GetKeys(), []string{"password", "username"}) {
		t.Errorf("set: %v", set)
	}
	if ro := w.await("shop", set.GetRevision()); ro.GetStatus().GetState() != "Succeeded" || ro.GetNumber() != 1 {
		t.Fatalf("with its secret: %v", ro)
	}

	// The server has another password: what runs stays, and the next put fails and says so.
	g.password.Store("second")
	changed := g.module("shop")
	changed.Spec.Source.Http.Url += "?v=2"
	ro := w.await("shop", w.put(changed).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Failed" || !strings.Contains(s.GetFacts().GetDetail(), "401 Unauthorized: look at secret repo, then put the module again") {
		t.Fatalf("with the old password: %v", s)
	}
	asked := g.asked.Load()
	w.setSecret("repo", "password", "second")
	if n := g.asked.Load(); n != asked {
		t.Errorf("the server was asked %d times because the secret changed", n-asked)
	}
	again := w.put(changed)
	if ro := w.await("shop", again.GetRevision()); ro.GetStatus().GetState() != "Succeeded" || ro.GetId() != "shop/3" {
		t.Errorf("with the new password: %v", ro)
	}
}

// TestSecretsAreWritten: merged, replaced, taken away, refused beyond their limits, by preconditions, and by admins only.
func TestSecretsAreWritten(t *testing.T) {
	w := newWorld(t, true)
	set := func(change func(*towlinev1.SetSecretRequest), pairs ...string) (*towlinev1.SetSecretResponse, error) {
		req := setting("repo", pairs...)
		if change != nil {
			change(req)
		}
		return w.Secrets.SetSecret(w.ctx, req)
	}
	first, err := set(func(r *towlinev1.SetSecretRequest) { r.Reason = "why" }, "a", "1", "b", "2")
	must(t, err)
	if s := first.GetSecret(); first.GetResult() != "created" || s.GetState() != "Readable" || s.GetMetadata().GetGeneration() != 1 || s.GetMetadata().GetChangeReason() != "why" ||
		s.GetMetadata().GetChangedBy() != "admin" || s.GetKeyId() == "" || s.GetChanged() == nil || s.GetMetadata().GetResourceVersion() != first.GetRevision() {
		t.Errorf("created: %v", first)
	}
	old := first.GetSecret().GetMetadata()
	for name, tc := range map[string]struct {
		change func(*towlinev1.SetSecretRequest)
		pairs  []string
		code   codes.Code
		want   string
	}{
		"no key":           {nil, []string{"a b", "1"}, codes.InvalidArgument, `secret repo: values: "a b" is no key`},
		"long key":         {nil, []string{strings.Repeat("k", 254), "1"}, codes.InvalidArgument, "is no key: use at most 253"},
		"nothing":          {nil, nil, codes.InvalidArgument, "values: has none"},
		"too large":        {nil, []string{"a", strings.Repeat("x", 64<<10)}, codes.ResourceExhausted, "at most 65536"},
		"too large in all": {nil, []string{"c", strings.Repeat("x", 64<<10-2)}, codes.ResourceExhausted, "at most 65536"},
		"set and gone":     {func(r *towlinev1.SetSecretRequest) { r.Remove = []string{"a"} }, []string{"a", "1"}, codes.InvalidArgument, "remove: a is to be set, too"},
		"nothing left":     {func(r *towlinev1.SetSecretRequest) { r.Remove = []string{"a", "b"} }, nil, codes.FailedPrecondition, "towline delete secret repo"},
		"another uid":      {func(r *towlinev1.SetSecretRequest) { r.Uid = "other" }, []string{"a", "1"}, codes.FailedPrecondition, "repo"},
		"an old version":   {func(r *towlinev1.SetSecretRequest) { r.ResourceVersion = old.GetResourceVersion() - 1 }, []string{"a", "3"}, codes.Aborted, "repo"},
		"no such project":  {func(r *towlinev1.SetSecretRequest) { r.Project = "none" }, []string{"a", "1"}, codes.NotFound, "project none does not exist"},
		"no name":          {func(r *towlinev1.SetSecretRequest) { r.Name = "A" }, []string{"a", "1"}, codes.InvalidArgument, "no DNS label"},
		"no project":       {func(r *towlinev1.SetSecretRequest) { r.Project = "../x" }, []string{"a", "1"}, codes.InvalidArgument, "project"},
	} {
		if _, err := set(tc.change, tc.pairs...); status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s %s", name, err, tc.code, tc.want)
		}
	}
	same, err := set(nil, "a", "1")
	must(t, err)
	if same.GetResult() != "unchanged" || same.GetSecret().GetMetadata().GetGeneration() != 1 || same.GetSecret().GetMetadata().GetResourceVersion() != old.GetResourceVersion() {
		t.Errorf("set to the same: %v", same)
	}
	dry, err := set(func(r *towlinev1.SetSecretRequest) { r.DryRun = true }, "c", "3")
	must(t, err)
	if got := w.secret("repo"); dry.GetResult() != "configured" || len(dry.GetSecret().GetKeys()) != 3 || len(got.GetKeys()) != 2 {
		t.Errorf("dry run: %v, then %v", dry, got)
	}
	next, err := set(func(r *towlinev1.SetSecretRequest) {
		r.Remove = []string{"b", "never"}
		r.Uid = old.GetUid()
		r.ResourceVersion = old.GetResourceVersion()
	}, "c", "3")
	must(t, err)
	if s := next.GetSecret(); !slices.Equal(s.GetKeys(), []string{"a", "c"}) || s.GetMetadata().GetGeneration() != 2 || s.GetMetadata().GetUid() != old.GetUid() {
		t.Errorf("merged: %v", next)
	}
	whole, err := set(func(r *towlinev1.SetSecretRequest) { r.Replace = true }, "d", "4")
	must(t, err)
	if !slices.Equal(whole.GetSecret().GetKeys(), []string{"d"}) {
		t.Errorf("replaced: %v", whole)
	}
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "eve", Role: "viewer"})
	must(t, err)
	eve := w.as(user.GetToken())
	list, err := eve.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{Project: "default", Total: true})
	must(t, err)
	if len(list.GetSecrets()) != 1 || list.GetTotal() != 1 || !slices.Equal(list.GetSecrets()[0].GetKeys(), []string{"d"}) {
		t.Errorf("a viewer lists %v", list)
	}
	_, setErr := eve.Secrets.SetSecret(w.ctx, setting("repo", "a", "1"))
	_, deleteErr := eve.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "repo"})
	if status.Code(setErr) != codes.PermissionDenied || status.Code(deleteErr) != codes.PermissionDenied {
		t.Errorf("a viewer sets: %v, and deletes: %v", setErr, deleteErr)
	}
}

// TestSecretsGo: not while a module uses one, unless that is said; with their project; and no more of them than go in one transaction.
func TestSecretsGo(t *testing.T) {
	w := newWorld(t, true)
	g := newGuarded(t, "x")
	w.setSecret("repo", "username", "ci", "password", "x")
	w.put(g.module("shop"))
	_, err := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "repo"})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "secret repo is used by module shop") {
		t.Errorf("of one that is used: %v", err)
	}
	if _, err := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "repo", Used: true, Uid: "other"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("of another one: %v", err)
	}
	_, err = w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "repo", Used: true, Uid: w.secret("repo").GetMetadata().GetUid()})
	must(t, err)
	if _, err := w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: "repo"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("after it: %v", err)
	}

	_, err = w.Identity.PutProject(w.ctx, &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "team"}}})
	must(t, err)
	for i := range 101 {
		req := setting(fmt.Sprintf("s-%d", i), "a", "1")
		req.Project = "team"
		_, err := w.Secrets.SetSecret(w.ctx, req)
		if full := status.Code(err) == codes.ResourceExhausted; full != (i == 100) || !full && err != nil {
			t.Fatalf("secret %d: %v", i, err)
		}
	}
	w.setSecret("other", "a", "1")
	projects, err := w.Identity.ListProjects(w.ctx, &towlinev1.ListProjectsRequest{})
	must(t, err)
	if p := projects.GetProjects(); len(p) != 2 || p[0].GetSecrets() != 1 || p[1].GetSecrets() != 100 {
		t.Errorf("projects: %v", p)
	}
	_, err = w.Identity.DeleteProject(w.ctx, &towlinev1.DeleteProjectRequest{Name: "team"})
	must(t, err)
	list, err := w.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{})
	must(t, err)
	if s := list.GetSecrets(); len(s) != 1 || s[0].GetMetadata().GetName() != "other" {
		t.Errorf("left: %v", s)
	}
}

// keyLine is a key of one byte as it stands in a file.
func keyLine(b byte) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32))) + "\n"
}

// TestSecretsKeyIsRotatedAndLost: a new key in front of the old one takes over at the next start, after which the old one is not needed; without
// its key a secret is listed, said to be unreadable, and what needs it waits and says why.
func TestSecretsKeyIsRotatedAndLost(t *testing.T) {
	w := newMortalWorld(t)
	w.join("a", nil, nil)
	g := newGuarded(t, "x")
	file := filepath.Join(w.dir, "secrets.key")
	restart := func(keys string) {
		t.Helper()
		w.stopHub()
		if keys == "" {
			must(t, os.Remove(file))
		} else {
			must(t, os.WriteFile(file, []byte(keys), 0o600))
		}
		w.start()
		w.mortal.lives()
	}
	info, err := os.Stat(file)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %s", info.Mode())
	}
	made, err := os.ReadFile(file)
	must(t, err)
	w.setSecret("repo", "username", "ci", "password", "x")
	first := w.secret("repo").GetKeyId()

	restart(keyLine('b') + string(made))
	w.eventually(func() bool { id := w.secret("repo").GetKeyId(); return id != first })
	restart(keyLine('b'))
	if s := w.secret("repo"); s.GetState() != "Readable" || s.GetMetadata().GetGeneration() != 1 {
		t.Errorf("with the new key alone: %v", s)
	}
	sealed := w.secret("repo").GetKeyId()

	restart("")
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Error("a new key is made in the place of the one that is needed")
	}
	if s := w.secret("repo"); s.GetState() != "Unreadable" || s.GetReason() != fleet.SecretNoKey || !strings.Contains(s.GetFacts().GetDetail(), "1 secrets are encrypted with it") {
		t.Errorf("without a key: %v", s)
	}
	if _, err := w.Secrets.SetSecret(w.ctx, setting("other", "a", "1")); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "secret other: the hub cannot keep secrets: "+file+" is missing") {
		t.Errorf("set without a key: %v", err)
	}

	restart(keyLine('c'))
	if s := w.secret("repo"); s.GetState() != "Unreadable" || s.GetReason() != fleet.SecretOtherKey || s.GetFacts().GetDetail() != sealed || !slices.Equal(s.GetKeys(), []string{"password", "username"}) {
		t.Errorf("with another key: %v", s)
	}
	if _, err := w.Secrets.SetSecret(w.ctx, setting("repo", "password", "x")); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--replace KEY=-") {
		t.Errorf("one value of it: %v", err)
	}
	put := w.put(g.module("shop"))
	if said := w.waitsForSecret("shop", put.GetRevision()); !strings.Contains(said, "secret repo cannot be read: it is encrypted with key "+sealed) {
		t.Errorf("what needs it: %s", said)
	}
	restart(keyLine('b')) // the right one is back, and what waited goes on
	if ro := w.await("shop", put.GetRevision()); ro.GetStatus().GetState() != "Succeeded" {
		t.Errorf("with its key again: %v", ro.GetStatus())
	}
	restart(keyLine('c'))
	again := setting("repo", "username", "ci", "password", "x")
	again.Replace = true
	_, err = w.Secrets.SetSecret(w.ctx, again)
	must(t, err)
	if s := w.secret("repo"); s.GetState() != "Readable" || s.GetMetadata().GetGeneration() != 2 {
		t.Errorf("set anew: %v", s)
	}
}

// TestDamagedSecret: it is listed, says what to do, and is put anew or deleted.
func TestDamagedSecret(t *testing.T) {
	w := newMortalWorld(t)
	w.join("a", nil, nil)
	g := newGuarded(t, "x")
	for _, name := range []string{"repo", "gone", "sound"} {
		w.setSecret(name, "username", "ci", "password", "x")
	}
	w.damage("secrets/default/repo")
	w.damage("secrets/default/gone")
	list, err := w.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{})
	must(t, err)
	var states []string
	for _, s := range list.GetSecrets() {
		states = append(states, s.GetMetadata().GetName()+" "+s.GetState())
	}
	if !slices.Equal(states, []string{"gone Damaged", "repo Damaged", "sound Readable"}) {
		t.Errorf("listed: %v", states)
	}
	if s := w.secret("repo"); s.GetReason() != fleet.SecretDamaged {
		t.Errorf("read: %v", s)
	}
	put := w.put(g.module("shop"))
	if said := w.waitsForSecret("shop", put.GetRevision()); !strings.Contains(said, "secret repo: the hub's record of it is damaged") {
		t.Errorf("what needs it: %s", said)
	}
	if _, err := w.Secrets.SetSecret(w.ctx, setting("repo", "password", "x")); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("one value of it: %v", err)
	}
	w.refusesPartOfDamaged("repo")
	again := setting("repo", "username", "ci", "password", "x")
	again.Replace = true
	set, err := w.Secrets.SetSecret(w.ctx, again)
	must(t, err)
	if ro := w.await("shop", set.GetRevision()); ro.GetStatus().GetState() != "Succeeded" {
		t.Errorf("set anew: %v", ro.GetStatus())
	}
	_, err = w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "gone"})
	must(t, err)
	if _, err := w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: "gone"}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("after it: %v", err)
	}
}

// refusesPartOfDamaged: what is for some clusters is neither set nor deleted in a damaged record, whose other parts would go with it unseen.
func (w *world) refusesPartOfDamaged(name string) {
	w.t.Helper()
	scope := &towlinev1.SecretScope{Cluster: "a"}
	set := setting(name, "password", "x")
	set.Scope, set.Replace = scope, true
	_, err := w.Secrets.SetSecret(w.ctx, set)
	_, gone := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: name, Scope: scope, Used: true})
	for what, err := range map[string]error{"set": err, "deleted": gone} {
		if !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "secret "+name+" --cluster a: the hub's record of "+name+" is damaged") || !strings.Contains(err.Error(), "towline secret delete "+name) {
			w.t.Errorf("%s for one cluster: %v", what, err)
		}
	}
	if s := w.secret(name); s.GetReason() != fleet.SecretDamaged {
		w.t.Errorf("after it: %v", s)
	}
}

// TestProjectGoesWhileASecretIsMade: no secret is left in a project that is gone.
func TestProjectGoesWhileASecretIsMade(t *testing.T) {
	w := newWorld(t, true)
	for range 20 {
		_, err := w.Identity.PutProject(w.ctx, &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "team"}}})
		must(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			req := setting("repo", "a", "1")
			req.Project = "team"
			_, _ = w.Secrets.SetSecret(context.WithoutCancel(w.ctx), req)
		}()
		_, err = w.Identity.DeleteProject(w.ctx, &towlinev1.DeleteProjectRequest{Name: "team"})
		must(t, err)
		<-done
		list, err := w.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{})
		must(t, err)
		projects, err := w.Identity.ListProjects(w.ctx, &towlinev1.ListProjectsRequest{})
		must(t, err)
		if len(list.GetSecrets()) > 0 && len(projects.GetProjects()) < 2 {
			t.Fatalf("left: %v", list)
		}
	}
}

// TestAbortOfARolloutThatWaitsForItsRevision: an abort without a number is for the newest rollout that has not ended. One that waits for a
// secret ends, with who said so; its module stays as it is, whatever comes of the secret, until somebody tries again.
func TestAbortOfARolloutThatWaitsForItsRevision(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	for i, number := range []int64{0, 3} {
		n := int64(i) + 2
		g := newGuarded(t, "x")
		w.waitsForSecret("shop", w.put(g.module("shop")).GetRevision())
		abort := &towlinev1.AbortRolloutRequest{Module: "shop", Number: number, Reason: "no secret", RequestId: fmt.Sprint("abort-", n)}
		for range 2 { // the second is the same request, whose answer was lost
			got, err := w.Rollouts.AbortRollout(w.ctx, abort)
			must(t, err)
			ro := got.GetAnswer().GetRollout()
			if s := ro.GetStatus(); ro.GetNumber() != n || s.GetState() != "Aborted" || s.GetReason() != rollout.ReasonAbortedByUser || s.GetFacts().GetDetail() != "no secret" {
				t.Errorf("aborted: %v", ro)
			}
		}
	}
	if _, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop"}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("nothing is left to abort: %v", err)
	}
	w.setSecret("repo", "username", "ci", "password", "x")
	if m := w.module("shop").GetStatus(); m.GetRevision() != 1 || m.GetHealthy() != 1 {
		t.Errorf("module: %v", m)
	}
	again, err := w.Rollouts.RetryRollout(w.ctx, &towlinev1.RetryRolloutRequest{Module: "shop"})
	must(t, err)
	if ro := w.await("shop", again.GetAnswer().GetRevision()); ro.GetNumber() != 4 || ro.GetStatus().GetState() != "Succeeded" || ro.GetRevision() != 2 {
		t.Errorf("tried again: %v", ro)
	}
}

// TestAbortMeansWhatMoves: while an older rollout moves clusters, an abort without a number is for that, not for the one that waits.
func TestAbortMeansWhatMoves(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, nil)
	first := w.put(module("shop", configMap("1")))
	w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetMoved() == 1 })
	w.waitsForSecret("shop", w.put(newGuarded(t, "x").module("shop")).GetRevision())
	for _, n := range []int64{1, 2} {
		got, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop"})
		must(t, err)
		if ro := got.GetAnswer().GetRollout(); ro.GetNumber() != n || ro.GetStatus().GetState() != "Aborted" {
			t.Errorf("aborted: %v", ro)
		}
	}
}
