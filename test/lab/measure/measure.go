// Package measure is what benchmarks on a lab share: what processes used, medians, tables, manifests, and the reference
// that applies them to an API server with nothing around it. It must not know what a benchmark asks for.
package measure

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// tick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = time.Second / 100

// CPU is the user and system time that a process has used.
func CPU(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: not understood", pid)
	}
	user, errUser := strconv.ParseInt(string(fields[11]), 10, 64)
	system, errSystem := strconv.ParseInt(string(fields[12]), 10, 64)
	if errUser != nil || errSystem != nil {
		return 0, fmt.Errorf("/proc/%d/stat: not understood", pid)
	}
	return time.Duration(user+system) * tick, nil
}

// Memory of a process in bytes: what is resident, of that what is no file's, and the peak.
type Memory struct{ Now, Anon, Peak int64 }

// MemoryOf reads the resident memory of a process.
func MemoryOf(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			m.Now = kb << 10
		case "RssAnon:":
			m.Anon = kb << 10
		case "VmHWM:":
			m.Peak = kb << 10
		}
	}
	if m.Now == 0 || m.Anon == 0 || m.Peak == 0 {
		return m, fmt.Errorf("/proc/%d/status: names no memory", pid)
	}
	return m, nil
}

// Load is the machine's load average, as a fact beside results.
func Load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

// Median of values; 0 of none.
func Median[T cmp.Ordered](values []T) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Percentile p of values, from 0 to 1.
func Percentile[T cmp.Ordered](values []T, p float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// Ratios of pairs of runs.
func Ratios(subject, reference []float64) []float64 {
	out := make([]float64, 0, len(subject))
	for i := range subject {
		out = append(out, subject[i]/reference[i])
	}
	return out
}

// Table prints rows under a heading in columns.
func Table(w io.Writer, heading string, rows ...string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, heading+"\t")
	for _, r := range rows {
		fmt.Fprintln(t, r+"\t")
	}
	_ = t.Flush()
}

// Goal is one claim of a benchmark.
type Goal struct {
	What  string
	Got   float64
	Limit float64
	// AtLeast says that more is better.
	AtLeast bool
}

// Met reports whether the goal was reached.
func (g Goal) Met() bool {
	if g.AtLeast {
		return g.Got >= g.Limit
	}
	return g.Got <= g.Limit
}

// Judge prints the goals and lists those that were missed.
func Judge(w io.Writer, goals []Goal) error {
	var missed []string
	for _, g := range goals {
		sign, word := "≤", "ok"
		if g.AtLeast {
			sign = "≥"
		}
		if !g.Met() {
			word = "MISSED"
			missed = append(missed, g.What)
		}
		fmt.Fprintf(w, "%-6s  %s: %.3g, goal %s %.3g\n", word, g.What, g.Got, sign, g.Limit)
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("goals missed: %s", strings.Join(missed, "; "))
}
