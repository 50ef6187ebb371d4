package hub

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

// figure is a metric that is read when somebody asks for it.
type figure struct {
	name, help string
	read       func() float64
}

// figures are the hub's own metrics. docs/operations.md lists them.
func (h *Hub) figures() []figure {
	return []figure{
		{"towline_store_bytes", "Bytes in use in the hub's own store; 0 with an etcd of one's own.", func() float64 { return float64(h.store.Usage().Bytes) }},
		{"towline_store_quota_bytes", "Bytes at which the hub's own store takes nothing more (--store-quota); 0 with an etcd of one's own.",
			func() float64 { return float64(h.store.Usage().Limit) }},
		{"towline_store_full", "1 while the store takes nothing that makes it larger.", func() float64 { return flag(h.store.Full() != nil) }},
		{"towline_store_records", "Records in the store, without contents.", func() float64 { return float64(h.store.Stats().Records) }},
		{"towline_store_damaged_records", "Records that cannot be read.", func() float64 { return float64(h.store.Stats().Corrupt) }},
		{"towline_store_unreadable_bundles", "Bundles that the newest collection of garbage could not read: what they may list is kept.",
			func() float64 { return float64(h.control.UnreadBundles()) }},
		{"towline_handshakes_open", "Connections that have not proved an identity yet.", func() float64 { return float64(h.greetAgents.Open() + h.greetPeople.Open()) }},
		{"towline_handshakes_cut", "Connections that were closed since the start because too many of them proved no identity.",
			func() float64 { return float64(h.greetAgents.Cut() + h.greetPeople.Cut()) }},
		{"towline_panics_recovered", "Bugs (panics) since the start that ended one piece of work and not the hub.", func() float64 { return float64(guard.Count()) }},
		{"towline_audit_lost", "Audit entries since the start that are in the hub's log only, as the store did not take them.", func() float64 { return float64(h.audits.Lost()) }},
		{"towline_clusters_copied", "Clusters whose agent's identity or state was copied, as far as is known.", h.copied},
		{"towline_agents_connected", "Agents that have a session with this hub.", func() float64 { return float64(h.sessions.Count()) }},
	}
}

// copied counts the clusters that say of themselves, or of which the registry says, that there are two agents with one identity.
func (h *Hub) copied() float64 {
	found := map[string]bool{}
	_ = h.store.View(context.Background(), 0, func(r store.Reader) error { // of a store that is closed nobody asks
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
		return nil
	})
	return float64(len(found))
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (h *Hub) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, f := range h.figures() {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: f.name, Help: f.help}, f.read))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return mux
}

// Whoever asks for metrics asks for little, and at once.
const metricsTimeout = 10 * time.Second

// serveMetrics serves them until ctx ends.
func (h *Hub) serveMetrics(ctx context.Context) error {
	s := &http.Server{Handler: h.metrics(), ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(h.o.Metrics); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
