// Command lists measures what lists and watches cost: a page of each kind against a range read of as many records, a
// filtered list, what a hub holds while it is listed whole, and watches, on a store with 200 modules of 100 objects in
// each of 1,000 clusters.
//
// What is measured lies under the API, beside the store that both read, so that it is a test of that package
// (hub/internal/api, TestCostOfLists); this runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	size := flag.String("size", "1000x200x100", "clusters x modules in each x objects in each")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the whole run here")
	flag.Parse()
	env, args := os.Environ(), []string{"test", "-count=1", "-v", "-timeout=30m", "-run=^TestCostOfLists$"}
	if os.Getenv("SMOKE") == "" {
		env = append(env, "TOWLINE_BENCH_LISTS="+*size)
	}
	if *profile != "" {
		args = append(args, "-cpuprofile="+*profile)
	}
	run := exec.Command("go", append(args, "./hub/internal/api")...)
	run.Dir, run.Env, run.Stdout, run.Stderr = "../..", env, os.Stdout, os.Stderr
	if err := run.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/lists:", err)
		os.Exit(1)
	}
}
