package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// errCut is what both ends of a connection get that the network has ended.
var errCut = errors.New("connection reset by the simulated network")

// Network connects the processes of a world. What is written on a connection arrives after the delay that its link has at that moment,
// in order. It can be slow, hold everything back in one direction, refuse, and cut.
type Network struct {
	// OnSend is told of all that one process sends to another one.
	OnSend func(from, to string, data []byte)

	mu        sync.Mutex
	listeners map[string]*listener
	links     map[Link]*Condition
	open      []*pair
}

// Link is the way from a process to another one.
type Link struct{ From, To string }

// Condition is how a link is.
type Condition struct {
	// Delay is how long what is sent is under way.
	Delay time.Duration
	// Stuck holds everything back.
	Stuck bool
	// Down refuses new connections.
	Down bool
}

// pair is a connection, from who dialed it to who listens.
type pair struct {
	from, to string
	there    *pipe // to who listens
	back     *pipe
}

// NewNetwork is a network without delays.
func NewNetwork() *Network {
	return &Network{listeners: map[string]*listener{}, links: map[Link]*Condition{}}
}

// Set says how the link is from now on.
func (n *Network) Set(l Link, c Condition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[l] = &c
	for _, p := range n.open {
		if p.from == l.From && p.to == l.To {
			p.there.condition(c)
		}
		if p.from == l.To && p.to == l.From {
			p.back.condition(c)
		}
	}
}

func (n *Network) at(l Link) Condition {
	if c := n.links[l]; c != nil {
		return *c
	}
	return Condition{}
}

// Cut ends all connections between two processes. Empty is any.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	var cut []*pair
	n.open = slices.DeleteFunc(n.open, func(p *pair) bool {
		hit := (from == "" || p.from == from) && (to == "" || p.to == to)
		if hit {
			cut = append(cut, p)
		}
		return hit
	})
	n.mu.Unlock()
	for _, p := range cut {
		p.there.end(errCut)
		p.back.end(errCut)
	}
}

// Strand has nothing more arrive on the connections that two processes have, and says so to neither. New ones are not concerned.
func (n *Network) Strand(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.open {
		if p.from == from && p.to == to {
			p.there.strand()
			p.back.strand()
		}
	}
}

// Listen takes connections for a process.
func (n *Network) Listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{n: n, address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l
}

// Dialer connects a process to addresses.
func (n *Network) Dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		n.mu.Lock()
		l, c := n.listeners[address], n.at(Link{from, address})
		n.mu.Unlock()
		if err := wait(ctx, c.Delay); err != nil {
			return nil, err
		}
		if l == nil || c.Down {
			return nil, errors.New("connection refused by " + address)
		}
		p := &pair{from: from, to: address, there: newPipe(), back: newPipe()}
		select {
		case l.conns <- &conn{n: n, local: name(address), remote: name(from), in: p.there, out: p.back}:
		case <-l.closed:
			return nil, errors.New("connection refused by " + address)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		p.there.condition(n.at(Link{from, address}))
		p.back.condition(n.at(Link{address, from}))
		n.open = append(n.open, p)
		return &conn{n: n, local: name(from), remote: name(address), in: p.back, out: p.there}, nil
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// listener takes connections.
type listener struct {
	n       *Network
	address string
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// Accept waits for one.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses them from now on.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		defer l.n.mu.Unlock()
		if l.n.listeners[l.address] == l {
			delete(l.n.listeners, l.address)
		}
	})
	return nil
}

// Addr is the address.
func (l *listener) Addr() net.Addr { return name(l.address) }

// name is an address of the network.
type name string

func (n name) Network() string { return "sim" }
func (n name) String() string  { return string(n) }

// chunk is what was written at once.
type chunk struct {
	at   time.Time
	data []byte
}

// pipe is one direction of a connection. Writing never blocks: what the network holds back is not counted.
type pipe struct {
	mu       sync.Mutex
	is       Condition
	stranded bool
	queue    []chunk
	last     time.Time // when the newest chunk arrives
	err      error     // the end, once the queue is read
	broken   error     // the end, at once
	changed  chan struct{}
	deadline time.Time
}

func newPipe() *pipe { return &pipe{changed: make(chan struct{})} }

// touch wakes who reads; mu is held.
func (p *pipe) touch() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) condition(c Condition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.is = c
	p.touch()
}

func (p *pipe) strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stranded = true
}

func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken == nil {
		p.broken = err
	}
	p.touch()
}

func (p *pipe) closeWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = io.EOF
	}
	p.touch()
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.broken != nil:
		return 0, p.broken
	case p.err != nil:
		return 0, io.ErrClosedPipe
	}
	at := time.Now().Add(p.is.Delay)
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	p.queue = append(p.queue, chunk{at, slices.Clone(b)})
	p.touch()
	return len(b), nil
}

// take reads what has arrived, or says what to wait for.
func (p *pipe) take(b []byte) (n int, changed <-chan struct{}, until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.broken != nil {
		return 0, nil, until, p.broken
	}
	if !p.deadline.IsZero() {
		if !now.Before(p.deadline) {
			return 0, nil, until, os.ErrDeadlineExceeded
		}
		until = p.deadline
	}
	if p.is.Stuck || p.stranded {
		return 0, p.changed, until, nil
	}
	if len(p.queue) > 0 {
		c := &p.queue[0]
		if !c.at.After(now) {
			n = copy(b, c.data)
			if c.data = c.data[n:]; len(c.data) == 0 {
				p.queue = p.queue[1:]
			}
			return n, nil, until, nil
		}
		if until.IsZero() || c.at.Before(until) {
			until = c.at
		}
		return 0, p.changed, until, nil
	}
	return 0, p.changed, until, p.err
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		n, changed, until, err := p.take(b)
		if n > 0 || err != nil {
			return n, err
		}
		if until.IsZero() {
			<-changed
			continue
		}
		timer := time.NewTimer(time.Until(until))
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// conn is one end of a connection.
type conn struct {
	n             *Network
	local, remote name
	in, out       *pipe
}

func (c *conn) Read(b []byte) (int, error) { return c.in.read(b) }

func (c *conn) Write(b []byte) (int, error) {
	if c.n.OnSend != nil {
		c.n.OnSend(string(c.local), string(c.remote), b)
	}
	return c.out.write(b)
}

// Close ends both directions; what is under way arrives.
func (c *conn) Close() error {
	c.out.closeWrite()
	c.in.end(net.ErrClosed)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.deadline = t
	c.in.touch()
	return nil
}

// SetWriteDeadline has nothing to do: writing never waits.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
