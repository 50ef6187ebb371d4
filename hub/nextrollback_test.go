package hub_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// rollbacks are the commands that take a rollout back among what people are offered.
var rollbacks = regexp.MustCompile(`towline rollout rollback \S+`)

// offersNoRollback looks at a rollout as people do.
func offersNoRollback(t *testing.T, run func(string, ...string) (string, error), id string) {
	t.Helper()
	for _, args := range [][]string{{"rollout", "status", id, "--watch=false"}, {"explain", "rollout", id}} {
		out, err := run("", args...)
		if err != nil || rollbacks.MatchString(out) {
			t.Errorf("%v offers what the hub refuses, or what takes another rollout back: %v\n%s", args, err, out)
		}
	}
}

// refusedFor says a rollback without a number, which is to be refused with the one that may be meant, and to move nothing.
func (w *world) refusedFor(run func(string, ...string) (string, error), instead string) {
	w.t.Helper()
	out, err := run("", "rollout", "rollback", "shop")
	if err == nil || !strings.Contains(out, "towline rollout rollback "+instead) {
		w.t.Errorf("a rollback without a number, of a put that moved nothing: %v\n%s", err, out)
	}
	tr, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Module: "shop"}})
	must(w.t, err)
	if got := tr.GetTrackers()[0].GetRevision(); got != 2 {
		w.t.Errorf("cluster a ran r2, which succeeded; it has r%d", got)
	}
}

// A put that failed, or was aborted, before it had a revision moved nothing: nothing of it is there to be taken back, and a rollback
// that does not say which rollout it means takes nobody away from the revision that runs well.
func TestRollbackOfAPutThatMovedNothing(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	for _, v := range []string{"1", "2"} {
		w.await("shop", w.put(module("shop", configMap(v))).GetRevision())
	}
	run := w.cli()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away.yaml" {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = rw.Write([]byte("kind: ConfigMap\n")) // which cannot be rendered
	}))
	t.Cleanup(srv.Close)
	put := func(path string) int64 {
		m := module("shop", nil)
		m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + path}}
		return w.put(m).GetRevision()
	}
	put("/away.yaml")
	w.refusedFor(run, "shop/2") // it waits for its source
	_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop", Number: 3})
	must(t, err)
	offersNoRollback(t, run, "shop")
	w.refusedFor(run, "shop/2")

	if ro := w.await("shop", put("/bad.yaml")); ro.GetStatus().GetState() != "Failed" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	offersNoRollback(t, run, "shop")
	w.refusedFor(run, "shop/2")

	out, err := run("", "rollout", "rollback", "shop/2")
	if err != nil || !strings.Contains(out, "shop/2 rollback accepted") {
		t.Errorf("said by number: %v\n%s", err, out)
	}
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetRolledBack() })
}

// secondWaits has shop run, and its second rollout wait for an approval when it has moved all.
func (w *world) secondWaits() {
	w.t.Helper()
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	gated := module("shop", configMap("2"))
	gated.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", After: []*towlinev1.Gate{{Name: "ok", Approval: &towlinev1.ApprovalGate{}}}}}}
	w.put(gated)
	w.eventually(func() bool {
		got, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop", Number: 2})
		return err == nil && got.GetRollout().GetStatus().GetState() == "Waiting"
	})
}

// A rollout that was aborted offers to take back itself, by number; an older one decides nothing any more, and offers nothing.
func TestRollbackIsOfTheRolloutThatIsShown(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.secondWaits()
	run := w.cli()
	_, err := w.Rollouts.AbortRollout(w.ctx, &towlinev1.AbortRolloutRequest{Module: "shop"})
	must(t, err)
	for _, args := range [][]string{{"rollout", "status", "shop", "--watch=false"}, {"explain", "rollout", "shop"}} {
		out, err := run("", args...)
		if got := rollbacks.FindAllString(out, -1); err != nil || len(got) != 1 || got[0] != "towline rollout rollback shop/2" {
			t.Errorf("%v offers %v: %v\n%s", args, got, err, out)
		}
	}
	w.await("shop", w.put(module("shop", configMap("3"))).GetRevision())
	offersNoRollback(t, run, "shop/2")
}

// TestRollbackOfWhatMoves: a rollout that has not ended is taken back without its number, as an incident has it, though somebody has put once
// more, which waits for its source.
func TestRollbackOfWhatMoves(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.secondWaits()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(srv.Close)
	m := module("shop", nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/away.yaml"}}
	w.put(m)
	out, err := w.cli()("", "rollout", "rollback", "shop")
	if err != nil || !strings.Contains(out, "shop/2 rollback accepted") {
		t.Errorf("%v\n%s", err, out)
	}
}
