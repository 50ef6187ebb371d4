package control

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/rollout"
)

// Somebody retries a rollout that has ended, while a newer put waits for its source, or has failed at that.
func TestRetryBehindAPutIsRefused(t *testing.T) {
	for _, state := range []rollout.RunState{rollout.Pending, rollout.Failed} {
		l := newLeader(t)
		l.fleetOf("a", "b")
		l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbAbort})
		l.put(func(w store.Writer) {
			rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
			next := proto.CloneOf(rec)
			w.Put(store.ModuleKey(shop), next)
			ro := rolloutRecord(3, string(state))
			ro.Rollout.Revision = 0
			w.Put(rolloutKey(shop, ro), ro)
		})
		l.verb(2, &towlinev1.VerbRecord{Verb: rollout.VerbRetry})
		out := l.rollout(2).State.Verbs[1].Outcome
		if out.Accepted || !strings.Contains(out.Sentence, "shop/3 was put since") {
			t.Errorf("%s: %+v, and nothing starts", state, out)
		}
	}
}
