// Command decide measures the rollout decision function: at most 1 µs a cluster, no allocation a cluster in steady
// state, linear from 1,000 to 100,000 clusters, and a whole simulated rollout of 100,000 clusters (PERFORMANCE.md G14).
package main

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func main() {
	smoke := os.Getenv("SMOKE") != ""
	if err := run(smoke); err != nil {
		fmt.Fprintln(os.Stderr, "bench/decide:", err)
		os.Exit(1)
	}
}

// run measures each size over as many rollouts as make the largest number of clusters, so that every size finds the
// caches equally cold: else a thousand clusters, which fit into them, would look better than they are in a hub.
func run(smoke bool) error {
	sizes, runs, simulated := []int{1_000, 10_000, 100_000}, 41, 100_000
	if smoke {
		sizes, runs, simulated = []int{1_000, 10_000}, 3, 2_000
	}
	var bad []string
	for _, s := range situations {
		fmt.Printf("%-8s", s.name)
		per, allocs, err := measure(s, sizes, runs)
		if err != nil {
			return err
		}
		for i, n := range sizes {
			fmt.Printf("  %7d clusters: %10v (%4d ns a cluster, %6.0f allocs)", n, per[i], per[i].Nanoseconds()/int64(n), allocs[i])
			if per[i] > time.Duration(n)*time.Microsecond {
				bad = append(bad, fmt.Sprintf("%s: %v for %d clusters is more than 1 µs a cluster", s.name, per[i], n))
			}
		}
		fmt.Println()
		for i, limit := 1, 12; i < len(sizes); i, limit = i+1, limit*12 {
			if ratio := float64(per[i]) / float64(per[0]); ratio > float64(limit) {
				bad = append(bad, fmt.Sprintf("%s: t(%d) is %.1f × t(%d), limit %d", s.name, sizes[i], ratio, sizes[0], limit))
			}
		}
		if s.steady && allocs[len(allocs)-1] > allocs[0] {
			bad = append(bad, fmt.Sprintf("%s: %v allocations grow with the clusters", s.name, allocs))
		}
	}
	took, timeline, err := simulate(simulated)
	if err != nil {
		return err
	}
	fmt.Printf("simulated rollout of %d clusters: %v, %d steps, %d decisions, %v of virtual time, %d not ready at once, %s\n", simulated, took.Round(time.Millisecond),
		timeline.Steps, timeline.Decisions, timeline.Duration, timeline.MaxNotReady, timeline.State)
	if took > 30*time.Second {
		bad = append(bad, fmt.Sprintf("the simulation took %v, limit 30s", took))
	}
	if timeline.State != rollout.Succeeded || timeline.Summary.Succeeded != simulated {
		return fmt.Errorf("the simulated rollout ended %s: %s", timeline.State, timeline.Facts)
	}
	if smoke {
		return nil
	}
	for _, b := range bad {
		fmt.Println("FAIL", b)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d limits broken", len(bad))
	}
	return nil
}

// measure is the shortest time of a decision for each size, the sizes taken in turn: what other rounds took longer is
// other work of the machine.
func measure(s situation, sizes []int, runs int) (per []time.Duration, allocs []float64, err error) {
	ins := make([][]rollout.Input, len(sizes))
	for k, n := range sizes {
		for range sizes[len(sizes)-1] / n {
			in, err := s.make(n)
			if err != nil {
				return nil, nil, err
			}
			ins[k] = append(ins[k], in)
		}
		allocs = append(allocs, testing.AllocsPerRun(3, func() { rollout.Decide(ins[k][0]) }))
	}
	per = make([]time.Duration, len(sizes))
	for range runs {
		for k := range sizes {
			runtime.GC()
			start := time.Now()
			for i := range ins[k] {
				rollout.Decide(ins[k][i])
			}
			if took := time.Since(start) / time.Duration(len(ins[k])); per[k] == 0 || took < per[k] {
				per[k] = took
			}
		}
	}
	return per, allocs, nil
}

type situation struct {
	name   string
	steady bool // nothing changes: no allocation may depend on the clusters
	make   func(n int) (rollout.Input, error)
}

var situations = []situation{
	{"idle", true, ended},
	{"running", true, running},
	{"soaking", true, soaking},
	{"moving", false, moving},
	{"back", false, back},
}

var epoch = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func planInput(n int) rollout.PlanInput {
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 1}, Revision: 2, From: 1, StartedBy: "ana"}
	for i := range n {
		ring := "rest"
		if i < n/5 {
			ring = "canary"
		}
		in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: fleet.Cluster{Name: fleet.ClusterName(fmt.Sprintf("c%06d", i)),
			Labels: map[string]string{"ring": ring}}, Selected: true, Revision: 1})
	}
	return in
}

func strategy() rollout.Strategy {
	return rollout.Strategy{OnFailure: rollout.OnFailureRollback, Stages: []rollout.Stage{
		{Name: "canary", Selector: &fleet.Selector{MatchLabels: map[string]string{"ring": "canary"}}, Soak: time.Hour},
		{Name: "rest", MaxConcurrency: rollout.Percent(50)},
	}}
}

// fresh is a rollout before its first decision.
func fresh(n int) (rollout.Input, error) {
	plan, state, err := rollout.NewPlan(strategy(), planInput(n))
	if err != nil {
		return rollout.Input{}, err
	}
	in := rollout.Input{Now: epoch, Plan: plan, State: state, Observed: make([]rollout.Observed, n)}
	for i := range in.Observed {
		in.Observed[i] = rollout.Observed{Connected: true, Ready: true, Revision: 1, Generation: uint64(i + 1)}
	}
	return in, nil
}

// step takes a decision and lets every cluster that it moves be ready, or not.
func step(in *rollout.Input, ready bool) rollout.Decision {
	d := rollout.Decide(*in)
	gen := uint64(1_000_000) + uint64(d.State.Step)
	d.State.Stamp(d.Assign, gen)
	in.State = d.State
	for _, a := range d.Assign {
		o := &in.Observed[a.Member]
		o.Revision, o.Generation, o.Ready = a.Revision, gen, ready
	}
	return d
}

func running(n int) (rollout.Input, error) {
	in, err := fresh(n)
	step(&in, false)
	return in, err
}

func soaking(n int) (rollout.Input, error) {
	in, err := fresh(n)
	step(&in, true)
	step(&in, true)
	return in, err
}

func ended(n int) (rollout.Input, error) {
	in, err := soaking(n)
	for range 10 {
		in.Now = in.Now.Add(2 * time.Hour)
		step(&in, true)
	}
	if in.State.State != rollout.Succeeded {
		return in, fmt.Errorf("the rollout is %s", in.State.State)
	}
	return in, err
}

// moving decides a step that moves half of the rest.
func moving(n int) (rollout.Input, error) {
	in, err := soaking(n)
	in.Now = in.Now.Add(2 * time.Hour)
	return in, err
}

// back decides the first step of a rollback of every fifth cluster.
func back(n int) (rollout.Input, error) {
	in, err := soaking(n)
	in.Observed[0].Ready, in.Observed[0].Failed = false, true
	return in, err
}

func simulate(n int) (time.Duration, rollout.Timeline, error) {
	start := time.Now()
	s := strategy()
	s.Stages[1].MaxConcurrency = rollout.Percent(2)
	t, err := rollout.Simulate(rollout.SimInput{Strategy: s, Plan: planInput(n), Start: epoch, Seed: 1})
	return time.Since(start), t, err
}
