package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"towline.dev/towline/pkg/fleet"
)

const (
	domain         = "towline.dev"
	maxMessage     = 2048 // a status travels in headers
	maxViolation   = 512
	maxViolations  = 16
	reasonInternal = "INTERNAL"
)

// sentinels ties every sentinel to its code and its word on the wire. Of several kinds in one error the first counts.
var sentinels = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{fleet.ErrStale, codes.Aborted, "STALE"},
	{fleet.ErrConflict, codes.Aborted, "CONFLICT"},
	{fleet.ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{fleet.ErrExists, codes.AlreadyExists, "EXISTS"},
	{fleet.ErrPrecondition, codes.FailedPrecondition, "PRECONDITION"},
	{fleet.ErrDenied, codes.PermissionDenied, "DENIED"},
	{fleet.ErrUnknownUser, codes.Unauthenticated, "UNKNOWN_USER"},
	{fleet.ErrExhausted, codes.ResourceExhausted, "EXHAUSTED"},
	{fleet.ErrCorrupt, codes.DataLoss, "CORRUPT"},
	{fleet.ErrUnavailable, codes.Unavailable, "UNAVAILABLE"},
	{fleet.ErrInvalid, codes.InvalidArgument, "INVALID"},
	{context.Canceled, codes.Canceled, "CANCELED"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE"},
}

// ToStatus makes a gRPC status of an error, with the sentinel's word and the fields in its details. A status stays as it
// is; what is no sentinel is Internal. A status that gRPC made of somebody else, such as an etcd that is not reached, and that an
// error wraps, keeps its code alone: without a word of ours it would read as if who says it were not reached.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	var remote *remoteError
	if errors.As(err, &remote) && remote.Error() == err.Error() {
		return remote.status.Err()
	}
	code, reason := classify(err)
	if st, ok := status.FromError(err); ok {
		if _, itself := err.(interface{ GRPCStatus() *status.Status }); itself || spoken(st) {
			return err
		}
		if reason == reasonInternal {
			code, reason = st.Code(), wordOf(st.Code())
		}
		if h := fleet.HintOf(err); code == codes.Unavailable && h.RetryAfter == 0 {
			h.RetryAfter = backSoon
			err = fleet.With(err, h)
		}
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: domain}}
	if v := violations(err); len(v) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: v})
	}
	details = append(details, hints(err, code)...)
	plain := status.New(code, cut(err.Error(), maxMessage))
	if full, derr := plain.WithDetails(details...); derr == nil {
		return full.Err()
	}
	return plain.Err()
}

// resourceTypes is what the kind of an object has in front in a ResourceInfo: the package of its message.
const resourceTypes = "towline.v1."

// hints are the details that an error has for programs. What is not possible now says always which precondition does not hold.
func hints(err error, code codes.Code) (out []protoadapt.MessageV1) {
	h := fleet.HintOf(err)
	about, kind, name := h.About != (fleet.Object{}), resourceTypes+h.About.Kind, cut(h.About.Name, maxViolation)
	if h.Unmet == "" && code == codes.FailedPrecondition {
		h.Unmet = fleet.PreconditionState
	}
	if h.Unmet != "" {
		v := &errdetails.PreconditionFailure_Violation{Type: string(h.Unmet), Description: cut(err.Error(), maxViolation)}
		if about {
			v.Subject = kind + "/" + name
		}
		out = append(out, &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{v}})
	}
	if about {
		out = append(out, &errdetails.ResourceInfo{ResourceType: kind, ResourceName: name})
	}
	if h.RetryAfter > 0 {
		out = append(out, &errdetails.RetryInfo{RetryDelay: durationpb.New(h.RetryAfter)})
	}
	return out
}

// Unanswered reports that nobody answered: the error is of the connection, and nothing that the other side has said.
func Unanswered(err error) bool {
	var remote *remoteError
	if !errors.As(FromStatus(err), &remote) || !errors.Is(remote, fleet.ErrUnavailable) {
		return false
	}
	return !spoken(remote.status)
}

// spoken reports that a status has a word of ours: a hub or an agent made it, and not gRPC.
func spoken(st *status.Status) bool {
	return slices.ContainsFunc(st.Details(), func(d any) bool {
		info, ok := d.(*errdetails.ErrorInfo)
		return ok && info.GetDomain() == domain
	})
}

// hintOf reads back what hints made.
func hintOf(details []any) (h fleet.Hint) {
	for _, d := range details {
		switch d := d.(type) {
		case *errdetails.PreconditionFailure:
			for _, v := range d.GetViolations() {
				h.Unmet = fleet.Precondition(v.GetType())
			}
		case *errdetails.ResourceInfo:
			if kind, ours := strings.CutPrefix(d.GetResourceType(), resourceTypes); ours {
				h.About = fleet.Object{Kind: kind, Name: d.GetResourceName()}
			}
		case *errdetails.RetryInfo:
			h.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return h
}

// Reason is the word of an error on the wire, such as UNAVAILABLE.
func Reason(err error) string {
	_, reason := classify(err)
	return reason
}

// backSoon is when it is worth another try after one whom the hub asked was away: an etcd has another leader by then.
const backSoon = time.Second

// wordOf is the word of the first sentinel with the code.
func wordOf(code codes.Code) string {
	for _, s := range sentinels {
		if s.code == code {
			return s.reason
		}
	}
	return reasonInternal
}

func classify(err error) (codes.Code, string) {
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code, s.reason
		}
	}
	return codes.Internal, reasonInternal
}

// violations are the field errors anywhere in the error.
func violations(err error) []*errdetails.BadRequest_FieldViolation {
	var out []*errdetails.BadRequest_FieldViolation
	var walk func(error)
	walk = func(err error) {
		if err == nil || len(out) == maxViolations {
			return
		}
		if fe, ok := err.(*fleet.FieldError); ok {
			out = append(out, &errdetails.BadRequest_FieldViolation{
				Field: cut(fe.Path, maxViolation), Description: cut(fe.Message, maxViolation)})
			return
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, c := range e.Unwrap() {
				walk(c)
			}
		}
	}
	walk(err)
	return out
}

// cut shortens s to at most n bytes of valid UTF-8.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n -= len("…"); n > 0 && !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n] + "…"
}

// remoteError is an error that came over the wire: its text is the sentence alone, errors.Is and errors.As find the
// sentinel and the fields.
type remoteError struct {
	message string
	kinds   []error
	status  *status.Status
}

func (e *remoteError) Error() string              { return e.message }
func (e *remoteError) Unwrap() []error            { return e.kinds }
func (e *remoteError) GRPCStatus() *status.Status { return e.status }

// FromStatus is the error that the other side meant: errors.Is holds for the sentinel it wrapped, and the text is the
// sentence alone. What gRPC itself says, such as that nobody answers, becomes a sentence too.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	var remote *remoteError
	if errors.As(err, &remote) {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	out := &remoteError{message: st.Message(), status: st}
	known := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != domain {
				continue
			}
			known = true
			out.kinds = append(out.kinds, kindOf(d.GetReason())...)
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				out.kinds = append(out.kinds, fleet.Invalid(v.GetField(), v.GetDescription()))
			}
		}
	}
	if !known {
		out.message, out.kinds = transport(st)
	}
	if h := hintOf(st.Details()); known && h != (fleet.Hint{}) {
		out.kinds = append(out.kinds, fleet.With(errors.New(out.message), h))
	}
	return out
}

func kindOf(reason string) []error {
	for _, s := range sentinels {
		if s.reason == reason {
			return []error{s.err}
		}
	}
	return nil
}
