// Command latency measures the whole way of a change to 10 ConfigMaps: from the put on the hub until the objects are
// live in a real API server, and until the hub says that the module is ready there; beside a bare loop of server-side
// applies of the same objects, in turns in one run (PERFORMANCE.md G6).
//
// All three end with what a person could see: the objects with a watch of the API server, the module with a watch of
// the hub. Hub and agent are processes of their own.
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
	objects := flag.Int("objects", 10, "ConfigMaps in the module")
	changes := flag.Int("changes", 60, "changes to take the median of")
	gap := flag.Duration("gap", time.Second, "time between changes; an agent that reports without a pause is made to wait (DESIGN §5)")
	pause := flag.Duration("pause", 0, "wait this long before the measured runs, to attach a profiler")
	dir := flag.String("dir", "", "keep logs and state in this directory")
	flag.Parse()
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*changes, *gap = 3, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	goal, err := run(ctx, options{*dir, *objects, *changes, *gap, *pause})
	if err == nil && !smoke {
		err = measure.Judge(os.Stdout, []measure.Goal{goal})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/latency:", err)
		os.Exit(1)
	}
}

// warmUp is how many changes are made before the first that counts.
const warmUp = 5

type options struct {
	dir              string
	objects, changes int
	gap, pause       time.Duration
}

func run(ctx context.Context, o options) (goal measure.Goal, err error) {
	b, err := newBench(ctx, o.dir, o.objects)
	if err != nil {
		return goal, err
	}
	defer func() {
		if closed := b.close(); err == nil {
			err = closed
		}
	}()
	fmt.Printf("load average %s; hub is process %d, agent %d\n", measure.Load(), b.fleet.Hub.PID(), b.fleet.Agent.PID())
	time.Sleep(o.pause)
	var direct []time.Duration
	var ways []way
	for i := range warmUp + o.changes {
		time.Sleep(o.gap)
		d, err := b.direct(ctx, i+1)
		if err != nil {
			return goal, fmt.Errorf("direct: %w", err)
		}
		w, err := b.change(ctx, i+1)
		if err != nil {
			return goal, fmt.Errorf("change %d: %w\n%s", i, err, b.fleet.Agent.Tail())
		}
		if i < warmUp {
			continue
		}
		direct, ways = append(direct, d), append(ways, w)
	}
	return report(o.objects, direct, ways), nil
}

func report(objects int, direct []time.Duration, ways []way) measure.Goal {
	reference := measure.Median(direct)
	row := func(what string, d []time.Duration) string {
		ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%.2f", what, ms(measure.Percentile(d, 0)), ms(measure.Median(d)), ms(measure.Percentile(d, 0.9)),
			float64(measure.Median(d))/float64(reference))
	}
	column := func(f func(way) time.Duration) []time.Duration {
		var out []time.Duration
		for _, w := range ways {
			out = append(out, f(w))
		}
		return out
	}
	ready := column(func(w way) time.Duration { return w.ready })
	fmt.Printf("\n%d changes of %d ConfigMaps, load average %s\n", len(direct), objects, measure.Load())
	measure.Table(os.Stdout, "\tmin ms\tp50\tp90\tp50 × direct",
		row("direct 16-way SSA until live", direct),
		row("put until answered", column(func(w way) time.Duration { return w.stored })),
		row("put until the first apply", column(func(w way) time.Duration { return w.asked })),
		row("put until the last apply is answered", column(func(w way) time.Duration { return w.applied })),
		row("put until live", column(func(w way) time.Duration { return w.live })),
		row("put until the hub says ready", ready))
	return measure.Goal{What: "p50 of put until ready over the direct apply's", Got: float64(measure.Median(ready)) / float64(reference), Limit: 2}
}
