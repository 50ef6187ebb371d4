package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// stopDeadline is how long a process may take to end after SIGTERM.
const stopDeadline = 20 * time.Second

// Process is a program that may be started, killed and started again. Its output is appended to a log.
type Process struct {
	Name string
	Path string
	Args []string
	Env  []string
	Log  string

	outlive bool

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the one in cmd has ended
	from int64         // where its output begins in the log
}

// Start starts the process unless it runs.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("%s runs already", p.Name)
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if p.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	bind(cmd, p.outlive)
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		// How it ended is in ProcessState.
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// running reports a live process; the caller holds mu.
func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Running reports whether the process is there.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running()
}

// PID is 0 when the process does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *Process) signal(s syscall.Signal) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	// It may have ended just now, which is as well.
	_ = p.cmd.Process.Signal(s)
	return p.done
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	if done := p.signal(syscall.SIGKILL); done != nil {
		<-done
	}
}

// Stop asks the process to end with SIGTERM, and kills it if it does not.
func (p *Process) Stop() {
	done := p.signal(syscall.SIGTERM)
	if done == nil {
		return
	}
	timer := time.AfterFunc(stopDeadline, p.Kill)
	defer timer.Stop()
	<-done
}

// Pause stops the process where it is.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// Wait returns the exit code once the process has ended by itself.
func (p *Process) Wait(ctx context.Context) (int, error) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return 0, fmt.Errorf("%s was not started", p.Name)
	}
	select {
	case <-done:
		return cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s still runs: %w", p.Name, ctx.Err())
	}
}

// Output is what the process wrote since its last start.
func (p *Process) Output() string {
	p.mu.Lock()
	from := p.from
	p.mu.Unlock()
	data, err := os.ReadFile(p.Log)
	if err != nil || int64(len(data)) < from {
		return ""
	}
	return string(data[from:])
}

// Tail is the end of the output.
func (p *Process) Tail() string {
	lines := bytes.Split(bytes.TrimSpace([]byte(p.Output())), []byte("\n"))
	if len(lines) > 15 {
		lines = lines[len(lines)-15:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}
