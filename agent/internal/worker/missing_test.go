package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// An object is deleted to be made again, or a person deletes it while a revision comes, and admission denies the new one, which it did not do in
// a dry run: the object is said to be missing, and not that nothing is known of it.
func TestObjectWhoseSuccessorIsDeniedIsMissing(t *testing.T) {
	for name, before := range map[string]func(*rig){
		"it is made again": func(*rig) {},
		"a person deletes it while the agent is away": func(r *rig) {
			r.stop()
			r.delete("batch/v1", "jobs", "once")
			r.eventually("it is gone", func() bool { return r.get("batch/v1", "jobs", "once") == nil })
			r.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", recreate, jobOf("a:1"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			labtest.WebhookSaying(t, labConfig(t), r.ns, batchv1.SchemeGroupVersion.WithResource("jobs"), "Job", func(x labtest.Admitted) (string, *metav1.Status) {
				if x.Operation == "CREATE" && x.Name == "once" && !x.DryRun {
					return "", &metav1.Status{Message: "not for real"}
				}
				return "", nil
			})
			before(r)
			r.set([]fleet.Sync{r.bundle("shop", recreate, jobOf("a:2"))})
			x := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
			if x.States[0].Health != fleet.HealthMissing || x.States[0].Sync != fleet.SyncOutOfSync || !strings.Contains(x.Message, "not for real") {
				t.Errorf("status %+v", x)
			}
		})
	}
}

// A module is deleted with --orphan, and a policy of the cluster puts our marks back as they are taken off: the last word says so, for who comes
// later may take the object for ours.
func TestMarksThatAdmissionPutsBackAreTold(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	meta := r.get("v1", "configmaps", "a")
	labels, _ := json.Marshal(meta.GetLabels())
	annotations, _ := json.Marshal(meta.GetAnnotations())
	r.webhook(func(x labtest.Admitted) (string, string) {
		if x.Name != "a" || x.Operation != "UPDATE" {
			return "", ""
		}
		return `[{"op":"add","path":"/metadata/labels","value":` + string(labels) + `},{"op":"add","path":"/metadata/annotations","value":` + string(annotations) + `}]`, ""
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !strings.Contains(x.Message, r.ns+"/a (an admission policy or webhook of the cluster put the label towline.dev/hub back on it") || strings.Contains(x.Message, r.ns+"/b") {
		t.Errorf("the last word is %q", x.Message)
	}
}

// An API that is not registered any more says nothing of its objects: nobody is said to have deleted one of them. When it is back, with the same
// objects, they are the module's as before.
func TestObjectOfAnAPIThatIsNotRegisteredIsNotCalledDeleted(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Widget")
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, a.manifest("Widget", "a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	a.watched()
	apis := r.res("apiregistration.k8s.io/v1", "apiservices", "")
	registration, err := apis.Get(context.Background(), "v1."+a.group, metav1.GetOptions{})
	if err == nil {
		err = apis.Delete(context.Background(), registration.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("its path is unknown", func() bool {
		_, err := r.res(a.gv(), "widgets", r.ns).Get(context.Background(), "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && !kube.IsGone(err)
	})
	a.with(func(a *aggregate) { // as when it has lost its label
		a.version++
		u := unstructured.Unstructured{Object: a.objects["widgets/"+r.ns+"/a"]}
		u.SetResourceVersion(fmt.Sprint(a.version))
		a.told("DELETED", "widgets", u.Object)
	})
	x := r.wait("shop", "told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })
	if x.States[0].Health != fleet.HealthUnknown || !strings.Contains(x.Exceptions[0].Message, "does not serve its kind") {
		t.Errorf("status %+v", x)
	}
	registration.SetResourceVersion("")
	registration.SetUID("")
	if _, err := apis.Create(context.Background(), registration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.ready(s)
	if len(a.names()) != 1 {
		t.Errorf("there is %v", a.names())
	}
}

// One of several API servers of a group tells that an object is deleted, and another one, which is behind, has it still: it is not read over and
// over meanwhile.
func TestObjectThatIsDeletedAndReadIsNotReadOverAndOver(t *testing.T) {
	r := aloneRig(t)
	a := r.aggregated("Widget")
	s := r.bundle("shop", nil, a.manifest("Widget", "a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	var reads atomic.Int64
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/widgets/a") {
			reads.Add(1)
		}
		return nil
	})
	a.watched()
	begun := time.Now()
	a.with(func(a *aggregate) {
		a.version++
		a.told("DELETED", "widgets", a.objects["widgets/"+r.ns+"/a"])
	})
	r.eventually("it is read, and read again", func() bool { return reads.Load() >= 4 })
	if took := time.Since(begun); took < time.Second {
		t.Errorf("it was read %d times in %v", reads.Load(), took)
	}
}

// A policy of the cluster puts a finalizer on a Namespace: who deletes its module is told for what it waits.
func TestFinalizerOfANamespaceIsTold(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, ownNamespace)
	r.set([]fleet.Sync{s})
	r.ready(s)
	finalizers := func(list string) {
		if _, err := r.res("v1", "namespaces", "").Patch(context.Background(), r.ns+"-own", types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finalizers(`["example.com/stay"]`)
	told := func(x fleet.SyncStatus) bool {
		return len(x.Extras) == 1 && x.Extras[0].Reason == "Terminating" && strings.Contains(x.Extras[0].Message, "example.com/stay")
	}
	dead := r.tombstone("shop", fleet.DeleteDelete)
	r.set(nil, dead)
	r.wait("shop", "waiting for it", told)
	r.restart()
	r.set(nil, dead)
	r.wait("shop", "waiting for it, as an agent that finds it so", told)
	finalizers("null")
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}
