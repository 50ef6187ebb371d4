package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// TestQuotaThatIsRaisedWithWhatNeedsIt: a revision raises a quota and brings what needs the room. The API server goes by the quota
// that its controller has noted last, which is a moment later: that is no failure.
func TestQuotaThatIsRaisedWithWhatNeedsIt(t *testing.T) {
	r := newRig(t)
	var services []string
	for i := range 6 {
		services = append(services, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: $NS}\nspec: {ports: [{port: 80}]}\n", i))
		quota := fmt.Sprintf("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: $NS}\nspec: {hard: {services: \"%d\"}}\n", len(services))
		s := r.bundle("shop", nil, append([]string{quota}, services...)...)
		r.neverFails(fmt.Sprint("revision ", i), s)
	}
}

// TestDenialThatPasses: an admission webhook denies what it does not know yet, and lets it pass a moment later. That is no failure;
// a denial that lasts is one.
func TestDenialThatPasses(t *testing.T) {
	for name, code := range map[string]int{"forbidden": http.StatusForbidden, "bad request": http.StatusBadRequest, "invalid": http.StatusUnprocessableEntity} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var denials atomic.Int32
			denials.Store(1)
			r.webhookDenying(code, func(x labtest.Admitted) (string, string) {
				if x.Name == "a" && denials.Add(-1) >= 0 {
					return "", "class web is not known"
				}
				return "", ""
			})
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			r.wait("shop", "told", func(x fleet.SyncStatus) bool {
				return x.Ready || strings.Contains(x.Message, "class web is not known")
			})
			r.ready(s)
			if said := r.heard.String(); strings.Contains(said, "Phase:Failed") || !strings.Contains(said, "class web is not known") {
				t.Error("it failed, or did not say what it waits for")
			}
			denials.Store(1000)
			s = r.bundle("shop", nil, configMap("a", "k: w"))
			r.set([]fleet.Sync{s})
			if x := r.failed(s); !strings.Contains(x.Message, "class web is not known") {
				t.Error(x.Message)
			}
		})
	}
}

// What is denied is no verdict for a moment, and then it is one, however often it was tried.
func TestPassingDenial(t *testing.T) {
	w, now := &worker{m: &Manager{o: Options{Reachable: func() bool { return true }}}}, time.Now()
	for after, want := range map[time.Duration]bool{0: true, deniedFor - 1: true, deniedFor: false} {
		it := &item{tries: 9, fail: &apply.Failure{Reason: apply.ReasonForbidden, Denied: true, Since: now.Add(-after)}}
		if got := w.passing(it, now); got != want {
			t.Errorf("after %s: %t", after, got)
		}
	}
}

// TestPortThatIsFreeInAMoment: a revision gives the port of one Service to another one that comes before it, and that one another
// port. The API server has the port free a moment later: that is no failure. One that stays taken is.
func TestPortThatIsFreeInAMoment(t *testing.T) {
	r := newRig(t)
	var ports []int64
	for _, name := range []string{"w", "x", "y", "z"} {
		r.create("v1", "services", r.ns, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"type": "NodePort", "ports": []any{map[string]any{"port": int64(80)}}}})
		list, _, _ := unstructured.NestedSlice(r.get("v1", "services", name).Object, "spec", "ports")
		port, _ := list[0].(map[string]any)["nodePort"].(int64)
		ports = append(ports, port)
	}
	for _, name := range []string{"w", "x", "y"} {
		r.delete("v1", "services", name)
	}
	service := func(name string, port int64) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: $NS}\nspec: {type: NodePort, ports: [{port: 80, nodePort: %d}]}\n", name, port)
	}
	for i := range 9 {
		s := r.bundle("shop", nil, service("a", ports[i%3]), service("b", ports[(i+1)%3]))
		r.neverFails(fmt.Sprint("revision ", i), s)
	}
	s := r.bundle("shop", nil, service("a", ports[2]), service("b", ports[3]))
	r.set([]fleet.Sync{s})
	if x := r.failed(s); !strings.Contains(x.Message, "already allocated") {
		t.Error(x.Message)
	}
}
