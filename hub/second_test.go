package hub_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"towline.dev/towline/hub"
)

// ownEtcd is an etcd that the hubs share, behind a unix socket.
func ownEtcd(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "d")
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
			_, _ = io.Copy(way[0], way[1])
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

// sharing is a world whose hub stands on an etcd of one's own.
func sharing(t *testing.T, etcd string, change ...func(*hub.Options)) *world {
	return newWorldWith(t, func(o *hub.Options) {
		o.Memory, o.EtcdEndpoints, o.SeatTTL = false, []string{"unix:" + etcd}, time.Second
		for _, fn := range change {
			fn(o)
		}
	})
}

// An etcd that is put back from an older copy under a hub, or another one in its place, ends the hub: what it has read and
// decided is of a store that is not there any more.
func TestHubEndsWhenItsEtcdWentBack(t *testing.T) {
	way := newLine(t, ownEtcd(t))
	w := sharing(t, way.socket)
	w.put(module("shop", configMap("1")))
	older := ownEtcd(t)
	way.Cut()
	way.mu.Lock()
	way.to = older
	way.mu.Unlock()
	way.Mend()
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
