//go:build unix

package pack

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFileThatIsAPipeMeanwhile: a name that was a file's when its folder was listed, and is a pipe's when it is read, is refused, and nobody waits
// for who may write into it.
func TestFileThatIsAPipeMeanwhile(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.yaml")
	if err := syscall.Mkfifo(at, 0o600); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := (&packer{}).read(at)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "no file any more") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("waits for a pipe")
	}
}
