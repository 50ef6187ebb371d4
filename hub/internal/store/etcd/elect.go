package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"towline.dev/towline/hub/internal/store/backend"
)

// Elect uses etcd's election with endpoints, and a seat in memory when the etcd is this process's own: nobody else can
// want it, and no lease has to run out after a crash.
func (b *keyspace) Elect(ctx context.Context, prefix string, value []byte) (backend.Leadership, error) {
	if b.embedded != nil {
		return b.seats.Elect(ctx, b, prefix, value)
	}
	retry := backend.NewRetry()
	for {
		l, err := b.campaign(ctx, prefix, value)
		if err == nil || !backend.IsOpen(err) {
			return l, err
		}
		wait := retry.Next()
		select {
		case <-ctx.Done():
			return nil, err
		case <-b.ctx.Done():
			return nil, err
		case <-time.After(wait):
			b.log.Warn("etcd: campaign is repeated", "error", err, "after", wait)
		}
	}
}

// Holder is the oldest key under the prefix: those that came later wait for it to go.
func (b *keyspace) Holder(ctx context.Context, prefix string) ([]byte, bool, error) {
	if b.embedded != nil {
		return backend.Holder(ctx, b, prefix)
	}
	ctx, cancel := b.call(ctx)
	defer cancel()
	resp, err := b.client.Get(ctx, b.prefix+prefix+"/", clientv3.WithFirstCreate()...)
	if err != nil {
		return nil, false, b.failure(err)
	}
	if len(resp.Kvs) == 0 {
		return nil, false, nil
	}
	return resp.Kvs[0].Value, true, nil
}

// campaign makes one session and waits in it. A session that ends while it waits is no longer in the queue, and a
// leadership in it would be void from the start.
func (b *keyspace) campaign(ctx context.Context, prefix string, value []byte) (backend.Leadership, error) {
	sctx, abandon := context.WithCancel(b.ctx)
	stop := context.AfterFunc(ctx, abandon)
	session, err := concurrency.NewSession(b.client, concurrency.WithTTL(int(b.ttl.Seconds())), concurrency.WithContext(sctx))
	if err != nil {
		abandon()
		return nil, b.failure(fmt.Errorf("session: %w", err))
	}
	stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(session.Ctx(), cancel)()
	election := concurrency.NewElection(session, b.prefix+prefix)
	over := make(chan error, 1)
	go func() { over <- election.Campaign(waiting, string(value)) }()
	if err = awaitEnd(ctx, over); errors.Is(err, errAbandoned) {
		abandon() // its lease ends by itself
		return nil, b.failure(fmt.Errorf("campaign: %w", err))
	}
	if err == nil && session.Ctx().Err() == nil {
		return &elected{keyspace: b, session: session, election: election, abandon: abandon, fence: backend.Compare{
			Key: strings.TrimPrefix(election.Key(), b.prefix), Created: true, Revision: election.Rev(),
		}}, nil
	}
	if err == nil {
		err = context.Canceled
	}
	if closeErr := session.Close(); closeErr != nil {
		b.log.Debug("etcd: revoke the lease of a lost campaign", "error", closeErr)
	}
	abandon()
	return nil, b.failure(fmt.Errorf("campaign: %w", err))
}

// awaitEnd waits for a campaign, and only for a moment when ctx has ended: a campaign that is given up first deletes its key, which it does
// not before an etcd that is cut off answers.
func awaitEnd(ctx context.Context, over <-chan error) error {
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(resignTimeout)
	defer timer.Stop()
	select {
	case err := <-over:
		return err
	case <-timer.C:
		return errAbandoned
	}
}

var errAbandoned = errors.New("given up while etcd did not answer")

const resignTimeout = 2 * time.Second

// elected is a leadership that lasts as long as its session.
type elected struct {
	keyspace *keyspace
	session  *concurrency.Session
	election *concurrency.Election
	abandon  context.CancelFunc
	fence    backend.Compare
	once     sync.Once
}

func (e *elected) Fence() backend.Compare { return e.fence }
func (e *elected) Lost() <-chan struct{}  { return e.session.Done() }

func (e *elected) Resign(ctx context.Context) error {
	var err error
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, resignTimeout)
		defer cancel()
		if failed := e.election.Resign(ctx); failed != nil {
			err = e.keyspace.failure(failed)
		}
		if failed := e.session.Close(); failed != nil && err == nil {
			err = e.keyspace.failure(failed)
		}
		e.abandon()
	})
	return err
}
