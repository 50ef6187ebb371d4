package hub_test

import (
	"fmt"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// scopeOf is --cluster C, or -l of what has a "=" in it; empty: every cluster.
func scopeOf(text string) *towlinev1.SecretScope {
	switch {
	case text == "":
		return nil
	case strings.Contains(text, "="):
		return &towlinev1.SecretScope{LabelSelector: text}
	}
	return &towlinev1.SecretScope{Cluster: text}
}

// setScoped sets the password of db for a scope.
func (w *world) setScoped(scope, value string) error {
	w.t.Helper()
	_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "db", Scope: scopeOf(scope), Values: map[string][]byte{"password": []byte(value)}})
	return err
}

func (w *world) dropScoped(scope string) {
	w.t.Helper()
	_, err := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "db", Scope: scopeOf(scope), Used: true})
	must(w.t, err)
}

// ever is each value of a secret that a keyholder was ever sent.
func (k *keyholder) ever() string {
	k.t.Helper()
	k.mu.Lock()
	frames := k.frames
	k.mu.Unlock()
	var out []string
	one := &keyholder{t: k.t, key: k.key}
	for _, f := range frames {
		one.frames = append(one.frames[:0], f)
		if now := one.has()["db"]; len(out) == 0 || out[len(out)-1] != now {
			out = append(out, now)
		}
	}
	return strings.Join(out, " ")
}

// TestScopedSecrets: each cluster gets the values of the most specific secret of a name, and is never sent those of another; a change of its
// labels moves that at once, without a revision.
func TestScopedSecrets(t *testing.T) {
	w := newWorld(t, true)
	labels := map[string]map[string]string{"eu-1": {"env": "prod", "tier": "web"}, "eu-2": {"env": "prod"}, "dev-1": {"env": "dev"}, "lone": nil}
	k := map[string]*keyholder{}
	for name, l := range labels {
		k[name] = newKeyholder(t)
		w.enroll(name, l)
		w.connectWith(name, k[name].options())
	}
	gets := func(what, cluster, want string) {
		t.Helper()
		k[cluster].await(w.ctx, what+": "+cluster+" gets "+want, func(h map[string]string) bool { return strings.Contains(h["db"], want) })
	}
	must(t, w.setScoped("env==prod", "prod"))
	must(t, w.setScoped("eu-2", "two"))
	m := listing("shop", "uses-${NAME}")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "NAME", ClusterField: "metadata.name"}, {Name: "PW", Secret: &towlinev1.BindingSecret{Name: "db", Key: "password"}}}
	w.put(m)
	gets("at first", "eu-1", "password=prod;")
	gets("at first", "eu-2", "password=two;")
	gets("at first", "lone", "secret db has no values for cluster lone: towline secret set db --cluster lone KEY=-")
	gets("at first", "dev-1", "secret db has no values for cluster dev-1")
	must(t, w.setScoped("", "all"))
	gets("for every cluster", "lone", "password=all;")
	gets("for every cluster", "dev-1", "password=all;")
	before := w.module("shop").GetStatus().GetRevision()

	if err := w.setScoped("tier=web", "web"); err == nil || !strings.Contains(err.Error(), "cluster eu-1 has the labels of both -l env=prod and -l tier=web") {
		t.Errorf("a second one for eu-1: %v", err)
	}
	must(t, w.setScoped("tier=db", "dbs"))
	w.labelled("dev-1", map[string]string{"env": "prod"})
	gets("relabelled", "dev-1", "password=prod;")
	w.labelled("dev-1", map[string]string{"env": "prod", "tier": "db"})
	gets("relabelled to two", "dev-1", "cluster dev-1 has the labels of both -l env=prod and -l tier=db")
	must(t, w.setScoped("tier=db", "dbs again")) // who is in doubt keeps nobody from a new value
	must(t, w.setScoped("dev-1", "own"))
	gets("its own", "dev-1", "password=own;")
	w.dropScoped("eu-2")
	gets("its own is deleted", "eu-2", "password=prod;")
	w.dropScoped("")
	gets("that of every cluster is deleted", "lone", "has no values for cluster lone")
	if now := w.module("shop").GetStatus().GetRevision(); now != before {
		t.Errorf("revision %d, was %d", now, before)
	}
	for cluster, want := range map[string]string{
		"eu-1":  "password=prod;",
		"eu-2":  "password=two; password=prod;",
		"dev-1": "password=all; password=prod; * password=own;",
		"lone":  "password=all; *",
	} {
		got := k[cluster].ever()
		var words []string
		for _, word := range strings.Fields(got) {
			if strings.HasPrefix(word, "password=") {
				words = append(words, word)
			}
		}
		if fmt.Sprint(words) != fmt.Sprint(strings.Fields(strings.ReplaceAll(want, "*", ""))) {
			t.Errorf("%s was sent %s", cluster, got)
		}
	}
	list, err := w.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{Name: "db", Total: true})
	must(t, err)
	var shown []string
	for _, s := range list.GetSecrets() {
		shown = append(shown, s.GetScope().GetCluster()+s.GetScope().GetLabelSelector())
		if fmt.Sprint(s.GetKeys()) != "[password]" || s.GetState() != "Readable" || s.GetMetadata().GetCreationTimestamp() == nil || len(s.GetUsedBy()) != 1 {
			t.Errorf("listed %v", s)
		}
	}
	if fmt.Sprint(shown) != "[dev-1 env=prod tier=db]" || list.GetTotal() != 3 {
		t.Errorf("listed %q of %d", shown, list.GetTotal())
	}
	_, err = w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: "db"})
	if err == nil || !strings.Contains(err.Error(), "secret db is not there; there is: db --cluster dev-1, db -l env=prod, db -l tier=db") {
		t.Errorf("error %v", err)
	}
}

