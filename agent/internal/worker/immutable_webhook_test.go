package worker

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// A webhook changes a field that cannot be changed in every update of an object, as one that names images anew, or that came, or was changed, after the
// object was made. What the module changes could be changed in place, so that the object is not deleted for that: a Job would run once more. What the
// module itself changes of such fields has it made again as ever.
func TestNothingIsMadeAgainForWhatAWebhookChanges(t *testing.T) {
	labelled := func(value, image string) string {
		return strings.Replace(jobOf(image), "{name: once,", "{name: once, labels: {team: "+value+"},", 1)
	}
	for name, tt := range map[string]struct {
		next string // of the module; empty: somebody else takes its label off
		anew bool
	}{
		"a label of the module":                {labelled("b", "x:1"), false},
		"a label that somebody took off":       {"", false},
		"a field of the module that cannot be": {labelled("a", "x:2"), true},
		"both":                                 {labelled("b", "x:2"), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var on atomic.Bool
			labtest.WebhookSaying(t, labConfig(t), r.ns, batchv1.SchemeGroupVersion.WithResource("jobs"), "Job", func(x labtest.Admitted) (string, *metav1.Status) {
				if x.Operation != "UPDATE" || x.Options.FieldManager == "somebody" || !on.Load() {
					return "", nil
				}
				return `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"mirror.example/x"}]`, nil
			})
			s := r.bundle("shop", recreate, labelled("a", "x:1"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			was := r.uidOf("batch/v1", "jobs", "once")
			on.Store(true)
			if tt.next == "" {
				r.patch("batch/v1", "jobs", "once", "somebody", `{"metadata":{"labels":{"team":null}}}`)
				r.wait("shop", "said", func(x fleet.SyncStatus) bool {
					return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Immutable" || r.uidOf("batch/v1", "jobs", "once") != was
				})
			} else {
				s = r.bundle("shop", recreate, tt.next)
				r.set([]fleet.Sync{s})
				if tt.anew {
					r.applied(s)
				} else if got := r.failed(s); got.Reason != "Immutable" || !strings.Contains(got.Message, "admission") {
					t.Errorf("status %+v", got)
				}
			}
			if anew := r.uidOf("batch/v1", "jobs", "once") != was; anew != tt.anew {
				t.Errorf("made again: %t, want %t", anew, tt.anew)
			}
		})
	}
}

// The same webhook, which is asked about updates only, cannot make up its mind when it is asked once more whether it is what changes the Job: nothing is
// deleted for want of its answer, and nobody is told that it is the module. What the module changes itself needs no answer.
func TestNothingIsMadeAgainWithoutTheAnswerOfAWebhook(t *testing.T) {
	for name, tt := range map[string]struct {
		next string
		anew bool
	}{
		"a label of the module": {strings.Replace(jobOf("x:1"), "{name: once,", "{name: once, labels: {team: b},", 1), false},
		"a field of the module": {jobOf("x:2"), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var on, asked atomic.Bool
			labtest.WebhookSaying(t, labConfig(t), r.ns, batchv1.SchemeGroupVersion.WithResource("jobs"), "Job", func(x labtest.Admitted) (string, *metav1.Status) {
				switch {
				case x.Operation != "UPDATE" || !on.Load():
					return "", nil
				case x.DryRun:
					asked.Store(true)
					return "", &metav1.Status{Code: http.StatusInternalServerError, Message: "its own database does not answer"}
				}
				return `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"mirror.example/x"}]`, nil
			})
			s := r.bundle("shop", recreate, jobOf("x:1"))
			r.set([]fleet.Sync{s})
			r.applied(s)
			was := r.uidOf("batch/v1", "jobs", "once")
			on.Store(true)
			s = r.bundle("shop", recreate, tt.next)
			r.set([]fleet.Sync{s})
			if tt.anew {
				r.applied(s)
			} else {
				r.wait("shop", "said", func(x fleet.SyncStatus) bool {
					return x.Generation == s.Generation && strings.Contains(x.Message, "its own database does not answer") || r.uidOf("batch/v1", "jobs", "once") != was
				})
			}
			if anew := r.uidOf("batch/v1", "jobs", "once") != was; anew != tt.anew || !asked.Load() {
				t.Errorf("made again: %t, want %t; asked: %t", anew, tt.anew, asked.Load())
			}
		})
	}
}
