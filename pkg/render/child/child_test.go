package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// worker is the argument with which the test's own program is a process of a pool.
const worker = "a-render-worker"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == worker {
		if err := Serve(Limits{}, misbehave); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// misbehave does what a job's file "do" says.
func misbehave(job render.Job) (Result, error) {
	do := string(job.Files["do"])
	switch do {
	case "spin":
		for n := 0; ; n++ {
			_ = n
		}
	case "wait":
		select {}
	case "grow":
		var held [][]byte
		for {
			held = append(held, bytes.Repeat([]byte("x"), 16<<20))
			runtime.KeepAlive(held)
		}
	case "recurse":
		return Result{}, errors.New(strings.Repeat("x", recurse(0)))
	case "panic":
		panic("a nil map")
	case "panic elsewhere":
		go func() { panic("in a goroutine of its own") }()
		select {}
	case "exit":
		os.Exit(3)
	case "killed":
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	case "much":
		return Result{Texts: map[string][]byte{"a": make([]byte, 40<<20)}}, nil
	case "names":
		texts := map[string][]byte{}
		for i := range 200 { // 20 MB of names, and little else: what names without number cost is the limit of memory's to say
			texts[fmt.Sprintf("%0100000d", i)] = nil
		}
		return Result{Texts: texts}, nil
	case "print":
		fmt.Println("a warning on stdout")
	case "env":
		return Result{Texts: map[string][]byte{"env": []byte(strings.Join(os.Environ(), " "))}}, nil
	case "write":
		err := os.WriteFile(os.TempDir()+"/towline-render-worker-test", []byte("x"), 0o600)
		return Result{}, fleet.Invalidf("a.yaml", "%v", err)
	case "invalid":
		return Result{}, fleet.Invalid("a.yaml:3", "is wrong")
	case "spent":
		return Result{Texts: pid(), Spent: true}, nil
	}
	return Result{Texts: pid()}, nil
}

func recurse(n int) int {
	if n < 0 {
		return n
	}
	var frame [1 << 10]byte
	frame[n%len(frame)] = 1
	return recurse(n+1) + int(frame[0])
}

func pid() map[string][]byte { return map[string][]byte{"pid": []byte(fmt.Sprint(os.Getpid()))} }

func pool(t *testing.T, limits Limits, workers int) *Pool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPool(Options{Command: []string{self, worker}, Workers: workers, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen that %s", what)
		}
	}
}

func do(what string) render.Job {
	return render.Job{Files: map[string][]byte{"do": []byte(what)}}
}

// build does a job that works and returns the process that did it.
func build(t *testing.T, p *Pool, what string) string {
	t.Helper()
	built, err := p.Build(t.Context(), do(what))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return string(built.Texts["pid"])
}

// TestWhatABuildMayTake: what exceeds a limit or breaks its process is an error of that build, which says why, and the next one works.
func TestWhatABuildMayTake(t *testing.T) {
	for what, tt := range map[string]struct {
		limits Limits
		kind   error
		want   string
	}{
		"spin":            {Limits{CPU: time.Second}, fleet.ErrExhausted, "took more than 1s of processor time"},
		"wait":            {Limits{Wall: 2 * time.Second}, fleet.ErrStopped, "of processor time in 2s: look whether the hub's machine is overloaded"},
		"grow":            {Limits{Memory: 300 << 20}, fleet.ErrExhausted, "took more than 300 MiB of memory"},
		"much":            {Limits{}, fleet.ErrExhausted, "more than 32 MiB"},
		"names":           {Limits{Memory: 2 << 30}, fleet.ErrExhausted, "more than 32 MiB"}, // the race detector takes several times what a build does
		"recurse":         {Limits{}, fleet.ErrInvalid, "ended in the middle of it: stack overflow"},
		"panic":           {Limits{}, fleet.ErrInvalid, "panic: a nil map"},
		"panic elsewhere": {Limits{}, fleet.ErrInvalid, "ended in the middle of it: panic: in a goroutine of its own"},
		"exit":            {Limits{}, fleet.ErrInvalid, "ended in the middle of it: exit status 3"},
		"killed":          {Limits{}, fleet.ErrStopped, "was killed in the middle of it: look whether the hub's machine or container has memory"},
		"write":           {Limits{}, fleet.ErrInvalid, "a.yaml: "},
		"invalid":         {Limits{}, fleet.ErrInvalid, "a.yaml:3: is wrong"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := pool(t, tt.limits, 1)
			for range 2 {
				_, err := p.Build(t.Context(), do(what))
				if err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				build(t, p, "well")
			}
		})
	}
}

