package child

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// lookEvery is the time between two looks at what a build has taken.
const lookEvery = 20 * time.Millisecond

// process is one that runs Serve. One goroutine at a time builds with it.
type process struct {
	limits Limits
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	said   *tail
	broken bool // it must not build again
	lost   bool // it ended by itself in the middle of a build, or before
	expiry *time.Timer
	ended  sync.Once
}

func start(o Options) (*process, error) {
	cmd := exec.Command(o.Command[0], o.Command[1:]...)
	cmd.Env = []string{} // not nil, which would be the hub's
	cmd.Dir = "/"
	c := &process{limits: o.Limits, cmd: cmd, said: &tail{}}
	cmd.Stderr = c.said
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 64<<10)
	return c, cmd.Start()
}

// end kills the process and waits for that.
func (c *process) end() {
	c.ended.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
}

// build has the process do one job, and ends it where that takes too much.
func (c *process) build(ctx context.Context, job render.Job) (Result, error) {
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := c.exchange(job)
		done <- outcome{result, err}
	}()
	began := time.Now()
	cpu, _, _ := usage(c.cmd.Process.Pid)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		var over error
		select {
		case o := <-done:
			return o.result, o.err
		case <-ctx.Done():
			over = ctx.Err()
		case <-look.C:
			over = c.over(began, cpu)
		}
		if over != nil {
			c.end()
			<-done
			c.broken, c.lost = true, false
			return Result{}, over
		}
	}
}

// over is the limit that a build exceeds.
func (c *process) over(began time.Time, before time.Duration) error {
	exceeds := func(what string) error {
		return fleet.Errorf(fleet.ErrExhausted, "package: rendering was stopped, for it took more than %s", what)
	}
	cpu, memory, _ := usage(c.cmd.Process.Pid)
	switch {
	case cpu-before > c.limits.CPU:
		return exceeds(fmt.Sprintf("%s of processor time", c.limits.CPU))
	case memory > c.limits.Memory:
		return exceeds(fmt.Sprintf("%d MiB of memory", c.limits.Memory>>20))
	case time.Since(began) > c.limits.Wall:
		return exceeds(fmt.Sprint(c.limits.Wall))
	}
	return nil
}

// exchange sends the job and reads the answer.
func (c *process) exchange(job render.Job) (Result, error) {
	parts := partsOf(job.Files)
	sent := make(chan error, 1)
	go func() { sent <- writeFrame(c.in, request{Job: job, Files: parts}, parts, job.Files) }()
	var head response
	err := readHead(c.out, &head)
	var texts map[string][]byte
	if err == nil {
		texts, err = readParts(c.out, head.Texts, c.limits.Output)
	}
	if err == nil {
		err = <-sent
	}
	switch {
	case errors.Is(err, errTooMuch):
		c.broken = true
		return Result{}, fleet.Errorf(fleet.ErrExhausted, "package: renders to more than %d MiB: split the module", c.limits.Output>>20)
	case err != nil, !head.Done:
		c.broken, c.lost = true, true
		return Result{}, c.gone()
	}
	return Result{Texts: texts, Reads: head.Reads, Spent: head.Spent}, head.err()
}

// gone says why the process ended. One that was killed without a word is not what the package did wrong: the system kills when its memory, or
// that of the container, runs out.
func (c *process) gone() error {
	c.end()
	why := c.said.firstLine()
	if why == "" && c.cmd.ProcessState != nil {
		why = c.cmd.ProcessState.String()
		if how, is := c.cmd.ProcessState.Sys().(syscall.WaitStatus); is && how.Signaled() && how.Signal() == syscall.SIGKILL {
			return fleet.Errorf(fleet.ErrUnavailable, "package: the render worker was killed in the middle of it: look whether the hub's machine or container has memory for one of %d MiB", c.limits.Memory>>20)
		}
	}
	return fleet.Errorf(fleet.ErrInvalid, "package: the render worker ended in the middle of it: %s", why)
}

// tail keeps the beginning of what a process said last: a crash begins with what it was.
type tail struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

const maxSaid = 64 << 10

// Write implements io.Writer. What does not fit takes the place of what was there.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept.Len()+len(p) > maxSaid {
		t.kept.Reset()
	}
	t.kept.Write(p[:min(len(p), maxSaid)])
	return len(p), nil
}

// firstLine is the line of a crash of Go; else the last line.
func (t *tail) firstLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(t.kept.String()), "\n")
	for _, line := range lines {
		if rest, found := strings.CutPrefix(line, "fatal error: "); found {
			return fleet.Clip(rest, 200)
		}
		if rest, found := strings.CutPrefix(line, "panic: "); found {
			return "panic: " + fleet.Clip(rest, 200)
		}
	}
	return fleet.Clip(lines[len(lines)-1], 200)
}
