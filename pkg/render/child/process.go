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
	to     *bufio.Writer // writes to in
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
	c.to, c.out = bufio.NewWriterSize(c.in, frameBuffer), bufio.NewReaderSize(out, frameBuffer)
	return c, cmd.Start()
}

// end kills the process and waits for that.
func (c *process) end() {
	c.ended.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
}

// build has the process do one job, and ends it where that takes too much. The exchange is in the goroutine of whoever asks, and what
// watches it is a timer, since for a small job the way between goroutines would take longer than that between the processes.
func (c *process) build(ctx context.Context, job render.Job) (Result, error) {
	w := c.watch(ctx)
	result, err := c.exchange(job)
	over := w.stop()
	if over == nil {
		return result, err
	}
	c.end()
	c.broken, c.lost = true, false
	if err == nil { // it had answered before it was looked at
		return result, nil
	}
	return Result{}, over
}

// watch kills the process of a build that takes too much, which ends the exchange.
type watch struct {
	c     *process
	began time.Time
	timer *time.Timer
	leave func() bool // forgets the context of the build

	mu     sync.Mutex
	ended  bool
	looked bool
	cpu    time.Duration // what the process had taken at the first look
	over   error
}

func (c *process) watch(ctx context.Context) *watch {
	w := &watch{c: c, began: time.Now()}
	w.mu.Lock() // nothing is looked at before there is a timer
	defer w.mu.Unlock()
	w.leave = context.AfterFunc(ctx, func() { w.kill(ctx.Err) })
	w.timer = time.AfterFunc(lookEvery, func() { w.kill(w.look) })
	return w
}

// kill ends the process where why gives a reason, unless the build has ended.
func (w *watch) kill(why func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.over != nil {
		return
	}
	if w.over = why(); w.over != nil {
		_ = w.c.cmd.Process.Kill() // the exchange waits for its end
	}
}

// look is the limit that the build exceeds; where there is none it will be looked again.
func (w *watch) look() error {
	cpu, memory, known := usage(w.c.cmd.Process.Pid)
	if !w.looked {
		w.looked, w.cpu = true, cpu
	}
	exceeds := func(what string) error {
		return fleet.Errorf(fleet.ErrExhausted, "package: rendering was stopped, for it took more than %s", what)
	}
	l := w.c.limits
	switch {
	case cpu-w.cpu > l.CPU:
		return exceeds(fmt.Sprintf("%s of processor time", l.CPU))
	case memory > l.Memory:
		return exceeds(fmt.Sprintf("%d MiB of memory", l.Memory>>20))
	case time.Since(w.began) <= l.Wall:
		w.timer.Reset(lookEvery)
		return nil
	case known: // a build that computes reaches the limit above first
		return fleet.Errorf(fleet.ErrStopped, "package: rendering was stopped, for it had only %s of processor time in %s: look whether the hub's machine is overloaded, or stood still", cpu-w.cpu, l.Wall)
	}
	return exceeds(fmt.Sprint(l.Wall))
}

// stop ends the watch, and says why the process was killed.
func (w *watch) stop() error {
	w.timer.Stop()
	w.leave()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	return w.over
}

// exchange sends the job and reads the answer, which comes after all of the job has been read.
func (c *process) exchange(job render.Job) (Result, error) {
	parts := partsOf(job.Files)
	var head response
	err := writeFrame(c.to, request{Job: job, Files: parts}, parts, job.Files)
	if err == nil {
		err = readHead(c.out, &head)
	}
	var texts map[string][]byte
	if err == nil {
		texts, err = readParts(c.out, head.Texts, c.limits.Output)
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
			return fleet.Errorf(fleet.ErrStopped, "package: the render worker was killed in the middle of it: look whether the hub's machine or container has memory for one of %d MiB", c.limits.Memory>>20)
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
