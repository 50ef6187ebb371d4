package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports are taken from below the range that Linux hands out for outgoing
// connections, so that the port of a stopped part is still free when the part
// is started again.
const (
	firstPort = 21000
	lastPort  = 31999
)

// A port is a TCP port of the loopback interface reserved for one part. Until
// the part's first start a listener holds it. For as long as kubelab lives, an
// abstract Unix socket keeps other kubelab processes off it.
type port struct {
	number int
	claim  net.Listener
	hold   net.Listener
}

// reservePort reserves a free port.
func reservePort() (*port, error) {
	for range 2000 {
		n := firstPort + rand.IntN(lastPort-firstPort+1)
		claim, err := net.Listen("unix", fmt.Sprintf("@kubelab-port-%d", n))
		if err != nil {
			continue
		}
		hold, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", n))
		if err != nil {
			claim.Close()
			continue
		}
		return &port{number: n, claim: claim, hold: hold}, nil
	}
	return nil, errors.New("no free port on 127.0.0.1")
}

// open lets the part that the port is for bind it.
func (p *port) open() {
	if p.hold != nil {
		p.hold.Close()
		p.hold = nil
	}
}

// release gives the port up.
func (p *port) release() {
	p.open()
	p.claim.Close()
}
