package main

import (
	"errors"
	"fmt"
	"os"

	"towline.dev/towline/test/lab/measure"
)

// report prints goals and figures side by side.
func report(n int, rows []row) {
	fmt.Printf("\n%d agents, load average %s\n", n, measure.Load())
	var lines []string
	for _, r := range rows {
		word := "met"
		if r.got > r.limit {
			word = "missed"
		}
		lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%s\t%.2f\t%.2f\t%s", r.goal, r.what, r.hub, r.bare, r.got, r.limit, word))
	}
	measure.Table(os.Stdout, "goal\tof\thub\treference\tfigure\tat most\t", lines...)
}

// judge fails where a figure is beyond what it was when its bound was set.
func judge(n int, rows []row) error {
	var all error
	for _, r := range rows {
		if r.got > r.bound {
			all = errors.Join(all, fmt.Errorf("%d agents: %s, %s: %.2f is over %.2f", n, r.goal, r.what, r.got, r.bound))
		}
	}
	return all
}
