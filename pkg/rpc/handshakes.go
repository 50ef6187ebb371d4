package rpc

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// maxHandshakes are the connections of a listener that have not proved who they are, maxFromOne those of one address: agents
	// behind one gateway come back all at once.
	maxHandshakes = 512
	maxFromOne    = 256
	// maxTold are more of one address, which are told that they are too many, where that can be told.
	maxTold = 64
	// firstWord is how long a peer may be waited for in any case: what it has sent is perhaps not read yet. nextWord is that of one
	// who has said something, and may be far away, or slow.
	firstWord = 100 * time.Millisecond
	nextWord  = time.Second
	// strangerTime is how long a connection to the agents' listener lives without a certificate: it can do nothing but join.
	strangerTime = time.Minute
)

// Handshakes bounds what connections cost that nobody has proved an identity on. Where there are too many, one goes whose peer
// keeps the hub waiting, of the address that has the most: who does not open a connection and leave it so is not in question. Where
// there is none such, no more are accepted until one is through, or, when it is not the hub that is slow, none of that address.
type Handshakes struct {
	// strangers says that a connection without a certificate counts until it ends.
	strangers bool
	// tells says that who serves the listener tells those which are too many.
	tells bool

	mu    sync.Mutex
	moved sync.Cond
	open  map[string]map[*greeting]bool // by address
	count int
	cut   atomic.Int64
}

// AgentHandshakes are those of the listener for agents, who have certificates.
func AgentHandshakes() *Handshakes { return newHandshakes(true) }

// APIHandshakes are those of the listener for people, who may show a token in each call.
func APIHandshakes() *Handshakes { return newHandshakes(false) }

// HookConnections are those of the listener for webhooks, on which nobody proves an identity: each counts until it ends. Its server is to ask for
// Surplus.
func HookConnections() *Handshakes {
	h := newHandshakes(true)
	h.tells = true
	return h
}

func newHandshakes(strangers bool) *Handshakes {
	h := &Handshakes{strangers: strangers, open: map[string]map[*greeting]bool{}}
	h.moved.L = &h.mu
	return h
}

// Open is how many connections there are without an identity.
func (h *Handshakes) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// Cut is how many were closed because there were too many.
func (h *Handshakes) Cut() int64 { return h.cut.Load() }

// Listener takes connections for no longer than there is room.
func (h *Handshakes) Listener(l net.Listener) net.Listener { return &greeter{l, h} }

type greeter struct {
	net.Listener
	h *Handshakes
}

// Accept waits for room, too: what is not accepted waits in the kernel.
func (g *greeter) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	x := &greeting{Conn: c, h: g.h, from: addressOf(c)}
	x.waits.Store(time.Now().UnixNano())
	g.h.enter(x)
	return x, nil // one that got no room is closed, as if its peer had gone
}

func addressOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// greeting is a connection that counts until it has an identity.
type greeting struct {
	net.Conn
	h     *Handshakes
	from  string
	over  atomic.Bool
	waits atomic.Int64 // since when its peer is waited for; 0: it is not
	heard atomic.Bool  // something came
	// surplus: it is one too many of its address, and is told so. It is set before the connection is accepted.
	surplus bool
}

// Surplus reports that a connection, as a server has it, is one too many of its address. It is to be told that, and nothing else.
func Surplus(c net.Conn) bool {
	if over, is := c.(*tls.Conn); is {
		c = over.NetConn()
	}
	x, is := c.(*greeting)
	return is && x.surplus
}

// Read notes for how long the peer is waited for.
func (x *greeting) Read(b []byte) (int, error) {
	if x.over.Load() {
		return x.Conn.Read(b)
	}
	x.waits.Store(time.Now().UnixNano())
	n, err := x.Conn.Read(b)
	x.waits.Store(0)
	if n > 0 {
		x.heard.Store(true)
	}
	return n, err
}

// Close ends it.
func (x *greeting) Close() error {
	x.h.leave(x)
	return x.Conn.Close()
}

// enter makes room for it, and counts it.
func (h *Handshakes) enter(x *greeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.count >= maxHandshakes || len(h.open[x.from]) >= maxFromOne {
		if v := h.victim(x.from); v != nil {
			h.drop(v)
			h.cut.Add(1)
			_ = v.Conn.Close()
			continue
		}
		if n := len(h.open[x.from]); h.tells && h.count < maxHandshakes && n < maxFromOne+maxTold {
			x.surplus = true
			break
		}
		if len(h.open[x.from]) >= maxFromOne && !h.slow(x.from) {
			h.cut.Add(1)
			x.over.Store(true)
			_ = x.Conn.Close()
			return
		}
		stop := time.AfterFunc(firstWord, h.moved.Signal)
		h.moved.Wait()
		stop.Stop()
	}
	if h.open[x.from] == nil {
		h.open[x.from] = map[*greeting]bool{}
	}
	h.open[x.from][x] = true
	h.count++
}

// victim is who goes: nobody is who does not keep the hub waiting.
func (h *Handshakes) victim(newcomer string) *greeting {
	from := newcomer
	if len(h.open[from]) < maxFromOne {
		for address, all := range h.open {
			if len(all) > len(h.open[from]) {
				from = address
			}
		}
	}
	var worst *greeting
	now := time.Now()
	for x := range h.open[from] {
		if x.late(now) && (worst == nil || worse(x, worst)) {
			worst = x
		}
	}
	return worst
}

// late reports that the peer keeps the hub waiting.
func (x *greeting) late(now time.Time) bool {
	limit := firstWord
	if x.heard.Load() {
		limit = nextWord
	}
	since := x.waits.Load()
	return since != 0 && now.Sub(time.Unix(0, since)) > limit
}

// slow reports that it is rather the hub that the address waits for.
func (h *Handshakes) slow(from string) bool {
	busy := 0
	for x := range h.open[from] {
		if x.waits.Load() == 0 {
			busy++
		}
	}
	return 2*busy >= len(h.open[from])
}

// worse says that a is rather closed than b: one who has said nothing, then the one who has been silent for longer.
func worse(a, b *greeting) bool {
	if silent := !a.heard.Load(); silent == b.heard.Load() {
		return silent
	}
	return a.waits.Load() < b.waits.Load()
}

func (h *Handshakes) leave(x *greeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(x)
}

func (h *Handshakes) drop(x *greeting) {
	if x.over.Swap(true) {
		return
	}
	delete(h.open[x.from], x)
	if len(h.open[x.from]) == 0 {
		delete(h.open, x.from)
	}
	h.count--
	h.moved.Signal()
}

// greetingCreds tells when a handshake is over.
type greetingCreds struct {
	credentials.TransportCredentials
	h *Handshakes
}

// ServerHandshake ends the greeting of who has shown a certificate, or need not.
func (c greetingCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	x, ok := raw.(*greeting)
	if err != nil || !ok {
		return conn, info, err
	}
	t, _ := info.(credentials.TLSInfo)
	if len(t.State.PeerCertificates) > 0 || !c.h.strangers {
		c.h.leave(x)
	} else {
		time.AfterFunc(strangerTime, func() { _ = x.Close() })
	}
	return conn, info, nil
}

// Clone keeps counting.
func (c greetingCreds) Clone() credentials.TransportCredentials {
	return greetingCreds{c.TransportCredentials.Clone(), c.h}
}
