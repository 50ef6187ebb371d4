package worker

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestAnnotatedBeforeItIsForced: an annotation that comes before a look which a write rests on counts, though no watch has told of it: the look by
// which conflicts are forced, and that by which fields are left by a policy.
func TestAnnotatedBeforeItIsForced(t *testing.T) {
	for name, policies := range map[string][]fleet.Policy{"conflict": nil, "left by a policy": {{IgnoreFields: &fleet.IgnoreFields{JSONPointers: []string{"/data/x"}}}}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.bundle("shop", policies, configMap("a", "k: one"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			var taken, noted sync.Once
			conflicts := policies != nil
			r.count.upset(func(q *http.Request) error {
				switch {
				case !strings.HasSuffix(q.URL.Path, "/configmaps/a"):
				case q.Method == http.MethodPatch && !conflicts:
					taken.Do(func() { conflicts = true; r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"}}`) })
				case q.Method == http.MethodGet && conflicts:
					noted.Do(func() { r.notes("a", fleet.HoldAnnotation, "mine") })
				}
				return nil
			})
			r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: two"))})
			r.annotated("shop", "a")
			if got := r.dataOf("a"); got == "two" {
				t.Error("it was written under the hold")
			}
			r.notes("a", fleet.HoldAnnotation, "null")
			r.eventually("it goes on", func() bool { return r.data("a", "k") == "two" })
		})
	}
}

// TestAnnotatedWhileItIsReleased: an annotation that comes between the look by which a policy leaves fields and the request that lets go of them counts:
// what is read after the conflict is not let go of, nor written.
func TestAnnotatedWhileItIsReleased(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: one, x: one"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	var noted sync.Once
	var again sync.Map
	r.count.upset(func(q *http.Request) error {
		if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/configmaps/a") || q.URL.Query().Get("fieldManager") == "kubectl-annotate" {
			return nil
		}
		first := false
		noted.Do(func() { first = true; r.notes("a", fleet.HoldAnnotation, "mine") })
		if !first && r.get("v1", "configmaps", "a").GetAnnotations()[fleet.HoldAnnotation] != "" {
			again.Store(q.Header.Get("Content-Type"), true)
		}
		return nil
	})
	policies := []fleet.Policy{{IgnoreFields: &fleet.IgnoreFields{JSONPointers: []string{"/data/x"}}}}
	r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: two, x: one"))})
	r.annotated("shop", "a")
	again.Range(func(kind, _ any) bool { t.Errorf("a %s was sent under the hold", kind); return true })
	if got := r.dataOf("a"); got == "two" {
		t.Error("it was written under the hold")
	}
	r.notes("a", fleet.HoldAnnotation, "null")
	r.eventually("it goes on", func() bool { return r.data("a", "k") == "two" })
}
