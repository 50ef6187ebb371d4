package worker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// TestWhatGoesAlongIsAskedBeforeEachDelete: a busy API server asks to come again, or a slow webhook looks at what is to be made in the place of an
// object. What somebody puts into it, or beneath it, meanwhile is no other version of it: it is looked for again before the DELETE.
func TestWhatGoesAlongIsAskedBeforeEachDelete(t *testing.T) {
	defined := func(r *rig) {
		r.create(r.ns+".example.com/v1", "things", r.ns, r.object("apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: mine, namespace: $NS}\n"))
	}
	for name, tc := range map[string]struct {
		policies   []fleet.Policy
		head, next string // what may go, and what it is made again as; none: it is dropped
		of, says   string
		comes      func(*rig) (stays func() bool)
	}{
		"a namespace": {head: namespace("$NS-own", ""), of: "namespaces/$NS-own", says: "ConfigMap mine", comes: func(r *rig) func() bool {
			r.create("v1", "configmaps", r.ns+"-own", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "mine"}})
			return func() bool { return r.standsIn("v1", "configmaps", r.ns+"-own", "mine") }
		}},
		"a definition": {head: thing("Namespaced"), of: "customresourcedefinitions/things.$NS.example.com", says: ofNamespace("mine"), comes: func(r *rig) func() bool {
			defined(r)
			return func() bool { return r.standsIn(r.ns+".example.com/v1", "things", r.ns, "mine") }
		}},
		"an owner": {head: configMap("head", "k: v"), of: "configmaps/head", comes: func(r *rig) func() bool {
			uid := r.uidOf("v1", "configmaps", "a")
			r.patch("v1", "configmaps", "a", "ana", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"head","uid":%q}]}}`,
				r.uidOf("v1", "configmaps", "head")))
			return func() bool {
				if r.standsIn("v1", "configmaps", r.ns, "head") {
					return false
				}
				o := r.get("v1", "configmaps", "a")
				if o == nil || o.GetUID() != uid {
					r.t.Error("what is to stay went with its owner")
				} else if len(o.GetOwnerReferences()) > 0 {
					r.t.Error("is not kept from going with its owner")
				}
				return true
			}
		}},
		"a definition that is made again": {policies: []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"CustomResourceDefinition"}}, Recreate: fleet.RecreateIfImmutable}},
			head: thing("Namespaced"), next: thing("Cluster"), of: "customresourcedefinitions/things.$NS.example.com", says: "would go with it: " + ofNamespace("mine"),
			comes: func(r *rig) func() bool {
				defined(r)
				return func() bool { return r.standsIn(r.ns+".example.com/v1", "things", r.ns, "mine") }
			}},
		"a Service that is made again": {policies: recreate, head: selectorless, next: strings.Replace(selectorless, "ports:", "clusterIP: None, ports:", 1),
			of: "services/db", says: "would go with it: Endpoints db", comes: func(r *rig) func() bool {
				r.create("v1", "endpoints", r.ns, r.object(endpoints))
				return func() bool {
					return r.standsIn("v1", "endpoints", r.ns, "db") && r.standsIn("v1", "services", r.ns, "db")
				}
			}},
	} {
		for _, when := range []string{"while the API server is busy", "while the new one is judged"} {
			if tc.next == "" && when == "while the new one is judged" {
				continue
			}
			t.Run(name+" "+when, func(t *testing.T) {
				r, p := newRig(t), newPause()
				of, sent := "/"+strings.ReplaceAll(tc.of, "$NS", r.ns), atomic.Int64{}
				r.stop()
				r.answers(func(q *http.Request) *http.Response {
					switch dry := q.URL.Query().Get("dryRun") != ""; {
					case when == "while the new one is judged":
						if dry && q.Method == http.MethodPost {
							p.wait()
						}
					case q.Method == http.MethodDelete && !dry && strings.HasSuffix(q.URL.Path, of) && sent.Add(1) == 1:
						p.wait()
						busy := answer(q, http.StatusTooManyRequests, "")
						busy.Header.Set("Retry-After", "1")
						return busy
					}
					return nil
				})
				r.start()
				rest := configMap("a", "k: v")
				s := r.bundle("shop", tc.policies, rest, tc.head)
				r.set([]fleet.Sync{s})
				r.ready(s)
				next := []string{rest}
				if tc.next != "" {
					next = append(next, tc.next)
				}
				r.set([]fleet.Sync{r.bundle("shop", tc.policies, next...)})
				var stays func() bool
				p.at(r, func() { stays = tc.comes(r) })
				if tc.says == "" {
					r.eventually("it is decided", stays)
					return
				}
				r.wait("shop", "told why it stays", func(x fleet.SyncStatus) bool {
					return strings.Contains(fmt.Sprintf("%+v", x), strings.ReplaceAll(tc.says, "$NS", r.ns)) || !stays()
				})
				if !stays() {
					t.Error("it was deleted, and with it what somebody had just made")
				}
			})
		}
	}
}

// ofNamespace is how an object of a custom kind in the rig's namespace is called.
func ofNamespace(name string) string { return "$NS/" + name }

// standsIn reports that an object is there, and is to stay.
func (r *rig) standsIn(apiVersion, resource, ns, name string) bool {
	o, err := r.res(apiVersion, resource, ns).Get(context.Background(), name, metav1.GetOptions{})
	return err == nil && o.GetDeletionTimestamp() == nil
}
