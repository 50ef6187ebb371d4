package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// ownedBy has an object name another one as the one that controls it, as an operator does.
func (r *rig) ownedBy(resource, name, owner string) {
	r.t.Helper()
	r.patch("v1", resource, name, "operator", fmt.Sprintf(
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"controller":true}]}}`, owner, r.uidOf("v1", "configmaps", owner)))
}

// collected waits until the cluster's garbage collector has looked at what goes with an object that is gone.
func (r *rig) collected() {
	r.t.Helper()
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "witness", "namespace": r.ns,
		"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "4b6d4f0a-0000-4000-8000-000000000000"}}}})
	r.eventually("garbage is collected", func() bool { return r.get("v1", "configmaps", "witness") == nil })
}

// secretsUnlisted keeps the Secrets from being listed and watched.
func secretsUnlisted(q *http.Request) error {
	if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/api/v1/secrets") {
		return errors.New("not yet")
	}
	return nil
}

// TestObjectOutlivesAnOwnerThatIsDropped: a module takes a Secret from what controls it, and drops that; the same where another module
// lists the Secret, and where its owner came later. The garbage collector would delete the Secret from under its pods.
func TestObjectOutlivesAnOwnerThatIsDropped(t *testing.T) {
	secrets := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Adopt: fleet.AdoptAlways}}
	for name, tc := range map[string]struct{ other, removed, later bool }{
		"a revision drops it":             {},
		"another module lists the object": {other: true},
		"its module is removed":           {other: true, removed: true},
		"the owner came after the module": {later: true},
		"the owner came, and is removed":  {other: true, removed: true, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("owner", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if !tc.later {
				r.create("v1", "secrets", r.ns, r.object(certificate("b2xk")))
				r.ownedBy("secrets", "s", "owner")
			}
			taker, list := r.bundle("shop", secrets, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk")), []fleet.Sync(nil)
			if tc.other {
				taker, list = r.bundle("vault", secrets, certificate("b2xk")), []fleet.Sync{s}
			}
			list = append(list, taker)
			r.set(list)
			r.ready(taker)
			uid := r.uidOf("v1", "secrets", "s")
			if tc.later {
				r.ownedBy("secrets", "s", "owner")
				r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			}
			switch {
			case tc.removed:
				r.set([]fleet.Sync{taker}, r.tombstone("shop", fleet.DeleteDelete))
				r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			case tc.other:
				next := r.bundle("shop", nil, configMap("a", "k: v"))
				r.set([]fleet.Sync{next, taker})
				r.ready(next)
			default:
				next := r.bundle("shop", secrets, configMap("a", "k: v"), certificate("b2xk"))
				r.set([]fleet.Sync{next})
				r.ready(next)
			}
			r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
			r.collected()
			if got := r.uidOf("v1", "secrets", "s"); got != uid {
				t.Errorf("the secret is another one: %s was %s", got, uid)
			}
			if owners := r.get("v1", "secrets", "s").GetOwnerReferences(); len(owners) > 0 {
				t.Errorf("owners %v", owners)
			}
		})
	}
}

// ownedSecret has the module shop list an owner and a Secret that it owns, and returns the Secret's UID.
func (r *rig) ownedSecret() types.UID {
	r.t.Helper()
	s := r.bundle("shop", nil, configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.ownedBy("secrets", "s", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	return r.uidOf("v1", "secrets", "s")
}

// TestOwnerStaysWhereItsObjectCannotBeSpared: what would go with an object cannot be freed of it. The object stays, and says why.
func TestOwnerStaysWhereItsObjectCannotBeSpared(t *testing.T) {
	r := newRig(t)
	uid := r.ownedSecret()
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/secrets/s") {
			return errors.New("cannot be written")
		}
		return nil
	})
	next := r.bundle("shop", nil, certificate("b2xk"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "stuck with the owner", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "Secret s would go with it, which module shop keeps")
	})
	r.count.upset(nil)
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerStaysWhileItsObjectIsHeld: nothing is written for a module that is held, and nothing of it goes either.
func TestOwnerStaysWhileItsObjectIsHeld(t *testing.T) {
	r := newRig(t)
	s, vault := r.bundle("shop", nil, configMap("a", "k: v"), configMap("owner", "k: v")), r.bundle("vault", nil, certificate("b2xk"))
	r.set([]fleet.Sync{s, vault})
	r.ready(s)
	r.ready(vault)
	uid := r.uidOf("v1", "secrets", "s")
	r.ownedBy("secrets", "s", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	vault.Hold = true
	r.set([]fleet.Sync{vault})
	r.wait("vault", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.set([]fleet.Sync{next, vault})
	r.wait("shop", "stuck with the owner", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "which module vault keeps") && strings.Contains(x.Extras[0].Message, "held")
	})
	if r.get("v1", "configmaps", "owner") == nil || len(r.get("v1", "secrets", "s").GetOwnerReferences()) == 0 {
		t.Error("written in a hold")
	}
	vault.Hold = false
	r.set([]fleet.Sync{next, vault})
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerStaysUntilItsObjectsAreKnown: right after its start the agent does not know yet what goes with an object.
func TestOwnerStaysUntilItsObjectsAreKnown(t *testing.T) {
	r := newRig(t)
	s, vault := r.bundle("shop", nil, configMap("owner", "k: v")), r.bundle("vault", nil, certificate("b2xk"))
	r.set([]fleet.Sync{s, vault})
	r.ready(s)
	r.ready(vault)
	uid := r.uidOf("v1", "secrets", "s")
	r.stop()
	r.ownedBy("secrets", "s", "owner")
	r.count.upset(secretsUnlisted)
	r.start()
	r.set([]fleet.Sync{vault}, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
		return len(x.Extras) == 1 && (strings.Contains(x.Extras[0].Message, "what would go with it") ||
			x.Extras[0].Reason == plan.ReasonAwaitingSearch) // the process ended before it had noted that it made the owner
	})
	r.count.upset(nil)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerOfWhatIsListedIsNotMadeAgain: an object that owns what a module lists would take that along when it is made again.
func TestOwnerOfWhatIsListedIsNotMadeAgain(t *testing.T) {
	for name, anew := range map[string]bool{"": false, "right after a start": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			frozen := func(v string) string { return configMap("owner", "k: "+v) + "immutable: true\n" }
			s, vault := r.bundle("shop", recreate, frozen("v")), r.bundle("vault", nil, certificate("b2xk"))
			r.set([]fleet.Sync{s, vault})
			r.ready(s)
			r.ready(vault)
			owner, secret := r.uidOf("v1", "configmaps", "owner"), r.uidOf("v1", "secrets", "s")
			if anew {
				r.stop()
				r.ownedBy("secrets", "s", "owner")
				r.count.upset(secretsUnlisted)
				r.start()
			} else {
				r.ownedBy("secrets", "s", "owner")
				r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
			}
			next := r.bundle("shop", recreate, frozen("w"))
			r.set([]fleet.Sync{next, vault})
			if anew {
				r.wait("shop", "waiting", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "what would go with it") })
				r.count.upset(nil)
			}
			if x := r.failed(next); !strings.Contains(x.Message, "these would go with it: Secret s") {
				t.Errorf("status %+v", x)
			}
			if r.uidOf("v1", "configmaps", "owner") != owner || r.uidOf("v1", "secrets", "s") != secret {
				t.Error("made again")
			}
		})
	}
}

// TestObjectThatIsKeptOutlivesItsOwner: a revision drops an object together with its owner, and a policy keeps the object.
func TestObjectThatIsKeptOutlivesItsOwner(t *testing.T) {
	r := newRig(t)
	kept := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Prune: fleet.PruneNever}}
	s := r.bundle("shop", kept, configMap("a", "k: v"), configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.ownedBy("secrets", "s", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	next := r.bundle("shop", kept, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one, or gone: %q was %q", got, uid)
	}
}

// TestObjectThatIsLeftOutlivesItsOwner: a module is deleted with an owner, and a policy has its object stay in the cluster.
func TestObjectThatIsLeftOutlivesItsOwner(t *testing.T) {
	r := newRig(t)
	left := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Delete: fleet.DeleteOrphan}}
	s := r.bundle("shop", left, configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.ownedBy("secrets", "s", "owner")
	r.eventually("its owner is seen", func() bool { return len(r.m.watcher.Owned()) == 1 })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one, or gone: %q was %q", got, uid)
	}
}

// TestOwnerStaysWhereAWebhookKeepsItsObject: a webhook denies to free an object of its owner, as if the object did not exist.
func TestOwnerStaysWhereAWebhookKeepsItsObject(t *testing.T) {
	r := newRig(t)
	uid := r.ownedSecret()
	stop := r.denies(corev1.SchemeGroupVersion.WithResource("secrets"), "Secret", "UPDATE", "s", metav1.Status{Reason: metav1.StatusReasonNotFound, Message: "no team web"})
	next := r.bundle("shop", nil, certificate("b2xk"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "stuck with the owner, or rid of it", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "no team web") || r.get("v1", "configmaps", "owner") == nil)
	})
	if r.get("v1", "configmaps", "owner") == nil {
		t.Error("the owner was deleted before its object was freed of it")
	}
	stop()
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}

// TestOwnerStaysWhileNobodyIsHeard: the watches have ended, as with an API server that is started anew, and an operator makes what is dropped the
// owner of what stays before they are open again.
func TestOwnerStaysWhileNobodyIsHeard(t *testing.T) {
	r := newRig(t)
	r.restart(func(o *Options) { o.blindAfter = time.Hour })
	s := r.bundle("shop", nil, configMap("owner", "k: v"), certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	r.count.upset(func(q *http.Request) error {
		if q.URL.Query().Get("watch") != "" {
			return errors.New("connection refused")
		}
		return nil
	})
	r.conns.cut()
	r.eventually("nothing is heard", func() bool { return r.m.watcher.Behind() })
	r.ownedBy("secrets", "s", "owner")
	next := r.bundle("shop", nil, certificate("b2xk"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (len(x.Extras) == 0 && x.Ready || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "when it is known what would go with it"))
	})
	r.count.upset(nil)
	r.eventually("the owner is gone", func() bool { return r.get("v1", "configmaps", "owner") == nil })
	r.collected()
	if got := r.uidOf("v1", "secrets", "s"); got != uid {
		t.Errorf("the secret is another one: %s was %s", got, uid)
	}
}
