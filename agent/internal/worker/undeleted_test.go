package worker

import (
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestDeletionThatDoesNothing: what the API server, or an API server of a kind's own, says of a deletion is no word on the object: one that is
// still there is not said to be on its way, and what refuses each deletion is told.
func TestDeletionThatDoesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		code       int
		body, says string
	}{
		"refused as a conflict": {http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":"a lock of its own"}`, "a lock of its own"},
		"not found by its path": {http.StatusNotFound, "404 page not found", "nothing has come of it yet"},
		"taken":                 {http.StatusOK, `{"kind":"Status","apiVersion":"v1","status":"Success"}`, "is still there"},
		"taken by a page":       {http.StatusOK, "<html>hello</html>", "is still there"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.stop()
			r.answers(func(q *http.Request) *http.Response {
				if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/configmaps/x") {
					return answer(q, c.code, c.body)
				}
				return nil
			})
			r.start()
			s := r.bundle("shop", nil, configMap("x", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "told", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseRemoving && len(x.Extras) == 1 && x.Extras[0].Reason == "Removing" && strings.Contains(x.Extras[0].Message, c.says)
			})
			r.is("x", "v")
		})
	}
}
