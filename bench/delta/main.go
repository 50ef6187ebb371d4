// Command delta counts, at the socket, what a change of a module costs an agent: a module of 51 objects and 153 KB of which one field
// of one object changes, on a hub with its store on disk and agents over mTLS, each behind a proxy that counts bytes. One agent takes
// what changed with what it has as the dictionary, one takes the changed object whole, one knows neither and gets what hubs sent
// before (PERFORMANCE.md G15).
//
// What is counted is everything from the put until the agent has what it is to have: frames, framing and TLS. A heartbeat may fall
// into a change, so that the median of several is taken. The acknowledgements of what the agent reports then are printed beside.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"towline.dev/towline/test/lab/measure"
)

func main() {
	changes := flag.Int("changes", 15, "changes to take the median of")
	flag.Parse()
	smoke := os.Getenv("SMOKE") != ""
	if smoke {
		*changes = 3
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	goals, err := run(ctx, *changes)
	if err == nil && !smoke {
		err = measure.Judge(os.Stdout, goals)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/delta:", err)
		os.Exit(1)
	}
}

// counts of one agent, one for each change.
type counts struct {
	took, whole, up []int64
}

func run(ctx context.Context, changes int) ([]measure.Goal, error) {
	w, err := newWorld(ctx)
	if err != nil {
		return nil, err
	}
	defer w.close()
	full, err := fullBytes(0)
	if err != nil {
		return nil, err
	}
	if err := w.put(ctx, 0); err != nil {
		return nil, err
	}
	fmt.Printf("module of %d objects, %d bytes as canonical JSON\n", objects, full)
	for _, a := range w.agents {
		fmt.Printf("%-10s  all of it, and the connection: %6d bytes (%.1f %%)\n", a.name, a.down.Load(), percent(a.down.Load(), full))
	}
	got := map[string]*counts{}
	for i := range changes {
		if err := w.change(ctx, i+1, got); err != nil {
			return nil, err
		}
	}
	unchanged, err := w.unchanged(ctx, changes)
	if err != nil {
		return nil, err
	}
	medians := map[string]int64{}
	for _, a := range w.agents {
		c := got[a.name]
		medians[a.name] = median(c.took)
		fmt.Printf("%-10s  one field: %5d bytes (%.3f %%), min %d, max %d; with what acknowledges the report after it %d; from the agent %d\n", a.name,
			median(c.took), percent(median(c.took), full), slices.Min(c.took), slices.Max(c.took), median(c.whole), median(c.up))
	}
	fmt.Printf("put again, unchanged: %d bytes to all agents, at least\n", unchanged)
	return []measure.Goal{
		{What: "one field, the version before as dictionary, % of the full bytes", Got: percent(medians[byDictionary], full), Limit: 0.1},
		{What: "one field, the object whole, % of the full bytes", Got: percent(medians[byObject], full), Limit: 0.7},
		{What: "unchanged, bytes", Got: float64(unchanged), Limit: 0},
	}, nil
}

func percent(part, of int64) float64 { return 100 * float64(part) / float64(of) }

func median(list []int64) int64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
