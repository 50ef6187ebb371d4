// Command render measures what a variant of a module costs to render in a worker that is warm, beside the libraries of kustomize and
// Helm alone in the same run: at most 1.3 times as much; what a rendering takes in all; and what variants and clusters add to a put
// of a module for a thousand clusters.
//
// What builds is linked into the hub only and lies inside of it, so that these are tests of that
// (hub/internal/packager, TestCostOfRendering; hub, TestCostOfVariants); this runs them.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	rounds := flag.String("rounds", "100", "builds of each variant")
	flag.Parse()
	env, args := os.Environ(), []string{"test", "-count=1", "-v", "-p=1", "-timeout=30m", "-run=^TestCostOf(Rendering|Variants)$"}
	if os.Getenv("SMOKE") == "" {
		env = append(env, "TOWLINE_BENCH_RENDER="+*rounds)
	}
	run := exec.Command("go", append(args, "./hub/internal/packager", "./hub")...)
	run.Dir, run.Env, run.Stdout, run.Stderr = "../..", env, os.Stdout, os.Stderr
	if err := run.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/render:", err)
		os.Exit(1)
	}
}
