package worker

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// keepingAnew is a policy that makes an object again, with the value that a field had.
func keepingAnew(path string) []fleet.Policy {
	return []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, ApplyOnce: &fleet.ApplyOnce{Paths: []string{path}, When: fleet.OnceOnUpdate}}}
}

func jobWith(image string, parallelism, completions string) string {
	return strings.Replace(jobOf(image), "suspend: true", "suspend: true, parallelism: "+parallelism+", completions: "+completions, 1)
}

// What is rehearsed is what is made: with the values that a policy keeps.
func TestWhatIsKeptIsRehearsed(t *testing.T) {
	r := newRig(t)
	policies := keepingAnew("/spec/template/spec/containers/name=c/image")
	r.becomes(policies, jobWith("x:2", "1", "1"))
	uid := r.uidOf("batch/v1", "jobs", "once")
	r.deniesImage()
	s := r.bundle("shop", policies, jobWith("x:3", "1", "2"))
	r.set([]fleet.Sync{s})
	status := r.failed(s)
	if u := r.get("batch/v1", "jobs", "once"); u == nil || u.GetUID() != uid || !strings.Contains(status.Message, "nothing was deleted") {
		t.Errorf("deleted, though the new one is refused: %+v", status)
	}
}

// What is made again late has the values that a policy keeps.
func TestWhatIsKeptOutlivesAFinalizer(t *testing.T) {
	r := newRig(t)
	policies := keepingAnew("/spec/parallelism")
	r.becomes(policies, jobWith("x:1", "1", "1"))
	uid := r.uidOf("batch/v1", "jobs", "once")
	r.patch("batch/v1", "jobs", "once", "somebody", `{"metadata":{"finalizers":["example.com/slow"]}}`)
	s := r.bundle("shop", policies, jobWith("x:2", "5", "1"))
	r.set([]fleet.Sync{s})
	r.eventually("it is on its way out", func() bool { return r.get("batch/v1", "jobs", "once").GetDeletionTimestamp() != nil })
	r.wait("shop", "waits", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "being deleted") })
	r.patch("batch/v1", "jobs", "once", "somebody", `{"metadata":{"finalizers":null}}`)
	r.eventually("it is made again", func() bool { u := r.get("batch/v1", "jobs", "once"); return u != nil && u.GetUID() != uid })
	r.ready(s)
	if p, _, _ := unstructured.NestedInt64(r.get("batch/v1", "jobs", "once").Object, "spec", "parallelism"); p != 1 {
		t.Errorf("parallelism is %d", p)
	}
}
