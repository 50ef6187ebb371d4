package hub_test

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// keyholder is the part of an agent that has a key for secrets.
type keyholder struct {
	t   *testing.T
	key *ecdh.PrivateKey

	mu     sync.Mutex
	frames []*agentv1.Secrets
	news   chan struct{}
}

func newKeyholder(t *testing.T) *keyholder {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(t, err)
	return &keyholder{t: t, key: key, news: make(chan struct{}, 100)}
}

func (k *keyholder) options() simagent.Options {
	return simagent.Options{SealingKey: k.key.PublicKey().Bytes(), Secrets: func(f *agentv1.Secrets) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.frames = append(k.frames, f)
		k.news <- struct{}{}
	}}
}

// has are the values of the newest whole that came, by secret; of one without values the problem.
func (k *keyholder) has() map[string]string {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]string{}
	for _, f := range k.frames {
		if f.GetFirst() {
			out = map[string]string{}
		}
		for _, s := range f.GetSecrets() {
			if !slices.Equal(s.GetKeys(), []string{"password"}) {
				k.t.Errorf("%s: keys %v", s.GetName(), s.GetKeys())
			}
			out[s.GetName()] = s.GetProblem()
			if s.GetProblem() != "" {
				continue
			}
			private, err := hpke.NewDHKEMPrivateKey(k.key)
			must(k.t, err)
			plain, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte("towline.dev/secret "+s.GetProject()+"/"+s.GetName()), s.GetSealed())
			must(k.t, err)
			values, err := wire.SecretValues(plain)
			must(k.t, err)
			for key, v := range values {
				out[s.GetName()] += key + "=" + string(v) + ";"
			}
		}
	}
	return out
}

func (k *keyholder) await(ctx context.Context, what string, ok func(map[string]string) bool) {
	k.t.Helper()
	for deadline := time.After(30 * time.Second); !ok(k.has()); {
		select {
		case <-k.news:
		case <-ctx.Done():
		case <-deadline:
			k.t.Fatalf("%s: has %v", what, k.has())
		}
	}
}

// TestSecretsGoToThoseThatUseThem: the values of a secret come to the agents of the clusters that have a module which uses them, and to no
// other, sealed for each, with those keys alone; a new value comes by itself, without a new revision.
func TestSecretsGoToThoseThatUseThem(t *testing.T) {
	w := newWorld(t, true)
	has, lacks := newKeyholder(t), newKeyholder(t)
	for name, k := range map[string]*keyholder{"has": has, "lacks": lacks} {
		w.enroll(name, map[string]string{"shop": name})
		w.connectWith(name, k.options())
	}
	w.enroll("old", map[string]string{"shop": "has"})
	w.connectWith("old", simagent.Options{Features: []string{wire.FeatureStatusSeen, wire.FeatureObjectBindings}})
	m := listing("shop", "uses-${NAME}")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "NAME", ClusterField: "metadata.name"}, {Name: "PW", Secret: &towlinev1.BindingSecret{Name: "db", Key: "password"}}}
	m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"shop": "has"}}}
	put := w.put(m)
	if notes := put.GetWarnings(); len(notes) == 0 || notes[0].GetCode() != "NoSuchSecret" {
		t.Errorf("warnings %v", notes)
	}
	has.await(w.ctx, "that there is none", func(h map[string]string) bool { return strings.Contains(h["db"], "secret db is not there") })
	w.awaitTracker("shop", "old", "said", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "AgentTooOld" && strings.Contains(tr.GetMessage(), wire.FeatureSecretBindings)
	})
	set := func(v string) {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "db", Values: map[string][]byte{"password": []byte(v), "other": []byte("x")}})
		must(t, err)
	}
	set("one")
	has.await(w.ctx, "the value", func(h map[string]string) bool { return h["db"] == "password=one;" })
	before := w.module("shop").GetStatus().GetRevision()
	set("two")
	has.await(w.ctx, "the new value", func(h map[string]string) bool { return h["db"] == "password=two;" })
	if now := w.module("shop").GetStatus().GetRevision(); now != before {
		t.Errorf("revision %d, was %d", now, before)
	}
	got, err := w.Secrets.GetSecret(w.ctx, &towlinev1.GetSecretRequest{Name: "db"})
	if err != nil || len(got.GetSecret().GetUsedBy()) != 1 {
		t.Errorf("%v: used by %v", err, got.GetSecret().GetUsedBy())
	}
	_, err = w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "db"})
	if err == nil || !strings.Contains(err.Error(), "is used by module shop") {
		t.Errorf("error %v", err)
	}
	if len(lacks.has()) != 0 || len(lacks.frames) != 0 {
		t.Errorf("a cluster without the module was sent %v", lacks.frames)
	}
	w.stops["has"]()
	w.awaitCluster("has", "Disconnected")
	again := newKeyholder(t)
	w.connectWith("has", again.options())
	again.await(w.ctx, "the value for another key", func(h map[string]string) bool { return h["db"] == "password=two;" })
}

