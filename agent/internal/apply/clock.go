package apply

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Clock tells the API server's time: objects say by that when they were made and written, and the machine's own clock may be
// far ahead of it or behind.
type Clock struct {
	mu        sync.Mutex
	at, heard time.Time
}

// Of is a copy of config every answer to which sets the clock.
func (c *Clock) Of(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, c} })
	return out
}

// Now is the API server's time, as its last answer told it; the machine's before the first one.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.IsZero() {
		return time.Now()
	}
	return c.at.Add(time.Since(c.heard))
}

func (c *Clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.heard = at, time.Now()
}

// dated reads the dates of answers.
type dated struct {
	next  http.RoundTripper
	clock *Clock
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		d.clock.set(at)
	}
	return resp, nil
}
