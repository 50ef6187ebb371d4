//go:build linux || darwin

package etcd

import "syscall"

// FreeBytes is what a process like this may still write on the disk of a directory.
func FreeBytes(dir string) (bytes int64, known bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}

// SameDisk reports that two directories are on one disk, as far as is known.
func SameDisk(one, two string) bool {
	var a, b syscall.Stat_t
	return syscall.Stat(one, &a) == nil && syscall.Stat(two, &b) == nil && a.Dev == b.Dev
}
