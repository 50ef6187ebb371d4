// Package labtest gives tests of single packages a real API server. It owns finding or starting one; it must not know
// what is tested.
package labtest

import (
	"bytes"
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

	kubeconfig string
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

// AuditLog is the path of the audit log of the API server that Config reaches: kubelab writes it beside the kubeconfig.
func AuditLog(t *testing.T) string {
	t.Helper()
	Config(t)
	path := filepath.Join(filepath.Dir(lab.kubeconfig), "audit.log")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the control plane writes no audit log: %v", err)
	}
	return path
}

// Restart kills the API server that Config reaches, and starts it again. The channel is closed when it is ready, or says why it is not. The test is
// skipped where it is not Config's own.
func Restart(t *testing.T) <-chan error {
	t.Helper()
	Config(t)
	if os.Getenv("KUBELAB_KUBECONFIG") != "" {
		t.Skip("KUBELAB_KUBECONFIG names a control plane that is not the test's own to restart")
	}
	back := make(chan error, 1)
	go func() {
		defer close(back)
		for _, verb := range []string{"kill", "start"} { // at its leisure it takes half a minute to end
			cmd := exec.Command(os.Getenv("KUBELAB"), "ctl", "--dir", filepath.Dir(filepath.Dir(lab.kubeconfig)), "--cluster", "c1", "--part", "apiserver", verb)
			if said, err := cmd.CombinedOutput(); err != nil {
				back <- fmt.Errorf("%s the API server: %w: %s", verb, err, said)
				return
			}
		}
	}()
	return back
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
	lab.kubeconfig = path
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// up starts one control plane and waits until it is ready, or kubelab gives it up.
func up() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "labtest"); err != nil {
		return "", err
	}
	var said bytes.Buffer
	cmd := exec.Command(os.Getenv("KUBELAB"), "up", "--dir", dir, "--clusters", "1")
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	lab.stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
		_ = os.RemoveAll(dir)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(dir, "ready.json")); err == nil {
			return dir, nil
		}
		select {
		case err := <-ended:
			lab.stop = func() { _ = os.RemoveAll(dir) }
			return "", fmt.Errorf("kubelab ended before its control plane was ready: %v: %s", err, said.String())
		case <-tick.C:
		}
	}
}
