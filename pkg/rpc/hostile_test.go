package rpc_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/rpc"
)

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }

// taking takes frames until there are no more.
type taking struct {
	agentv1.UnimplementedAgentServiceServer
	taken chan error
}

func (s *taking) Connect(st grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]) error {
	_, err := st.Recv()
	s.taken <- err
	return err
}

// A frame of a few megabytes can hold millions of empty messages, each of hundreds of bytes once it is made: a handful of
// such frames would be more memory than a hub has.
func TestFrameOfManyMessagesIsRefusedBeforeTheyAreMade(t *testing.T) {
	cert, pool := selfSigned(t)
	server, err := rpc.ServerTLS{Certificate: func() (*tls.Certificate, error) { return &cert, nil }, ClientCAs: func() *x509.CertPool { return pool },
		Verify: func(tls.ConnectionState) error { return nil }}.Config()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := rpc.AgentServerOptions(rpc.ServerConfig{TLS: server, Auth: tokens{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s, service := grpc.NewServer(opts...), &taking{taken: make(chan error, 1)}
	agentv1.RegisterAgentServiceServer(s, service)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), rpc.AgentDialOptions(rpc.ClientTLS{CAs: pool, Certificate: &cert}.Config())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	send := func(frame []byte) error {
		t.Helper()
		st, err := conn.NewStream(t.Context(), &agentv1.AgentService_ServiceDesc.Streams[0], agentv1.AgentService_Connect_FullMethodName,
			grpc.ForceCodec(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.SendMsg(frame); err != nil {
			t.Fatal(err)
		}
		return <-service.taken
	}
	// A status whose field 3, the syncs, holds n empty messages.
	status3 := func(n int) []byte {
		syncs := bytes.Repeat([]byte{3<<3 | 2, 0}, n)
		return append(append([]byte{3<<3 | 2}, varint(len(syncs))...), syncs...)
	}
	if err := send(status3(1000)); err != nil {
		t.Errorf("a thousand: %v", err)
	}
	const most = 64 << 20
	frame := status3(2_000_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = send(frame)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; status.Code(err) == codes.OK || n > most {
		t.Errorf("%d bytes: %v after %d MiB were allocated, at most %d may be", len(frame), err, n>>20, most>>20)
	}
}

func varint(n int) (out []byte) {
	for ; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}
