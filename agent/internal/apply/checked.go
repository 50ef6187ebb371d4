package apply

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type checkKey struct{}

// Checked has check asked right before every request of the context is sent; what it says then is the request's error.
// Between the decision to write and the request a process may stand still for any time.
func Checked(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// checking asks a request's check before it sends it.
type checking struct{ next http.RoundTripper }

func (c checking) RoundTrip(r *http.Request) (*http.Response, error) {
	if check, ok := r.Context().Value(checkKey{}).(func() error); ok {
		if err := check(); err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
	}
	return c.next.RoundTrip(r)
}

// WrappedRoundTripper shows the transport below to client-go.
func (c checking) WrappedRoundTripper() http.RoundTripper { return c.next }

// RetryAfter is how long the server asks to wait before the same request is made again.
func RetryAfter(err error) (time.Duration, bool) {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, ok && seconds > 0
}
