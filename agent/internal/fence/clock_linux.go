package fence

import (
	"time"

	"golang.org/x/sys/unix"
)

// boot goes on while the machine is suspended, and nobody can set it.
func boot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return sinceStart()
	}
	return time.Duration(t.Nano())
}
