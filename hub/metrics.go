package hub

import (
	"context"
	"strings"
	"time"

	grpcprometheus "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health/grpc_health_v1"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/telemetry"
)

// figures are the hub's metrics that are read when somebody asks for them. docs/operations.md lists all of them.
func (h *Hub) figures() []prometheus.Collector {
	gauge, count := telemetry.Gauge, telemetry.Count
	return append(h.storeFigures(),
		gauge("towline_handshakes_open", "Connections that have not proved an identity yet.", func() float64 { return float64(h.greetAgents.Open() + h.greetPeople.Open() + h.greetHooks.Open()) }),
		gauge("towline_handshakes_cut", "Connections that were closed since the start because too many of them proved no identity.",
			func() float64 { return float64(h.greetAgents.Cut() + h.greetPeople.Cut() + h.greetHooks.Cut()) }),
		gauge("towline_panics_recovered", "Bugs (panics) since the start that ended one piece of work and not the hub.", func() float64 { return float64(guard.Count()) }),
		gauge("towline_audit_lost", "Audit entries since the start that are in the hub's log only, as the store did not take them.", func() float64 { return float64(h.audits.Lost()) }),
		gauge("towline_clusters_copied", "Clusters whose agent's identity or state was copied, as far as is known.", h.copied),
		gauge("towline_clusters_locked", "Clusters whose agents are kept out until a person unlocks them.", h.locked),
		gauge("towline_agents_connected", "Agents that have a session with this hub.", func() float64 { return float64(h.sessions.Count()) }),
		gauge("towline_clusters", "Clusters of the fleet.", h.counted(store.ClusterPrefix)),
		gauge("towline_modules", "Modules of all projects.", h.counted(store.ModulePrefix)),
		gauge("towline_holds", "What people hold, and what waits for a person's confirm.", h.counted(store.HoldPrefix)),
		telemetry.Gauges("towline_rollouts", "Rollouts in the store, by state.", "state", h.rollouts),
		telemetry.Flag("towline_leading", "1 while this hub drives the modules.", h.control.Leads),
		gauge("towline_work_overdue_seconds", "Time for which the work has waited that waits longest of what should be done by now.",
			func() float64 { return h.control.Overdue().Seconds() }),
		count("towline_store_relists_total", "Times that the watch of the store was lost and everything read again.", func() float64 { return float64(h.store.Stats().Relists) }),
	)
}

// storeFigures are those of the store.
func (h *Hub) storeFigures() []prometheus.Collector {
	gauge := telemetry.Gauge
	return []prometheus.Collector{
		gauge("towline_store_bytes", "Bytes in use in the hub's own store; 0 with an etcd of one's own.", func() float64 { return float64(h.store.Usage().Bytes) }),
		gauge("towline_store_quota_bytes", "Bytes at which the hub's own store takes nothing more (--store-quota); 0 with an etcd of one's own.",
			func() float64 { return float64(h.store.Usage().Limit) }),
		telemetry.Flag("towline_store_full", "1 while the store takes nothing that makes it larger.", func() bool { return h.store.Full() != nil }),
		gauge("towline_store_records", "Records in the store, without contents.", func() float64 { return float64(h.store.Stats().Records) }),
		gauge("towline_store_damaged_records", "Records that cannot be read.", func() float64 { return float64(h.store.Stats().Corrupt) }),
		gauge("towline_store_unreadable_bundles", "Bundles that the newest collection of garbage could not read: what they may list is kept.",
			func() float64 { return float64(h.control.UnreadBundles()) }),
	}
}

// counted counts the records with a prefix.
func (h *Hub) counted(prefix string) func() float64 {
	return func() float64 {
		n := 0
		h.look(func(r store.Reader) {
			r.Scan(prefix, func(store.Entry) bool { n++; return true })
		})
		return float64(n)
	}
}

// rollouts counts them by state.
func (h *Hub) rollouts() map[string]float64 {
	out := map[string]float64{}
	h.look(func(r store.Reader) {
		rollouts.All(r, "", func(x *storev1.RolloutRecord, _ store.Entry) { out[x.GetRollout().GetStatus().GetState()]++ })
	})
	return out
}

// look reads what the store has now. Of one that is closed nobody asks.
func (h *Hub) look(fn func(store.Reader)) {
	_ = h.store.View(context.Background(), 0, func(r store.Reader) error {
		fn(r)
		return nil
	})
}

// copied counts the clusters that say of themselves, or of which the registry says, that there are two agents with one identity.
func (h *Hub) copied() float64 {
	found := map[string]bool{}
	h.look(func(r store.Reader) {
		store.Scan(r, store.ClusterPrefix, func(c *storev1.ClusterRecord, e store.Entry) bool {
			if a := c.GetAttention(); a == fleet.AttentionCloned || a == fleet.AttentionCopied || a == fleet.AttentionOtherCluster {
				found[strings.TrimPrefix(e.Key, store.ClusterPrefix)] = true
			}
			return true
		})
		store.Scan(r, store.ConditionPrefix, func(c *storev1.ConditionsRecord, e store.Entry) bool {
			for _, x := range c.GetConditions() {
				if x.GetType() == string(fleet.ConditionTwoAgents) {
					found[strings.TrimPrefix(e.Key, store.ConditionPrefix)] = true
				}
			}
			return true
		})
	})
	return float64(len(found))
}

// locked counts the clusters that are locked.
func (h *Hub) locked() float64 {
	n := 0
	h.look(func(r store.Reader) {
		store.Scan(r, store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
			if c.GetLock() != nil {
				n++
			}
			return true
		})
	})
	return float64(n)
}

// newCalls counts the calls of all services, and what goes on streams; agents' sessions and people's watches are some of them.
func newCalls() *grpcprometheus.ServerMetrics {
	return grpcprometheus.NewServerMetrics(grpcprometheus.WithServerHandlingTimeHistogram())
}

// collectors are all of the hub's own metrics.
func (h *Hub) collectors() []prometheus.Collector {
	return append(h.figures(), h.meter, h.calls, h.tracer.Spans("towline_spans_total"))
}

// ready says why the hub cannot do its work now.
func (h *Hub) ready(ctx context.Context) error {
	for _, s := range h.health {
		got, err := s.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			return err
		}
		if got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			return fleet.Errorf(fleet.ErrUnavailable, "the hub does not serve yet, or is stopping")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	_, err := h.store.Barrier(ctx)
	return err
}

// storePatience is how long a store may take to say where it is until the hub counts as not ready.
const storePatience = 2 * time.Second
