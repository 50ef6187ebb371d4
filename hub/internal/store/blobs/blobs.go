// Package blobs holds contents by digest beside the records of a store: in compressed chunks, with a bounded cache in
// memory, collected by two sweeps under an epoch that commits compare. It owns that layout and the epoch; it must not know
// records, nor who refers to a blob: a collection is told what is live.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

const (
	space      = "b/" // apart from the records, so that one watch follows all records and no blob
	headSpace  = space + "blobs/"
	chunkSpace = space + "blobchunks/"
	// EpochKey is the key whose mod revision is the GC epoch: a commit that refers to blobs compares it.
	EpochKey = space + "epoch"

	chunkBytes       = 512 << 10
	largeChunkBytes  = 1 << 20  // so that all chunks of a blob fit into one transaction
	largeFrame       = 16 << 20 // from here on a frame has large chunks, and no place in the cache
	maxCompressed    = 66 << 20 // an upload of 64 MiB, and what another encoder may add
	maxContent       = 256 << 20
	zstdWindow       = 1 << 20
	defaultBlobCache = 64 << 20
	loadTimeout      = 30 * time.Second
)

// Config is what the blobs stand on.
type Config struct {
	Backend backend.Backend
	// Life is the context that ends with the store.
	Life context.Context
	// Await waits until the records are known as of a revision: a collection asks what is live only then.
	Await func(ctx context.Context, revision int64) error
	// CacheBytes bounds the compressed blobs that are kept in memory; 0: 64 MiB.
	CacheBytes int64
}

// Blobs are kept as a BlobHead under blobs/DIGEST and the frame in chunks under blobchunks/DIGEST/N. The head is written
// last, and only if all its chunks are still those that were written for it.
type Blobs struct {
	backend backend.Backend
	life    context.Context
	await   func(ctx context.Context, revision int64) error
	cache   *frames
	loads   singleflight.Group
	encoder *zstd.Encoder
	decoder *zstd.Decoder
	damaged sync.Map // digests of those that somebody could not read
	streams turns
	collector
}

// New makes them; it reads nothing.
func New(c Config) (*Blobs, error) {
	if c.CacheBytes <= 0 {
		c.CacheBytes = defaultBlobCache
	}
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, fmt.Errorf("blob encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxContent), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("blob decoder: %w", err)
	}
	return &Blobs{backend: c.Backend, life: c.Life, await: c.Await, cache: newFrames(c.CacheBytes), encoder: enc, decoder: dec,
		collector: newCollector()}, nil
}

// Cached is how many bytes of compressed blobs are in memory.
func (b *Blobs) Cached() int64 { return b.cache.size() }

// Epoch is the present GC epoch.
func (b *Blobs) Epoch(ctx context.Context) (uint64, error) {
	found, _, err := b.backend.Get(ctx, 0, EpochKey)
	if err != nil || found[EpochKey].Mod != 0 {
		return uint64(found[EpochKey].Mod), err
	}
	return b.firstEpoch(ctx)
}

// firstEpoch makes the epoch that blobs are put under before the first collection: those put under none could not be told
// from what somebody is putting while a full etcd takes no epoch.
func (b *Blobs) firstEpoch(ctx context.Context) (uint64, error) {
	first := backend.Part{If: []backend.Compare{{Key: EpochKey}}, Then: []backend.Op{{Key: EpochKey, Value: []byte("first")}}}
	err := backend.Insist(ctx, b.life, func() error {
		_, _, err := b.backend.Commit(ctx, []backend.Part{first})
		return err
	})
	if errors.Is(err, fleet.ErrExhausted) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	found, _, err := b.backend.Get(ctx, 0, EpochKey)
	return uint64(found[EpochKey].Mod), err
}

// Get returns the content, checked against its digest.
func (b *Blobs) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	packed, err := b.GetCompressed(ctx, d)
	if err != nil {
		return nil, err
	}
	return b.unpack(d, packed)
}

