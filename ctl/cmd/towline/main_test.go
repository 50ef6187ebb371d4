package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// signalled names the time in the environment of a process that this test starts.
const signalled = "TOWLINE_TEST_ONE_INTERRUPT"

// TestSignalThatComesTwice: what comes with the first signal does not end the process, which has something to say; what comes later does.
func TestSignalThatComesTwice(t *testing.T) {
	if one := os.Getenv(signalled); one != "" {
		repeat(one)
		return
	}
	for one, want := range map[string]bool{"1h": true, "0s": false} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestSignalThatComesTwice")
		cmd.Env = append(os.Environ(), signalled+"="+one)
		out, err := cmd.Output()
		var exit *exec.ExitError
		killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM
		if lives := strings.Contains(string(out), "lives"); lives != want || killed == want {
			t.Errorf("within %s: output %q, %v; it is to live: %t", one, out, err, want)
		}
	}
}

// repeat has this process get the signal again and again: it ends by that if no time is given, and says that it lives else. One that is to end
// gets them apart from each other: the race detector breaks down where many come while the signal is being given back.
func repeat(within string) {
	one, err := time.ParseDuration(within)
	if err != nil {
		panic(err)
	}
	ctx, _ := interrupted(one, syscall.SIGTERM)
	again := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) }
	again()
	<-ctx.Done()
	if one == 0 {
		for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
			again()
		}
	}
	for range 200_000 {
		again()
	}
	fmt.Println("lives")
}
