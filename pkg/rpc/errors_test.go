package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// overTheWire is what a client gets of an error.
func overTheWire(t *testing.T, err error) error {
	t.Helper()
	b, merr := proto.Marshal(status.Convert(rpc.ToStatus(err)).Proto())
	if merr != nil {
		t.Fatal(merr)
	}
	p := status.New(codes.OK, "").Proto()
	if uerr := proto.Unmarshal(b, p); uerr != nil {
		t.Fatal(uerr)
	}
	return rpc.FromStatus(status.FromProto(p).Err())
}

func TestErrorsCrossTheWire(t *testing.T) {
	all := []error{fleet.ErrInvalid, fleet.ErrNotFound, fleet.ErrExists, fleet.ErrConflict, fleet.ErrPrecondition, fleet.ErrDenied,
		fleet.ErrUnknownUser, fleet.ErrUnavailable, fleet.ErrExhausted, fleet.ErrStale, fleet.ErrCorrupt, context.Canceled, context.DeadlineExceeded}
	for _, kind := range all {
		sent := fleet.Errorf(kind, "module shop: %d things are wrong", 2)
		got := overTheWire(t, fmt.Errorf("%w", sent))
		if got.Error() != "module shop: 2 things are wrong" {
			t.Errorf("%v: the text is %q", kind, got)
		}
		for _, other := range all {
			if errors.Is(got, other) != (other == kind) {
				t.Errorf("%v: errors.Is(%v) is %v", kind, other, errors.Is(got, other))
			}
		}
		if twice := overTheWire(t, got); twice.Error() != got.Error() || !errors.Is(twice, kind) {
			t.Errorf("%v: passed on, it is %v", kind, twice)
		}
	}
}

func TestFieldErrorsCrossTheWire(t *testing.T) {
	sent := errors.Join(fleet.Invalid("spec.source", "is required"), fleet.Invalid("spec.placement", "selects nothing"))
	got := overTheWire(t, fleet.Join("modules[0]", fleet.Invalid("spec.source", "is required")))
	var fe *fleet.FieldError
	if !errors.As(got, &fe) || fe.Path != "modules[0].spec.source" || fe.Message != "is required" || !errors.Is(got, fleet.ErrInvalid) {
		t.Errorf("one: got %#v", got)
	}
	if got.Error() != "modules[0].spec.source: is required" {
		t.Errorf("one: the text is %q", got)
	}
	var paths []string
	if many, ok := overTheWire(t, sent).(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			if errors.As(e, &fe) {
				paths = append(paths, fe.Path)
			}
		}
	}
	if strings.Join(paths, " ") != "spec.source spec.placement" {
		t.Errorf("two: got %v", paths)
	}
}

