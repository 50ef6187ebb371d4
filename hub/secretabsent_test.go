package hub_test

import (
	"strings"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// newest is a secret as it was sent last; nil: it was not.
func (k *keyholder) newest(name string) (found *agentv1.SealedSecret) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.frames {
		for _, s := range f.GetSecrets() {
			if s.GetName() == name {
				found = s
			}
		}
	}
	return found
}

// TestWhetherASecretIsSetIsSaid: an agent takes the default of a binding only if nobody has set the secret for its cluster. Where the hub cannot
// tell, as of two for the same cluster, or with a record that is damaged, it says just that, and the cluster's session goes on.
func TestWhetherASecretIsSetIsSaid(t *testing.T) {
	w := newMortalWorld(t)
	k := newKeyholder(t)
	w.enroll("a", map[string]string{"env": "prod"})
	w.connectWith("a", k.options())
	bound := func(name string) *towlinev1.Module {
		m := listing(name, "of-"+name)
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "PW", Secret: &towlinev1.BindingSecret{Name: "db", Key: "password"}}}
		return m
	}
	says := func(what, problem, scope string, absent bool) {
		t.Helper()
		k.await(w.ctx, what, func(map[string]string) bool {
			s := k.newest("db")
			return s != nil && strings.Contains(s.GetProblem(), problem) && (problem == "") == (s.GetProblem() == "")
		})
		if s := k.newest("db"); s.GetAbsent() != absent || s.GetScope() != scope {
			t.Errorf("%s: %v", what, s)
		}
	}
	w.put(bound("shop"))
	says("never set", "secret db is not there", "", true)
	must(t, w.setScoped("tier=web", "web"))
	says("set for others", "secret db has no values for cluster a", "", true)
	must(t, w.setScoped("env=prod", "prod"))
	says("set by its label", "", "-l env=prod", false)
	w.labelled("a", map[string]string{"env": "prod", "tier": "web"})
	says("two by labels", "has the labels of both", "", false)
	must(t, w.setScoped("a", "own"))
	says("set for it", "", "--cluster a", false)
	w.damage("secrets/default/db")
	says("damaged", "secret db: the hub's record of it is damaged", "", false)
	w.await("other", w.put(bound("other")).GetRevision())
	again := setting("db", "password", "anew")
	again.Replace = true
	_, err := w.Secrets.SetSecret(w.ctx, again)
	must(t, err)
	says("set anew", "", "*", false)
}
