package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Tools are the directory of Towline's binaries and the kubelab binary: what $TOWLINE_BIN and $KUBELAB name, or else
// what is built from the repository at root.
func Tools(ctx context.Context, root string) (bin, kubelab string, err error) {
	if bin = os.Getenv("TOWLINE_BIN"); bin == "" {
		bin = filepath.Join(root, "bin")
		if _, err := output(ctx, root, "make", "-s", "build"); err != nil {
			return "", "", err
		}
	}
	if kubelab = os.Getenv("KUBELAB"); kubelab == "" {
		if kubelab, err = output(ctx, root, "test/kubelab/build.sh"); err != nil {
			return "", "", err
		}
	}
	bin, err = filepath.Abs(bin)
	return bin, kubelab, err
}

// output runs a command below root and returns the last line that it printed.
func output(ctx context.Context, root, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:], nil
}

// PID is the process id of a part of the control plane: etcd, apiserver, controller-manager, scheduler or kwok.
func (c *Cluster) PID(part string) (int, error) {
	data, err := os.ReadFile(filepath.Join(c.lab.Dir, "clusters", "ready.json"))
	if err != nil {
		return 0, err
	}
	var ready struct {
		Clusters []struct {
			Name  string
			Parts map[string]struct{ PID int }
		}
	}
	if err := json.Unmarshal(data, &ready); err != nil {
		return 0, err
	}
	for _, r := range ready.Clusters {
		if r.Name == c.Name && r.Parts[part].PID > 0 {
			return r.Parts[part].PID, nil
		}
	}
	return 0, fmt.Errorf("cluster %s: %s does not run", c.Name, part)
}

// Part acts on a part of the control plane: stop, kill, start, restart, pause or resume.
func (c *Cluster) Part(ctx context.Context, part, action string) error {
	_, err := output(ctx, c.lab.Dir, c.lab.o.Kubelab, "ctl", "--dir", filepath.Join(c.lab.Dir, "clusters"), "--cluster", c.Name, "--part", part, action)
	return err
}