// TestBuildThatNobodyWaitsFor ends with the process that did it, and the next one works.
func TestBuildThatNobodyWaitsFor(t *testing.T) {
	p := pool(t, Limits{}, 1)
	first := build(t, p, "well")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(2*lookEvery, cancel)
	if _, err := p.Build(ctx, do("wait")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if second := build(t, p, "well"); second == first {
		t.Error("the process that was waited for builds on")
	}
}

// TestProcessEndsWithTheHub: one that builds without end ends when nobody is there to read the answer.
func TestProcessEndsWithTheHub(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := start(Options{Command: []string{self, worker}, Limits: Limits{}.orDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	if _, err := c.exchange(do("well")); err != nil {
		t.Fatal(err)
	}
	job := do("spin")
	parts := partsOf(job.Files)
	if err := errors.Join(writeFrame(c.to, request{Job: job, Files: parts}, parts, job.Files), c.in.Close()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it builds on")
	}
}

// TestProcessHasNothingOfTheHub: no environment, and nothing that it prints comes between the answers.
func TestProcessHasNothingOfTheHub(t *testing.T) {
	t.Setenv("TOWLINE_SECRET", "canary")
	p := pool(t, Limits{}, 1)
	built, err := p.Build(t.Context(), do("env"))
	if err != nil || len(built.Texts["env"]) != 0 {
		t.Errorf("environment %q, %v", built.Texts["env"], err)
	}
	build(t, p, "print")
	build(t, p, "well")
}

// TestProcessesAreKept while they are of use: one that is spent, or failed, builds no more.
func TestProcessesAreKept(t *testing.T) {
	p := pool(t, Limits{}, 1)
	first := build(t, p, "well")
	if again := build(t, p, "well"); again != first {
		t.Errorf("%s built, then %s", first, again)
	}
	if spent := build(t, p, "spent"); spent != first {
		t.Errorf("%s is spent, not %s", spent, first)
	}
	second := build(t, p, "well")
	if second == first {
		t.Error("a process that is spent built again")
	}
	if _, err := p.Build(t.Context(), do("invalid")); err == nil {
		t.Fatal("no error")
	}
	if third := build(t, p, "well"); third == second {
		t.Error("a process that failed built again")
	}
}

// TestProcessThatEndedWhileItWaited for a job, as one that the kernel ends for want of memory, is no fault of the job.
func TestProcessThatEndedWhileItWaited(t *testing.T) {
	p := pool(t, Limits{}, 1)
	first := build(t, p, "well")
	if err := p.idle[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if second := build(t, p, "well"); second == first {
		t.Error("a process that was ended built again")
	}
}

// TestBuildsAtATime: as many processes as there are workers; who waits for one leaves with its context.
func TestBuildsAtATime(t *testing.T) {
	p := pool(t, Limits{}, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() {
			if _, err := p.Build(ctx, do("wait")); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	eventually(t, "two builds begin", func() bool { return len(p.slots) == 2 })
	soon, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := p.Build(soon, do("well")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third build: %v", err)
	}
	cancel()
	waiting.Wait()
	build(t, p, "well")
}

// TestIdleProcessEnds after a while, and all of them with the pool.
func TestIdleProcessEnds(t *testing.T) {
	p := pool(t, Limits{}, 1)
	p.o.Idle = time.Millisecond
	first := build(t, p, "well")
	eventually(t, "the idle process ends", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.idle) == 0
	})
	if second := build(t, p, "well"); second == first {
		t.Error("a process that was idle for too long built again")
	}
	p.Close()
	if _, err := p.Build(t.Context(), do("well")); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

// TestNoWorker: a program that is not there, or is something else, is an error.
func TestNoWorker(t *testing.T) {
	for command, want := range map[string]string{"/no/such/program": "does not start", "/bin/cat": "render worker"} {
		p, err := NewPool(Options{Command: []string{command}, Limits: Limits{Wall: 5 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Build(t.Context(), do("well")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", command, err)
		}
		p.Close()
	}
}

// TestFrames: what a process sends is never taken for more than it may be.
func TestFrames(t *testing.T) {
	for name, data := range map[string]string{
		"head": "\xff\xff\xff\xff", "sizes": frame(`{"texts":[{"name":"a","size":2000000000},{"name":"b","size":2000000000}]}`),
		"negative": frame(`{"texts":[{"name":"a","size":-1}]}`), "cut": frame(`{"texts":[{"name":"a","size":10}]}`) + "abc", "json": frame(`{"texts":`),
	} {
		var head response
		r := strings.NewReader(data)
		err := readHead(r, &head)
		if err == nil {
			_, err = readParts(r, head.Texts, 32<<20)
		}
		if err == nil || err == io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func frame(head string) string {
	return string([]byte{0, 0, byte(len(head) >> 8), byte(len(head))}) + head
}
