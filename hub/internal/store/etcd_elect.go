package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Elect uses etcd's election with endpoints, and a seat in memory when the etcd is this process's own: nobody else can
// want it, and no lease has to run out after a crash.
func (b *etcd) Elect(ctx context.Context, prefix string, value []byte) (Leadership, error) {
	if b.embedded != nil {
		return b.seats.elect(ctx, b, prefix, value)
	}
	retry := newRetry()
	for {
		l, err := b.campaign(ctx, prefix, value)
		if err == nil || !isOpen(err) {
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
func (b *etcd) Holder(ctx context.Context, prefix string) ([]byte, bool, error) {
	if b.embedded != nil {
		return holder(ctx, b, prefix)
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
func (b *etcd) campaign(ctx context.Context, prefix string, value []byte) (Leadership, error) {
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
	err = election.Campaign(waiting, string(value))
	if err == nil && session.Ctx().Err() == nil {
		return &elected{backend: b, session: session, election: election, abandon: abandon, fence: Fence{
			Key: strings.TrimPrefix(election.Key(), b.prefix), CreateRevision: election.Rev(),
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

// elected is a leadership that lasts as long as its session.
type elected struct {
	backend  *etcd
	session  *concurrency.Session
	election *concurrency.Election
	abandon  context.CancelFunc
	fence    Fence
	once     sync.Once
}

func (e *elected) Fence() Fence          { return e.fence }
func (e *elected) Lost() <-chan struct{} { return e.session.Done() }

func (e *elected) Resign(ctx context.Context) error {
	var err error
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, resignTimeout)
		defer cancel()
		if failed := e.election.Resign(ctx); failed != nil {
			err = e.backend.failure(failed)
		}
		if failed := e.session.Close(); failed != nil && err == nil {
			err = e.backend.failure(failed)
		}
		e.abandon()
	})
	return err
}
