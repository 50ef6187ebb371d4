package worker

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestUsedNamespaceThatOthersWriteTo: somebody writes to a Namespace each time that a module is about to put its first labels on it, as operators do with
// one that was just made. That is no failure of the module.
func TestUsedNamespaceThatOthersWriteTo(t *testing.T) {
	r := aloneRig(t)
	r.stop()
	var writes atomic.Int32
	r.answers(func(q *http.Request) *http.Response {
		if q.Method != http.MethodPatch || !strings.HasSuffix(q.URL.Path, "/namespaces/"+r.ns) || writes.Load() == versionTries {
			return nil
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"uid":`)) { // not the one that is to make it, were it not there
			r.label(r.ns, "operator", fmt.Sprintf(`{"seen":"%d"}`, writes.Add(1)))
		}
		return nil
	})
	r.start()
	s := r.bundle("shop", nil, namespace("$NS", "team: ours"), configMap("a", "k: v"))
	r.neverFails("somebody else labels the Namespace", s)
	if writes.Load() != versionTries || r.namespace(r.ns).GetLabels()["team"] != "ours" {
		t.Errorf("%d writes, labels %v", writes.Load(), r.namespace(r.ns).GetLabels())
	}
}
