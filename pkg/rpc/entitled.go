package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"towline.dev/towline/pkg/fleet"
)

const (
	// entitledEvery is how often it is asked whether a person may still have an open stream: who is cut waits for twice
	// that at most.
	entitledEvery = 2 * time.Second
	// cutPatience is how long the handler of a stream that is cut may take to end by itself.
	cutPatience = time.Second
)

// entitled runs the handler of a stream for as long as the caller has the identity that it began with: a certificate or a token
// that has ended or was revoked ends the stream, too.
func (i *interceptors) entitled(ctx context.Context, cut context.CancelCauseFunc, c Caller, method string, handle func() error) error {
	if c.Kind == KindAgent {
		return i.untilExpiry(ctx, cut, c, handle)
	}
	// A handler that waits for a client who reads nothing ends only with the stream, and that ends when this returns.
	done := make(chan error, 1)
	go func() { done <- handle() }()
	look := time.NewTicker(entitledEvery)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
		}
		now, err := i.identify(ctx)
		if err == nil {
			err = Allow(method, now, now.Kind != "")
		}
		if err == nil {
			continue
		}
		cut(err)
		patience := time.NewTimer(cutPatience)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		}
		return err
	}
}

// untilExpiry is entitled for agents: whoever serves them sees to revocation, and ends when ctx does. The end comes by the clock
// that nobody sets, as a step of the machine's clock must not cut the whole fleet.
func (i *interceptors) untilExpiry(ctx context.Context, cut context.CancelCauseFunc, c Caller, handle func() error) error {
	end, ok := expiry(ctx)
	if !ok {
		return handle()
	}
	expired := fleet.Errorf(fleet.ErrUnknownUser, "%s: the agent's certificate ended at %s, and the stream with it; the agent renews it long before, if it can; run: towline cluster join %s --reissue",
		c, end.UTC().Format(time.RFC3339), c.Cluster)
	timer := time.AfterFunc(end.Sub(i.now()), func() { cut(expired) })
	defer timer.Stop()
	err := handle()
	if context.Cause(ctx) == expired {
		return expired
	}
	return err
}

// expiry is when the caller's client certificate ends; false: none was shown.
func expiry(ctx context.Context) (time.Time, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return time.Time{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return time.Time{}, false
	}
	return info.State.PeerCertificates[0].NotAfter, true
}
