package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// gateServer answers a webhook gate in turn; the last answer stays.
type gateServer struct {
	*httptest.Server
	mu     sync.Mutex
	script []string
	asked  []map[string]any
}

func newGateServer(t *testing.T, script ...string) *gateServer {
	t.Helper()
	s := &gateServer{script: script}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.Close)
	return s
}

func (s *gateServer) answer(w http.ResponseWriter, r *http.Request) {
	var q map[string]any
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.script[min(len(s.asked), len(s.script)-1)]
	s.asked = append(s.asked, q)
	_, _ = fmt.Fprintf(w, `{"state": %q, "message": "error rate is 0.02"}`, next)
}

func (s *gateServer) questions() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any(nil), s.asked...)
}

// gated is a module with a canary stage that a gate follows.
func gated(value string, g *towlinev1.Gate) *towlinev1.Module {
	m := module("shop", configMap(value))
	m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{
		{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"canary": "yes"}}, After: []*towlinev1.Gate{g}},
		{Name: "rest"}}}
	return m
}

func (w *world) joinGated() {
	w.join("a", nil, map[string]string{"canary": "yes"})
	w.join("b", nil, nil)
	w.join("c", nil, nil)
}

// untilRollout watches the newest rollout until it is as wanted.
func (w *world) untilRollout(min int64, is func(*towlinev1.RolloutStatus) bool) *towlinev1.Rollout {
	w.t.Helper()
	st, err := w.Rollouts.WatchRollout(w.ctx, &towlinev1.WatchRolloutRequest{Module: "shop", MinRevision: min})
	must(w.t, err)
	for {
		m, err := st.Recv()
		must(w.t, err)
		if is(m.GetRollout().GetStatus()) {
			return m.GetRollout()
		}
		if m.GetEnded() {
			w.t.Fatalf("ended: %v", m.GetRollout().GetStatus())
		}
	}
}

func TestWebhookGateHoldsTheStageUntilItSucceeds(t *testing.T) {
	server := newGateServer(t, "Running", "Running", "Successful")
	w := newWorld(t, true)
	w.joinGated()
	ro := w.await("shop", w.put(gated("1", &towlinev1.Gate{Name: "smoke", Webhook: &towlinev1.WebhookGate{Url: server.URL + "/smoke", Interval: "20ms"}})).GetRevision())
	s := ro.GetStatus()
	if s.GetState() != "Succeeded" || s.GetSucceeded() != 3 {
		t.Fatalf("rollout: %v", s)
	}
	if g := s.GetStages()[0].GetGates()[0]; g.GetState() != "Successful" || g.GetFacts().GetDetail() != "error rate is 0.02" {
		t.Errorf("gate: %v", g)
	}
	asked := server.questions()
	if len(asked) != 3 {
		t.Fatalf("asked %d times: %v", len(asked), asked)
	}
	for i, q := range asked {
		if q["rollout"] != ro.GetId() || q["module"] != "default/shop" || q["stage"] != "canary" || q["position"] != "after" ||
			q["gate"] != "smoke" || q["revision"] != 1.0 || q["check"] != float64(i+1) || q["time"] == "" {
			t.Errorf("question %d: %v", i, q)
		}
	}
}

func TestFailedWebhookGatePausesAndIsNamed(t *testing.T) {
	server := newGateServer(t, "Failed")
	w := newWorld(t, true)
	w.joinGated()
	put := w.put(gated("1", &towlinev1.Gate{Name: "smoke", Webhook: &towlinev1.WebhookGate{Url: server.URL}}))
	s := w.untilRollout(put.GetRevision(), func(s *towlinev1.RolloutStatus) bool { return s.GetState() == "Paused" }).GetStatus()
	if s.GetReason() != "GateFailed" || s.GetSucceeded() != 1 || len(server.questions()) != 1 {
		t.Errorf("rollout: %v, asked %d times", s, len(server.questions()))
	}
	explained := fmt.Sprint(s.GetWaitingFor())
	if !strings.Contains(explained, "smoke") || !strings.Contains(explained, "error rate is 0.02") {
		t.Errorf("explained: %s", explained)
	}
}

func TestExpressionGateSeesTheClusters(t *testing.T) {
	w := newWorld(t, true)
	w.joinGated()
	holds := `clusters.filter(c, c.labels[?"canary"].orValue("") == "yes").all(c, c.ready && c.state == "Succeeded" && c.revision == rollout.revision) && clusters.size() == 3`
	ro := w.await("shop", w.put(gated("1", &towlinev1.Gate{Expression: &towlinev1.ExpressionGate{Expression: holds}})).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 3 {
		t.Fatalf("rollout: %v", s)
	}
}

func TestExpressionThatDoesNotCompileIsRefusedByItsPath(t *testing.T) {
	w := newWorld(t, true)
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: gated("1", &towlinev1.Gate{Expression: &towlinev1.ExpressionGate{Expression: "clusters.all(c, c.redy)"}})})
	if err == nil || !strings.Contains(err.Error(), "rollout.stages[0].after[0].expression.expression: line 1, column 18: undefined field 'redy'") {
		t.Errorf("%v", err)
	}
}
