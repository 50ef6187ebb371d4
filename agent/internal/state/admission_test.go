package state

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/testkit/labtest"
)

// What a cluster's admission takes off the Secrets of the state would be missed only when the agent starts anew: its state would be empty then, or in
// pieces, and an agent that had lost the Lease could write over it. No such write counts as taken, a state is not taken over by one, and none is
// lost while that is tried.
func TestStateThatAdmissionChanges(t *testing.T) {
	for name, patch := range map[string]string{
		"annotations": `{"op":"remove","path":"/metadata/annotations"}`,
		"epoch":       `{"op":"add","path":"/metadata/annotations/towline.dev~1state-epoch","value":""}`,
		"chunks":      `{"op":"add","path":"/metadata/annotations/towline.dev~1state-chunks","value":"7"}`,
		"labels":      `{"op":"remove","path":"/metadata/labels"}`,
		"data":        `{"op":"add","path":"/data/data","value":"AAAA"}`,
	} {
		t.Run(name, func(t *testing.T) {
			config := labtest.Config(t)
			ns, c := realPlace(t)
			p := c.leader(t, 5)
			p.write("a", "one")
			var changes atomic.Bool
			labtest.Webhook(t, config, ns, corev1.SchemeGroupVersion.WithResource("secrets"), "Secret", func(x labtest.Admitted) (string, string) {
				if x.Operation == "DELETE" || !changes.Load() {
					return "", ""
				}
				return "[" + patch + "]", ""
			})
			changes.Store(true)
			for _, data := range []string{"two", "two", strings.Repeat("x", 700<<10)} {
				if err := p.Write(t.Context(), "b", []byte(data)); err == nil || !strings.Contains(err.Error(), "state b: secret towline-state-") || !strings.Contains(err.Error(), "admission") {
					t.Errorf("a write of which something else is kept: %v", err)
				}
			}
			q := c.process(t)
			if err := q.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: 6}); err == nil || !strings.Contains(err.Error(), "admission") {
				t.Errorf("taken, though who takes it next would not know: %v", err)
			}
			changes.Store(false)
			p.write("b", "three")
			q.take(6)
			q.holds("a=one", "b=three")
		})
	}
}

// TestStateThatAdmissionStamps: what others put on the Secrets of the state is theirs to change with every write, as a policy that notes who wrote last
// and when does.
func TestStateThatAdmissionStamps(t *testing.T) {
	for name, patch := range map[string]string{
		"annotation": `{"op":"add","path":"/metadata/annotations/example.com~1written","value":"%d"}`,
		"label":      `{"op":"add","path":"/metadata/labels/example.com~1written","value":"%d"}`,
	} {
		t.Run(name, func(t *testing.T) {
			large := strings.Repeat("x", 700<<10)
			config := labtest.Config(t)
			ns, c := realPlace(t)
			p := c.leader(t, 5)
			var writes atomic.Int64
			labtest.Webhook(t, config, ns, corev1.SchemeGroupVersion.WithResource("secrets"), "Secret", func(x labtest.Admitted) (string, string) {
				if x.Operation == "DELETE" {
					return "", ""
				}
				return "[" + fmt.Sprintf(patch, writes.Add(1)) + "]", ""
			})
			p.write("a", "one")
			p.write("b", large)
			p.write("a", "two")
			for epoch := uint64(6); epoch < 9; epoch++ {
				p = c.process(t)
				p.take(epoch)
				p.write("a", "two")
			}
			p.holds("a=two", "b="+large[:10])
		})
	}
}

// TestStateThatAdmissionDenies: a webhook that denies a write as if the Secret did not exist, or existed already, as validators do that look for another
// object, takes nothing from the state. Who takes it fails, and has it all when the webhook lets it.
func TestStateThatAdmissionDenies(t *testing.T) {
	large := strings.Repeat("x", 700<<10)
	for name, says := range map[string]metav1.Status{
		"not found": {Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "no tenant"},
		"exists":    {Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists, Message: "no tenant"},
		"conflict":  {Code: http.StatusConflict, Message: "no tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			config := labtest.Config(t)
			ns, c := realPlace(t)
			p := c.leader(t, 5)
			p.write("a", "one")
			p.write("b", large)
			var denies atomic.Bool
			denies.Store(true)
			labtest.WebhookSaying(t, config, ns, corev1.SchemeGroupVersion.WithResource("secrets"), "Secret", func(x labtest.Admitted) (string, *metav1.Status) {
				if !denies.Load() || x.Name == headName(tenureName) {
					return "", nil
				}
				said := says
				return "", &said
			})
			q := c.process(t)
			for what, err := range map[string]error{
				"a new part": p.Write(t.Context(), "c", []byte("one")), "a large one": p.Write(t.Context(), "d", []byte(large)), "a change": p.Write(t.Context(), "a", []byte("two")),
				"the end of a part": p.Remove(t.Context(), "b"), "the taking": q.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: 6}),
			} {
				if err == nil || !strings.Contains(err.Error(), "no tenant") {
					t.Errorf("%s is denied: %v", what, err)
				}
			}
			denies.Store(false)
			q.take(6)
			q.holds("a=one", "b="+large[:10])
		})
	}
}

// realPlace is a namespace of a real API server, and clients of it.
func realPlace(t *testing.T) (ns string, c clients) {
	t.Helper()
	config := labtest.Config(t)
	client, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	all, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ns = fmt.Sprintf("state-%d", time.Now().UnixNano())
	if _, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{}) })
	return ns, clients{client.Secrets(ns), all.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(ns)}
}
