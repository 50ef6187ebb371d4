package worker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

const (
	account      = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: ci, namespace: $NS}\n"
	token        = "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: ci-token, namespace: $NS, annotations: {kubernetes.io/service-account.name: ci}}\n"
	selectorless = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: $NS}\nspec: {ports: [{port: 80}]}\n"
	endpoints    = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: db, namespace: $NS}\nsubsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]\n"
)

// TestWhatAControllerWouldTakeAlongKeepsItsPlace: a revision drops a ServiceAccount, or a Service, or its module is removed, and a policy keeps the
// token of the one, or the Endpoints of the other. The token controller, and that of endpoints, would delete these.
func TestWhatAControllerWouldTakeAlongKeepsItsPlace(t *testing.T) {
	for name, tc := range map[string]struct{ head, follower, resource, headResource, headName, followerName, says string }{
		"a token of a ServiceAccount": {account, token, "secrets", "serviceaccounts", "ci", "ci-token", "Secret ci-token"},
		"the endpoints of a Service":  {selectorless, endpoints, "endpoints", "services", "db", "db", "Endpoints db"},
	} {
		kind := strings.Fields(tc.says)[0]
		for how, policy := range map[string]fleet.Policy{
			"dropped and kept":        {Prune: fleet.PruneNever},
			"dropped and left":        {Delete: fleet.DeleteOrphan},
			"removed and kept":        {Prune: fleet.PruneNever},
			"removed and left":        {Delete: fleet.DeleteOrphan},
			"another module lists it": {},
			"both go":                 {},
			"both go with the module": {},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRig(t)
				policy.Match.Kinds = []string{kind}
				policies := []fleet.Policy{policy}
				if policy.Prune == "" && policy.Delete == "" {
					policies = nil
				}
				rest := configMap("a", "k: v")
				first := []string{rest, tc.head, tc.follower}
				other, list := r.bundle("vault", nil, tc.follower), []fleet.Sync(nil)
				if how == "another module lists it" {
					first, list = first[:2], []fleet.Sync{other}
				}
				s := r.bundle("shop", policies, first...)
				r.set([]fleet.Sync{s})
				r.ready(s)
				r.set(append([]fleet.Sync{s}, list...))
				for _, x := range list {
					r.ready(x)
				}
				if kind == "Secret" {
					r.eventually("the token is made", func() bool {
						o := r.get("v1", "secrets", tc.followerName)
						return o != nil && o.GetAnnotations()["kubernetes.io/service-account.uid"] != ""
					})
				}
				uid := r.uidOf("v1", tc.resource, tc.followerName)
				if strings.HasPrefix(how, "removed") || how == "both go with the module" {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					status := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
					if policies != nil && !strings.Contains(status.Message, tc.says) {
						t.Errorf("says %q, and not what keeps it", status.Message)
					}
				} else {
					r.set(append([]fleet.Sync{r.bundle("shop", policies, rest)}, list...))
					r.eventually("it is decided", func() bool {
						return r.get("v1", tc.headResource, tc.headName) == nil || strings.Contains(r.extras("shop"), "would delete with it what is to stay: "+tc.says)
					})
				}
				if strings.HasPrefix(how, "both go") {
					r.eventually("both are gone", func() bool {
						return r.get("v1", tc.headResource, tc.headName) == nil && r.get("v1", tc.resource, tc.followerName) == nil
					})
					return
				}
				if r.get("v1", tc.headResource, tc.headName) == nil {
					r.eventually("what goes with it is another one, or gone", func() bool {
						o := r.get("v1", tc.resource, tc.followerName)
						return o == nil || o.GetUID() != uid
					})
					t.Fatal("the cluster deleted what is to stay")
				}
				if got := r.uidOf("v1", tc.resource, tc.followerName); got != uid {
					t.Errorf("is another one: %s was %s", got, uid)
				}
			})
		}
	}
}

