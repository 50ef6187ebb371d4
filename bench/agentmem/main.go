// Command agentmem measures the memory of an agent that owns 10,000 Deployments in a real API server, beside a process
// that holds the same objects whole in a dynamic informer (PERFORMANCE.md G9).
//
// Both are processes of their own, started in turns, and their memory is what the kernel says of them. Growth is the
// peak of a process that loads the objects when it starts, less what it has with none. The peak of the agent that
// created the objects is printed, too.
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
	if len(os.Args) > 1 && os.Args[1] == holderCommand {
		if err := hold(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench/agentmem:", err)
			os.Exit(1)
		}
		return
	}
	objects := flag.Int("objects", 10_000, "Deployments")
	modules := flag.Int("modules", 4, "modules that they are in")
	rounds := flag.Int("rounds", 5, "restarts of each to take the median of")
	dir := flag.String("dir", "", "keep logs and state in this directory")
	flag.Parse()
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*objects, *modules, *rounds = 40, 2, 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	goals, err := run(ctx, *dir, *objects, *modules, *rounds)
	if err == nil && !smoke {
		err = measure.Judge(os.Stdout, goals)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/agentmem:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, objects, modules, rounds int) (goals []measure.Goal, err error) {
	b, err := newBench(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := b.close(); err == nil {
			err = closed
		}
	}()
	fmt.Printf("load average %s\n", measure.Load())
	idleAgent, err := b.restartAgent(ctx)
	if err != nil {
		return nil, err
	}
	created, err := b.create(ctx, objects, modules)
	if err != nil {
		return nil, err
	}
	var agents, holders []sample
	for range rounds {
		a, err := b.restartAgent(ctx)
		if err != nil {
			return nil, fmt.Errorf("agent: %w\n%s", err, b.fleet.Agent.Tail())
		}
		h, err := b.holder(ctx, objects)
		if err != nil {
			return nil, fmt.Errorf("informer: %w", err)
		}
		agents, holders = append(agents, a), append(holders, h)
	}
	return report(objects, idleAgent, created, agents, holders), nil
}

// sample is the memory of a process in MB.
type sample struct{ idle, peak, now float64 }

func median(samples []sample) sample {
	field := func(f func(sample) float64) float64 {
		var all []float64
		for _, s := range samples {
			all = append(all, f(s))
		}
		return measure.Median(all)
	}
	return sample{field(func(s sample) float64 { return s.idle }), field(func(s sample) float64 { return s.peak }), field(func(s sample) float64 { return s.now })}
}

func report(objects int, idle, created sample, agents, holders []sample) []measure.Goal {
	agent, holder := median(agents), median(holders)
	growth, reference := agent.peak-idle.peak, holder.peak-holder.idle
	fmt.Printf("\n%d Deployments, %d rounds, load average %s\n", objects, len(agents), measure.Load())
	measure.Table(os.Stdout, "MB resident\twith none\tpeak\tgrowth\tafterwards",
		fmt.Sprintf("agent, restarted\t%.1f\t%.1f\t%.1f\t%.1f", idle.peak, agent.peak, growth, agent.now),
		fmt.Sprintf("agent that created them\t%.1f\t%.1f\t%.1f\t%.1f", idle.peak, created.peak, created.peak-idle.peak, created.now),
		fmt.Sprintf("whole-object informer\t%.1f\t%.1f\t%.1f\t%.1f", holder.idle, holder.peak, reference, holder.now))
	return []measure.Goal{
		{What: "growth of the agent over that of a whole-object informer", Got: growth / reference, Limit: 0.25},
		{What: "peak of the agent in MB", Got: agent.peak, Limit: 90},
	}
}
