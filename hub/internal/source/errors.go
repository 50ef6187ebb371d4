package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"towline.dev/towline/hub/internal/egress"
	"towline.dev/towline/pkg/fleet"
)

var errTooLarge = errors.New("too large")

// refused is why what a source has is not taken.
func refused(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrInvalid, format, args...)
}

// statusError is an answer other than 200.
type statusError struct {
	code int
	// later says that the server may answer something else after a while.
	later bool
}

// newStatusError is for an answer that is not what was asked for. A server that limits how often it is asked may refuse as if something were forbidden: what
// says when to ask again, or that nothing is left of a limit, is a refusal for a while.
func newStatusError(resp *http.Response) *statusError {
	code := resp.StatusCode
	limited := code == http.StatusUnauthorized || code == http.StatusForbidden
	return &statusError{code: code, later: passing(code) ||
		limited && (resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-Ratelimit-Remaining") == "0")}
}

// passing reports that an answer says of itself that it is for a while only.
func passing(code int) bool { return code == http.StatusRequestTimeout || code == http.StatusTooEarly }

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.code, http.StatusText(e.code)))
}

// UnverifiedError says that what a source has is not signed as the source wants it.
type UnverifiedError struct{ Err error }

func (e *UnverifiedError) Error() string { return e.Err.Error() }

// Unwrap yields the cause.
func (e *UnverifiedError) Unwrap() error { return e.Err }

// NoFolderError says that a source has no file at its path.
type NoFolderError struct{ Err error }

func (e *NoFolderError) Error() string { return e.Err.Error() }

// Unwrap yields the cause.
func (e *NoFolderError) Unwrap() error { return e.Err }

// AwayError says that the server of a source does not answer, or answers that it cannot now: it may be back later.
type AwayError struct {
	// Host is the server.
	Host string
	// Since is when it was first so, as far as who asks has noted that.
	Since time.Time
	// Err is what is wrong.
	Err error
}

func (e *AwayError) Error() string { return e.Err.Error() }

// Unwrap yields the cause.
func (e *AwayError) Unwrap() error { return e.Err }

// place is where something is fetched from.
type place struct {
	url     *url.URL
	name    string // the URL without credentials and query, for people
	field   string // of the source, such as source.http
	address string // the field of the address
	timeout time.Duration
	secret  *secret // nil: none is needed
}

// fetched is what the sources of all servers say of a fetch.
type fetched interface {
	GetTimeout() string
	GetSecretName() string
}

// furnish reads how long a fetch may take, and gets the secret that it is made with.
func (r *place) furnish(ctx context.Context, f *Fetcher, project string, src fetched) (err error) {
	if r.timeout, err = readTimeout(r.field+".timeout", src.GetTimeout()); err != nil {
		return err
	}
	r.secret, err = f.secretOf(ctx, project, r.field+".secretName", src.GetSecretName())
	return err
}

