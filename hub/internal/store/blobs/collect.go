package blobs

import (
	"context"
	"errors"
	"strings"
	"time"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// collector remembers what the last sweep found unreferenced.
type collector struct {
	turn    chan struct{} // holds one token: one Collect at a time
	garbage map[string]int64
	orphans map[string]int64
}

func newCollector() collector {
	c := collector{turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// Collect raises the epoch first: a commit before that is in the read model when live is asked, and one after it that
// refers to blobs put before fails. A blob that somebody puts again meanwhile gets a new revision and stays.
func (b *Blobs) Collect(ctx context.Context, live func(yield func(fleet.Digest)) (goes func(content []byte) bool)) (int, error) {
	select {
	case <-b.turn:
		defer func() { b.turn <- struct{}{} }()
	case <-ctx.Done():
		return 0, backend.Open(ctx.Err())
	}
	epoch, raised, err := b.raiseEpoch(ctx)
	if err != nil {
		return 0, err
	}
	if err := b.await(ctx, raised); err != nil {
		return 0, err
	}
	wanted := make(map[string]struct{})
	goes := live(func(d fleet.Digest) { wanted[headKey(d)] = struct{}{} })
	heads, rev, err := backend.RangeAll(ctx, b.backend, backend.RangeQuery{Prefix: headSpace, Limit: backend.ListPage})
	if err != nil {
		return 0, err
	}
	garbage, now := make(map[string]int64), time.Now()
	var victims []backend.Part
	for _, kv := range heads {
		if _, ok := wanted[kv.Key]; ok || b.touched(kv, epoch, now) {
			continue
		}
		garbage[kv.Key] = kv.Mod
		if b.garbage[kv.Key] == kv.Mod && b.surely(ctx, kv, goes) {
			victims = append(victims, b.deletion(kv, epoch))
		}
	}
	b.garbage = garbage
	deleted, err := b.deleteAll(ctx, victims)
	if err != nil {
		return deleted, err
	}
	return deleted, b.collectOrphans(ctx, heads, rev, epoch)
}

// surely reports that a blob which nobody named may go although not all could be named: its content says so.
func (b *Blobs) surely(ctx context.Context, kv backend.KV, goes func(content []byte) bool) bool {
	if goes == nil {
		return true
	}
	d, err := fleet.ParseDigest(strings.TrimPrefix(kv.Key, headSpace))
	if err != nil {
		return false
	}
	content, err := b.Read(ctx, d)
	return err == nil && goes(content)
}

// raiseEpoch returns the new epoch and the revision from which it holds. An etcd that is full takes nothing but
// deletions: that of the epoch's key voids the epoch before as well, and leaves epoch 0 until one can be written again.
// Of the blobs that were put under epoch 0 none is collected meanwhile.
func (b *Blobs) raiseEpoch(ctx context.Context) (epoch, from int64, err error) {
	write := func(op backend.Op) (rev int64, err error) {
		err = backend.Insist(ctx, b.life, func() error {
			rev, _, err = b.backend.Commit(ctx, []backend.Part{{Then: []backend.Op{op}}})
			return err
		})
		return rev, err
	}
	rev, err := write(backend.Op{Key: EpochKey, Value: []byte("raised")})
	if !errors.Is(err, fleet.ErrExhausted) {
		return rev, rev, err
	}
	rev, err = write(backend.Op{Key: EpochKey, Delete: true})
	return 0, rev, err
}

// touched reports that the blob was put under the epoch, or is to be kept for now; one whose head cannot be read was not.
func (b *Blobs) touched(kv backend.KV, epoch int64, now time.Time) bool {
	d, err := fleet.ParseDigest(strings.TrimPrefix(kv.Key, headSpace))
	if err != nil {
		return true
	}
	head, err := openHead(d, kv)
	return err == nil && (head.GetEpoch() == uint64(epoch) || head.GetKeptUntil() > now.Unix())
}

// deletion removes head and chunks, unless the blob was touched or somebody else collects.
func (b *Blobs) deletion(kv backend.KV, epoch int64) backend.Part {
	p := backend.Part{
		If:   []backend.Compare{{Key: kv.Key, Revision: kv.Mod}, {Key: EpochKey, Revision: epoch}},
		Then: []backend.Op{{Key: kv.Key, Delete: true}},
	}
	d, _ := fleet.ParseDigest(strings.TrimPrefix(kv.Key, headSpace))
	if head, err := openHead(d, kv); err == nil {
		for _, k := range chunkKeys(d, 0, int(head.GetChunks())) {
			p.Then = append(p.Then, backend.Op{Key: k, Delete: true})
		}
	}
	return p
}

func (b *Blobs) deleteAll(ctx context.Context, victims []backend.Part) (int, error) {
	gone, err := b.commitParts(ctx, victims)
	deleted := 0
	for i, ok := range gone {
		if !ok {
			continue
		}
		deleted++
		if d, err := fleet.ParseDigest(strings.TrimPrefix(victims[i].Then[0].Key, headSpace)); err == nil {
			b.cache.remove(d)
		}
	}
	return deleted, err
}

// collectOrphans deletes chunks without a head that the sweep before found too: what a broken upload left.
func (b *Blobs) collectOrphans(ctx context.Context, heads []backend.KV, rev, epoch int64) error {
	has := make(map[string]struct{}, len(heads))
	for _, kv := range heads {
		has[strings.TrimPrefix(kv.Key, headSpace)] = struct{}{}
	}
	chunks, _, err := backend.RangeAll(ctx, b.backend, backend.RangeQuery{Prefix: chunkSpace, Limit: backend.ListPage, Revision: rev, KeysOnly: true})
	if err != nil {
		return err
	}
	orphans := make(map[string]int64)
	var victims []backend.Part
	for _, kv := range chunks {
		digest, _, _ := strings.Cut(strings.TrimPrefix(kv.Key, chunkSpace), "/")
		if _, ok := has[digest]; ok {
			continue
		}
		orphans[kv.Key] = kv.Mod
		if b.orphans[kv.Key] == kv.Mod {
			victims = append(victims, backend.Part{
				If:   []backend.Compare{{Key: kv.Key, Revision: kv.Mod}, {Key: headSpace + digest}, {Key: EpochKey, Revision: epoch}},
				Then: []backend.Op{{Key: kv.Key, Delete: true}},
			})
		}
	}
	b.orphans = orphans
	_, err = b.commitParts(ctx, victims)
	return err
}
