package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"towline.dev/towline/test/lab/measure"
)

// process is a child that is told what to do by lines on its standard input, and answers each with one line.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

func start(ctx context.Context, name string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.CommandContext(ctx, self, append([]string{"-child", name}, args...)...)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// ask has the child do something, and returns when it is done.
func (p *process) ask(format string, args ...any) (string, error) {
	command := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		return "", fmt.Errorf("%s: %s: %w", p.name, command, err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s: %s: it ended: %w", p.name, command, err)
	}
	answer, ok := strings.CutPrefix(strings.TrimSpace(line), "ok")
	if !ok {
		return "", fmt.Errorf("%s: %s: %s", p.name, command, strings.TrimSpace(line))
	}
	return strings.TrimSpace(answer), nil
}

// cpu is what the child has used.
func (p *process) cpu() (time.Duration, error) {
	text, err := p.ask("cpu")
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(text)
}

// memory is what the child has of its own after a collection, in bytes.
func (p *process) memory() (float64, error) {
	if _, err := p.ask("collect"); err != nil {
		return 0, err
	}
	m, err := measure.MemoryOf(p.cmd.Process.Pid)
	return float64(m.Anon), err
}

// kill ends the child as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// serveChild is one of the children.
func serveChild(name string, args []string) error {
	do, err := newChild(name, args)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := common(words)
		if answer == "" && err == nil {
			answer, err = do(words)
		}
		if err != nil {
			fmt.Println("failed:", err)
			continue
		}
		fmt.Println("ok", answer)
	}
	return lines.Err()
}

func newChild(name string, args []string) (func(words []string) (string, error), error) {
	switch name {
	case "hub":
		return newHub(args)
	case "agents":
		return newAgents(), nil
	case "bare":
		return newBare(args)
	case "dialer":
		return newDialer(args)
	}
	return nil, fmt.Errorf("no child is called %q", name)
}

// common does what every child can; the answer is empty when it is none of that.
func common(words []string) (string, error) {
	switch words[0] {
	case "cpu":
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return "", err
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()).String(), nil
	case "collect":
		debug.FreeOSMemory()
		return "collected", nil
	}
	return "", nil
}

// timed is how long something takes in the middle of so many times, with so many bytes.
func timed(count, size string, do func(i int, data []byte) error) (string, error) {
	n, errCount := strconv.Atoi(count)
	bytes, errSize := strconv.Atoi(size)
	if err := errors.Join(errCount, errSize); err != nil {
		return "", err
	}
	var all []time.Duration
	for i := range n {
		began := time.Now()
		if err := do(i, make([]byte, bytes)); err != nil {
			return "", err
		}
		all = append(all, time.Since(began))
	}
	return measure.Median(all).String(), nil
}