// TestSecretsComeBeforeTheIndex: an agent that was away while a secret got another value and a revision was put is sent the value first, and so
// is one that is there; each whole says what it goes with, and how new it is.
func TestSecretsComeBeforeTheIndex(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", map[string]string{"shop": "a"})
	k := newKeyholder(t)
	o := k.options()
	var agent *simagent.Agent
	note := o.Secrets
	var mu sync.Mutex
	var wholes []*agentv1.Secrets
	var held []fleet.Assemblage
	o.Secrets = func(f *agentv1.Secrets) {
		mu.Lock()
		wholes, held = append(wholes, f), append(held, agent.Held())
		mu.Unlock()
		note(f)
	}
	set := func(v string) {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "db", Values: map[string][]byte{"password": []byte(v)}})
		must(t, err)
	}
	put := func(text string) {
		m := listing("shop", "uses-"+text)
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "PW", Secret: &towlinev1.BindingSecret{Name: "db", Key: "password"}}}
		w.put(m)
	}
	// revision is which one of the module is in an assemblage.
	revision := func(a fleet.Assemblage) int64 {
		if len(a.Syncs) == 0 {
			return 0
		}
		return a.Syncs[0].Revision
	}
	// check looks at the last whole: it came before the revision that was put, and goes with what the agent had or with what came then. A cluster
	// that was away may be given the revision in a later step.
	check := func(what string, put int64) {
		t.Helper()
		w.awaitTracker("shop", "a", what+": taken", func(*towlinev1.Tracker) bool { return revision(agent.Held()) == put })
		mu.Lock()
		defer mu.Unlock()
		whole, had, now := wholes[len(wholes)-1], held[len(wholes)-1], agent.Held()
		goes := string(whole.GetResultsIn())
		between := now.Generation > had.Generation+1
		if revision(had) >= put || goes != string(now.Digest.Bytes()) && goes != string(had.Digest.Bytes()) && (!between || goes == "") {
			t.Errorf("%s: came at r%d for %x; the agent had %x and has %x", what, revision(had), goes, had.Digest.Bytes(), now.Digest.Bytes())
		}
		if s := whole.GetSecrets()[0]; s.GetVersion() == 0 || s.GetChangedMillis() == 0 {
			t.Errorf("%s: is not said to be how new: %v", what, s)
		}
	}
	set("one")
	put("one")
	agent = w.newAgent("a", o)
	w.reconnect("a")
	k.await(w.ctx, "the value", func(h map[string]string) bool { return h["db"] == "password=one;" })
	check("at first", 1)
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	set("two")
	put("two")
	w.reconnect("a")
	k.await(w.ctx, "the newer value", func(h map[string]string) bool { return h["db"] == "password=two;" })
	check("after it was away", 2)
	m := listing("shop", "uses-three")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "PW", Secret: &towlinev1.BindingSecret{Name: "other", Key: "password"}}}
	_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "other", Values: map[string][]byte{"password": []byte("x")}})
	must(t, err)
	w.put(m)
	k.await(w.ctx, "the other secret", func(h map[string]string) bool { return h["other"] == "password=x;" && len(h) == 1 })
	check("while it is there", 3)
}

// TestSecretOfTheRevisionThatRunsIsUsed: the revision that clusters have uses a secret that the newest put does not, as after a rollback, or
// while a rollout is on its way. It is in use.
func TestSecretOfTheRevisionThatRunsIsUsed(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	w.connectWith("a", newKeyholder(t).options())
	w.setSecret("old", "token", "x")
	w.setSecret("new", "token", "y")
	bound := func(secret string) *towlinev1.Module {
		m := module("shop", map[string]string{"a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: default}\nstringData: {a: \"${TOKEN}\"}\n"})
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "TOKEN", Secret: &towlinev1.BindingSecret{Name: secret, Key: "token"}}}
		return m
	}
	w.await("shop", w.put(bound("old")).GetRevision())
	w.await("shop", w.put(bound("new")).GetRevision())
	_, err := w.Rollouts.RollBackRollout(w.ctx, &towlinev1.RollBackRolloutRequest{Module: "shop", Reason: "broken"})
	must(t, err)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolledBack() })
	if used := w.secret("old").GetUsedBy(); !slices.Contains(used, "shop") {
		t.Errorf("the secret that r1 uses, which every cluster has, is used by %v", used)
	}
	if _, err := w.Secrets.DeleteSecret(w.ctx, &towlinev1.DeleteSecretRequest{Name: "old"}); err == nil {
		t.Error("it was deleted as one that no module uses")
	}
}
