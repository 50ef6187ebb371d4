package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// spawns runs functions on one thread that lives as long as kubelab: the
// kernel sends a child its parent-death signal when the thread that started
// it ends, not only when the process does.
var spawns = func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
}()

// The states of a part. Exited is that of a part which ended although nobody
// asked it to.
const (
	stateStopped = "stopped"
	stateRunning = "running"
	statePaused  = "paused"
	stateKilled  = "killed"
	stateExited  = "exited"
)

// A part is one process of a control plane, started as often as wanted.
type part struct {
	name    string // as in ready.json
	command string // the kubelab command
	args    []string
	dir     string // working directory and HOME
	logPath string
	url     string // of its health endpoint
	client  *http.Client
	ports   []*port              // it binds
	changed func(message string) // called after every change of state

	mu    sync.Mutex
	state string
	proc  *os.Process
	done  chan struct{} // closed when proc has ended
	mark  int64         // length of the log when proc started
}

// snapshot returns the part's state and its process id, 0 without a process.
func (p *part) snapshot() (state string, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		pid = p.proc.Pid
	}
	return p.state, pid
}

// spawn starts the part's process and does not wait until it is healthy.
func (p *part) spawn() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		return fmt.Errorf("%s runs already", p.name)
	}
	for _, port := range p.ports {
		port.open()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if p.mark, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{p.command}, p.args...)...)
	cmd.Dir = p.dir
	cmd.Env = []string{"HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawns <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	done := make(chan struct{})
	p.proc, p.done, p.state = cmd.Process, done, stateRunning
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.proc = nil
		message := ""
		if p.state == stateRunning || p.state == statePaused {
			p.state = stateExited
			message = fmt.Sprintf("%s ended by itself: %v", p.name, err)
		}
		p.mu.Unlock()
		close(done)
		p.changed(message)
	}()
	return nil
}

// healthy reports whether the part's health endpoint answers well.
func (p *part) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", p.url, resp.Status)
	}
	return nil
}

// waitHealthy waits until the part is healthy, or fails when its process ends.
func (p *part) waitHealthy(ctx context.Context) error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	for {
		err := p.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s ended before it was healthy, the end of %s:\n%s", p.name, p.logPath, p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not healthy in time: %w; the end of %s:\n%s", p.name, err, p.logPath, p.logTail())
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// logTail returns the end of what the part's last process logged.
func (p *part) logTail() string {
	data, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	data = data[min(p.mark, int64(len(data))):]
	return string(data[max(0, len(data)-4000):])
}

// end ends the process with sig and leaves the part in state. A process that
// does not end in time is killed.
func (p *part) end(sig syscall.Signal, state string, patience time.Duration) error {
	p.mu.Lock()
	proc, done := p.proc, p.done
	if proc == nil {
		p.state = state
		p.mu.Unlock()
		p.changed("")
		return nil
	}
	paused := p.state == statePaused
	p.state = state
	err := proc.Signal(sig)
	if paused && err == nil {
		err = proc.Signal(syscall.SIGCONT)
	}
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-done:
		return nil
	case <-time.After(patience):
	}
	if err := proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-done
	return nil
}

// signal pauses or resumes the process.
func (p *part) signal(sig syscall.Signal, state string) error {
	p.mu.Lock()
	defer p.changed("")
	defer p.mu.Unlock()
	if p.proc == nil {
		return fmt.Errorf("%s does not run", p.name)
	}
	if err := p.proc.Signal(sig); err != nil {
		return err
	}
	p.state = state
	return nil
}