// TestScopesAreNotForSources: a source is fetched once for all clusters, so that what it names has no scope, whichever of the two comes first.
func TestScopesAreNotForSources(t *testing.T) {
	w := newWorld(t, true)
	m := module("fetched", nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://127.0.0.1:1/x", SecretName: "db"}}
	must(t, w.setScoped("eu-1", "x"))
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m})
	if err == nil || !strings.Contains(err.Error(), "source.secretName: secret db has values for some clusters only (--cluster eu-1), and a source is fetched for all: name another one") {
		t.Errorf("put: %v", err)
	}
	w.dropScoped("eu-1")
	w.put(m)
	for _, scope := range []string{"eu-1", "env=prod"} {
		if err := w.setScoped(scope, "x"); err == nil || !strings.Contains(err.Error(), "the source of module fetched uses it, and is fetched for all clusters") {
			t.Errorf("set: %v", err)
		}
	}
	must(t, w.setScoped("", "x"))
	cat := &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "apps"}, Spec: &towlinev1.CatalogSpec{
		Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://127.0.0.1:1/x", SecretName: "db"}}}}
	_, err = w.Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: cat})
	must(t, err)
	if err := w.setScoped("eu-1", "x"); err == nil || !strings.Contains(err.Error(), "the source of module fetched and catalog/apps uses it") {
		t.Errorf("set: %v", err)
	}
	cat.Spec.Source.Git.SecretName = "some"
	_, err = w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "some", Scope: scopeOf("eu-1"), Values: map[string][]byte{"k": []byte("x")}})
	must(t, err)
	if _, err := w.Catalogs.PutCatalog(w.ctx, &towlinev1.PutCatalogRequest{Catalog: cat}); err == nil || !strings.Contains(err.Error(), "secret some has values for some clusters only (--cluster eu-1)") {
		t.Errorf("put of a catalog: %v", err)
	}
	for _, scope := range []*towlinev1.SecretScope{{}, {Cluster: "a", LabelSelector: "b=c"}, {LabelSelector: "a in b"}, {Cluster: "A B"}} {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "other", Scope: scope, Values: map[string][]byte{"k": nil}})
		if err == nil || !strings.Contains(err.Error(), "scope") {
			t.Errorf("scope %v: %v", scope, err)
		}
	}
}

// TestScopedSecretsAreListedByPages: also where a page ends between two of one name.
func TestScopedSecretsAreListedByPages(t *testing.T) {
	w := newWorld(t, true)
	for i := range 5 {
		must(t, w.setScoped(fmt.Sprintf("c-%d", i), "x"))
	}
	var got []string
	for token := ""; ; {
		page, err := w.Secrets.ListSecrets(w.ctx, &towlinev1.ListSecretsRequest{PageSize: 2, PageToken: token})
		must(t, err)
		for _, s := range page.GetSecrets() {
			got = append(got, s.GetScope().GetCluster())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if fmt.Sprint(got) != "[c-0 c-1 c-2 c-3 c-4]" {
		t.Errorf("listed %q", got)
	}
}
