package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/version"
)

// Options say which hub to ask, and as whom. With Server set nothing is read from a configuration file.
type Options struct {
	// Config is the file to read; default: TOWLINE_CONFIG, else ~/.config/towline/config.
	Config string
	// ContextName is the context in the file; default: its current one.
	ContextName string
	// Server is HOST:PORT of the hub's API.
	Server string
	// CA is the PEM of the authorities that may vouch for the hub.
	CA []byte
	// Cert is who asks, by client certificate.
	Cert *tls.Certificate
	// Token is who asks, by bearer token.
	Token string
	// Dialer replaces the network.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
	// UserAgent goes in front of this package's own.
	UserAgent string
	// OnBreak is told why a watch lost the hub; the watch goes on when the hub is back.
	OnBreak func(error)
	// DialOptions come last and win.
	DialOptions []grpc.DialOption
}

// Client is a connection to a hub with a typed client for each service. It is safe for concurrent use.
type Client struct {
	Modules     v1.ModuleServiceClient
	Clusters    v1.ClusterServiceClient
	Rollouts    v1.RolloutServiceClient
	Trackers    v1.TrackerServiceClient
	Assignments v1.AssignmentServiceClient
	Identity    v1.IdentityServiceClient
	Secrets     v1.SecretServiceClient
	Catalogs    v1.CatalogServiceClient
	Artifacts   v1.ArtifactServiceClient
	Store       v1.StoreServiceClient
	Audit       v1.AuditServiceClient

	conn    *grpc.ClientConn
	server  string
	onBreak func(error)
	written atomic.Int64
	met     atomic.Bool // the hub has answered a call
}

// Dial prepares a connection; the first call makes it, so a hub that is away shows there.
func Dial(_ context.Context, opts Options) (*Client, error) {
	if opts.Server == "" {
		found, err := fromFile(opts)
		if err != nil {
			return nil, err
		}
		opts = found
	}
	c := &Client{server: opts.Server, onBreak: opts.OnBreak}
	dialOptions, err := c.dialOptions(opts)
	if err != nil {
		return nil, err
	}
	target := opts.Server
	if opts.Dialer != nil {
		target = "passthrough:///" + target // the dialer knows what the name means
	}
	conn, err := grpc.NewClient(target, dialOptions...)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "server %s: %v", opts.Server, err)
	}
	c.conn = conn
	c.Modules = v1.NewModuleServiceClient(conn)
	c.Clusters = v1.NewClusterServiceClient(conn)
	c.Rollouts = v1.NewRolloutServiceClient(conn)
	c.Trackers = v1.NewTrackerServiceClient(conn)
	c.Assignments = v1.NewAssignmentServiceClient(conn)
	c.Identity = v1.NewIdentityServiceClient(conn)
	c.Secrets = v1.NewSecretServiceClient(conn)
	c.Catalogs = v1.NewCatalogServiceClient(conn)
	c.Artifacts = v1.NewArtifactServiceClient(conn)
	c.Store = v1.NewStoreServiceClient(conn)
	c.Audit = v1.NewAuditServiceClient(conn)
	return c, nil
}

// Close ends the connection and every call on it.
func (c *Client) Close() error { return c.conn.Close() }

// Server is the address it asks.
func (c *Client) Server() string { return c.server }

// Conn is the connection, for services that this package has no field for.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// WrittenRevision is the store revision of the last write made with this client. Every read asks for it or a later
// one, so that what was written is what is read.
func (c *Client) WrittenRevision() int64 { return c.written.Load() }

func (c *Client) dialOptions(opts Options) ([]grpc.DialOption, error) {
	transport := rpc.ClientTLS{Certificate: opts.Cert}
	if len(opts.CA) > 0 {
		transport.CAs = x509.NewCertPool()
		if !transport.CAs.AppendCertsFromPEM(opts.CA) {
			return nil, fleet.Invalid("caData", "holds no PEM certificate")
		}
	}
	out := append(rpc.APIDialOptions(transport.Config()),
		grpc.WithUserAgent(strings.TrimSpace(opts.UserAgent+" towline-client/"+version.Version)),
		grpc.WithDefaultServiceConfig(serviceConfig()),
		grpc.WithConnectParams(grpc.ConnectParams{ // a person waits: come back sooner than an agent does
			Backoff:           backoff.Config{BaseDelay: firstDelay, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastDelay},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
	)
	if opts.Token != "" {
		out = append(out, grpc.WithPerRPCCredentials(bearer(opts.Token)))
	}
	if opts.Dialer != nil {
		out = append(out, grpc.WithContextDialer(opts.Dialer))
	}
	return append(out, opts.DialOptions...), nil
}

// bearer puts the token on every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity keeps the token off plain connections.
func (b bearer) RequireTransportSecurity() bool { return true }

// services are those with reads that may be tried again.
var services = []*grpc.ServiceDesc{&v1.ModuleService_ServiceDesc, &v1.ClusterService_ServiceDesc, &v1.RolloutService_ServiceDesc,
	&v1.TrackerService_ServiceDesc, &v1.AssignmentService_ServiceDesc, &v1.IdentityService_ServiceDesc, &v1.SecretService_ServiceDesc, &v1.CatalogService_ServiceDesc,
	&v1.ArtifactService_ServiceDesc, &v1.StoreService_ServiceDesc, &v1.AuditService_ServiceDesc}

// serviceConfig tries reads again when the hub is not there for a moment.
func serviceConfig() string {
	var names []map[string]string
	for _, service := range services {
		for _, method := range service.Methods {
			if isRead(method.MethodName) {
				names = append(names, map[string]string{"service": service.ServiceName, "method": method.MethodName})
			}
		}
	}
	config, err := json.Marshal(map[string]any{"methodConfig": []any{map[string]any{
		"name": names,
		"retryPolicy": map[string]any{"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
			"backoffMultiplier": 2, "retryableStatusCodes": []string{"UNAVAILABLE"}},
	}}})
	if err != nil {
		panic(errors.Join(errors.New("client: service config"), err))
	}
	return string(config)
}

// isRead reports methods that change nothing.
func isRead(method string) bool {
	for _, verb := range []string{"Get", "List", "Explain", "Watch"} {
		if strings.HasPrefix(method, verb) {
			return true
		}
	}
	return false
}