// A program finds what it can act on without reading the sentence.
func TestHintsCrossTheWire(t *testing.T) {
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}.Object()
	for _, tc := range []struct {
		sent error
		kind error
		want fleet.Hint
	}{
		{fleet.NotFound(shop, "%s not found", shop), fleet.ErrNotFound, fleet.Hint{About: shop}},
		{fleet.SameUID(shop, "two", "one"), fleet.ErrPrecondition, fleet.Hint{About: shop, Unmet: fleet.PreconditionUID}},
		{fleet.SameGeneration(shop, 2, 1), fleet.ErrConflict, fleet.Hint{About: shop, Unmet: fleet.PreconditionGeneration}},
		{fleet.Forbids(shop, "%s is being deleted", shop), fleet.ErrPrecondition, fleet.Hint{About: shop, Unmet: fleet.PreconditionState}},
		{fleet.Errorf(fleet.ErrPrecondition, "not now"), fleet.ErrPrecondition, fleet.Hint{Unmet: fleet.PreconditionState}},
		{fleet.With(fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping"), fleet.Hint{RetryAfter: time.Second}), fleet.ErrUnavailable, fleet.Hint{RetryAfter: time.Second}},
		{fleet.Errorf(fleet.ErrUnavailable, "the agent is away"), fleet.ErrUnavailable, fleet.Hint{}},
	} {
		got := overTheWire(t, fmt.Errorf("asked: %w", tc.sent))
		if fleet.HintOf(got) != tc.want || !errors.Is(got, tc.kind) || got.Error() != "asked: "+tc.sent.Error() {
			t.Errorf("%v: got %v with %+v", tc.sent, got, fleet.HintOf(got))
		}
		if twice := overTheWire(t, fmt.Errorf("passed on: %w", got)); fleet.HintOf(twice) != tc.want || !errors.Is(twice, tc.kind) {
			t.Errorf("%v: passed on, it has %+v", tc.sent, fleet.HintOf(twice))
		}
	}
	if fleet.SameUID(shop, "one", "one") != nil || fleet.SameUID(shop, "one", "") != nil || fleet.SameGeneration(shop, 7, 0) != nil {
		t.Error("what holds, or was not asked for, is refused")
	}
}

func TestNoErrorAndEOFStayWhatTheyAre(t *testing.T) {
	if rpc.ToStatus(nil) != nil || rpc.FromStatus(nil) != nil {
		t.Error("nil became an error")
	}
	if !errors.Is(rpc.FromStatus(io.EOF), io.EOF) {
		t.Error("io.EOF was lost")
	}
}

func TestLongErrorsFitIntoHeaders(t *testing.T) {
	var many []error
	for i := range 100 {
		many = append(many, fleet.Invalid(fmt.Sprintf("spec.x[%d]", i), strings.Repeat("größer ", 300)))
	}
	st := status.Convert(rpc.ToStatus(errors.Join(many...)))
	if size := proto.Size(st.Proto()) * 4 / 3; size > 32<<10 || !utf8.ValidString(st.Message()) {
		t.Errorf("the status has %d bytes", size)
	}
}

func TestNeverABareStatus(t *testing.T) {
	for _, c := range []struct {
		code codes.Code
		in   string
		want string
		kind error
	}{
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:7444: connect: connection refused"`,
			"hub unreachable: dial tcp 127.0.0.1:7444: connect: connection refused", fleet.ErrUnavailable},
		{codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: expired certificate"`, // also of a hub whose clock is behind
			"the client certificate has expired, or is not valid yet, by the hub's clock (error reading server preface: remote error: tls: expired certificate)", fleet.ErrUnknownUser},
		{codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: bad certificate"`,
			"the hub refuses this client certificate: its identity was revoked, locked, replaced or copied (error reading server preface: remote error: tls: bad certificate)", fleet.ErrDenied},
		{codes.DeadlineExceeded, `context deadline exceeded while waiting for connections to become ready: latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:1: i/o timeout"`,
			"hub unreachable, and the time is up: dial tcp 10.0.0.1:1: i/o timeout", context.DeadlineExceeded},
		{codes.DeadlineExceeded, "context deadline exceeded", "the hub did not answer in time", context.DeadlineExceeded},
		{codes.Canceled, "context canceled", "canceled", context.Canceled},
		{codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)", "received message larger than max (5 vs. 4)", fleet.ErrExhausted},
		{codes.Unimplemented, "unknown method X", "the other side does not know this call; update the older of the two (unknown method X)", fleet.ErrPrecondition},
		{codes.Unknown, "", "the hub failed: no reason given", nil},
	} {
		got := rpc.FromStatus(status.Error(c.code, c.in))
		if got.Error() != c.want || (c.kind != nil && !errors.Is(got, c.kind)) {
			t.Errorf("%v %q:\n got %q\nwant %q", c.code, c.in, got, c.want)
		}
		if status.Code(got) != c.code {
			t.Errorf("%v: the code is lost: %v", c.code, status.Code(got))
		}
	}
}

// Whoever asks again must know whether the other side is not there, or has said that something else is not.
func TestUnanswered(t *testing.T) {
	away := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:7444: connect: connection refused"`)
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"nobody is there", rpc.FromStatus(away), true},
		{"nobody is there, and it is said where", fmt.Errorf("hub h1: %w", rpc.FromStatus(away)), true},
		{"as gRPC has it", away, true},
		{"the other side cannot reach a source", rpc.FromStatus(rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "source x: cannot be reached"))), false},
		{"a certificate is refused", rpc.FromStatus(status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: bad certificate"`)), false},
		{"no error of a call", fleet.Errorf(fleet.ErrUnavailable, "x"), false},
		{"none", nil, false},
	} {
		if got := rpc.Unanswered(c.err); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
