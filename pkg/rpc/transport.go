package rpc

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"towline.dev/towline/pkg/fleet"
)

// alerts are TLS alerts by which the other side refuses a client certificate after it has proved who it is itself.
var alerts = []struct {
	text, message string
	kind          error
}{
	{"remote error: tls: bad certificate",
		"the hub refuses this client certificate: its identity was revoked, locked, replaced or copied", fleet.ErrDenied},
	{"remote error: tls: expired certificate",
		"the client certificate has expired, or is not valid yet, by the hub's clock", fleet.ErrUnknownUser},
	{"remote error: tls: unknown certificate authority",
		"the client certificate is not from this hub's CA", fleet.ErrUnknownUser},
	{"remote error: tls: certificate required",
		"the hub wants a client certificate", fleet.ErrUnknownUser},
	{"tls: failed to verify certificate",
		"the server's certificate is not to be trusted", fleet.ErrUnavailable},
}

// transport makes a sentence of a status that gRPC made itself.
func transport(st *status.Status) (string, []error) {
	text := plain(st.Message())
	for _, a := range alerts {
		if strings.Contains(text, a.text) {
			return a.message + " (" + text + ")", []error{a.kind}
		}
	}
	switch st.Code() {
	case codes.Unavailable:
		return "hub unreachable: " + text, []error{fleet.ErrUnavailable}
	case codes.DeadlineExceeded:
		return deadline(text), []error{context.DeadlineExceeded}
	case codes.Canceled:
		return "canceled", []error{context.Canceled}
	case codes.Unimplemented:
		return "the other side does not know this call; update the older of the two (" + text + ")", []error{fleet.ErrPrecondition}
	}
	for _, s := range sentinels {
		if s.code == st.Code() {
			return text, []error{s.err}
		}
	}
	return "the hub failed: " + text, nil
}

// deadline keeps the cause that gRPC appends when no connection came up in time.
func deadline(text string) string {
	if _, cause, found := strings.Cut(text, "latest balancer error: "); found {
		return "hub unreachable, and the time is up: " + plain(cause)
	}
	return "the hub did not answer in time"
}

// plain takes gRPC's own wrapping off a message: connection error: desc = "transport: … dial tcp …".
func plain(s string) string {
	for _, wrap := range []string{"connection error: desc = ", "transport: ", "Error while dialing: ", "grpc: "} {
		s = strings.ReplaceAll(s, wrap, "")
	}
	s = strings.ReplaceAll(s, `\"`, `'`)
	if s = strings.ReplaceAll(s, `"`, ""); s == "" {
		return "no reason given"
	}
	return s
}
