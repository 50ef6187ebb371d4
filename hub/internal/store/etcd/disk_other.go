//go:build !linux && !darwin

package etcd

// FreeBytes is not known here: etcd says it itself when it cannot write.
func FreeBytes(string) (bytes int64, known bool) { return 0, false }

// SameDisk is not known here.
func SameDisk(string, string) bool { return false }
