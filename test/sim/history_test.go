package sim

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// history is every effect of a life, in order: what is written to API servers, committed to the store, and sent, with what was noted.
// Nil keeps none.
type history struct {
	mu      sync.Mutex
	began   time.Time
	effects []string
}

// add adds one.
func (h *history) add(format string, args ...any) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = append(h.effects, fmt.Sprintf("%d ", time.Since(h.began).Nanoseconds())+fmt.Sprintf(format, args...))
}

// wrote adds a write to an API server.
func (h *history) wrote(b *box, x Write) {
	if h == nil {
		return
	}
	text, _ := json.Marshal(x.New)
	h.add("write %s %s %s %s by process %d: %08x", b.name, x.Verb, x.Resource, x.Name(), x.Agent, crc32.ChecksumIEEE(text))
}

// sent adds what one process sends to another one.
func (h *history) sent(from, to string, data []byte) {
	if h == nil {
		return
	}
	h.add("send %s %s %d bytes: %08x", from, to, len(data), crc32.ChecksumIEEE(data))
}

// digestOf is that of a history.
func digestOf(effects []string) uint64 {
	d := fnv.New64a()
	for _, e := range effects {
		_, _ = d.Write([]byte(e))
		_, _ = d.Write([]byte{'\n'})
	}
	return d.Sum64()
}

// differ says where two histories part, with what was the same before; empty: nowhere.
func differ(one, two []string) string {
	const before, after = 5, 3
	for i := range max(len(one), len(two)) {
		if i < len(one) && i < len(two) && one[i] == two[i] {
			continue
		}
		part := func(of []string) string { return strings.Join(of[min(i, len(of)):min(i+after, len(of))], "\n\t") }
		return fmt.Sprintf("they part after %d effects of %d and %d:\n\t%s\none goes on:\n\t%s\nthe other:\n\t%s", i, len(one), len(two),
			strings.Join(one[max(0, i-before):i], "\n\t"), part(one), part(two))
	}
	return ""
}

// historyFolder is where lives leave their histories; empty: nowhere.
func historyFolder() string { return os.Getenv("TOWLINE_SIM_HISTORY") }

func historyFile(dir string, seed uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%d.txt", seed))
}

// leave writes a history for the process that asked for the life.
func (h *history) leave(t *testing.T, seed uint64) {
	t.Helper()
	if dir := historyFolder(); dir != "" {
		must(t, os.WriteFile(historyFile(dir, seed), []byte(strings.Join(h.effects, "\n")), 0o644))
	}
}

// apart lives from a seed in a process of its own, and returns the history and what the process said, with an error if the life found
// something. A process that has lived before has what is made once and kept, as schemas, so that the next life in it is another one.
func apart(t *testing.T, seed uint64) (history []string, said string, found error) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	c := exec.Command(self, "-test.run", "TestSim$", "-test.timeout", "30m", fmt.Sprintf("-test.v=%t", testing.Verbose()))
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", fmt.Sprintf("SEED=%d", seed), "SEEDS=1", "TOWLINE_SIM_HISTORY="+dir)
	out, found := c.CombinedOutput()
	text, err := os.ReadFile(historyFile(dir, seed))
	if err != nil {
		t.Fatalf("seed %d: another process left no history: %v\n%s", seed, found, out)
	}
	return strings.Split(string(text), "\n"), string(out), found
}

// livesApart has a life from a seed fail this test if it finds something.
func livesApart(t *testing.T, seed uint64) {
	t.Helper()
	if _, said, found := apart(t, seed); found != nil {
		t.Errorf("%v\n%s", found, said)
	} else if testing.Verbose() {
		t.Log("\n" + said)
	}
}

// exact reports that the test is built with the runtime that has a life be the same each time: in two bubbles it draws the same.
func exact(t *testing.T) bool {
	var drawn [2]uint64
	for i := range drawn {
		synctest.Test(t, func(*testing.T) { drawn[i] = rand.Uint64() })
	}
	return drawn[0] == drawn[1]
}

// TestReplay lives each seed twice, each time in a process of its own, and compares all effects.
func TestReplay(t *testing.T) {
	if !exact(t) {
		t.Skip("the runtime draws at random; make sim-replay has it draw from the seed")
	}
	from, n := seeds(t, 1)
	for seed := from; seed < from+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			one, _, _ := apart(t, seed)
			two, _, _ := apart(t, seed)
			if text := differ(one, two); text != "" {
				t.Fatalf("seed %d: two lives are not the same: %s", seed, text)
			}
			t.Logf("seed %d: two lives are the same to the last of %d effects, %016x", seed, len(one), digestOf(one))
		})
	}
}
