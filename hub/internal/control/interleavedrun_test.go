package control

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// runOutcome is what a run has found; empty: nothing.
type runOutcome struct {
	found string
	log   []string
	used  int // of the tape
}

// runInterleaved runs a tape.
func runInterleaved(t *testing.T, list []byte) (out runOutcome) {
	synctest.Test(t, func(t *testing.T) {
		w := newInterleaved(t, &tape{list: list})
		for _, name := range wovenClusters {
			w.joins(name)
		}
		w.begins()
		for w.tape.at < len(w.tape.list) && w.found == "" {
			w.step()
		}
		if w.found == "" {
			w.rests()
		}
		out = runOutcome{w.found, w.log, w.tape.at}
	})
	return out
}

// shrink makes a tape that finds the same as short as it can in some tries.
func shrink(t *testing.T, list []byte, found string, tries int) ([]byte, runOutcome) {
	kind := func(s string) string {
		_, after, _ := strings.Cut(strings.SplitN(s, "\n", 2)[0], ": ")
		return strings.TrimRight(after, "0123456789- ")
	}
	best := runInterleaved(t, list)
	end := time.Now().Add(time.Minute)
	same := func(list []byte) bool {
		if tries--; time.Now().After(end) {
			tries = 0
		}
		got := runInterleaved(t, list)
		if got.found == "" || kind(got.found) != kind(found) {
			return false
		}
		best = got
		return true
	}
	for n := len(list) / 2; n > 0 && tries > 0; n /= 2 {
		for at := 0; at+n <= len(list) && tries > 0; {
			if less := slices.Delete(slices.Clone(list), at, at+n); same(less) {
				list = less
				continue
			}
			at += n
		}
	}
	for at := range list {
		if list[at] != 0 && tries > 0 {
			less := slices.Clone(list)
			if less[at] = 0; same(less) {
				list = less
			}
		}
	}
	return list, best
}

// randomly says for how long something is tried, and from which seed.
func randomly(t *testing.T, usual time.Duration) (limit time.Duration, seed uint64) {
	t.Helper()
	limit, seed = usual, 31
	if v := os.Getenv("TOWLINE_RANDOM"); v != "" {
		var err error
		if limit, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
		seed = rand.Uint64N(1e9)
	}
	if v := os.Getenv("TOWLINE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return limit, seed
}

// TestWhateverHappensBeforeACommit runs for TOWLINE_RANDOM, by default for a few seconds, from TOWLINE_SEED. What it was
// measured to find when a check is taken out of a commit is in docs/reliability.md.
func TestWhateverHappensBeforeACommit(t *testing.T) {
	limit, seed := randomly(t, 4*time.Second)
	runs := 0
	for end := time.Now().Add(limit); time.Now().Before(end); runs++ {
		list, random := make([]byte, 600), rand.New(rand.NewPCG(seed, uint64(runs)))
		for i := range list {
			list[i] = byte(random.Uint32())
		}
		got := runInterleaved(t, list)
		if got.found == "" {
			continue
		}
		less, best := shrink(t, list[:min(got.used, len(list))], got.found, 1000)
		t.Fatalf("seed %d, run %d: %s\nshortest tape: %v\n%s", seed, runs, got.found, less, strings.Join(best.log, "\n"))
	}
	t.Logf("seed %d: %d runs", seed, runs)
}
