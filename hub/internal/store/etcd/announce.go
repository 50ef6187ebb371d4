package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"towline.dev/towline/hub/internal/store/backend"
)

// Announce puts the key under a lease of its own, where other hubs may share the etcd.
func (b *keyspace) Announce(ctx context.Context, key string, value []byte) (backend.Announcement, error) {
	if b.embedded != nil {
		return backend.AnnounceAlone(ctx, b, key, value)
	}
	a := &announced{keyspace: b, key: b.prefix + key, value: value, unsaid: make(chan struct{}, 1)}
	alive, err := a.put(ctx)
	if err != nil {
		return nil, err
	}
	a.ctx, a.cancel = context.WithCancel(b.ctx)
	a.running.Go(func() { a.keep(alive) })
	return a, nil
}

// announced is a key under a lease that is kept alive, and made anew when it was lost.
type announced struct {
	keyspace *keyspace
	key      string
	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	running  sync.WaitGroup
	unsaid   chan struct{} // holds one when the value that there is to be may not be there

	mu    sync.Mutex // held over each put: an older value never comes after a newer one
	value []byte
	lease clientv3.LeaseID
}

// put grants a lease, puts the key under it, and has the client keep it alive until that fails.
func (a *announced) put(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	b := a.keyspace
	bounded, cancel := b.call(ctx)
	defer cancel()
	granted, err := b.client.Grant(bounded, int64(b.ttl/time.Second))
	if err != nil {
		return nil, b.failure(err)
	}
	a.mu.Lock()
	a.lease = granted.ID
	err = a.write(bounded)
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	alive, err := b.client.KeepAlive(b.ctx, granted.ID)
	if err != nil {
		return nil, b.failure(err)
	}
	return alive, nil
}

// keep puts the key again whenever its lease was lost: the process was paused, or cut off.
func (a *announced) keep(alive <-chan *clientv3.LeaseKeepAliveResponse) {
	for {
		a.drain(alive)
		retry := backend.NewRetry()
		for {
			if a.ctx.Err() != nil {
				return
			}
			var err error
			if alive, err = a.put(a.ctx); err == nil {
				a.keyspace.log.Warn("etcd: this hub's lease had ended, and others took its sessions for lost; it is announced again")
				break
			}
			a.keyspace.log.Warn("etcd: this hub is not announced", "error", err)
			if backend.Pause(a.ctx, a.keyspace.ctx, retry.Next()) != nil {
				return
			}
		}
	}
}

// drain takes what says that the lease is alive, until it is not, and says again what could not be said.
func (a *announced) drain(alive <-chan *clientv3.LeaseKeepAliveResponse) {
	var again <-chan time.Time
	retry := backend.NewRetry()
	for {
		select {
		case <-a.ctx.Done():
			return
		case _, ok := <-alive:
			if !ok {
				return
			}
		case <-a.unsaid:
			again = time.After(retry.Next())
		case <-again:
			again = nil
			if err := a.say(a.ctx); err == nil {
				retry = backend.NewRetry()
			}
		}
	}
}

// Set puts the value under the lease that there is. What fails is put again until it, or a later value, is there: the others go by it.
func (a *announced) Set(ctx context.Context, value []byte) error {
	a.mu.Lock()
	a.value = value
	a.mu.Unlock()
	return a.say(ctx)
}

// say puts the value of now, and has that done again when it fails.
func (a *announced) say(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.write(ctx)
	if err != nil {
		select {
		case a.unsaid <- struct{}{}:
		default: // it is to be done again already
		}
	}
	return err
}

// write needs the lock.
func (a *announced) write(ctx context.Context) error {
	ctx, cancel := a.keyspace.call(ctx)
	defer cancel()
	if _, err := a.keyspace.client.Put(ctx, a.key, string(a.value), clientv3.WithLease(a.lease)); err != nil {
		return a.keyspace.failure(err)
	}
	return nil
}

// Close ends the lease, and the key with it.
func (a *announced) Close(ctx context.Context) error {
	a.cancel()
	a.running.Wait()
	ctx, cancel := context.WithTimeout(ctx, resignTimeout)
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.keyspace.client.Revoke(ctx, a.lease); err != nil {
		return a.keyspace.failure(err)
	}
	return nil
}
