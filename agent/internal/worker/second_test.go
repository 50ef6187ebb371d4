package worker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// via has another API server of the cluster answer all requests of the agent. The test's own are answered by the first one.
func (r *rig) via(s *labtest.Second) {
	r.count.upset(func(q *http.Request) error {
		q.URL.Host = s.Host
		return nil
	})
	r.conns.cut()
}

// A second real API server answers the agent. What it knows by watches of the store (the definitions of kinds, what is served, what it tells to
// watches) stands still, and what has to be of now it reads from the store, after three seconds of waiting for its watches.
//
// On a machine that has much else to do the minute that an object has is too short for what such a server needs for each list.
func TestSecondAPIServerThatStandsStill(t *testing.T) {
	standsStill(t, []secondCase{
		{"a Namespace has what is of a kind that it does not know yet", kindUnknownToSecond},
		{"an owner that has no namespace goes, of Kubernetes' own kinds", ownerUnknownToSecond},
		{"a Namespace goes though each list takes seconds", namespaceGoesBySecond},
		{"what a controller says of a change is not told", wordUntoldBySecond},
	})
}

type secondCase struct {
	name string
	run  func(*rig, *labtest.Second)
}

// standsStill runs cases beside a second API server, one after the other.
func standsStill(t *testing.T, cases []secondCase) {
	if os.Getenv("TOWLINE_SOAK") == "" {
		t.Skip("needs the machine for itself: set TOWLINE_SOAK, or run make soak")
	}
	labConfig(t)
	second := labtest.StartSecond(t)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := aloneRig(t)
			defer second.Thaw()
			tc.run(r, second)
		})
	}
}

// kindUnknownToSecond: the kind comes to a version of a group that is served before, so that no registration tells of it.
func kindUnknownToSecond(r *rig, second *labtest.Second) {
	r.define("widgets", "Widget", "v1")
	r.knownTo(second, "v1", "widgets")
	r.via(second)
	s := r.bundle("shop", nil, ownNamespace)
	r.set([]fleet.Sync{s})
	r.ready(s)
	second.Freeze()
	r.define("gadgets", "Gadget", "v1")
	r.create(r.group()+"/v1", "gadgets", r.ns+"-own", map[string]any{"apiVersion": r.group() + "/v1", "kind": "Gadget", "metadata": map[string]any{"name": "hers"}})
	r.t.Cleanup(func() {
		_ = r.res("v1", "namespaces", "").Delete(context.Background(), r.ns+"-own", metav1.DeleteOptions{})
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || strings.Contains(x.Message, "gadgets."+r.group()+behindText)
	})
	second.Thaw()
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if ns := r.namespace(r.ns + "-own"); ns == nil || ns.GetDeletionTimestamp() != nil || !strings.Contains(x.Message, " hers") {
		r.t.Errorf("the namespace went with what somebody else has in it: %+v", x)
	}
}

func ownerUnknownToSecond(r *rig, second *labtest.Second) {
	owner := "owner-" + r.ns
	r.t.Cleanup(func() {
		_ = r.res(rbacV1, "clusterroles", "").Delete(context.Background(), owner, metav1.DeleteOptions{})
	})
	r.via(second)
	s := r.bundle("shop", nil, "apiVersion: "+rbacV1+"\nkind: ClusterRole\nmetadata: {name: owner-$NS}\nrules: []\n", certificate("b2xk"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "s")
	second.Freeze()
	role, err := r.res(rbacV1, "clusterroles", "").Get(context.Background(), owner, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.patch("v1", "secrets", "s", "operator", fmt.Sprintf(
		`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"ClusterRole","name":%q,"uid":%q}]}}`, rbacV1, owner, role.GetUID()))
	r.set([]fleet.Sync{r.bundle("shop", nil, certificate("b2xk"))})
	r.eventually("the owner is gone", func() bool {
		_, err := r.res(rbacV1, "clusterroles", "").Get(context.Background(), owner, metav1.GetOptions{})
		return err != nil
	})
	r.collected()
	if u := r.get("v1", "secrets", "s"); u == nil || u.GetUID() != uid || len(u.GetOwnerReferences()) > 0 {
		r.t.Errorf("the secret is %v", u)
	}
}

func namespaceGoesBySecond(r *rig, second *labtest.Second) {
	r.via(second)
	s := r.bundle("shop", nil, ownNamespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: $NS-own}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	second.Freeze()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("the namespace goes", func() bool {
		ns := r.namespace(r.ns + "-own")
		return ns == nil || ns.GetDeletionTimestamp() != nil
	})
	second.Thaw()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// wordUntoldBySecond: the status does not say of which generation it is, so that it counts once nobody has said another word of the change. Somebody
// has, and the watch does not tell.
func wordUntoldBySecond(r *rig, second *labtest.Second) {
	r.via(second)
	definition := crd + "    subresources: {status: {}}\n"
	s := r.bundle("shop", nil, definition, gadget)
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":{"phase":"Running"}}`, "status")
	r.ready(s)
	second.Freeze()
	next := r.bundle("shop", nil, definition, strings.Replace(gadget, "size: 1", "size: 2", 1))
	r.set([]fleet.Sync{next})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied })
	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":{"phase":"Failed","message":"no power"}}`, "status")
	got := r.wait("shop", "judged", func(x fleet.SyncStatus) bool { return x.Ready || strings.Contains(x.Message, "no power") })
	if got.Ready {
		r.t.Errorf("ready, and its controller has said that it failed: %+v", got)
	}
}
