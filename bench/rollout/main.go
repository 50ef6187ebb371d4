// Command rollout measures rollouts of three stages (20, 30 and 50 %, half of a stage at once) over simulated agents
// that are ready at once, on a real hub with its store on disk, against the cost of six store transactions and six
// stream round trips measured in the same run (PERFORMANCE.md G13).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/heap"
)

func main() {
	agents := flag.Int("agents", 100, "simulated agents; 0: only what -crowd says")
	modules := flag.Int("modules", 100, "rollouts at once")
	large := flag.Int("large", 10_000, "clusters of the large rollout")
	crowded := flag.String("crowd", "1000x5x200", "clusters x modules in each x modules in each, between which a change of one is compared; empty: none")
	runs := flag.Int("runs", 7, "single rollouts to take the median of")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the whole run here")
	child := flag.String("agents-of", "", "run agents of the hub at this address for the tokens on standard input (used by itself)")
	echo := flag.Bool("echo", false, "answer on streams (used by itself)")
	flag.Parse()
	if *echo {
		if err := runEcho(); err != nil {
			fmt.Fprintln(os.Stderr, "bench/rollout: echo:", err)
			os.Exit(1)
		}
		return
	}
	heap.Tune(hub.HeapPercent, hub.HeapFloor) // as the hub does
	if *child != "" {
		if err := runAgents(context.Background(), *child); err != nil {
			fmt.Fprintln(os.Stderr, "bench/rollout: agents:", err)
			os.Exit(1)
		}
		return
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*agents, *modules, *large, *runs, *crowded = 20, 5, 0, 2, "20x2x10"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	err := error(nil)
	if *agents > 0 {
		err = run(ctx, *agents, *modules, *large, *runs, smoke)
	}
	if err == nil && *crowded != "" {
		err = runCrowd(ctx, *crowded, smoke)
	}
	if err != nil {
		pprof.StopCPUProfile()
		fmt.Fprintln(os.Stderr, "bench/rollout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, agents, modules, large, runs int, smoke bool) error {
	ref, err := measureReference(ctx)
	if err != nil {
		return err
	}
	budget := 10 * (6*ref.txn + 6*ref.rtt)
	fmt.Printf("reference: store transaction %v, stream round trip %v; budget 10 × (6 + 6) = %v\n", ref.txn, ref.rtt, budget)
	w, err := newWorld(ctx, agents)
	if err != nil {
		return err
	}
	defer w.close()
	before, err := w.revision(ctx)
	if err != nil {
		return err
	}
	var one []time.Duration
	for i := range runs + 1 {
		d, err := w.rollouts(ctx, fmt.Sprintf("one-%d", i), 1)
		if err != nil {
			return err
		}
		if i > 0 { // the first is for warming up
			one = append(one, d)
		}
	}
	after, err := w.revision(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("store commits a rollout: %.1f\n", float64(after-before)/float64(runs+1))
	slices.Sort(one)
	median := one[len(one)/2]
	fmt.Printf("one rollout over %d agents: median %v of %d (min %v, max %v): %.1f × the reference\n", agents, median, runs, one[0], one[len(one)-1],
		float64(median)/float64(6*ref.txn+6*ref.rtt))
	many, err := w.rollouts(ctx, "many", modules)
	if err != nil {
		return err
	}
	fmt.Printf("%d rollouts at once: %v\n", modules, many)
	var big time.Duration
	if large > 0 {
		if big, err = largeRollout(ctx, large); err != nil {
			return err
		}
		fmt.Printf("one rollout over %d clusters: %v\n", large, big)
	}
	if smoke {
		return nil
	}
	switch {
	case median > budget:
		return fmt.Errorf("one rollout took %v, over the budget of %v", median, budget)
	case many > 10*time.Second:
		return fmt.Errorf("%d rollouts took %v, over 10s", modules, many)
	case big > 10*time.Second:
		return fmt.Errorf("the rollout over %d clusters took %v, over 10s", large, big)
	}
	fmt.Println("ok")
	return nil
}

// runCrowd measures a crowd of the size, and judges it.
func runCrowd(ctx context.Context, size string, smoke bool) error {
	var clusters, few, many int
	if _, err := fmt.Sscanf(size, "%dx%dx%d", &clusters, &few, &many); err != nil {
		return fmt.Errorf("-crowd %q: %w", size, err)
	}
	ratio, err := crowd(ctx, clusters, few, many)
	if err != nil {
		return err
	}
	if !smoke && ratio > 1.3 {
		return fmt.Errorf("one change costs %.2f times as much where there are %d modules in a cluster as where there are %d, over 1.3", ratio, many, few)
	}
	return nil
}
