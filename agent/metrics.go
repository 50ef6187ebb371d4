package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/tracing"
)

// collectors are all of the agent's own metrics. docs/operations.md lists them.
func (a *Agent) collectors() []prometheus.Collector {
	return []prometheus.Collector{a.meter, a.tracer.Spans("towline_agent_spans_total"),
		telemetry.Flag("towline_agent_leading", "1 while this process has the Lease of its cluster, and keeps the cluster.", a.leading.Load),
		telemetry.Flag("towline_agent_api_server_reachable", "1 while the cluster's API server answers, as far as the process that has the Lease knows.", a.reach.Reachable),
		telemetry.Gauge("towline_agent_watches", "Kinds and single objects of the cluster that are watched.", func() float64 { return a.watches(false) }),
		telemetry.Gauge("towline_agent_watches_blind", "Watches that cannot be had: nothing is known of their objects.", func() float64 { return a.watches(true) }),
		telemetry.Gauge("towline_agent_panics_recovered", "Bugs (panics) since the start that ended one piece of work and not the agent.", func() float64 { return float64(guard.Count()) }),
	}
}

func (a *Agent) watches(blind bool) float64 {
	work := a.work.Load()
	if work == nil || !a.leading.Load() {
		return 0
	}
	open, dark := work.Watches()
	if blind {
		return float64(dark)
	}
	return float64(open)
}

// ready says why the agent cannot do its work now. One that waits for the Lease can take over, and one without its hub keeps its cluster.
func (a *Agent) ready(context.Context) error {
	switch {
	case !a.started.Load():
		return fleet.Errorf(fleet.ErrUnavailable, "the agent has not reached the API server of its cluster yet")
	case a.leading.Load() && !a.reach.Reachable():
		return fleet.Errorf(fleet.ErrUnavailable, "the API server of the cluster does not answer")
	}
	return nil
}

// serveTelemetry serves until what it returns is called.
func (a *Agent) serveTelemetry(ctx context.Context) (stop func()) {
	if !a.o.Telemetry.Any() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.o.Telemetry.Serve(ctx, telemetry.Process{Registry: telemetry.NewRegistry(a.collectors()...), Ready: a.ready, Log: a.o.Log}); err != nil {
			a.o.Log.Error("metrics and health are not served", "error", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// leads notes that the agent keeps the cluster, until what it returns is called.
func (a *Agent) leads() (end func()) {
	a.leading.Store(true)
	return func() {
		a.leading.Store(false)
		a.meter.Forget()
	}
}

// startTracing has spans sent, if somebody gets them. Which work is traced the hub says.
func (a *Agent) startTracing(ctx context.Context, instance string) (err error) {
	o := a.o.Tracing
	o.Sample = 1
	if a.tracer, err = tracing.Start(ctx, o, tracing.Process{Service: "towline-agent", Instance: instance, Log: a.o.Log.With("part", "tracing")}); a.tracer != nil {
		a.marks = tracing.NewMarks()
	}
	return err
}
