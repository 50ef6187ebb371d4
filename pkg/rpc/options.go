package rpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

const (
	kib = 1 << 10
	// MaxMessage is the largest message that the hub takes.
	MaxMessage = 4 * kib * kib
	// MaxFromHub is the largest message that an agent takes: an index of all that its cluster is assigned, which is one, with the values of all of it.
	MaxFromHub = 64 * kib * kib
	// MaxAnswer is the largest message that a client of the public API takes.
	MaxAnswer = 16 * kib * kib

	maxRequestHeader = 16 * kib
	maxAnswerHeader  = 64 * kib // a status with field violations travels in headers
	hubWindow        = 256 * kib
	clientWindow     = 1024 * kib
	agentStreams     = 16
	apiStreams       = 256
	handshakeTimeout = 5 * time.Second
	pingEvery        = 20 * time.Second
	pingTimeout      = 10 * time.Second
	minPing          = 10 * time.Second
)

// Authenticator tells who shows a certificate or a token, from memory, without I/O.
type Authenticator interface {
	// Certificate is asked at every call, so that a revoked identity ends on a live connection too.
	Certificate(state tls.ConnectionState) (Caller, error)
	// Bearer reads the token of an authorization header.
	Bearer(token string) (Caller, error)
}

// ServerConfig is what both listeners need.
type ServerConfig struct {
	TLS  *tls.Config
	Auth Authenticator
	// Audit records a write after it was done or refused. It may be nil.
	Audit func(context.Context, AuditEntry)
	Log   *slog.Logger
	// Handshakes are those of the listener that is served; nil: they are not bounded.
	Handshakes *Handshakes
	// Unary and Stream see each call as its caller does: what is refused, too. They may be nil.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Now defaults to time.Now.
	Now func() time.Time
}

// AgentServerOptions are those of the listener for agents: what a hostile agent can park is bounded, and no BDP ping is
// sent.
func AgentServerOptions(c ServerConfig) ([]grpc.ServerOption, error) {
	return serverOptions(c, agentStreams)
}

// APIServerOptions are those of the listener for people and programs.
func APIServerOptions(c ServerConfig) ([]grpc.ServerOption, error) {
	return serverOptions(c, apiStreams)
}

func serverOptions(c ServerConfig, streams uint32) ([]grpc.ServerOption, error) {
	if c.TLS == nil || c.Auth == nil || c.Log == nil {
		return nil, fmt.Errorf("rpc: TLS, Auth and Log are required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	i := &interceptors{auth: c.Auth, audit: c.Audit, log: c.Log, now: c.Now}
	creds := credentials.NewTLS(c.TLS)
	if c.Handshakes != nil {
		creds = greetingCreds{creds, c.Handshakes}
	}
	unary, stream := []grpc.UnaryServerInterceptor{i.unary}, []grpc.StreamServerInterceptor{i.stream}
	if c.Unary != nil {
		unary = slices.Insert(unary, 0, c.Unary)
	}
	if c.Stream != nil {
		stream = slices.Insert(stream, 0, c.Stream)
	}
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.ReadBufferSize(0),
		grpc.StaticStreamWindowSize(hubWindow),
		grpc.StaticConnWindowSize(2 * hubWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.MaxConcurrentStreams(streams),
		grpc.MaxHeaderListSize(maxRequestHeader),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.ForceServerCodecV2(newBoundedCodec()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
	}, nil
}

// AgentDialOptions are those of an agent: windows are large because it receives contents.
func AgentDialOptions(t *tls.Config) []grpc.DialOption { return dialOptions(t, MaxFromHub) }

// APIDialOptions are those of a client of the public API.
func APIDialOptions(t *tls.Config) []grpc.DialOption { return dialOptions(t, MaxAnswer) }

func dialOptions(t *tls.Config, maxAnswer int) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(refusalCreds{credentials.NewTLS(t)}),
		grpc.WithReadBufferSize(0),
		grpc.WithStaticStreamWindowSize(clientWindow),
		grpc.WithStaticConnWindowSize(2 * clientWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithMaxHeaderListSize(maxAnswerHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: handshakeTimeout,
			Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Minute}}),
		grpc.WithChainUnaryInterceptor(clientUnary),
		grpc.WithChainStreamInterceptor(clientStream),
	}
}

// RegisterHealth adds the health service. Check needs no identity, so that a probe may use it.
func RegisterHealth(s *grpc.Server) *health.Server {
	h := health.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	return h
}

// RegisterReflection adds reflection, for authenticated users only (see the table). Call it last.
func RegisterReflection(s *grpc.Server) { reflection.Register(s) }
