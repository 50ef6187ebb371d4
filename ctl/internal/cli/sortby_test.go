package cli

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSortsAsAPersonDoes: times are compared by their length, and the numbers in a name or in a count by their value.
func TestSortsAsAPersonDoes(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"times", "9m 45s 2d 3h05m 30h 10d 41m 6m12s", "45s 6m12s 9m 41m 3h05m 30h 2d 10d"},
		{"counts", "100/120 9/12 20/20 9/9", "9/9 9/12 20/20 100/120"},
		{"names", "web-10 web-2 app web-2b web-", "app web- web-2 web-2b web-10"},
		{"numbers", "10 9.5 -1", "-1 9.5 10"},
		{"versions", "v1.10.0 v1.9.3 v1.9.03", "v1.9.3 v1.9.03 v1.10.0"},
	} {
		got := strings.Fields(tc.in)
		slices.SortStableFunc(got, compareText)
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, got, tc.want)
		}
	}
}

// TestSpanOf: each length that is written is read again as one of its kind.
func TestSpanOf(t *testing.T) {
	for _, d := range []time.Duration{0, 42 * time.Second, 372 * time.Second, 41 * time.Minute, 185 * time.Minute, 30 * time.Hour, 48 * time.Hour} {
		if got, err := spanOf(span(d)); err != nil || got != d {
			t.Errorf("%s: %s, %v", span(d), got, err)
		}
	}
}

// TestNegativeTime: a length of time below zero is refused before the hub is asked.
func TestNegativeTime(t *testing.T) {
	for _, args := range []string{"rollout wait shop --timeout -5s", "token create ci --ttl -1h", "get rollouts --since -1h", "hold module/shop --for -2h", "delete module shop --yes --timeout -1s"} {
		hub := fullHub()
		if got := hub.run(t, run{}, strings.Fields(args)...); got.code != exitUsage || len(hub.requests) > 0 {
			t.Errorf("%s: exit %d, %q; the hub was asked %v", args, got.code, got.err, hub.requests)
		}
	}
}
