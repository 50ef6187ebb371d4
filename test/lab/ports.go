package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are taken from below the range that Linux hands out for outgoing connections: nothing takes the port of a
// stopped process before it is started again, and nobody who dials it connects to itself.
const (
	firstPort = 14000
	lastPort  = 20999
)

// FreeAddress is an address of the loopback interface that nobody listens on.
func FreeAddress() (string, error) {
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort+1))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		return address, l.Close()
	}
	return "", errors.New("no free port on 127.0.0.1")
}
