// Package e2etest gives an end-to-end test a lab of its own, which ends with the test. It must not know what the test proves.
package e2etest

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/test/lab"
)

// Patience is how long a whole lab may take to come up, and a cluster until it is Ready.
const Patience = 4 * time.Minute

// Start starts a lab in a directory of its own, which stays, with logs and state, where the test fails.
func Start(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "towline-"+strings.ReplaceAll(t.Name(), "/", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	var l *lab.Lab
	t.Cleanup(func() {
		if l != nil {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Log("logs and state are in", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	o.Dir = dir
	if l, err = lab.Start(ctx, o); err != nil {
		t.Fatal(err)
	}
	return l
}

// Join has every cluster join with its label, and returns when all are Ready.
func Join(t *testing.T, l *lab.Lab, label func(i int, c *lab.Cluster) string) {
	t.Helper()
	for i, c := range l.Clusters {
		if _, err := l.Join(t.Context(), c, "--label", label(i, c)); err != nil {
			t.Fatal(err)
		}
	}
	Ready(t, l)
}

// Ready returns when the hub says that every cluster is.
func Ready(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for _, c := range l.Clusters {
		if err := l.WaitState(ctx, c.Name, "Ready"); err != nil {
			t.Fatalf("%v\nhub:\n%s\nagent of %s:\n%s", err, l.Hub.Tail(), c.Name, c.Agent.Tail())
		}
	}
}

// Canary labels the first cluster as the canary, and the others as the rest.
func Canary(i int, _ *lab.Cluster) string {
	if i == 0 {
		return "ring=canary"
	}
	return "ring=rest"
}

// Seed is that of a random run: TOWLINE_SEED, or a new one.
func Seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("TOWLINE_SEED")
	if text == "" {
		return rand.Uint64() % 1_000_000
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Duration is how long a random run goes on: TOWLINE_SOAK, or atLeast.
func Duration(t *testing.T, atLeast time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("TOWLINE_SOAK")
	if text == "" {
		return atLeast
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Lies are since when the hub has been saying what is not so. What it says a moment late is none.
type Lies map[string]time.Time

// Kept takes what is not so now, forgets what is over, and yields one that has been said for longer than the time; empty: none has.
func (l *Lies) Kept(now time.Time, lies []string, lag time.Duration) string {
	still := Lies{}
	for _, lie := range lies {
		since, known := (*l)[lie]
		if !known {
			since = now
		}
		if now.Sub(since) > lag {
			return lie
		}
		still[lie] = since
	}
	*l = still
	return ""
}
