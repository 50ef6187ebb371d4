package labtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A kubelab that ends is not waited for, and what it said is told.
func TestUpTellsWhyKubelabEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelab")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho the API server ended >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBELAB", path)
	_, err := up()
	lab.stop()
	lab.stop = nil
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the API server ended") {
		t.Errorf("error %v", err)
	}
}
