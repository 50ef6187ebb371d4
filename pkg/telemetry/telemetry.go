// Package telemetry serves what a process says of itself over HTTP: metrics for Prometheus, liveness and readiness, and
// profiles. It owns the paths and who may reach them; it must not know what is measured.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"towline.dev/towline/pkg/guard"
)

// Listeners are where what is served; nil: nothing is.
type Listeners struct {
	// Metrics serves Prometheus at /metrics, Health at /livez and /readyz; both without authentication. They may be one.
	Metrics, Health net.Listener
	// Profiles serves pprof at /debug/pprof/; on loopback only.
	Profiles net.Listener
}

// Addresses are those of Listeners; empty: none.
type Addresses struct{ Metrics, Health, Profiles string }

// Listen listens at the addresses, whose names in errors are those of the flags.
func (a Addresses) Listen() (l Listeners, err error) {
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if a.Profiles != "" {
		if err := loopback(a.Profiles); err != nil {
			return l, err
		}
	}
	for _, x := range []struct {
		flag, address string
		to            *net.Listener
	}{{"--metrics", a.Metrics, &l.Metrics}, {"--health", a.Health, &l.Health}, {"--pprof", a.Profiles, &l.Profiles}} {
		switch {
		case x.address == "":
		case x.to == &l.Health && x.address == a.Metrics:
			l.Health = l.Metrics
		default:
			if *x.to, err = net.Listen("tcp", x.address); err != nil {
				return l, fmt.Errorf("%s %s: %w", x.flag, x.address, err)
			}
		}
	}
	return l, nil
}

// loopback refuses an address that others than this machine may reach: profiles tell what is in memory, and cost time.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--pprof %s: write HOST:PORT, such as 127.0.0.1:6060: %w", address, err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--pprof %s: profiles are served on loopback only; write 127.0.0.1:PORT or [::1]:PORT", address)
}

// Any reports that something is served.
func (l Listeners) Any() bool { return l != Listeners{} }

// Close stops listening, where nothing was served.
func (l Listeners) Close() {
	for _, x := range []net.Listener{l.Metrics, l.Health, l.Profiles} {
		if x != nil {
			_ = x.Close()
		}
	}
}

// Process is what is told.
type Process struct {
	// Registry is what Prometheus gets.
	Registry *prometheus.Registry
	// Ready says why the process cannot do its work now; nil: it can. It should answer within ReadyPatience. It is asked once for all who ask
	// at a time, and why is for the log alone: whoever asks may be anybody.
	Ready func(context.Context) error
	Log   *slog.Logger
}

// ReadyPatience bounds an answer to /readyz.
const ReadyPatience = 3 * time.Second

// NewRegistry holds the collectors, beside those of the Go runtime and of the process. It is never the default one: libraries register
// there what nobody here has documented.
func NewRegistry(of ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range of {
		r.MustRegister(guarded{c})
	}
	return r
}

// guarded is a collector whose panic, which is in a goroutine of the registry's own, costs what is not read yet of it, and nothing else. It
// is counted, as all are.
type guarded struct{ prometheus.Collector }

// Collect is for a registry.
func (g guarded) Collect(ch chan<- prometheus.Metric) {
	_ = guard.Run(func() error {
		g.Collector.Collect(ch)
		return nil
	})
}

// Serve serves until ctx ends.
func (l Listeners) Serve(ctx context.Context, p Process) error {
	muxes := map[net.Listener]*http.ServeMux{}
	on := func(at net.Listener) *http.ServeMux {
		if muxes[at] == nil {
			muxes[at] = http.NewServeMux()
		}
		return muxes[at]
	}
	if l.Metrics != nil {
		on(l.Metrics).Handle("GET /metrics", promhttp.HandlerFor(p.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	}
	if l.Health != nil {
		ready := &readiness{of: p}
		on(l.Health).HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, true) })
		on(l.Health).HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready.ask(ctx)) })
	}
	if l.Profiles != nil {
		profiles(on(l.Profiles))
	}
	g, ctx := errgroup.WithContext(ctx)
	for at, mux := range muxes {
		patience := answerTime
		if at == l.Profiles {
			patience = profileTime
		}
		g.Go(func() error { return serve(ctx, at, mux, patience) })
	}
	return g.Wait()
}

// readiness asks the process whether it can do its work.
type readiness struct {
	of    Process
	group singleflight.Group
	mu    sync.Mutex
	why   string // what was logged last
}

func (x *readiness) ask(ctx context.Context) bool {
	_, err, _ := x.group.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, ReadyPatience)
		defer cancel()
		err := guard.Run(func() error { return x.of.Ready(ctx) })
		x.log(err)
		return nil, err
	})
	return err == nil
}

// log says once that the process is not ready for a reason, and that it is again.
func (x *readiness) log(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	x.mu.Lock()
	was := x.why
	x.why = why
	x.mu.Unlock()
	switch {
	case why == was:
	case err != nil:
		x.of.Log.Warn("not ready", "error", err)
	default:
		x.of.Log.Info("ready again")
	}
}

func answer(w http.ResponseWriter, ok bool) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, "not ready")
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// profiles are those of net/http/pprof, which would else be in the default mux only.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

const (
	// Whoever asks for metrics or health asks for little, and at once; a profile is of a time that they say.
	answerTime  = 10 * time.Second
	profileTime = 10 * time.Minute
	// maxSilent is how many connections may ask for nothing at a time: of more, the one goes that has been silent for the longest, so that
	// nobody keeps out a probe.
	maxSilent = 64
	// maxScrapes is how many are answered at a time: each goes through all that is counted.
	maxScrapes = 4
)

// silence closes connections that ask for nothing when there are too many.
type silence struct {
	mu    sync.Mutex
	conns []net.Conn // the longest first
}

func (s *silence) state(c net.Conn, is http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(x net.Conn) bool { return x == c })
	if is != http.StateNew && is != http.StateIdle {
		return
	}
	if s.conns = append(s.conns, c); len(s.conns) > maxSilent {
		_ = s.conns[0].Close()
		s.conns = s.conns[1:]
	}
}

func serve(ctx context.Context, at net.Listener, h http.Handler, patience time.Duration) error {
	s := &http.Server{Handler: h, ReadTimeout: answerTime, WriteTimeout: patience, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ConnState: new(silence).state}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(at); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
