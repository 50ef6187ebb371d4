package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestNewSecretsComeWithTheNewVariant: a cluster whose label an override and the scope of a secret read has what it had until it can have
// what is right for it, and never the password of the one with the objects of the other: as with the values of bindings. Its own has a new
// value meanwhile; in a session that does not know which it was, the agent keeps what it has.
func TestNewSecretsComeWithTheNewVariant(t *testing.T) {
	w := newWorld(t, true)
	k := newKeyholder(t)
	w.enroll("a", map[string]string{"env": "dev"})
	w.connectWith("a", k.options())
	must(t, w.setScoped("env=dev", "dev"))
	must(t, w.setScoped("env=prod", "prod"))
	bound := func(override string) *towlinev1.Module {
		m := overriding(override)
		m.Spec.Overrides[0].AllowEmpty = true
		m.Spec.Bindings = append(m.Spec.Bindings, &towlinev1.Binding{Name: "PW", Secret: &towlinev1.BindingSecret{Name: "db", Key: "password"}})
		return m
	}
	w.await("shop", w.put(bound("env=prod: nothing=x")).GetRevision())
	k.await(w.ctx, "that of dev", func(h map[string]string) bool { return h["db"] == "password=dev;" })
	had := w.held("a", "shop")
	w.labelled("a", map[string]string{"env": "prod"})
	w.awaitTracker("shop", "a", "refused", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	must(t, w.setScoped("env=dev", "newer"))
	k.await(w.ctx, "the newer one of dev", func(h map[string]string) bool { return h["db"] == "password=newer;" })
	if now := w.held("a", "shop"); now.Bundle != had.Bundle {
		t.Fatalf("a has %+v", now)
	}
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	again := newKeyholder(t)
	w.connectWith("a", again.options())
	again.await(w.ctx, "why none is said", func(h map[string]string) bool {
		return strings.Contains(h["db"], "secret db: which values are for cluster a by its labels is told once module shop is there by them, too")
	})
	if s := again.newest("db"); s.GetAbsent() {
		t.Errorf("said to be set by nobody: %v", s)
	}
	for _, k := range []*keyholder{k, again} {
		if got := k.ever(); strings.Contains(got, "password=prod;") {
			t.Errorf("the cluster goes on with the objects of dev, and was sent: %s", got)
		}
	}
	w.put(bound("env=prod: a=x"))
	again.await(w.ctx, "that of prod", func(h map[string]string) bool { return h["db"] == "password=prod;" })
	if now := w.held("a", "shop"); now.Bundle == had.Bundle {
		w.awaitTracker("shop", "a", "has the new one", func(*towlinev1.Tracker) bool { return w.held("a", "shop").Bundle != had.Bundle })
	}
	must(t, w.setScoped("a", "own"))
	again.await(w.ctx, "its own", func(h map[string]string) bool { return h["db"] == "password=own;" })
}
