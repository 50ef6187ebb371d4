// Package labtest gives tests of single packages a real API server. It owns finding or starting one; it must not know
// what is tested.
package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var lab struct {
	once   sync.Once
	config *rest.Config
	err    error
	stop   func()
}

// Main runs the tests of a package, and stops what Config started.
func Main(m *testing.M) {
	code := m.Run()
	if lab.stop != nil {
		lab.stop()
	}
	os.Exit(code)
}

// Config reaches a real API server: KUBELAB is the path of the kubelab binary, KUBELAB_KUBECONFIG a control plane that
// runs already. Without either the test is skipped.
func Config(t *testing.T) *rest.Config {
	t.Helper()
	if os.Getenv("KUBELAB") == "" && os.Getenv("KUBELAB_KUBECONFIG") == "" {
		t.Skip("needs a real API server: set KUBELAB to the binary that test/kubelab/build.sh prints")
	}
	lab.once.Do(func() { lab.config, lab.err = start() })
	if lab.err != nil {
		t.Fatal(lab.err)
	}
	return rest.CopyConfig(lab.config)
}

func start() (*rest.Config, error) {
	path := os.Getenv("KUBELAB_KUBECONFIG")
	if path == "" {
		dir, err := up()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(dir, "c1", "kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

const readyTime = 3 * time.Minute

// up starts one control plane and waits for it.
func up() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "labtest"); err != nil {
		return "", err
	}
	cmd := exec.Command(os.Getenv("KUBELAB"), "up", "--dir", dir, "--clusters", "1")
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lab.stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(readyTime); ; <-tick.C {
		if _, err := os.Stat(filepath.Join(dir, "ready.json")); err == nil {
			return dir, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("kubelab is not ready after %s", readyTime)
		}
	}
}
