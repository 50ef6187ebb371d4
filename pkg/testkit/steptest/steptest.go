// Package steptest makes the times that a machine reads after somebody set its clock. It is for tests only and knows how
// time.Time keeps its two readings.
package steptest

import (
	"time"
	"unsafe"
)

// Clocks is a reading of a machine's clocks after the one that people see was set: the other goes on as it did.
func Clocks(t time.Time, by time.Duration) time.Time {
	const monotonic = 1 << 63
	raw := (*struct {
		wall uint64 // bit 63: with a monotonic reading; then 33 bits of seconds and 30 of nanoseconds
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	if raw.wall&monotonic == 0 {
		panic("the time has no monotonic reading")
	}
	raw.wall = uint64(int64(raw.wall) + int64(by/time.Second)<<30)
	return t
}
