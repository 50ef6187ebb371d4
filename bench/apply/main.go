// Command apply measures how fast the agent brings changed objects to a real API server, and what that costs the
// server, beside a bare loop of 16 server-side applies in flight and beside fluxcd/pkg/ssa's ApplyAll, in turns in one
// run; and that objects that did not change cost no request (PERFORMANCE.md G7, G8).
//
// The agent is a process of its own and gets its modules from a real hub. Rates are those that the API server saw, by
// its audit log, from the first request of a contestant to its last answer. What changes gives the controllers of the
// cluster nothing to write, so that the server does what the contestants ask of it and little else.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"towline.dev/towline/test/lab/measure"
)

func main() {
	deployments := flag.Int("deployments", 600, "Deployments to change")
	configMaps := flag.Int("configmaps", 1000, "ConfigMaps to change")
	pairs := flag.Int("pairs", 7, "runs of each contestant to take the median of")
	pause := flag.Duration("pause", 0, "wait this long before the measured runs, to attach a profiler; the agent's pid is printed")
	dir := flag.String("dir", "", "keep logs and state in this directory")
	flag.Parse()
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*deployments, *configMaps, *pairs = 20, 20, 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	goals, err := run(ctx, options{*deployments, *configMaps, *pairs, *pause, *dir})
	if err == nil && !smoke {
		err = measure.Judge(os.Stdout, goals)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/apply:", err)
		os.Exit(1)
	}
}

type options struct {
	deployments, configMaps, pairs int
	pause                          time.Duration
	dir                            string
}

func run(ctx context.Context, o options) (goals []measure.Goal, err error) {
	b, err := newBench(ctx, o.dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := b.close(); err == nil {
			err = closed
		}
	}()
	fmt.Printf("load average %s; agent is process %d\n", measure.Load(), b.fleet.Agent.PID())
	works := []*work{
		{name: "ConfigMaps", short: "cm", object: measure.ConfigMap, n: o.configMaps},
		{name: "Deployments", short: "deploy", object: measure.Deployment, n: o.deployments},
	}
	for _, w := range works {
		if err := b.create(ctx, w); err != nil {
			return nil, err
		}
	}
	time.Sleep(o.pause)
	if err := b.rest(ctx); err != nil {
		return nil, err
	}
	for _, w := range works {
		more, err := b.compare(ctx, w, o.pairs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		goals = append(goals, more...)
	}
	more, err := b.resync(ctx, works[0])
	return append(goals, more...), err
}