// TestServiceIsNotMadeAgainWithoutItsEndpoints: a revision changes what a Service cannot change in place, and the policy lets it be made again. With the
// old one the controller of endpoints would delete those of its name that somebody wrote by hand, whoever has them; those that it makes itself do not count.
func TestServiceIsNotMadeAgainWithoutItsEndpoints(t *testing.T) {
	headless := func(service string) string { return strings.Replace(service, "ports:", "clusterIP: None, ports:", 1) }
	selecting := strings.Replace(selectorless, "ports:", "selector: {app: db}, ports:", 1)
	for name, tc := range map[string]struct {
		service string
		shop    []string
		vault   string
		drift   string
		human   bool
	}{
		"another module lists them": {service: selectorless, vault: endpoints},
		"the module lists them":     {service: selectorless, shop: []string{endpoints}},
		"drift of them is left":     {service: selectorless, shop: []string{endpoints}, drift: fleet.DriftReport},
		"a person has made them":    {service: selectorless, human: true},
		"the controller makes them": {service: selecting},
		"there are none":            {service: selectorless},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}, {Match: fleet.PolicyMatch{Kinds: []string{"Endpoints"}}, Drift: tc.drift}}
			var others []fleet.Sync
			if tc.vault != "" {
				others = append(others, r.bundle("vault", nil, tc.vault))
			}
			s := r.bundle("shop", policies, append([]string{tc.service}, tc.shop...)...)
			r.set(append([]fleet.Sync{s}, others...))
			for _, x := range append(others, s) {
				r.applied(x)
			}
			if tc.human {
				r.create("v1", "endpoints", r.ns, r.object(endpoints))
			}
			there := tc.vault != "" || tc.shop != nil || tc.human
			if tc.service == selecting {
				r.eventually("the controller made them", func() bool { return r.get("v1", "endpoints", "db") != nil })
			}
			service := r.uidOf("v1", "services", "db")
			var uid types.UID
			if there {
				uid = r.uidOf("v1", "endpoints", "db")
			}
			next := r.bundle("shop", policies, append([]string{headless(tc.service)}, tc.shop...)...)
			r.set(append([]fleet.Sync{next}, others...))
			status := r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
				return x.Generation == next.Generation && (x.Phase == fleet.PhaseFailed || x.Phase == fleet.PhaseApplied)
			})
			if made := r.uidOf("v1", "services", "db") != service; made == there {
				t.Errorf("made again: %v; says %q", made, status.Message)
			}
			if there && !strings.Contains(status.Message, "would go with it: Endpoints db") {
				t.Errorf("says %q, and not what keeps it", status.Message)
			}
			if there && r.uidOf("v1", "endpoints", "db") != uid {
				t.Error("the cluster deleted what is to stay")
			}
		})
	}
}

// TestAccountGoesAfterItsToken: a ServiceAccount and its token go with two modules that are removed at once, and the token is held: the account
// is not left behind, as for a token that stays, but goes when that has gone.
func TestAccountGoesAfterItsToken(t *testing.T) {
	r := newRig(t)
	shop, vault := r.bundle("shop", nil, account), r.bundle("vault", nil, token)
	r.set([]fleet.Sync{shop})
	r.ready(shop)
	r.set([]fleet.Sync{shop, vault})
	r.ready(vault)
	r.patch("v1", "secrets", "ci-token", "ana", `{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":"not now"}}}`)
	r.eventually("the hold is seen", func() bool { return r.m.hold(fleet.ObjectID{Kind: "Secret", Namespace: r.ns, Name: "ci-token"}) != nil })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete), r.tombstone("vault", fleet.DeleteDelete))
	r.eventually("the account waits", func() bool { return strings.Contains(r.extras("shop"), "goes when these have gone: Secret ci-token") })
	r.patch("v1", "secrets", "ci-token", "ana", `{"metadata":{"annotations":{"`+fleet.HoldAnnotation+`":null}}}`)
	for _, module := range []string{"shop", "vault"} {
		r.wait(module, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	}
	r.eventually("both are gone", func() bool {
		return r.get("v1", "serviceaccounts", "ci") == nil && r.get("v1", "secrets", "ci-token") == nil
	})
}

// extras is what a module's last status says of what it does not list any more.
func (r *rig) extras(module string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, x := range r.statuses[fleet.ModuleRef{Project: "default", Name: module}].Extras {
		b.WriteString(x.Reason + ": " + x.Message + "\n")
	}
	return b.String()
}

