package fence

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// inProcess is an API server without a network, so that a test may run in virtual time.
type inProcess struct {
	http.Handler
	down atomic.Bool
}

func (p *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.down.Load() {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

// machine has clocks that jump.
type machine struct{ wall, boot atomic.Int64 }

func (m *machine) now() Moment {
	t := time.Now()
	return Moment{Wall: t.Add(time.Duration(m.wall.Load())), Boot: time.Duration(t.UnixNano() + m.boot.Load())}
}

func TestMoment(t *testing.T) {
	at := Moment{Wall: time.Unix(1000, 0), Boot: time.Hour}
	for name, tc := range map[string]struct {
		wall, boot, want time.Duration
	}{
		"both go on":          {2 * time.Second, 2 * time.Second, 2 * time.Second},
		"suspended":           {0, time.Minute, time.Minute},
		"wall clock set on":   {time.Hour, time.Second, time.Hour},
		"wall clock set back": {-time.Hour, time.Second, time.Second},
	} {
		later := Moment{Wall: at.Wall.Add(tc.wall), Boot: at.Boot + tc.boot}
		if got := later.Since(at); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	a := now()
	if b := now(); a.Boot <= 0 || b.Since(a) < 0 || b.Since(a) > time.Minute {
		t.Errorf("the machine's clocks: %v, then %v", a, b)
	}
}

// led runs a fence in virtual time until the test ends.
func led(t *testing.T, p *inProcess, m *machine, options ...func(*Options)) (*Fence, context.Context) {
	t.Helper()
	o := Options{Config: &rest.Config{Host: "http://cluster", Transport: p, ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
		Identity: "a", BatchTime: time.Minute, Clock: m.now}
	for _, set := range options {
		set(&o)
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	leads, done := make(chan context.Context, 8), make(chan error, 1)
	go func() {
		done <- f.Run(ctx, func(ctx context.Context) error {
			leads <- ctx
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) { // one that has lost the Lease waits for it again
			t.Error(err)
		}
	})
	return f, <-leads
}

// TestSwapThatTakesLongerThanABatch: an API server that takes its time for the Lease, because its store is slow or a webhook is asked, slows what is
// written down and does not stop it: a batch is as long as ever, from when the swap was answered.
func TestSwapThatTakesLongerThanABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				<-time.After(5 * time.Second)
			}
			s.ServeHTTP(w, r)
		})
		f, _ := led(t, &inProcess{Handler: slow}, &machine{}, func(o *Options) { o.BatchTime, o.Period = 500*time.Millisecond, time.Hour })
		<-time.After(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 {
			began := time.Now()
			for range 3 {
				if err := errors.Join(f.Open(ctx), f.Check()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("three writes wait %s for one swap of 5 s", took)
			}
			<-time.After(600 * time.Millisecond)
		}
	})
}

// A machine that slept does not know that its Lease is gone: neither what it was about to write nor the rest of its
// batch may go out before the Lease was asked.
func TestSuspendedHolderWritesNothing(t *testing.T) {
	for name, jump := range map[string]func(*machine){
		"suspended, the kernel's clock says so": func(m *machine) { m.boot.Add(int64(time.Hour)) },
		"suspended, the wall clock says so":     func(m *machine) { m.wall.Add(int64(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := &server{}, &machine{}
				f, ctx := led(t, &inProcess{Handler: s}, m)
				if err := errors.Join(f.Open(t.Context()), f.Check()); err != nil {
					t.Fatal(err)
				}
				other := "b"
				s.edit(func(l *coordinationv1.Lease) {
					l.Spec.HolderIdentity, l.Annotations[EpochAnnotation] = &other, "9"
				})
				jump(m)
				if err := f.Check(); !errors.Is(err, fleet.ErrStale) {
					t.Errorf("a write that was let through before goes out: %v", err)
				}
				if err := f.Open(t.Context()); !errors.Is(err, fleet.ErrStale) {
					t.Errorf("the batch goes on: %v", err)
				}
				if f.Covered().Err() == nil || ctx.Err() == nil {
					t.Error("what is under way goes on")
				}
			})
		})
	}
}

// Writes under way end before another process may take the Lease, and are allowed again after a renewal.
func TestWritesEndWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &inProcess{Handler: &server{}}
		f, ctx := led(t, p, &machine{})
		at := time.Now()
		p.down.Store(true)
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
		<-f.Covered().Done()
		if lived := time.Since(at); lived != 10*time.Second {
			t.Errorf("writes were covered for %s, want 10s of the Lease's 15s", lived)
		}
		if err := f.Check(); !errors.Is(err, fleet.ErrStale) || ctx.Err() != nil {
			t.Errorf("%v, lead %v", err, ctx.Err())
		}
		p.down.Store(false)
		if err := errors.Join(f.Open(t.Context()), f.Check(), f.Covered().Err()); err != nil {
			t.Errorf("after it was renewed: %v", err)
		}
	})
}
