package telemetry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/telemetry/telemetrytest"
)

// Metrics and health may share an address, profiles are apart and on loopback, and why somebody is not ready is for the
// log.
func TestServe(t *testing.T) {
	l, err := telemetry.Addresses{Metrics: "127.0.0.1:0", Health: "127.0.0.1:0", Profiles: "127.0.0.1:0"}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if l.Health != l.Metrics {
		t.Fatal("the same address is two listeners")
	}
	var why atomic.Pointer[error]
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	var logged lines
	go func() {
		served <- l.Serve(ctx, telemetry.Process{Registry: telemetry.NewRegistry(), Ready: func(context.Context) error {
			if e := why.Load(); e != nil {
				return *e
			}
			return nil
		}, Log: slog.New(slog.NewTextHandler(&logged, nil))})
	}()
	get := func(address, path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	open, private := l.Metrics.Addr().String(), l.Profiles.Addr().String()
	check := func(address, path string, code int, text string) {
		t.Helper()
		if got, body := get(address, path); got != code || !strings.Contains(body, text) {
			t.Errorf("%s: %d %.200s, want %d with %q", path, got, body, code, text)
		}
	}
	check(open, "/metrics", 200, "go_goroutines")
	check(open, "/livez", 200, "ok")
	check(open, "/readyz", 200, "ok")
	check(open, "/debug/pprof/heap", 404, "")
	check(private, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	check(private, "/metrics", 404, "")
	away := errors.New("the store does not answer")
	why.Store(&away)
	for range 3 {
		if code, body := get(open, "/readyz"); code != 503 || body != "not ready\n" {
			t.Errorf("not ready: %d %q", code, body)
		}
	}
	check(open, "/livez", 200, "ok")
	why.Store(nil)
	check(open, "/readyz", 200, "ok")
	if said := logged.String(); strings.Count(said, "the store does not answer") != 1 || strings.Count(said, "ready again") != 1 {
		t.Errorf("logged: %s", said)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// lines are what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Profiles show what is in memory: nobody from elsewhere gets them.
func TestProfilesAreLocal(t *testing.T) {
	for _, a := range []string{":6060", "0.0.0.0:6060", "10.1.2.3:6060", "localhost:6060", "6060"} {
		if l, err := (telemetry.Addresses{Profiles: a}).Listen(); err == nil || !strings.Contains(err.Error(), "--pprof") {
			l.Close()
			t.Errorf("%s: %v", a, err)
		}
	}
}

// Whoever opens connections and says nothing keeps out no probe, by which the process would be taken for dead.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	l, err := telemetry.Addresses{Health: "127.0.0.1:0"}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- l.Serve(ctx, telemetry.Process{Registry: telemetry.NewRegistry()}) }()
	for range 200 {
		c, err := net.Dial("tcp", l.Health.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	probe := http.Client{Timeout: 5 * time.Second}
	resp, err := probe.Get("http://" + l.Health.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("answers %d", resp.StatusCode)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A bug in what one figure reads costs that figure; the others are told, and the process goes on.
func TestFigureThatPanics(t *testing.T) {
	r := telemetry.NewRegistry(telemetry.Gauges("broken", "", "of", func() map[string]float64 { panic("a bug") }),
		telemetry.Gauge("sound", "", func() float64 { return 1 }))
	if text := telemetrytest.Text(t, r); !strings.Contains(text, "\nsound 1\n") || strings.Contains(text, "broken{") {
		t.Error(text)
	}
}
