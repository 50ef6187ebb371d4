package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestGateOfAnotherModuleOfTheNameHasAnotherKey: a module is deleted and put again, and its rollouts have the same numbers: who answers a webhook by
// its Idempotency-Key does not take the question for the one of before. So it is with a rollout that a retry began.
func TestGateOfAnotherModuleOfTheNameHasAnotherKey(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if key := r.Header.Get("Idempotency-Key"); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
		_, _ = fmt.Fprint(w, `{"state": "Failed"}`)
	}))
	t.Cleanup(server.Close)
	w := newWorld(t, true)
	w.joinGated()
	for range 2 {
		w.put(gated("1", &towlinev1.Gate{Name: "smoke", Webhook: &towlinev1.WebhookGate{Url: server.URL}}))
		failed := func(number int64) {
			w.until("shop", 1, func(r *towlinev1.Rollout) bool {
				return r.GetNumber() == number && r.GetStatus().GetReason() == "GateFailed"
			})
		}
		failed(1)
		_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop", Reason: "broken"})
		must(t, err)
		_, err = w.Rollouts.RetryRollout(w.ctx, &towlinev1.RetryRolloutRequest{Module: "shop"})
		must(t, err)
		failed(2)
		_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
		must(t, err)
		w.eventually(func() bool {
			_, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "shop"})
			return status.Code(err) == codes.NotFound
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) != 4 {
		t.Errorf("of four gates the keys are %v", keys)
	}
}
