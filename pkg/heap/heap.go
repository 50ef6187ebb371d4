// Package heap sets how eagerly a process collects garbage. It owns that trade of memory for time; it must not know what
// the process does.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Tune lets the heap grow by percent of what lives in it between two collections, and to floor bytes at least: a process
// with little to keep would otherwise spend much of its time on collecting. GOGC in the environment wins. The result
// ends it; it is for tests.
func Tune(percent int, floor uint64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	t := &tuner{percent: percent, floor: floor, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/globals:bytes"}, {Name: "/gc/scan/stack:bytes"}}}
	// A collection under way would end with more alive than what the percent was made of, and a sentinel that is born
	// during one outlives it: the heap would grow far over the floor once.
	runtime.GC()
	before := t.apply()
	t.arm()
	return func() {
		t.stopped.Store(true)
		debug.SetGCPercent(before)
	}
}

type tuner struct {
	percent int
	floor   uint64
	sample  []metrics.Sample
	set     int
	stopped atomic.Bool
}

// arm has the tuner look again after the next collection: that is when a finalizer of garbage runs.
func (t *tuner) arm() {
	sentinel := &struct{ *tuner }{t}
	runtime.SetFinalizer(sentinel, func(*struct{ *tuner }) {
		if !t.stopped.Load() {
			t.apply()
			t.arm()
		}
	})
}

// apply returns the percent that was set before it changed anything.
func (t *tuner) apply() (before int) {
	metrics.Read(t.sample)
	value := func(i int) uint64 { return t.sample[i].Value.Uint64() }
	next := Percent(value(0), value(1)+value(2), t.percent, t.floor)
	if next == t.set {
		return next
	}
	t.set = next
	return debug.SetGCPercent(next)
}

// smallest is the heap that the runtime takes a percent of at least.
const smallest = 4 << 20

// step is how coarse percents are, because each change stops the process for a moment.
const step = 10

// Percent is the growth that takes a heap of live bytes to the floor, and no less than percent. The runtime lets a heap
// grow by that part of the live heap and of the roots, which are globals and stacks.
func Percent(live, roots uint64, percent int, floor uint64) int {
	if live == 0 {
		live = 1 << 20
	}
	if live >= floor {
		return percent
	}
	grow := float64(floor-live) / float64(live+roots) * 100
	return max(percent, int(min(grow, float64(floor)/smallest*100, 10_000))/step*step)
}
