package state

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a disk that is full, or read-only, a state is opened, taken and read; it says why it takes no writes, and takes them
// when it can again.
func TestDirOnADiskThatTakesNothing(t *testing.T) {
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	epoch := uint64(0)
	open := func() *Dir {
		t.Helper()
		epoch++
		d, err := OpenDir(filepath.Join(path, "state"))
		if err == nil {
			err = d.Take(t.Context(), Tenure{Cluster: "uid-1", Epoch: epoch})
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	works := func(d *Dir, wants error) {
		t.Helper()
		if b, err := d.Read(t.Context(), "a"); err != nil || string(b) != "one" {
			t.Errorf("%q, %v", b, err)
		}
		if err := d.Write(t.Context(), "a", []byte("one")); !errors.Is(err, wants) || wants == nil && err != nil {
			t.Errorf("writes: %v, want %v", err, wants)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	d := open()
	if err := d.Write(t.Context(), "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	works(d, nil)

	filler := filepath.Join(path, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte("x"), 64<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	works(open(), syscall.ENOSPC)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	works(open(), nil)

	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	works(open(), syscall.EROFS)
	if err := unix.Mount("", path, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	works(open(), nil)
	if was, err := open().Tenure(t.Context()); err != nil || was.Epoch != epoch {
		t.Errorf("tenure %+v, %v", was, err)
	}
}
