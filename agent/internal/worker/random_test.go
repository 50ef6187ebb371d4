package worker

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// inASoak is how many times as many seeds a soak takes.
const inASoak = 20

// firstSeed is where the seeds of `make test` begin: a change is judged by runs that those before it passed.
const firstSeed = 31

// atRandom runs a test from a few seeds, from many that are new each time in a soak (TOWLINE_SOAK), or from the one of a run that is to be
// seen again (TOWLINE_SEED). The subtests have their names from their seeds.
func atRandom(t *testing.T, seeds int, run func(r *rig, rnd *rand.Rand)) {
	t.Helper()
	config := labConfig(t)
	t.Parallel()
	from := uint64(firstSeed)
	if os.Getenv("TOWLINE_SOAK") != "" {
		from, seeds = uint64(time.Now().UnixNano()), seeds*inASoak
	}
	if again := os.Getenv("TOWLINE_SEED"); again != "" {
		var err error
		if from, err = strconv.ParseUint(again, 10, 64); err != nil {
			t.Fatalf("TOWLINE_SEED: %v", err)
		}
		seeds = 1
	}
	for seed := from; seed < from+uint64(seeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			run(newRigOn(t, rest.CopyConfig(config)), rand.New(rand.NewPCG(seed, 1)))
		})
	}
}
