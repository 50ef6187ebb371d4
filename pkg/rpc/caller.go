package rpc

import (
	"context"
	"crypto/x509"
	"log/slog"

	"towline.dev/towline/pkg/fleet"
)

// Kind says what calls.
type Kind string

// Kinds of callers.
const (
	KindUser  Kind = "user"
	KindAgent Kind = "agent"
	KindHub   Kind = "hub"
)

// Role says what a user may do.
type Role string

// Roles of users.
const (
	RoleAdmin  Role = "admin"
	RoleViewer Role = "viewer"
)

// ParseRole reads a role as people write it.
func ParseRole(s string) (Role, error) {
	if r := Role(s); r == RoleAdmin || r == RoleViewer {
		return r, nil
	}
	return "", fleet.Invalidf("role", "%.40q is unknown; use admin or viewer", s)
}

// Caller is who calls, as proved by a client certificate or a bearer token.
type Caller struct {
	Kind Kind
	// Name is the user's name, or that of the agent's cluster.
	Name string
	// Role is set for users.
	Role Role
	// Cluster is set for agents.
	Cluster fleet.ClusterName
	// CertSerial is in hex; empty for a bearer token.
	CertSerial string
	// Leaf is the certificate of an agent.
	Leaf *x509.Certificate
	// Remote is the peer's address.
	Remote string
}

// String names the caller for people: maria, or cluster prod-eu-01.
func (c Caller) String() string {
	switch c.Kind {
	case KindAgent:
		return "cluster " + string(c.Cluster)
	case KindHub:
		return "hub " + c.Name
	}
	return c.Name
}

// LogValue groups what a log line needs.
func (c Caller) LogValue() slog.Value {
	return slog.GroupValue(slog.String("kind", string(c.Kind)), slog.String("name", c.Name), slog.String("remote", c.Remote))
}

type callerKey struct{}

// WithCaller puts the caller into the context.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFrom is the caller of the request; false when nobody proved an identity.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// AgentFrom is the caller if it is an agent, else an error for the client.
func AgentFrom(ctx context.Context) (Caller, error) {
	c, ok := CallerFrom(ctx)
	switch {
	case !ok:
		return Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "agent: no valid client certificate; run: towline cluster join NAME")
	case c.Kind != KindAgent:
		return Caller{}, fleet.Errorf(fleet.ErrDenied, "%s: only agents may do this", c)
	}
	return c, nil
}
