// Package heap sets how eagerly a process collects garbage. It owns that trade of memory for time; it must not know what
// the process does.
package heap

import (
	"math"
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
	t := &tuner{percent: percent, floor: floor, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	before := debug.SetGCPercent(percent)
	t.apply()
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

func (t *tuner) apply() {
	metrics.Read(t.sample)
	next := Percent(t.sample[0].Value.Uint64(), t.percent, t.floor)
	if next == t.set {
		return
	}
	t.set = next
	debug.SetGCPercent(next)
}

// step is how coarse percents are, because each change stops the process for a moment.
const step = 10

// Percent is the growth that takes a heap of live bytes to the floor, and no less than percent.
func Percent(live uint64, percent int, floor uint64) int {
	if live == 0 {
		live = 1 << 20
	}
	if live >= floor {
		return percent
	}
	grow := float64(floor-live) / float64(live) * 100
	return max(percent, int(math.Min(grow, 10_000))/step*step)
}
