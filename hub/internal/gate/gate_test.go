package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shop = fleet.ModuleRef{Project: "default", Name: "shop"}

func gates(t *testing.T, o Options) *Gates {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.HTTP.RetryWait = time.Millisecond
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func say(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// runOf is a rollout of shop with one stage, of which these gates are open, and the checks for them.
func runOf(t *testing.T, number int64, list ...rollout.Gate) (*rollouts.Run, []rollout.Check) {
	t.Helper()
	s, err := rollout.Strategy{Stages: []rollout.Stage{{Name: "canary", After: list}}}.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	clusters := []rollout.Candidate{{Cluster: fleet.Cluster{Name: "a"}, Selected: true}, {Cluster: fleet.Cluster{Name: "b"}, Selected: true}}
	p, state, err := rollout.NewPlan(s, rollout.PlanInput{ID: fleet.RolloutID{Module: shop, Number: number}, Revision: 7, Clusters: clusters})
	if err != nil {
		t.Fatal(err)
	}
	run := &rollouts.Run{Module: shop, Number: number, Plan: p, State: state,
		Observed: []rollout.Observed{{Ready: true, Revision: 7}, {Gone: true}}, Labels: []map[string]string{{"env": "prod"}, nil}}
	var checks []rollout.Check
	for _, g := range p.Stages[0].After {
		checks = append(checks, rollout.Check{Position: rollout.After, Gate: g.Name, Number: 1})
	}
	return run, checks
}

// answer runs one gate to its answer.
func answer(t *testing.T, g *Gates, spec rollout.Gate) rollout.GateResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, checks := runOf(t, 1, spec)
	done := make(chan struct{}, 1)
	g.Run(ctx, run, checks, func() { done <- struct{}{} })
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("no answer")
	}
	got := g.Results(run)
	if len(got) != 1 {
		t.Fatalf("results: %v", got)
	}
	return got[0]
}

func TestExpressionSeesMembersThatAreThere(t *testing.T) {
	for src, want := range map[string]rollout.GateState{
		"clusters.size() == 1 && clusters[0].labels['env'] == 'prod' && clusters[0].ready && rollout.stage == 'canary'": rollout.GateSuccessful,
		"clusters[0].state == 'Succeeded'": rollout.GateRunning,
		"clusters[5].ready":                rollout.GateError,
	} {
		got := answer(t, gates(t, Options{}), rollout.Gate{Expression: &rollout.Expression{Expression: src}})
		if got.Outcome != want || got.Number != 1 || got.Gate != "expression" || got.Position != rollout.After {
			t.Errorf("%s: %+v", src, got)
		}
	}
}

