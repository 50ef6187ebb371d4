package apply

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long the kernel tries to deliver what the server does not acknowledge. A request that was given
// up, and whose connection was closed for it, must not arrive when the network is back and another process has the
// Lease: this and the time that a renewal covers are no longer than the Lease is respected.
const unacknowledged = 5 * time.Second

// boundDelivery sets it for a connection. A kernel that cannot do it still closes dead connections, only later.
func boundDelivery(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
	})
}
