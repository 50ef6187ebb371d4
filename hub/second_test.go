package hub_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
)

// ownEtcd is an etcd that the hubs share, behind a unix socket.
func ownEtcd(t *testing.T) (socket string) {
	t.Helper()
	return ownEtcdIn(t, t.TempDir())
}

// ownEtcdIn is one that has its data in a directory.
func ownEtcdIn(t *testing.T, data string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := embed.NewConfig()
	cfg.Dir = data
	socket = filepath.Join(dir, "s")
	cfg.ListenPeerUrls = nil
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Host: socket}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.EnableGRPCGateway, cfg.UnsafeNoFsync = false, true
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	must(t, err)
	<-e.Server.ReadyNotify()
	t.Cleanup(e.Close)
	return socket
}

// line is a way to the etcd that can be cut, as if the machine of the hub at its other end were gone.
type line struct {
	socket string
	to     string
	l      net.Listener
	mu     sync.Mutex
	conns  []net.Conn
	cut    bool
	late   atomic.Int64 // by how much what comes from the etcd is late
}

// lately reads what is late.
type lately struct {
	io.Reader
	by *atomic.Int64
}

func (l lately) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	<-time.After(time.Duration(l.by.Load()))
	return n, err
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	dir, err := os.MkdirTemp("", "line")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	x := &line{socket: filepath.Join(dir, "s"), to: to}
	x.l, err = (&net.ListenConfig{}).Listen(t.Context(), "unix", x.socket)
	must(t, err)
	t.Cleanup(x.Cut)
	t.Cleanup(func() { _ = x.l.Close() })
	go func() {
		for {
			c, err := x.l.Accept()
			if err != nil {
				return
			}
			x.join(c)
		}
	}()
	return x
}

func (x *line) join(c net.Conn) {
	x.mu.Lock()
	to := x.to
	x.mu.Unlock()
	s, err := (&net.Dialer{}).DialContext(context.Background(), "unix", to)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		_ = c.Close()
		return
	}
	x.conns = append(x.conns, c, s)
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		go func() {
			if way[1] == s {
				_, _ = io.Copy(way[0], lately{s, &x.late})
			} else {
				_, _ = io.Copy(way[0], way[1])
			}
			_, _ = c.Close(), s.Close()
		}()
	}
	if x.cut {
		_, _ = c.Close(), s.Close()
	}
}

// Cut ends every connection and lets none through until Mend.
func (x *line) Cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = true
	for _, c := range x.conns {
		_ = c.Close()
	}
	x.conns = nil
}

func (x *line) Mend() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cut = false
}

// lead has the way lead to another etcd from now on.
func (x *line) lead(to string) {
	x.Cut()
	x.mu.Lock()
	x.to = to
	x.mu.Unlock()
	x.Mend()
}

// sharing is a world whose hub stands on an etcd of one's own.
func sharing(t *testing.T, etcd string, change ...func(*hub.Options)) *world {
	return newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.EtcdEndpoints, o.SeatTTL = false, []string{"unix:" + etcd}, time.Second
		for _, fn := range change {
			fn(o)
		}
	})
}

// second starts another hub on the same etcd, with nothing of its own but its directory.
func second(ctx context.Context, t *testing.T, etcd string, change ...func(*hub.Options)) (*hub.Hub, error) {
	t.Helper()
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		must(t, err)
		return l
	}
	o := hub.Options{DataDir: t.TempDir(), EtcdEndpoints: []string{"unix:" + etcd}, Listen: listen(), API: listen(), SeatTTL: time.Second}
	for _, fn := range change {
		fn(&o)
	}
	return hub.New(ctx, o)
}

// caOf has a hub use the CA that is in a directory.
func caOf(dir string) func(*hub.Options) { return func(o *hub.Options) { o.CADir = dir } }

func TestSecondHubOnAnEtcdRefusesToStart(t *testing.T) {
	etcd := ownEtcd(t)
	w := sharing(t, etcd, func(o *hub.Options) { o.SeatTTL = time.Minute })
	w.join("a", nil, nil)
	h, err := second(w.ctx, t, etcd)
	if err == nil {
		must(t, h.Close())
		t.Fatal("two hubs run on one etcd")
	}
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), w.listen) || !strings.Contains(err.Error(), "since "+time.Now().UTC().Format("2006-01-02")) {
		t.Errorf("it says: %v; want the address %s of the other hub and since when it runs", err, w.listen)
	}
	if ro := w.await("shop", w.put(module("shop", configMap("1"))).GetRevision()); ro.GetStatus().GetState() != "Succeeded" {
		t.Errorf("the first hub is disturbed: %v", ro.GetStatus())
	}
	w.stopHub()
	h, err = second(w.ctx, t, etcd, caOf(w.dir)) // which does not wait for the lease of the first one to end
	must(t, err)
	must(t, h.Close())
}

