// Command drift measures how long the agent takes to undo what somebody else changed in an object, with 1,000 and then with 10,000
// objects that it keeps, beside one bare server-side apply that changes an object of the same kind, in turns in one run
// (PERFORMANCE.md G19).
//
// An edit counts from the API server's answer to it until a watch shows the value of the module again. Each object is edited once:
// who changes one again and again is corrected at growing intervals.
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
	small := flag.Int("small", 1_000, "objects at first")
	large := flag.Int("large", 10_000, "objects then")
	edits := flag.Int("edits", 200, "edits with each")
	dir := flag.String("dir", "", "keep logs and state in this directory")
	flag.Parse()
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*small, *large, *edits = 20, 40, 5
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	goals, err := run(ctx, *dir, []int{*small, *large}, *edits)
	if err == nil && !smoke {
		err = measure.Judge(os.Stdout, goals)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/drift:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, sizes []int, edits int) (goals []measure.Goal, err error) {
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
	for _, n := range sizes {
		if err := b.grow(ctx, n); err != nil {
			return nil, err
		}
		corrected, applied, err := b.rounds(ctx, edits)
		if err != nil {
			return nil, fmt.Errorf("%d objects: %w\n%s", n, err, b.fleet.Agent.Tail())
		}
		goals = append(goals, report(n, corrected, applied))
	}
	return goals, nil
}

func report(n int, corrected, applied []float64) measure.Goal {
	p := measure.Percentile[float64]
	fmt.Printf("%d objects, %d edits: undone after p50 %.1f ms, p99 %.1f ms; a bare apply takes p50 %.1f ms, p99 %.1f ms: %.2f × at p50, %.2f × at p99\n", n, len(corrected),
		p(corrected, 0.5), p(corrected, 0.99), p(applied, 0.5), p(applied, 0.99), p(corrected, 0.5)/p(applied, 0.5), p(corrected, 0.99)/p(applied, 0.99))
	return measure.Goal{What: fmt.Sprintf("p50 of corrections over that of a bare apply, with %d objects", n), Got: p(corrected, 0.5) / p(applied, 0.5), Limit: 4}
}
