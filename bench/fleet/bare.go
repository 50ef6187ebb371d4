package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
)

// bare is the child that the hub is compared with: it does what has to be done at least, with libraries as they come.
type bare struct {
	agentv1.UnimplementedAgentServiceServer
	agentv1.UnimplementedEnrollmentServiceServer
	kv   *clientv3.Client
	room chan struct{} // for so many puts at a time

	mu  sync.Mutex
	raw []*tls.Conn
}

// newBare; args: directory of its store, file of the CA, address of gRPC, address of raw TLS.
func newBare(args []string) (func(words []string) (string, error), error) {
	config, err := serverTLS(args[1])
	if err != nil {
		return nil, err
	}
	b := &bare{room: make(chan struct{}, 2000)}
	if b.kv, err = openEtcd(args[0]); err != nil {
		return nil, err
	}
	listen, err := net.Listen("tcp", args[2])
	if err != nil {
		return nil, err
	}
	raw, err := tls.Listen("tcp", args[3], config)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	agentv1.RegisterAgentServiceServer(s, b)
	agentv1.RegisterEnrollmentServiceServer(s, b)
	go func() { exit(s.Serve(listen)) }()
	go func() { exit(b.accept(raw)) }()
	return b.do, nil
}

func openEtcd(dir string) (*clientv3.Client, error) {
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.TickMs, c.ElectionMs = dir, "fatal", 10, 100
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	<-e.Server.ReadyNotify()
	return v3client.New(e.Server), nil
}

func (b *bare) do(words []string) (string, error) {
	switch words[0] {
	case "puts": // how long one put of so many bytes takes here, in the middle of so many
		return b.puts(words[1], words[2])
	case "write": // so many bytes to every raw connection
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return "", err
		}
		return b.write(make([]byte, n))
	}
	return "", fmt.Errorf("the bare server does not know %q", words[0])
}

func (b *bare) puts(count, size string) (string, error) {
	return timed(count, size, func(i int, data []byte) error {
		_, err := b.kv.Put(context.Background(), fmt.Sprintf("put/%d", i), string(data))
		return err
	})
}

func (b *bare) write(data []byte) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.raw {
		if _, err := c.Write(data); err != nil {
			return "", err
		}
	}
	return "written", nil
}

func (b *bare) accept(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		conn, ok := c.(*tls.Conn)
		if !ok {
			return fmt.Errorf("%T is no TLS connection", c)
		}
		if err := conn.Handshake(); err != nil {
			fmt.Fprintln(os.Stderr, "bare: a handshake:", err)
			continue
		}
		b.mu.Lock()
		b.raw = append(b.raw, conn)
		b.mu.Unlock()
	}
}

// Connect answers heartbeats, and puts what a status says before it answers that, one by one.
func (b *bare) Connect(st grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		answer := &agentv1.ConnectResponse{}
		switch f := m.GetFrame().(type) {
		case *agentv1.ConnectRequest_Hello:
			answer.Frame = &agentv1.ConnectResponse_Welcome{Welcome: &agentv1.Welcome{Epoch: 1}}
		case *agentv1.ConnectRequest_Status:
			if err := b.put(st.Context(), "observed/"+f.Status.GetSyncs()[0].GetModule(), string(f.Status.GetDigest())); err != nil {
				return err
			}
			answer.Frame = &agentv1.ConnectResponse_StatusAck{StatusAck: &agentv1.StatusAck{Sequence: f.Status.GetSequence()}}
		default:
			answer.Frame = &agentv1.ConnectResponse_Heartbeat{Heartbeat: &agentv1.Heartbeat{}}
		}
		if err := st.Send(answer); err != nil {
			return err
		}
	}
}

// put is one of many at a time: etcd takes some 5,000 of them, and refuses what is more.
func (b *bare) put(ctx context.Context, key, value string) error {
	b.room <- struct{}{}
	defer func() { <-b.room }()
	_, err := b.kv.Put(ctx, key, value)
	return err
}

// Renew is one put behind one call.
func (b *bare) Renew(ctx context.Context, in *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return &agentv1.RenewResponse{}, b.put(ctx, "call", string(in.GetCsr()))
}
