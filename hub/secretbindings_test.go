package hub_test

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
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
