package hub

import (
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/meter"
	"towline.dev/towline/pkg/telemetry/telemetrytest"
)

// Every metric that a hub registers is in docs/operations.md, and the reverse.
func TestMetricsAreListed(t *testing.T) {
	h := &Hub{meter: meter.New(), calls: newCalls()}
	var registered []string
	for _, c := range h.collectors() {
		registered = append(registered, telemetrytest.Names(c)...)
	}
	listed := slices.DeleteFunc(telemetrytest.Listed(t, "../docs/operations.md"), func(n string) bool { return strings.HasPrefix(n, "towline_agent_") })
	telemetrytest.Same(t, registered, listed)
}