// explain makes an error say which source, what is wrong and what to do, without the URL's secrets.
func (r place) explain(ctx context.Context, err error) error {
	var waits *SecretError
	if errors.As(err, &waits) {
		return err
	}
	if errors.As(err, new(*arrivedError)) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		ctx = context.WithoutCancel(ctx) // that the server's time is over meanwhile is not what is wrong
	}
	if unverified := (*UnverifiedError)(nil); errors.As(err, &unverified) {
		return &UnverifiedError{r.fail(fleet.ErrDenied, "%s", unverified)}
	}
	if none := (*NoFolderError)(nil); errors.As(err, &none) {
		return &NoFolderError{r.fail(fleet.ErrInvalid, "%s", none)}
	}
	var named *fleet.Named
	var field *fleet.FieldError
	var status *statusError
	var addr *egress.RefusedAddr
	var redirect *refusedRedirect
	var dns *net.DNSError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("source %s: %w", r.name, ctx.Err())
	case errors.Is(err, errNoTurn):
		return r.fail(fleet.ErrUnavailable, "is fetched, and waits for its turn: this hub unpacks %d sources at a time", maxUnpacking)
	case ctx.Err() != nil:
		return r.fail(fleet.ErrUnavailable, "did not arrive within %s: look at the server, or raise %s.timeout", r.timeout, r.field)
	case errors.As(err, &named):
		return r.fail(named.Kind, "%s", named.Message)
	case errors.As(err, &field):
		return r.fail(fleet.ErrInvalid, "%s", field.Error())
	case errors.Is(err, errTooLarge):
		return r.fail(fleet.ErrExhausted, "has more than %d MiB: put only what is to be delivered into it", MaxDownloadBytes>>20)
	case errors.As(err, &status):
		return r.explainStatus(status)
	case errors.As(err, &addr):
		return r.fail(fleet.ErrDenied, "%s", addr.Error())
	case errors.As(err, &redirect):
		return r.fail(fleet.ErrDenied, "%s", redirect.Error())
	case errors.As(err, &dns) && dns.IsNotFound:
		return r.fail(fleet.ErrNotFound, "cannot be reached: %s: check %s", r.cause(err), r.address)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errBroken):
		return r.fail(fleet.ErrUnavailable, "broke off before its end: look at the server")
	default:
		return r.fail(fleet.ErrUnavailable, "cannot be reached: %s", r.cause(err))
	}
}

func (r place) explainStatus(status *statusError) error {
	code, answer := status.code, status.Error()
	switch {
	case status.later:
		return r.fail(fleet.ErrUnavailable, "the server answers %s, and is to be asked again later: look at the server", answer)
	case code == http.StatusNotFound || code == http.StatusGone:
		return r.fail(fleet.ErrNotFound, "the server answers %s: check %s", answer, r.address)
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusProxyAuthRequired:
		return r.fail(fleet.ErrDenied, "the server answers %s: %s", answer, r.howToLogIn())
	case code == http.StatusTooManyRequests || code >= 500:
		return r.fail(fleet.ErrUnavailable, "the server answers %s, after %d retries too: look at the server", answer, retries)
	default:
		return r.fail(fleet.ErrInvalid, "the server answers %s, not 200 OK: check %s", answer, r.address)
	}
}

func (r place) howToLogIn() string {
	if r.secret == nil {
		return "the hub must be allowed to read it; name a secret that lets it in " + r.field + ".secretName"
	}
	return "look at secret " + r.secret.name + ", then put the module again"
}

// arrivedError is what is wrong with what has arrived in time.
type arrivedError struct{ error }

func (e *arrivedError) Unwrap() error { return e.error }

// errNoTurn is that all places for unpacking were taken until the source's time was over.
var errNoTurn = errors.New("all places for unpacking are taken")

func (r place) fail(kind error, format string, args ...any) error {
	return fleet.Errorf(kind, "source %s: %s", r.name, r.hush(fmt.Sprintf(format, args...)))
}

// cause is what went wrong, without what the secret and the URL have.
func (r place) cause(err error) string { return r.hush(cause(err)) }

// hush takes what the source is fetched with out of a text: a server may send it back.
func (r place) hush(text string) string { return egress.Hush(r.secret.scrub(text), r.url, "") }

// cause is what went wrong without the URL that net/http puts around it.
func cause(err error) string {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return clip(op.Error())
	}
	if strings.Contains(err.Error(), "Location header") {
		return "it redirects to what is no URL"
	}
	return clipError(err)
}

// ofRequest is how a library begins to say what is wrong: with the request. Its query is a credential where a registry has a layer be fetched
// elsewhere, by an address that it has signed.
var ofRequest = regexp.MustCompile(`[A-Z]+ "https?://(?:[^"\\]|\\.)*": `)

// clipError shortens what a library says, without the request.
func clipError(err error) string { return clip(ofRequest.ReplaceAllString(err.Error(), "")) }

// clip shortens what others have written, for messages.
func clip(s string) string { return fleet.Clip(s, 200) }
