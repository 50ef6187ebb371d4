package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A part of a control plane may crash at its start, as KWOK does now and then, and is started again: that is no crash of the product.
func TestCrashesAreThoseOfTheProduct(t *testing.T) {
	dir := t.TempDir()
	process := func(name string) *Process {
		log := filepath.Join(dir, name)
		if err := os.WriteFile(log, []byte("began\npanic: "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return &Process{Name: name, Log: log}
	}
	l := &Lab{kubelab: process("kubelab"), ownDir: true, Dir: t.TempDir()}
	l.processes = []*Process{l.kubelab, process("hub")}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "panic: hub") || strings.Contains(err.Error(), "panic: kubelab") {
		t.Errorf("closed with %v", err)
	}
}
