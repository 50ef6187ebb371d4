package heap

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		live, roots, floor uint64
		percent, want      int
	}{
		{10 << 20, 0, 40 << 20, 40, 300},
		{30 << 20, 0, 40 << 20, 40, 40}, // a third is less than what is asked for anyway
		{28 << 20, 0, 40 << 20, 40, 40},
		{50 << 20, 0, 40 << 20, 40, 40},
		{0, 0, 40 << 20, 40, 1000},            // no more than takes the smallest heap to the floor
		{4 << 20, 2 << 20, 40 << 20, 40, 600}, // roots let it grow, too
		{1, 0, 1 << 40, 100, 10_000},
		{10 << 20, 0, 0, 100, 100},
	} {
		if got := Percent(tc.live, tc.roots, tc.percent, tc.floor); got != tc.want {
			t.Errorf("live %d, floor %d, %d %%: %d, want %d", tc.live, tc.floor, tc.percent, got, tc.want)
		}
	}
}

var sink []byte

// What is made and dropped at once is collected once in a floor's worth, not once in four megabytes.
func TestFloorMakesCollectionsRare(t *testing.T) {
	t.Setenv("GOGC", "")
	const floor, garbage = 64 << 20, 1 << 30
	collections := func() uint32 {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range garbage / (64 << 10) {
			sink = make([]byte, 64<<10)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	plain := collections()
	stop := Tune(40, floor)
	defer stop()
	tuned := collections()
	if most := uint32(2 * garbage / floor); tuned > most || tuned*2 > plain {
		t.Errorf("%d collections with the floor, at most %d; %d without", tuned, most, plain)
	}
}

// The goal comes down to the floor also when a collection was under way, which found more alive than the one before.
func TestFloorHoldsFromTheStart(t *testing.T) {
	t.Setenv("GOGC", "")
	const floor, most, tries = 64 << 20, 72 << 20, 50
	var live [][]byte
	goal := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for try := range tries {
		live = nil
		runtime.GC()
		for range 256 {
			live = append(live, make([]byte, 64<<10))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.GC()
		}()
		runtime.Gosched()
		stop := Tune(40, floor)
		<-done
		for deadline := time.Now().Add(time.Minute); goal() > most; <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("try %d: the heap may grow to %d bytes, the floor is %d", try, goal(), floor)
			}
		}
		stop()
	}
	runtime.KeepAlive(live)
}