// TestACheckIsAskedOncePerNumber: decisions come as often as reports do; the server hears of each number once.
func TestACheckIsAskedOncePerNumber(t *testing.T) {
	var asked atomic.Int32
	u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"state": "Running"}`))
	})
	g := gates(t, Options{})
	run, checks := runOf(t, 1, rollout.Gate{Webhook: &rollout.Webhook{URL: u}})
	done := make(chan struct{}, 10)
	next := func() []rollout.GateResult {
		g.Run(t.Context(), run, checks, func() { done <- struct{}{} })
		return g.Results(run)
	}
	next()
	<-done
	for range 20 {
		if got := next(); len(got) != 1 || got[0].Number != 1 {
			t.Fatalf("results: %v", got)
		}
	}
	checks[0].Number = 2
	next()
	<-done
	if got := next(); len(got) != 1 || got[0].Number != 2 || asked.Load() != 2 {
		t.Errorf("asked %d times, results: %v", asked.Load(), got)
	}
}

func TestACheckWaitsForItsTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g := gates(t, Options{Now: func() time.Time { return now }})
	run, checks := runOf(t, 1, rollout.Gate{Expression: &rollout.Expression{Expression: "true"}})
	checks[0].NotBefore = now.Add(time.Second)
	done := make(chan struct{}, 1)
	g.Run(t.Context(), run, checks, func() { done <- struct{}{} })
	if _, due := g.due(t.Context(), run, checks); len(due) != 0 {
		t.Fatal("started before its time")
	}
	now = now.Add(time.Second)
	g.Run(t.Context(), run, checks, func() { done <- struct{}{} })
	<-done
	if got := g.Results(run); len(got) != 1 || !got[0].At.Equal(now) {
		t.Errorf("%v", got)
	}
}

// hang is a server that never answers and tells when a question has come and when it was given up.
func hang(t *testing.T) (u string, came, gone chan struct{}) {
	came, gone = make(chan struct{}, 100), make(chan struct{}, 100)
	u = serve(t, func(_ http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 4096) // the end of a connection is seen only once the question is read
		for _, err := r.Body.Read(buf); err == nil; _, err = r.Body.Read(buf) {
		}
		came <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	return u, came, gone
}

func TestWhatIsNotWantedAnyMoreIsGivenUp(t *testing.T) {
	for name, end := range map[string]func(g *Gates, cancel func(), run *rollouts.Run, checks []rollout.Check){
		"leadership lost": func(_ *Gates, cancel func(), _ *rollouts.Run, _ []rollout.Check) { cancel() },
		"nothing asked":   func(g *Gates, _ func(), run *rollouts.Run, _ []rollout.Check) { g.Run(t.Context(), run, nil, nil) },
		"gate reset": func(g *Gates, _ func(), run *rollouts.Run, checks []rollout.Check) {
			checks[0].Number, checks[0].NotBefore = 2, time.Now().Add(time.Hour)
			g.Run(t.Context(), run, checks, nil)
		},
		"next rollout": func(g *Gates, _ func(), _ *rollouts.Run, _ []rollout.Check) {
			run, checks := runOf(t, 2, rollout.Gate{Name: "x", Expression: &rollout.Expression{Expression: "true"}})
			g.Run(t.Context(), run, checks, func() {})
		},
		"decisions without checks": func(g *Gates, _ func(), run *rollouts.Run, _ []rollout.Check) {
			for range maxIdle + 1 {
				g.Results(run)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			u, came, gone := hang(t)
			g := gates(t, Options{})
			run, checks := runOf(t, 1, rollout.Gate{Webhook: &rollout.Webhook{URL: u, Timeout: time.Minute}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			g.Run(ctx, run, checks, func() { t.Error("answered") })
			<-came
			end(g, cancel, run, checks)
			<-gone
			if got := g.Results(run); len(got) != 0 {
				t.Errorf("results: %v", got)
			}
		})
	}
}

// TestAnotherTermAsksAgain: answers of an earlier leadership do not count in the next.
func TestAnotherTermAsksAgain(t *testing.T) {
	g := gates(t, Options{})
	run, checks := runOf(t, 1, rollout.Gate{Expression: &rollout.Expression{Expression: "true"}})
	done := make(chan struct{}, 1)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		g.Run(ctx, run, checks, func() { done <- struct{}{} })
		<-done
		if got := g.Results(run); len(got) != 1 {
			t.Errorf("results: %v", got)
		}
		cancel()
		if got := g.Results(run); len(got) != 0 {
			t.Errorf("results after the term: %v", got)
		}
	}
}

// TestAnswersAreOfOneRollout: a module of the name that was deleted had a rollout of the number, too.
func TestAnswersAreOfOneRollout(t *testing.T) {
	g := gates(t, Options{})
	old, checks := runOf(t, 1, rollout.Gate{Expression: &rollout.Expression{Expression: "true"}})
	next := *old
	old.Record = &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(time.Unix(1, 0))}}}
	next.Record = &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(time.Unix(2, 0))}}}
	done := make(chan struct{}, 1)
	g.Run(t.Context(), old, checks, func() { done <- struct{}{} })
	<-done
	if before, after := g.Results(old), g.Results(&next); len(before) != 1 || len(after) != 0 {
		t.Errorf("results: %v; of the rollout of the next module: %v", before, after)
	}
}

// TestOneModuleDoesNotTakeAllSlots: the servers of one module hang; another module is answered.
func TestOneModuleDoesNotTakeAllSlots(t *testing.T) {
	u, came, _ := hang(t)
	var list []rollout.Gate
	for i := range 2 * maxRequests {
		list = append(list, rollout.Gate{Name: fmt.Sprintf("g%d", i), Webhook: &rollout.Webhook{URL: u, Timeout: time.Minute}})
	}
	g := gates(t, Options{})
	run, checks := runOf(t, 1, list...)
	ctx, cancel := context.WithCancel(t.Context())
	g.Run(ctx, run, checks, func() {})
	for range maxPerModule {
		<-came
	}
	other, otherChecks := runOf(t, 1, rollout.Gate{Webhook: &rollout.Webhook{URL: serve(t, say(200, `{"state": "Successful"}`))}})
	other.Module = fleet.ModuleRef{Project: "default", Name: "other"}
	done := make(chan struct{}, 1)
	g.Run(t.Context(), other, otherChecks, func() { done <- struct{}{} })
	<-done
	if len(came) != 0 {
		t.Errorf("%d more questions under way at once", len(came))
	}
	cancel() // frees slots, so that others are asked
}

func TestAnswersAreBounded(t *testing.T) {
	g := gates(t, Options{})
	run, checks := runOf(t, 1, rollout.Gate{Expression: &rollout.Expression{Expression: "true"}})
	for i := range maxRollouts + 5 {
		run.Module.Name = fmt.Sprintf("m%d", i)
		g.due(t.Context(), run, checks)
	}
	if len(g.modules) != maxRollouts || g.modules[fleet.ModuleRef{Project: "default", Name: "m0"}] != nil {
		t.Errorf("%d rollouts are kept", len(g.modules))
	}
}

func TestUnknownGateIsAnError(t *testing.T) {
	g := gates(t, Options{})
	run, _ := runOf(t, 1, rollout.Gate{Name: "x", Expression: &rollout.Expression{Expression: "true"}})
	done := make(chan struct{}, 2)
	g.Run(t.Context(), run, []rollout.Check{{Gate: "nope", Position: rollout.After}, {Stage: 9, Gate: "x"}}, func() { done <- struct{}{} })
	<-done
	<-done
	got := g.Results(run)
	if len(got) != 2 || slices.ContainsFunc(got, func(r rollout.GateResult) bool {
		return r.Outcome != rollout.GateError || !strings.Contains(r.Message, "no such gate")
	}) {
		t.Errorf("%v", got)
	}
}
