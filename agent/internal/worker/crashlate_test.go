package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// sendOrLater sends a request; the one at which the agent dies is carried out when another agent has gone on, as one that a slow webhook
// or a proxy holds. c.mu is held.
func (c *crash) sendOrLater(r *http.Request) (*http.Response, error) {
	if len(c.did)+1 != c.after {
		return c.next.RoundTrip(r)
	}
	late := r.Clone(context.Background())
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		late.Body, late.GetBody = io.NopCloser(bytes.NewReader(body)), nil
	}
	time.AfterFunc(c.late, func() {
		defer close(c.lands)
		if answer, err := c.next.RoundTrip(late); err == nil {
			c.answer = answer.StatusCode
			_ = answer.Body.Close()
		}
	})
	c.held = true
	return nil, errKilled
}

// What an agent sent last is carried out when it has died and another one has gone on for a while, with the same to do or with what comes next: the end is
// as if it had been carried out at once, or never.
func TestLastRequestOfAKilledAgentArrivesLate(t *testing.T) {
	if os.Getenv("TOWLINE_SOAK") == "" {
		t.Skip("two minutes and more; make soak runs it")
	}
	config := labConfig(t)
	t.Parallel()
	effects := 0
	t.Run("never", func(t *testing.T) {
		r := newRigOn(t, rest.CopyConfig(config))
		c := r.mortal(0)
		everyLife(r, func(lives []life, look func() map[string]string, then func(life)) {
			r.live(c, false, lives, look, then)
		})
		effects = len(c.did)
	})
	for after := 1; after <= effects+2; after++ {
		for then, next := range map[string]bool{"the same": false, "the next": true} {
			t.Run(fmt.Sprintf("after %d, then %s", after, then), func(t *testing.T) {
				t.Parallel()
				r := newRigOn(t, rest.CopyConfig(config))
				c := r.mortal(after)
				c.late, c.lands = 1500*time.Millisecond, make(chan struct{})
				everyLife(r, func(lives []life, look func() map[string]string, then func(life)) {
					r.live(c, next, lives, look, then)
				})
				if t.Failed() {
					t.Logf("it was answered %d; its side effects: %s", c.answer, strings.Join(c.did, "\n"))
				}
			})
		}
	}
}
