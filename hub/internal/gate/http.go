package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"towline.dev/towline/hub/internal/egress"
)

const (
	// excerptBytes of an answer that is not understood are shown.
	excerptBytes = 200
	// maxRefusal is how much is read of an answer that is no success, before what may not be shown of it is masked.
	maxRefusal = 16 << 10
	maxHeader  = 64 << 10
)

// request is one question to a server.
type request struct {
	method  string
	url     *url.URL
	header  http.Header
	body    []byte
	timeout time.Duration // of one try
	retries int
	limit   int64 // bytes of the answer
	// hidePath keeps the path out of what is said of it.
	hidePath bool
	// shown is the part of the query that is no secret; empty: all are.
	shown string
	// sign sets headers before each try; it may be nil.
	sign func(http.Header)
}

// reply is what a server answered.
type reply struct {
	code  int
	body  []byte
	tries int
}

// name is the URL for people: credentials, query and fragment often are secrets, and so is the path of a webhook.
func (r *request) name() string {
	if r.hidePath {
		return (&url.URL{Scheme: r.url.Scheme, Host: r.url.Host}).String()
	}
	return (&url.URL{Scheme: r.url.Scheme, Host: r.url.Host, Path: r.url.Path}).String()
}

func transport(o HTTP) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: o.Guard.Control}
	return &http.Transport{
		Proxy:                  o.Proxy,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		DisableKeepAlives:      true,
		ForceAttemptHTTP2:      true,
	}
}

var errTooLarge = errors.New("the answer is too large")

// do asks, with retries. Its error is a sentence that begins with the server's name.
func (g *Gates) do(ctx context.Context, r *request) (reply, error) {
	out := reply{}
	req, err := retryablehttp.NewRequestWithContext(ctx, r.method, r.url.String(), r.body)
	if err != nil {
		return out, fmt.Errorf("%s: is no URL that can be asked", r.name())
	}
	req.Header = r.header.Clone()
	req.Header.Set("User-Agent", "towline-hub")
	req.Header.Set("Accept", "application/json")
	if r.sign != nil {
		r.sign(req.Header)
	}
	req.SetResponseHandler(func(resp *http.Response) error {
		var err error
		out.body, err = read(resp.Body, r.limit)
		return err
	})
	if err := g.o.HTTP.Guard.CheckHost(r.url); err != nil {
		return out, r.explain(out, err)
	}
	resp, err := g.client(r, &out.tries).Do(req)
	if resp != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	if err != nil {
		return out, r.explain(out, err)
	}
	if out.code = resp.StatusCode; out.body == nil {
		// A status that was retried in vain: its text is shown as far as it comes.
		out.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	}
	return out, nil
}

func read(body io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, errTooLarge
	}
	return b, nil
}

func (g *Gates) client(r *request, tries *int) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient: &http.Client{Transport: g.transport, Timeout: r.timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Logger:         egress.RetryLog{Log: g.o.Log, What: "gate", Cause: cause},
		RetryMax:       r.retries,
		RetryWaitMin:   g.o.HTTP.RetryWait,
		RetryWaitMax:   10 * g.o.HTTP.RetryWait,
		RequestLogHook: func(_ retryablehttp.Logger, _ *http.Request, n int) { *tries = n + 1 },
		CheckRetry:     checkRetry,
		ErrorHandler:   retryablehttp.PassthroughErrorHandler,
		PrepareRetry: func(req *http.Request) error {
			if r.sign != nil {
				req.Header = req.Header.Clone()
				r.sign(req.Header)
			}
			return nil
		},
		Backoff: func(least, most time.Duration, attempt int, resp *http.Response) time.Duration {
			return min(max(retryablehttp.DefaultBackoff(least, most, attempt, resp), least), most)
		},
	}
}

// checkRetry retries what a server may recover from. That holds for POST too: a check is a question, and all its tries
// carry one Idempotency-Key.
func checkRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	var addr *egress.RefusedAddr
	var dns *net.DNSError
	switch {
	case errors.As(err, &addr), errors.Is(err, errTooLarge), errors.As(err, &dns) && dns.IsNotFound:
		return false, nil
	}
	return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
}

// explain says what went wrong without the URL that net/http puts around it.
func (r *request) explain(out reply, err error) error {
	var timeout net.Error
	var addr *egress.RefusedAddr
	switch {
	case errors.As(err, &addr):
		return fmt.Errorf("%s: %s", r.name(), addr.Error())
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("%s: answers more than %d bytes", r.name(), r.limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s: no answer in %s%s", r.name(), r.timeout, out.times())
	}
	return fmt.Errorf("%s: cannot be asked: %s%s", r.name(), r.said([]byte(bare(err))), out.times())
}

// status is the sentence for a status that is no success.
func (r *request) status(out reply) string {
	text := fmt.Sprintf("%d %s", out.code, http.StatusText(out.code))
	if out.code >= 300 && out.code < 400 {
		return fmt.Sprintf("%s: answers %s, and redirects are not followed: write the URL it ends at", r.name(), strings.TrimSpace(text))
	}
	return fmt.Sprintf("%s: answers %s%s%s", r.name(), strings.TrimSpace(text), out.times(), colon(r.said(out.body)))
}

func (out reply) times() string {
	if out.tries < 2 {
		return ""
	}
	return fmt.Sprintf(", %d times", out.tries)
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// excerpt is the beginning of an answer on one line.
func excerpt(b []byte) string {
	cut := ""
	if len(b) > excerptBytes {
		b, cut = b[:excerptBytes], "…"
	}
	printable := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(string(b), "?"))
	return strings.Join(strings.Fields(printable), " ") + cut
}

func cause(err error) string { return excerpt([]byte(bare(err))) }

// bare is an error without the URL that net/http puts around it. What a server wrote that is no answer may repeat that.
func bare(err error) string {
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}
