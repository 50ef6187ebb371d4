package lab

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Link is the way from an agent to the hub. It counts what goes by, and can be cut.
type Link struct {
	// Address is where the agent dials.
	Address string

	target   string
	listener net.Listener
	down     atomic.Int64

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// newLink opens a way to target.
func newLink(target string) (*Link, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	k := &Link{Address: address, target: target, listener: listener, conns: map[net.Conn]bool{}}
	go k.serve()
	return k, nil
}

// Down is how many bytes the hub has sent to the agent.
func (k *Link) Down() int64 { return k.down.Load() }

// Cut breaks the connections and refuses new ones until Restore.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = true
	for c := range k.conns {
		c.Close()
	}
}

// Restore lets connections through again.
func (k *Link) Restore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = false
}

func (k *Link) close() {
	k.listener.Close()
	k.Cut()
}

func (k *Link) serve() {
	for {
		agent, err := k.listener.Accept()
		if err != nil {
			return
		}
		go k.carry(agent)
	}
}

// carry copies both ways until either side ends.
func (k *Link) carry(agent net.Conn) {
	defer agent.Close()
	if !k.hold(agent) {
		return
	}
	defer k.release(agent)
	hub, err := net.Dial("tcp", k.target)
	if err != nil {
		return
	}
	defer hub.Close()
	if !k.hold(hub) {
		return
	}
	defer k.release(hub)
	go func() {
		// An end of one way ends the other.
		_, _ = io.Copy(hub, agent)
		hub.Close()
	}()
	_, _ = io.Copy(agent, io.TeeReader(hub, (*counter)(&k.down)))
}

// hold keeps a connection to be cut; it reports false if the link is cut.
func (k *Link) hold(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		return false
	}
	k.conns[c] = true
	return true
}

func (k *Link) release(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
}

type counter atomic.Int64

func (n *counter) Write(p []byte) (int, error) {
	(*atomic.Int64)(n).Add(int64(len(p)))
	return len(p), nil
}
