package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// limits bound how long the API server may take for a request, its answer read to the end. A server that accepts and never
// answers must not hold up anything for longer.
type limits struct {
	// read is for one object or for discovery; page is for a page of a list.
	read, page time.Duration
	// write is longer than what the API server itself gives a write (34 s), so that its answer is heard.
	write time.Duration
	// watch is for the beginning of a watch. The watch itself has no end; that it is alive its reader sees.
	watch time.Duration
}

var defaultLimits = limits{read: 20 * time.Second, page: time.Minute, write: 40 * time.Second, watch: 30 * time.Second}

func (l limits) of(r *http.Request) time.Duration {
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet:
		return l.write
	case query.Get("watch") != "":
		return l.watch
	case query.Get("limit") != "":
		return l.page
	default:
		return l.read
	}
}

// bounded gives every request its limit, and has none go to another address than the API server's: whoever follows asks there with the agent's
// credentials, and asks only, so that what was not written counts as written. It is in the transport, where no caller can forget it.
type bounded struct {
	next   http.RoundTripper
	limits limits
}

// tooSlow is the cause of the end of a request that had no answer in time.
type tooSlow struct{ limit time.Duration }

func (e tooSlow) Error() string { return fmt.Sprintf("no answer within %s", e.limit) }

// Timeout makes it a net.Error.
func (tooSlow) Timeout() bool { return true }

// Temporary makes it a net.Error.
func (tooSlow) Temporary() bool { return true }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	limit := b.limits.of(r)
	ctx, cancel := context.WithCancelCause(r.Context())
	slow := tooSlow{limit}
	timer := time.AfterFunc(limit, func() { cancel(slow) })
	end := func() { timer.Stop(); cancel(nil) }
	resp, err := b.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, because(ctx, err)
	}
	if r.URL.Query().Get("watch") != "" {
		timer.Stop() // it has begun
	}
	resp.Header.Del("Location")
	resp.Body = &boundedBody{ReadCloser: resp.Body, ctx: ctx, end: end}
	return resp, nil
}

// because is the limit, if that is why the request ended.
func because(ctx context.Context, err error) error {
	var slow tooSlow
	if errors.As(context.Cause(ctx), &slow) {
		return slow
	}
	return err
}

// boundedBody keeps the limit until the answer is read.
type boundedBody struct {
	io.ReadCloser
	ctx context.Context
	end func()
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = because(b.ctx, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}
