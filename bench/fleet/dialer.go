package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"crypto/tls"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// dialer is the child that is the other end of the bare server, with a certificate for each connection.
type dialer struct {
	ca      *authority
	conns   []*grpc.ClientConn
	streams []grpc.BidiStreamingClient[agentv1.ConnectRequest, agentv1.ConnectResponse]
	stop    context.CancelFunc
	rest    chan struct{} // closed when nobody beats any more
	read    atomic.Int64  // bytes from raw connections
	raw     int
}

// newDialer; args: the file of the CA.
func newDialer(args []string) (func(words []string) (string, error), error) {
	ca, err := loadAuthority(args[0])
	if err != nil {
		return nil, err
	}
	d := &dialer{ca: ca}
	return d.do, nil
}

func (d *dialer) do(words []string) (string, error) {
	switch words[0] {
	case "streams": // so many streams to an address
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return "", err
		}
		return d.open(words[1], n)
	case "close":
		return d.close(), nil
	case "raw": // so many raw connections to an address
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return "", err
		}
		return d.dialRaw(words[1], n)
	case "read": // wait until every raw connection has so many bytes in all
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return "", err
		}
		return d.await(n * int64(d.raw))
	case "rest":
		return d.silence(), nil
	case "beat":
		return d.beat(), nil
	case "status":
		return d.status()
	case "calls": // how long one call with so many bytes takes, in the middle of so many
		return d.calls(words[1], words[2])
	}
	return "", fmt.Errorf("the dialer does not know %q", words[0])
}

// open opens streams, each over a connection of its own, and says hello on each.
func (d *dialer) open(addr string, n int) (string, error) {
	d.conns = make([]*grpc.ClientConn, n)
	d.streams = make([]grpc.BidiStreamingClient[agentv1.ConnectRequest, agentv1.ConnectResponse], n)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			config, err := d.ca.client(i)
			if err != nil {
				return err
			}
			if d.conns[i], err = grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config))); err != nil {
				return err
			}
			if d.streams[i], err = agentv1.NewAgentServiceClient(d.conns[i]).Connect(context.Background()); err != nil {
				return err
			}
			return exchange(d.streams[i], &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Hello{Hello: &agentv1.Hello{MinProtocol: 1, MaxProtocol: 1}}})
		})
	}
	return "opened", g.Wait()
}

// exchange says something and waits for the answer.
func exchange(st grpc.BidiStreamingClient[agentv1.ConnectRequest, agentv1.ConnectResponse], m *agentv1.ConnectRequest) error {
	if err := st.Send(m); err != nil {
		return err
	}
	_, err := st.Recv()
	return err
}

func (d *dialer) close() string {
	for _, c := range d.conns {
		_ = c.Close()
	}
	return "closed"
}

// beat has a heartbeat go to and fro on every stream, spread over the time between two.
func (d *dialer) beat() string {
	ctx, cancel := context.WithCancel(context.Background())
	d.stop, d.rest = cancel, make(chan struct{})
	var g errgroup.Group
	for i, st := range d.streams {
		g.Go(func() error {
			wait := time.NewTimer(beat * time.Duration(i) / time.Duration(len(d.streams)))
			defer wait.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-wait.C:
				}
				if err := exchange(st, &agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Heartbeat{Heartbeat: &agentv1.Heartbeat{}}}); err != nil {
					return err
				}
				wait.Reset(beat)
			}
		})
	}
	go func() {
		_ = g.Wait() // what fails shows when the stream is used next
		close(d.rest)
	}()
	return "beats"
}

func (d *dialer) silence() string {
	d.stop()
	<-d.rest
	return "silent"
}

// status sends a report on every stream, all at once, and waits for their answers.
func (d *dialer) status() (string, error) {
	for i, st := range d.streams {
		s := &agentv1.Status{Epoch: 1, Sequence: 1, Digest: make([]byte, 200), Syncs: []*agentv1.SyncStatus{{Module: fmt.Sprintf("default/m-%d", i), Generation: 1, Bundle: make([]byte, 32), Phase: "Applied", Ready: true}}}
		if err := st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Status{Status: s}}); err != nil {
			return "", err
		}
	}
	for _, st := range d.streams {
		if _, err := st.Recv(); err != nil {
			return "", err
		}
	}
	return "reported", nil
}

func (d *dialer) dialRaw(addr string, n int) (string, error) {
	for i := range n {
		config, err := d.ca.client(i)
		if err != nil {
			return "", err
		}
		c, err := tls.Dial("tcp", addr, config)
		if err != nil {
			return "", err
		}
		go func() { _, _ = io.Copy(&counter{&d.read}, c) }() // ends with the process
	}
	d.raw = n
	return "dialed", nil
}

type counter struct{ n *atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

func (d *dialer) await(bytes int64) (string, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); d.read.Load() < bytes; <-tick.C {
		if time.Since(began) > patience {
			return "", fmt.Errorf("%d of %d bytes came", d.read.Load(), bytes)
		}
	}
	return "read", nil
}

func (d *dialer) calls(count, size string) (string, error) {
	client := agentv1.NewEnrollmentServiceClient(d.conns[0])
	return timed(count, size, func(_ int, data []byte) error {
		_, err := client.Renew(context.Background(), &agentv1.RenewRequest{Csr: data})
		return err
	})
}
