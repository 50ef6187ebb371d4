// Package lab runs whole Towline systems for tests and the demo: kubelab's control planes, hubs, the etcd that several share, and
// agents as separate processes, and the towline command against them. It owns starting, killing and cleaning up, and reads audit logs; it
// must not know what a test proves.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options of a Lab.
type Options struct {
	// Names of the control planes to start; none: hubs alone.
	Names []string
	// Hubs, when there are more than one, share an etcd of as many members.
	Hubs int
	// Dir holds logs and state; default: a temporary directory that Close removes.
	Dir string
	// Bin is the directory of the three binaries; default: $TOWLINE_BIN.
	Bin string
	// Kubelab is the kubelab binary; default: $KUBELAB.
	Kubelab string
	// Links puts a Link between each cluster's agents and the hub.
	Links bool
	// HubArgs are more arguments of the hub, and HubEnv is added to its environment, as NAME=VALUE.
	HubArgs, HubEnv []string
	// Outlive starts everything so that it stays when this process ends.
	Outlive bool
}

// Lab is what Start started.
type Lab struct {
	Dir string
	// Hub is the one that CLI asks; at first the first.
	Hub *Hub
	// Hubs are all of them, and Members those of the etcd that they share, if there are several.
	Hubs     []*Hub
	Members  []*Process
	Clusters []*Cluster

	o       Options
	ownDir  bool
	kubelab *Process

	mu        sync.Mutex
	processes []*Process // in the order of their start
}

// kubelabStart is how long the control planes may take: longer than kubelab lets them, which ends with the reason.
const kubelabStart = 3*time.Minute + 20*time.Second

// Start starts the control planes and the hub. Agents are started by the caller. Close ends all, also after an error.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Bin == "" {
		o.Bin = os.Getenv("TOWLINE_BIN")
	}
	if o.Kubelab == "" {
		o.Kubelab = os.Getenv("KUBELAB")
	}
	if o.Bin == "" || o.Kubelab == "" {
		return nil, errors.New("TOWLINE_BIN and KUBELAB must name the directory of the binaries and the kubelab binary; make sets them")
	}
	l := &Lab{Dir: o.Dir, o: o}
	if l.Dir == "" {
		dir, err := os.MkdirTemp("", "towline-lab-")
		if err != nil {
			return nil, err
		}
		l.Dir, l.ownDir = dir, true
	}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return err
	}
	clusters := filepath.Join(l.Dir, "clusters")
	if len(l.o.Names) > 0 {
		l.kubelab = l.process("kubelab", l.o.Kubelab, "up", "--dir", clusters, "--names", strings.Join(l.o.Names, ","),
			fmt.Sprintf("--die-with-parent=%t", !l.o.Outlive))
		if err := l.kubelab.Start(); err != nil {
			return err
		}
	}
	if err := l.startHubs(ctx); err != nil || l.kubelab == nil {
		return err
	}
	return l.findClusters(ctx, filepath.Join(clusters, "ready.json"))
}

func (l *Lab) findClusters(ctx context.Context, path string) error {
	var ready struct {
		Clusters []struct{ Name, Kubeconfig, Audit string }
	}
	ctx, cancel := context.WithTimeout(ctx, kubelabStart)
	defer cancel()
	err := Poll(ctx, func() error {
		if !l.kubelab.Running() {
			return Final(fmt.Errorf("kubelab ended: %s", l.kubelab.Tail()))
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &ready)
	})
	if err != nil {
		return fmt.Errorf("control planes are not up: %w", err)
	}
	for _, c := range ready.Clusters {
		cluster, err := newCluster(l, c.Name, c.Kubeconfig, c.Audit)
		if err != nil {
			return err
		}
		if l.o.Links {
			if cluster.Link, err = newLink(l.Hub.Agents); err != nil {
				return err
			}
		}
		l.Clusters = append(l.Clusters, cluster)
	}
	return nil
}

// process makes a process of the lab; Close ends it.
func (l *Lab) process(name, path string, args ...string) *Process {
	p := &Process{Name: name, Path: path, Args: args, Log: filepath.Join(l.Dir, name+".log"), outlive: l.o.Outlive}
	l.mu.Lock()
	l.processes = append(l.processes, p)
	l.mu.Unlock()
	return p
}

// Close ends what runs, what was started last first, and removes the lab's directory if Start made it. It fails if a
// process has panicked or, built with the race detector, has seen a race.
func (l *Lab) Close() error {
	l.mu.Lock()
	processes := l.processes
	l.mu.Unlock()
	var first []*Process
	for _, p := range processes {
		if p != l.kubelab {
			first = append(first, p)
		}
	}
	var wg sync.WaitGroup
	for _, p := range first {
		wg.Go(p.Kill)
	}
	wg.Wait()
	for _, c := range l.Clusters {
		if c.Link != nil {
			c.Link.close()
		}
	}
	if l.kubelab != nil {
		l.kubelab.Stop()
	}
	err := crashes(first)
	if !l.ownDir {
		return err
	}
	return errors.Join(err, os.RemoveAll(l.Dir))
}

// crashes are panics, also those that a process outlived, and reports of the race detector in the logs of the processes. That of kubelab is
// not among them: it repeats what a part of a control plane said that could not start, and starts it again.
func crashes(of []*Process) error {
	var all error
	for _, p := range of {
		data, err := os.ReadFile(p.Log)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		all = errors.Join(all, err)
		for _, mark := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: ",
			"a worker panicked", "a driver panicked", "a call panicked"} {
			if at := strings.Index(string(data), mark); at >= 0 {
				all = errors.Join(all, fmt.Errorf("%s:\n%.4000s", p.Name, data[at:]))
			}
		}
	}
	return all
}

// PIDs are the process ids of all that runs.
func (l *Lab) PIDs() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []int
	for _, p := range l.processes {
		if pid := p.PID(); pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}
