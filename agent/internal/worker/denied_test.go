package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// Webhooks deny with codes of their own, such as that of a conflict, or that of another object which does not exist. Whatever it
// is, the denial is said, and the API server is not asked again all the time.
func TestDenialInOtherWords(t *testing.T) {
	const why = "team web has one already"
	for name, says := range map[string]metav1.Status{
		"conflict": {Code: http.StatusConflict, Message: why}, "not found": {Code: http.StatusNotFound, Message: why},
		"the reason of a conflict": {Reason: metav1.StatusReasonConflict, Message: why}, "the reason of what is not found": {Reason: metav1.StatusReasonNotFound, Message: why},
		"locked": {Code: http.StatusLocked, Message: why}, "the reason of what exists": {Reason: metav1.StatusReasonAlreadyExists, Message: why},
		"an error about a namespace": {Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: why,
			Details: &metav1.StatusDetails{RetryAfterSeconds: 3600, Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var denies atomic.Value
			denies.Store("CREATE")
			labtest.WebhookSaying(t, labConfig(t), r.ns, corev1.SchemeGroupVersion.WithResource("configmaps"), "ConfigMap", func(x labtest.Admitted) (string, *metav1.Status) {
				if x.Name == "a" && x.Operation == denies.Load() {
					said := says
					return "", &said
				}
				return "", nil
			})
			s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			said := func(x fleet.SyncStatus) bool {
				return x.Reason == "Forbidden" && strings.Contains(x.Message, why)
			}
			r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && said(x) })
			if counts, _ := r.count.take(); counts["PATCH"] > 20 {
				t.Errorf("requests %v", counts)
			}
			denies.Store("DELETE")
			r.m.retry(s.Module, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"})
			r.ready(s)
			r.set([]fleet.Sync{r.bundle("shop", nil, configMap("b", "k: v"))})
			r.wait("shop", "left with what may not go", func(x fleet.SyncStatus) bool { return len(x.Extras) == 1 && said(x) })
			denies.Store("")
			r.wait("shop", "rid of it", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 })
		})
	}
}

// The API server itself may find a conflict over something else, as its quotas do when many objects come at once. That is
// tried again with pauses, and said when it lasts.
func TestConflictOverSomethingElse(t *testing.T) {
	r := newRig(t)
	var full atomic.Bool
	full.Store(true)
	r.stop()
	r.answers(func(q *http.Request) *http.Response {
		if q.Method != http.MethodPatch || !full.Load() {
			return nil
		}
		return answer(q, http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,`+
			`"message":"Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified"}`)
	})
	r.start()
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, `resourcequotas "q"`)
	})
	full.Store(false)
	r.ready(s)
}

// TestDenialAsIfTheServerFailed: a webhook that denies with a code of a server that is busy or broken is not taken for the API server. What
// it may say otherwise in a moment has its time.
func TestDenialAsIfTheServerFailed(t *testing.T) {
	for code, reason := range map[int]string{408: "WebhookUnavailable", 413: "Forbidden", 429: "WebhookUnavailable", 500: "WebhookUnavailable", 503: "WebhookUnavailable", 504: "WebhookUnavailable"} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			r := newRig(t)
			var denies atomic.Bool
			denies.Store(true)
			r.webhookDenying(code, func(x labtest.Admitted) (string, string) {
				if x.Name == "a" && denies.Load() {
					return "", "cannot judge"
				}
				return "", ""
			})
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			x := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
				return len(x.Exceptions) == 1 && strings.Contains(x.Message, "cannot judge")
			})
			if x.Exceptions[0].Reason != reason {
				t.Errorf("%+v", x.Exceptions[0])
			}
			denies.Store(false)
			r.m.retry(s.Module, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"})
			r.ready(s)
		})
	}
}

// TestKindThatIsBeingDeleted is waited for, as a namespace is: what holds it up goes, and it comes again.
func TestKindThatIsBeingDeleted(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { r.undefine("gadgets") })
	def := r.bundle("def", nil, crd, gadget)
	r.set([]fleet.Sync{def})
	r.ready(def)
	r.patch(r.group()+"/v1", "gadgets", "g", "op", `{"metadata":{"finalizers":["example.com/stay"]}}`)
	r.undefine("gadgets")
	user := r.bundle("user", nil, strings.Replace(gadget, "name: g,", "name: h,", 1))
	r.set([]fleet.Sync{def, user})
	r.wait("user", "told", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Terminating" && strings.Contains(x.Message, "definition of its kind is being deleted")
	})
	r.patch(r.group()+"/v1", "gadgets", "g", "op", `{"metadata":{"finalizers":null}}`)
	r.ready(user)
}
