package worker

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// A webhook takes its time for each write, as one that looks at the signatures of images: an update that shows that a field cannot be changed, and what
// is asked before an object is made again, leave no less time to delete and to make it.
func TestObjectIsMadeAgainBehindASlowWebhook(t *testing.T) {
	r := newRig(t)
	const most = 3 * time.Second
	r.restart(func(o *Options) { o.objectTime = most })
	s := r.bundle("shop", recreate, jobOf("a:1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	labtest.Webhook(t, labConfig(t), r.ns, batchv1.SchemeGroupVersion.WithResource("jobs"), "Job", func(x labtest.Admitted) (patch, denied string) {
		if x.Name == "once" && (x.Options.FieldManager == fleet.FieldManager || x.Operation == "DELETE") {
			slowly := time.NewTimer(most * 3 / 10)
			<-slowly.C
		}
		return "", ""
	})
	s = r.bundle("shop", recreate, jobOf("a:2"))
	r.set([]fleet.Sync{s})
	r.applied(s)
}