// unpack decompresses a frame and checks that it has its digest.
func (b *Blobs) unpack(d fleet.Digest, packed []byte) ([]byte, error) {
	content, err := b.decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: %v", d.Short(), err)
	}
	if got := fleet.DigestOf(content); got != d {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: its content has digest %s", d.Short(), got.Short())
	}
	return content, nil
}

// GetCompressed returns a frame that is shared with every reader. Many that ask for the same blob read it once.
func (b *Blobs) GetCompressed(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if packed, ok := b.cache.get(d); ok {
		return packed, nil
	}
	loaded := b.loads.DoChan(string(d[:]), func() (packed any, err error) {
		ctx, cancel := context.WithTimeout(b.life, loadTimeout)
		defer cancel()
		err = guard.Run(func() (err error) { packed, err = b.loadOrNote(ctx, d); return err }) // a panic here would end the process
		return packed, err
	})
	select {
	case r := <-loaded:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]byte), nil
	case <-ctx.Done():
		return nil, backend.Open(ctx.Err())
	}
}

// load reads head and chunks, checks the digest and keeps the frame. Most blobs have one chunk and cost one read.
func (b *Blobs) load(ctx context.Context, d fleet.Digest) ([]byte, error) {
	found, _, err := b.backend.Get(ctx, 0, headKey(d), chunkKey(d, 0))
	if err != nil {
		return nil, err
	}
	head, err := headIn(found, d)
	if err != nil {
		return nil, err
	}
	if rest := chunkKeys(d, 1, int(head.GetChunks())); len(rest) > 0 {
		more, _, err := b.backend.Get(ctx, 0, rest...)
		if err != nil {
			return nil, err
		}
		for k, chunk := range more {
			found[k] = chunk
		}
	}
	packed := make([]byte, 0, head.GetCompressed())
	for _, k := range chunkKeys(d, 0, int(head.GetChunks())) {
		packed = append(packed, found[k].Value...)
	}
	if uint64(len(packed)) != head.GetCompressed() {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: %d bytes are stored, not %d", d.Short(), len(packed), head.GetCompressed())
	}
	if _, err := b.unpack(d, packed); err != nil {
		return nil, err
	}
	if len(packed) <= largeFrame {
		b.cache.put(d, packed)
	}
	return packed, nil
}

// loadOrNote loads a blob, and notes that it is damaged if it is: whoever puts it again writes it anew.
func (b *Blobs) loadOrNote(ctx context.Context, d fleet.Digest) ([]byte, error) {
	packed, err := b.load(ctx, d)
	if errors.Is(err, fleet.ErrCorrupt) {
		b.damaged.Store(d, true)
	}
	return packed, err
}

func headKey(d fleet.Digest) string         { return headSpace + d.String() }
func chunkKey(d fleet.Digest, n int) string { return fmt.Sprintf("%s%s/%04d", chunkSpace, d, n) }

func chunkKeys(d fleet.Digest, from, to int) []string {
	keys := make([]string, 0, max(to-from, 0))
	for n := from; n < to; n++ {
		keys = append(keys, chunkKey(d, n))
	}
	return keys
}

// headIn is the head of a blob that was looked for.
func headIn(found map[string]backend.KV, d fleet.Digest) (*storev1.BlobHead, error) {
	kv, ok := found[headKey(d)]
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "blob %s: not found", d.Short())
	}
	return openHead(d, kv)
}

func openHead(d fleet.Digest, kv backend.KV) (*storev1.BlobHead, error) {
	head := new(storev1.BlobHead)
	if _, err := envelope.Open("blob "+d.Short(), kv.Value, head); err != nil {
		return nil, err
	}
	if head.GetCompressed() > maxCompressed || uint64(head.GetChunks()) > maxCompressed/chunkBytes {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: head says %d bytes in %d chunks", d.Short(), head.GetCompressed(), head.GetChunks())
	}
	return head, nil
}

func sealHead(h *storev1.BlobHead) ([]byte, error) { return envelope.SealMessage("blob head", h) }

// withEpoch is the head touched by an upload under an epoch.
func withEpoch(h *storev1.BlobHead, epoch uint64) *storev1.BlobHead {
	touched := proto.CloneOf(h)
	touched.Epoch = epoch
	return touched
}
