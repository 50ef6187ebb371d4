// Command fleet measures one hub process, with its store on disk, under 1,000 and 3,000 simulated agents, each with an mTLS
// connection of its own that speaks the real protocol, and 10,000 with -full: its memory, a change to all of them and their
// reports, the restart, rest, agents that stop reading, commits and its start (PERFORMANCE.md G1-G5, G16, G17, G20, G21).
//
// The references run beside it, in the same turns: a bare gRPC server with the options that grpc-go has by default, on
// the same kind of connections, raw TLS connections, and an etcd in the process of that server. CPU is what the kernel
// says of the process, and memory is what it has of its own (RssAnon) after a collection.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	sizes := flag.String("agents", "1000,3000", "numbers of agents to measure, in this order")
	full := flag.Bool("full", false, "measure 10,000 agents, too; needs 3 GB and 20,000 open files in each process")
	window := flag.Duration("window", 30*time.Second, "how long the fleet is watched at rest")
	rounds := flag.Int("rounds", 5, "changes, starts and commits in tens to take medians of")
	only := flag.String("parts", "", "what to measure of memory, rest, change, stopped, commit, restart and start, parted by commas; empty: all. Memory always is: the agents join there")
	profile := flag.String("profile", "", "write profiles of the hub into this directory: of its CPU in each part, of its heap and its goroutines after it")
	child := flag.String("child", "", "be one of the processes of the benchmark (used by itself)")
	flag.Parse()
	if *child != "" {
		exit(serveChild(*child, flag.Args()))
		return
	}
	if os.Getenv("SMOKE") != "" {
		*sizes, *window, *rounds = "40", time.Second, 1
	}
	if *full {
		*sizes += ",10000"
	}
	exit(run(context.Background(), *sizes, options{window: *window, rounds: *rounds, profile: *profile, only: *only}))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/fleet:", err)
		os.Exit(1)
	}
}

type options struct {
	window  time.Duration
	rounds  int
	profile string
	only    string
}

func run(ctx context.Context, sizes string, o options) error {
	var all error
	for text := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 10 {
			return fmt.Errorf("-agents %q: numbers of 10 and more, parted by commas", sizes)
		}
		rows, err := measureWithin(ctx, n, o)
		if err != nil {
			return fmt.Errorf("%d agents: %w", n, err)
		}
		report(n, rows)
		if os.Getenv("SMOKE") == "" {
			all = errors.Join(all, judge(n, rows))
		}
	}
	return all
}

// measureWithin ends a measurement that takes far longer than on a machine that has much else to do.
func measureWithin(ctx context.Context, n int, o options) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute+time.Duration(n)*10*time.Millisecond)
	defer cancel()
	return measureFleet(ctx, n, o)
}