// A hub that crashed, or was cut off, holds its seat until its lease ends: who comes after it waits for that. One that
// finds its seat taken when it is back must not go on.
func TestHubTakesTheSeatOfOneThatIsGone(t *testing.T) {
	etcd := ownEtcd(t)
	way := newLine(t, etcd)
	w := sharing(t, way.socket)
	way.Cut()
	h, err := second(w.ctx, t, etcd, caOf(w.dir), func(o *hub.Options) { o.SeatTTL = time.Minute }) // so that it keeps it on a busy machine
	must(t, err)
	defer func() { must(t, h.Close()) }()
	way.Mend()
	select {
	case err := <-w.ended:
		if !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("the hub that was cut off ends with: %v", err)
		}
		w.stopHub = func() {}
	case <-w.ctx.Done():
		t.Error("the hub that was cut off goes on beside the one that took its seat")
	}
}

// refused starts another hub on the same etcd, which has to say that it does not start beside the one at w.
func (w *world) refused(etcd, says string, change ...func(*hub.Options)) {
	w.t.Helper()
	h, err := second(w.ctx, w.t, etcd, change...)
	if err == nil {
		must(w.t, h.Close())
		w.t.Fatal("it starts")
	}
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), w.listen) || !strings.Contains(err.Error(), says) {
		w.t.Errorf("it says: %v; want the address %s of the other hub and %q", err, w.listen, says)
	}
}

// Hubs share an etcd when all of them are to, and not when one is.
func TestHubsShareAnEtcdOnlyWhenAllAreTo(t *testing.T) {
	t.Run("one that shares beside one that does not", func(t *testing.T) {
		etcd := ownEtcd(t)
		w := sharing(t, etcd)
		w.refused(etcd, "without --share-etcd", shared, caOf(w.dir))
	})
	t.Run("one that does not beside one that shares and leads", func(t *testing.T) {
		etcd := ownEtcd(t)
		w := sharing(t, etcd, shared)
		w.await("shop", w.put(module("shop", configMap("1"))).GetRevision()) // it leads
		w.refused(etcd, "stop that one first")
	})
	t.Run("one that does not beside one that shares and does not lead", func(t *testing.T) {
		etcd := ownEtcd(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ca := caOf(t.TempDir())
		h, err := second(ctx, t, etcd, ca, shared) // it begins to lead when it runs
		must(t, err)
		alone, err := second(ctx, t, etcd)
		if err == nil {
			must(t, alone.Close())
		}
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "as well") {
			t.Errorf("it says: %v", err)
		}
		must(t, h.Close())
		h, err = second(ctx, t, etcd, ca)
		must(t, err)
		must(t, h.Close())
	})
}

// A hub that shared its etcd and was cut off while one took it that does not share ends when it is back.
func TestHubThatSharesEndsWhenItsEtcdIsTaken(t *testing.T) {
	etcd := ownEtcd(t)
	way := newLine(t, etcd)
	w := sharing(t, way.socket, shared)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	way.Cut()
	h, err := second(w.ctx, t, etcd, caOf(w.dir), func(o *hub.Options) { o.SeatTTL = time.Minute }) // so that it keeps it on a busy machine
	must(t, err)
	defer func() { must(t, h.Close()) }()
	way.Mend()
	select {
	case err := <-w.ended:
		if !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("the hub that was cut off ends with: %v", err)
		}
		w.stopHub = func() {}
	case <-w.ctx.Done():
		t.Error("the hub that was cut off goes on beside the one that took its etcd")
	}
}

// An etcd that is put back from an older copy under a hub, or another one in its place, ends the hub: what it has read and
// decided is of a store that is not there any more.
func TestHubEndsWhenItsEtcdWentBack(t *testing.T) {
	way := newLine(t, ownEtcd(t))
	w := sharing(t, way.socket)
	w.put(module("shop", configMap("1")))
	way.lead(ownEtcd(t))
	select {
	case err := <-w.ended:
		if err == nil {
			t.Error("it ends without a word")
		}
		w.stopHub = func() {}
	case <-w.ctx.Done():
		t.Error("it goes on")
	}
}
