//go:build linux || darwin

package etcd

import "syscall"

// freeBytes is what a process like this may still write on the disk of a directory.
func freeBytes(dir string) (bytes int64, known bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}
