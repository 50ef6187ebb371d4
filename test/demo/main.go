// Command demo shows Towline at work on one machine: a hub, three real control planes with agents, and one module from
// its first put to its removal. It runs the real commands, says what it does, checks that all is as told, and ends with
// an error if not. With HA=1 there are three hubs on three etcd members, and some of them are killed. With KEEP=1 it leaves
// everything running.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"towline.dev/towline/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	keep, hubsAtWork := asked("KEEP"), 1
	if asked("HA") {
		hubsAtWork = hubs
	}
	dir, err := os.MkdirTemp("", "towline-demo-")
	if err != nil {
		return err
	}
	s := &story{out: newScreen(os.Stdout), dir: dir, keep: keep, hubs: hubsAtWork}
	defer func() { err = s.end(err) }()
	return s.tell(ctx)
}

// asked reports that a variable of the environment is set.
func asked(name string) bool { return os.Getenv(name) != "" && os.Getenv(name) != "0" }

// end stops everything, unless it is to be kept.
func (s *story) end(err error) error {
	if err == nil && s.keep {
		return s.leave()
	}
	if s.lab != nil {
		err = errors.Join(err, s.lab.Close())
	}
	if err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, s.dir)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	s.out.say("Everything is stopped and removed.")
	return nil
}

// leave prints how to talk to what stays, and how to end it.
func (s *story) leave() error {
	stop := filepath.Join(s.dir, "stop")
	script := "#!/bin/sh\n# Ends the demo and removes its directory.\n"
	for _, pid := range s.lab.PIDs() {
		script += fmt.Sprintf("kill %d 2>/dev/null\n", pid)
	}
	for _, pid := range s.lab.PIDs() {
		script += fmt.Sprintf("while kill -0 %d 2>/dev/null; do sleep 0.1; done\n", pid)
	}
	script += fmt.Sprintf("rm -rf %q\n", s.dir)
	if err := os.WriteFile(stop, []byte(script), 0o700); err != nil {
		return err
	}
	s.out.say("Everything is left running. To talk to it:")
	s.out.line("")
	s.out.line("  export TOWLINE_CONFIG=" + s.lab.Hub.Config())
	s.out.line("  export PATH=" + s.bin() + ":$PATH")
	s.out.line("  towline get modules")
	s.out.line("  towline get objects --module shop")
	for _, c := range s.lab.Clusters {
		s.out.line("  kubectl --kubeconfig " + c.Kubeconfig + " -n shop get all    # " + c.Name)
	}
	s.out.line("")
	s.out.say("To end it: %s", stop)
	return nil
}

func (s *story) bin() string {
	bin, err := filepath.Abs(os.Getenv("TOWLINE_BIN"))
	if err != nil {
		return os.Getenv("TOWLINE_BIN")
	}
	return bin
}

// story is the demo under way.
type story struct {
	out  *screen
	dir  string
	keep bool
	hubs int
	lab  *lab.Lab
}
