//go:build !linux

package apply

import "syscall"

// boundDelivery needs Linux.
func boundDelivery(_, _ string, _ syscall.RawConn) error { return nil }
