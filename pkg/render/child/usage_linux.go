package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticks of CPU time a second, as /proc counts them on every Linux.
const ticks = 100

// usage is the CPU time that a process has taken, and the memory that it has now.
func usage(pid int) (cpu time.Duration, memory int64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	_, rest, found := bytes.Cut(stat, []byte(") ")) // the name before it may hold anything, but the worker's does not
	fields := bytes.Fields(rest)
	const user, system, resident = 11, 12, 21
	if !found || len(fields) <= resident {
		return 0, 0, false
	}
	var n [3]int64
	for i, at := range []int{user, system, resident} {
		if n[i], err = strconv.ParseInt(string(fields[at]), 10, 64); err != nil {
			return 0, 0, false
		}
	}
	return time.Duration(n[0]+n[1]) * time.Second / ticks, n[2] * int64(os.Getpagesize()), true
}