// TestWhatAModuleMadeKeepsItsNamespace: Endpoints and Leases are what the cluster itself puts into namespaces, and a module may have one that a policy
// keeps, or leaves: it does not go with the module's Namespace.
func TestWhatAModuleMadeKeepsItsNamespace(t *testing.T) {
	for name, tc := range map[string]struct{ group, resource, object string }{
		"Endpoints": {"v1", "endpoints", endpoints},
		"Lease":     {"coordination.k8s.io/v1", "leases", "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: db, namespace: $NS}\nspec: {holderIdentity: ana}\n"},
	} {
		for how, policy := range map[string]fleet.Policy{
			"dropped and kept": {Prune: fleet.PruneNever},
			"dropped and left": {Delete: fleet.DeleteOrphan},
			"removed and kept": {Prune: fleet.PruneNever},
			"removed and left": {Delete: fleet.DeleteOrphan},
			"removed":          {},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRig(t)
				ns := r.ns + "-own"
				policies := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{name}}, Prune: policy.Prune, Delete: policy.Delete}}
				s := r.bundle("shop", policies, configMap("a", "k: v"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n", strings.ReplaceAll(tc.object, "$NS", ns))
				r.set([]fleet.Sync{s})
				r.ready(s)
				defer func() { _ = r.res("v1", "namespaces", "").Delete(context.Background(), ns, metav1.DeleteOptions{}) }()
				if strings.HasPrefix(how, "removed") {
					r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
					r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
				} else {
					r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: v"))})
					r.eventually("it is decided", func() bool {
						o, err := r.res("v1", "namespaces", "").Get(context.Background(), ns, metav1.GetOptions{})
						return err != nil || o.GetDeletionTimestamp() != nil || strings.Contains(r.extras("shop"), "NamespaceNotEmpty")
					})
				}
				o, err := r.res("v1", "namespaces", "").Get(context.Background(), ns, metav1.GetOptions{})
				if how == "removed" {
					if err == nil && o.GetDeletionTimestamp() == nil {
						t.Error("the namespace stays")
					}
					return
				}
				if err != nil || o.GetDeletionTimestamp() != nil || !r.exists(tc.group, tc.resource, ns, "db") {
					t.Errorf("the namespace goes with what is to stay in it: %v", err)
				}
			})
		}
	}
}

// TestRefusalOfAMomentLetsNoTokenGo: an API server that has just started refuses what the agent has the right to. That it may not list Secrets now does not
// say that none follows the ServiceAccount.
func TestRefusalOfAMomentLetsNoTokenGo(t *testing.T) {
	r := newRig(t)
	rest, policies := configMap("a", "k: v"), []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Secret"}}, Prune: fleet.PruneNever}}
	s := r.bundle("shop", policies, rest, account, token)
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.tokenMade("ci-token")
	r.stop()
	var refused atomic.Bool
	r.answers(func(q *http.Request) *http.Response {
		if q.Method != http.MethodGet || !strings.HasSuffix(q.URL.Path, "/namespaces/"+r.ns+"/secrets") || refused.Swap(true) {
			return nil
		}
		return answer(q, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"details":{"kind":"secrets"},
			"message":"secrets is forbidden: User \"agent\" cannot list resource \"secrets\" in API group \"\" in the namespace \"x\""}`)
	})
	r.start()
	r.set([]fleet.Sync{r.bundle("shop", policies, rest)})
	r.eventually("it is decided", func() bool {
		return r.get("v1", "serviceaccounts", "ci") == nil || strings.Contains(r.extras("shop"), "would delete with it what is to stay: Secret ci-token")
	})
	if !refused.Load() {
		t.Fatal("nothing was refused")
	}
	if r.get("v1", "serviceaccounts", "ci") == nil || r.uidOf("v1", "secrets", "ci-token") != uid {
		t.Error("the ServiceAccount was deleted, and with it the token that is to stay")
	}
}

// tokenMade waits for the token controller, and tells the Secret's UID. The ServiceAccount and the Secret are made at the same time: the controller deletes
// a Secret whose ServiceAccount is not there yet, and the agent makes it again.
func (r *rig) tokenMade(name string) (uid types.UID) {
	r.t.Helper()
	r.eventually("the token is made", func() bool {
		u := r.get("v1", "secrets", name)
		if u == nil || u.GetAnnotations()["kubernetes.io/service-account.uid"] == "" {
			return false
		}
		uid = u.GetUID()
		return true
	})
	return uid
}
