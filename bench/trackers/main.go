// Command trackers measures what it costs that the hub remembers what every module has in every cluster: the bytes that a tracker
// takes on the disk, beside the objects that it is of; what it takes in the hub's heap; and what a hub reads at its start, beside a
// bare range of the same keys. The modules are healthy, 10 objects of 2 KB each; there are 100,000 trackers.
//
// What is measured lies under the API, beside the store, so that it is a test of that package (hub/internal/api,
// TestCostOfTrackers); this runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	size := flag.String("size", "1000x100x10", "clusters x modules in each x objects in each")
	profile := flag.String("memprofile", "", "write a profile of the heap with all trackers here")
	flag.Parse()
	env := append(os.Environ(), "TOWLINE_BENCH_PROFILE="+*profile)
	if os.Getenv("SMOKE") == "" {
		env = append(env, "TOWLINE_BENCH_TRACKERS="+*size)
	}
	run := exec.Command("go", "test", "-count=1", "-v", "-timeout=30m", "-run=^TestCostOfTrackers$", "./hub/internal/api")
	run.Dir, run.Env, run.Stdout, run.Stderr = "../..", env, os.Stdout, os.Stderr
	if err := run.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/trackers:", err)
		os.Exit(1)
	}
}
