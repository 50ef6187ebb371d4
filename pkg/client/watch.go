package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

// Types of changes on the wire of the Watch calls.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Synced   = "SYNCED" // all that existed has been sent
)

// Delays between two tries to open a watch again.
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// ErrStop, returned by the function given to a watch, ends the watch without an error.
var ErrStop = errors.New("stop")

// WatchRollout calls fn with the rollout's status and each change until the rollout ends, fn returns an error or ctx
// is done. A hub that restarts or goes away for a while is waited for; by the resume token nothing is missed and
// nothing comes twice. With number 0 it stays with the rollout that was the newest when it began.
func (c *Client) WatchRollout(ctx context.Context, req *v1.WatchRolloutRequest, fn func(*v1.WatchRolloutResponse) error) error {
	req = proto.Clone(req).(*v1.WatchRolloutRequest)
	var last *v1.Rollout
	fresh := true // a stream tells everything in its first response
	open := func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchRolloutResponse], error) {
		fresh = true
		return c.Rollouts.WatchRollout(ctx, req)
	}
	handle := func(resp *v1.WatchRolloutResponse) error {
		if fresh && last != nil {
			resp.Events = news(last, resp.GetEvents())
		}
		fresh, last = false, resp.GetRollout()
		req.Number = resp.GetRollout().GetNumber()
		req.ResumeToken = resp.GetResumeToken()
		if err := fn(resp); err != nil {
			return err
		}
		if resp.GetEnded() {
			return ErrStop
		}
		return nil
	}
	refused := func() bool { // a token that the hub cannot use any more: begin again with the whole status
		had := req.ResumeToken != ""
		req.ResumeToken = ""
		return had
	}
	return follow(ctx, c, open, handle, refused)
}

// WaitRollout waits until the rollout ends, or until the given function says that it is enough, and returns it as it
// is then.
func (c *Client) WaitRollout(ctx context.Context, req *v1.WatchRolloutRequest, enough func(*v1.Rollout) bool) (*v1.Rollout, error) {
	var last *v1.Rollout
	err := c.WatchRollout(ctx, req, func(resp *v1.WatchRolloutResponse) error {
		last = resp.GetRollout()
		if enough != nil && enough(last) {
			return ErrStop
		}
		return nil
	})
	return last, err
}

// change is what the three list-and-watch streams have in common.
type change interface {
	GetType() string
	GetResumeToken() string
}

// follow opens a stream again and again until handle or a lasting error ends it. refused may mend the request after
// the hub refused it for being stale; it reports whether trying again makes sense.
//
// A hub that is away at the very first try of a client is an error: whoever asks may have the address wrong.
func follow[T any](ctx context.Context, c *Client, open func(context.Context) (grpc.ServerStreamingClient[T], error),
	handle func(*T) error, refused func() bool) error {
	delay := firstDelay
	for {
		err := receive(ctx, open, func(resp *T) error {
			delay = firstDelay
			c.met.Store(true)
			return handle(resp)
		})
		var stop *handled
		switch {
		case errors.As(err, &stop):
			if errors.Is(stop.err, ErrStop) {
				return nil
			}
			return stop.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ending(ctx, err):
			<-ctx.Done()
			return context.Cause(ctx)
		case errors.Is(err, fleet.ErrStale) && c.written.Swap(0) != 0: // the hub's store is another one, or an older copy
		case stale(err) && refused():
		case !passing(err) || !c.met.Load():
			return err
		case c.onBreak != nil:
			c.onBreak(err)
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
		delay = min(delay*2, lastDelay)
	}
}

// handled carries an error of the caller's function through the loop.
type handled struct{ err error }

func (h *handled) Error() string { return h.err.Error() }

func receive[T any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[T], error), handle func(*T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := handle(resp); err != nil {
			return &handled{err}
		}
	}
}

// passing reports errors that a hub which comes back no longer gives. A stream that ends without saying so is one.
func passing(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, fleet.ErrUnavailable)
}

// ending reports the end of a stream by the deadline of ctx, which the hub may see a moment before ctx does.
func ending(ctx context.Context, err error) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < firstDelay && (errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded))
}

// stale reports errors that a resume token may be the cause of: too old, or of a hub that wrote it in another way.
func stale(err error) bool {
	return errors.Is(err, fleet.ErrStale) || errors.Is(err, fleet.ErrInvalid) || errors.Is(err, fleet.ErrConflict) || errors.Is(err, fleet.ErrPrecondition)
}

// pause waits about d, between half of it and all.
func pause(ctx context.Context, d time.Duration) error {
	if backoff.Wait(ctx, d/2+rand.N(d/2+1)) != nil {
		return context.Cause(ctx)
	}
	return nil
}
