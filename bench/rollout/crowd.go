package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"
)

// crowd measures what the hub uses to change one module in every cluster, with few modules in each and then with many, and
// returns how many times as much the latter is.
func crowd(ctx context.Context, clusters, few, many int) (float64, error) {
	const changes = 7
	w, err := newWorld(ctx, clusters)
	if err != nil {
		return 0, err
	}
	defer w.close()
	alone, err := w.changes(ctx, "few", few-1, changes)
	if err != nil {
		return 0, err
	}
	crowded, err := w.changes(ctx, "more", many-few, changes)
	if err != nil {
		return 0, err
	}
	ratio := float64(crowded) / float64(alone)
	fmt.Printf("one change of one module in %d clusters: %v CPU with %d modules in each, %v with %d: %.2f ×\n", clusters,
		alone, few, crowded, many, ratio)
	return ratio, nil
}

// changes puts modules beside the one that changes, and returns the least that a change of that costs then.
func (w *world) changes(ctx context.Context, beside string, modules, changes int) (time.Duration, error) {
	took, err := w.rollouts(ctx, beside, modules)
	if err != nil {
		return 0, err
	}
	fmt.Printf("%d more modules: %v\n", modules, took)
	var least time.Duration
	for i := range changes + 1 {
		runtime.GC()
		before := cpu()
		if err := w.roll(ctx, "changed", fmt.Sprintf("%s-%d", beside, i)); err != nil {
			return 0, err
		}
		if used := cpu() - before; i > 0 && (least == 0 || used < least) { // the first is for warming up
			least = used
		}
	}
	return least, nil
}

// cpu is what this process has used: the hub, and who asks it. Agents run in another.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
