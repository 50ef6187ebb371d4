package rollout_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestNaiveModelAgrees runs Decide and the naive model side by side over random fleets, strategies and events.
func TestNaiveModelAgrees(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.quiet = true
		m := sideBySide(rt, w)
		step := 0
		compare := func(verb, arg string) {
			if verb != "" {
				v := rollout.Verb{ID: strconv.Itoa(step), Verb: verb, By: "bob", At: w.now}
				if arg != "" {
					v.Clusters = []fleet.ClusterName{fleet.ClusterName(arg)}
				}
				w.verbs = append(w.verbs, v)
			}
			step++
			obs := map[string]rollout.Observed{}
			for name, c := range w.clusters {
				obs[name] = c.o
			}
			w.decide()
			var got []string
			for _, a := range w.last.Assign {
				got = append(got, string(w.state.Member(w.plan, int(a.Member)).Cluster)+"→"+strconv.FormatInt(a.Revision, 10))
			}
			want := m.tick(w.now, obs, verb, arg)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				rt.Fatalf("step %d (%s %s): Decide assigns %v, the naive model %v\n%s %s, naive %s", step, verb, arg, got, want, w.state.State, w.state.Facts, m.mode)
			}
			if done := w.state.State.Ended(); done != (m.mode == "done") {
				rt.Fatalf("step %d: Decide says %s, the naive model %s", step, w.state.State, m.mode)
			}
		}
		compare("", "")
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			compare(randomEvent(rt, w))
		}
	})
}

func randomEvent(rt *rapid.T, w *world) (verb, arg string) {
	all := w.sorted()
	c := all[rapid.IntRange(0, len(all)-1).Draw(rt, "cluster")]
	switch rapid.IntRange(0, 18).Draw(rt, "event") {
	case 15, 16:
		if c.o.Held = !c.o.Held; c.o.Held && rapid.Bool().Draw(rt, "whole") {
			c.o.Ready, c.o.Failed = false, false
		}
	case 0, 1, 2, 3, 4:
		c.o.Ready, c.o.Failed, c.o.Well = true, false, true
	case 5:
		c.o.Ready, c.o.Failed, c.o.Well = false, true, false
	case 6:
		c.o.Ready, c.o.Failed, c.o.Well = false, false, false
	case 7, 8:
		c.o.Connected = !c.o.Connected
	case 9:
		c.o.Cordoned = !c.o.Cordoned
	case 10:
		return "pause", ""
	case 11:
		return "resume", ""
	case 17:
		return "retry", ""
	case 12:
		if rapid.IntRange(0, 2).Draw(rt, "skips") == 0 {
			return "skip", string(c.Name)
		}
	default:
		w.pass(w.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(rt, "seconds")) * time.Second))
	}
	return "", ""
}

func sideBySide(rt *rapid.T, w *world) *naive {
	s := rollout.Strategy{OnFailure: pick(rt, "onFailure", "Pause", "Abort", "Rollback"), Offline: pick(rt, "offline", "Defer", "Wait", "Fail"),
		MinReadyTime: time.Duration(rapid.IntRange(0, 1).Draw(rt, "minReady")) * 20 * time.Second, ProgressDeadline: time.Minute,
		MaxFailures: amountGen(rt, "maxFailures", true)}
	s.Rollback.MaxConcurrency = amountGen(rt, "back", true)
	stages := rapid.IntRange(1, 3).Draw(rt, "stages")
	for i := range stages {
		st := rollout.Stage{Name: "s" + strconv.Itoa(i), MaxConcurrency: amountGen(rt, "max", true), AllowEmpty: true,
			Soak: time.Duration(rapid.IntRange(0, 1).Draw(rt, "soak")) * 30 * time.Second}
		if rapid.IntRange(0, 3).Draw(rt, "stageTolerates") == 0 {
			st.MaxFailures = amountGen(rt, "stageFailures", true)
		}
		if i < stages-1 {
			st.Selector = &fleet.Selector{MatchLabels: map[string]string{"ring": strconv.Itoa(i)}}
		}
		s.Stages = append(s.Stages, st)
	}
	w.strategy = s
	m := &naive{mode: "run", started: make([]bool, stages), ended: make([]bool, stages), quiet: make([]time.Time, stages), soaked: make([]time.Time, stages)}
	for i := range rapid.IntRange(1, 8).Draw(rt, "fleet") {
		ring := rapid.IntRange(0, stages-1).Draw(rt, "ring")
		w.gen++
		name := "c" + strconv.Itoa(i)
		w.clusters[name] = &cluster{Cluster: fleet.Cluster{Name: fleet.ClusterName(name), Labels: map[string]string{"ring": strconv.Itoa(ring)}},
			o: rollout.Observed{Connected: rapid.IntRange(0, 5).Draw(rt, "up") > 0, Revision: 1, Generation: w.gen, Ready: true}}
		m.clusters = append(m.clusters, &naiveCluster{name: name, stage: ring, st: "wait"})
	}
	slices.SortFunc(m.clusters, func(a, b *naiveCluster) int {
		if a.stage != b.stage {
			return a.stage - b.stage
		}
		return strings.Compare(a.name, b.name)
	})
	m.s = s
	c := &chaos{world: w, rt: rt}
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 1}, Revision: 2, From: 1, StartedBy: "ana"}
	for _, cl := range c.sorted() {
		in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: cl.Cluster, Selected: true, Revision: 1})
	}
	var err error
	w.plan, w.state, err = rollout.NewPlan(s, in)
	w.must(err)
	return m
}
