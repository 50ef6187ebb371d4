//go:build unix

package child

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// confine keeps the process from opening files and connections, from writing what it has open, and from leaving a core: libraries have ways
// out of their own, as Helm with what the schema of a chart refers to. What does not work here is no reason not to build.
func confine() {
	limit := func(resource int, to uint64) { _ = syscall.Setrlimit(resource, &syscall.Rlimit{Cur: to, Max: to}) }
	limit(syscall.RLIMIT_CORE, 0)
	limit(syscall.RLIMIT_FSIZE, 0)
	if free, err := firstFree(); err == nil {
		limit(syscall.RLIMIT_NOFILE, uint64(free))
	}
}

// firstFree is the lowest descriptor that is not open. What the runtime opens when it first waits for a timer or a pipe is open by then:
// a process that cannot have it ends.
func firstFree() (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	_, _ = r.Close(), w.Close()
	fd, err := syscall.Dup(int(syscall.Stdin))
	if err != nil {
		return 0, err
	}
	return fd, syscall.Close(fd)
}

// hungUp waits until nobody can write to a pipe any more, and takes nothing out of it. Where that cannot be seen it says so at once.
func hungUp(pipe *os.File) bool {
	ends := []unix.PollFd{{Fd: int32(pipe.Fd())}}
	for {
		_, err := unix.Poll(ends, -1)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return false
		case ends[0].Revents != 0:
			return true
		}
	}
}
