package hub_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
)

// TestTwoAgentsAreCounted: an agent says that another process has its identity. The cluster shows it, and a metric counts it.
func TestTwoAgentsAreCounted(t *testing.T) {
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Telemetry.Metrics = true, metrics })
	w.join("a", nil, nil)
	must(t, w.agents["a"].Tell(fleet.Condition{Type: fleet.ConditionTwoAgents, Status: fleet.ConditionTrue, Reason: "StateCopied", Message: "there are two", Since: time.Now()}))
	w.awaitConditions("a", fleet.ConditionTwoAgents)
	resp, err := http.Get("http://" + metrics.Addr().String() + "/metrics")
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if !strings.Contains(string(body), "\ntowline_clusters_copied 1\n") {
		t.Errorf("the metrics do not count it:\n%s", body)
	}
}
