package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

const (
	headSpace  = blobSpace + "blobs/"
	chunkSpace = blobSpace + "blobchunks/"
	epochKey   = blobSpace + "epoch" // its mod revision is the GC epoch

	chunkBytes       = 512 << 10
	maxCompressed    = 16 << 20
	maxContent       = 256 << 20
	zstdWindow       = 1 << 20
	defaultBlobCache = 64 << 20
	loadTimeout      = 30 * time.Second
)

// blobs are the Blobs of an engine: BlobHead under blobs/DIGEST, the frame in chunks under blobchunks/DIGEST/N. The head
// is written last, and only if all its chunks are still those that were written for it.
type blobs struct {
	engine  *engine
	cache   *frames
	loads   singleflight.Group
	encoder *zstd.Encoder
	decoder *zstd.Decoder
	collector
}

func newBlobs(e *engine, cacheBytes int64) (*blobs, error) {
	if cacheBytes <= 0 {
		cacheBytes = defaultBlobCache
	}
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, fmt.Errorf("blob encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxContent), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("blob decoder: %w", err)
	}
	return &blobs{engine: e, cache: newFrames(cacheBytes), encoder: enc, decoder: dec, collector: newCollector()}, nil
}

func (b *blobs) Epoch(ctx context.Context) (uint64, error) {
	found, _, err := b.engine.backend.Get(ctx, 0, epochKey)
	if err != nil || found[epochKey].Mod != 0 {
		return uint64(found[epochKey].Mod), err
	}
	return b.firstEpoch(ctx)
}

// firstEpoch makes the epoch that blobs are put under before the first collection: those put under none could not be told
// from what somebody is putting while a full etcd takes no epoch.
func (b *blobs) firstEpoch(ctx context.Context) (uint64, error) {
	first := Part{If: []Compare{{Key: epochKey}}, Then: []RawOp{{Key: epochKey, Value: []byte("first")}}}
	err := b.engine.insist(ctx, func() error {
		_, _, err := b.engine.backend.Commit(ctx, []Part{first})
		return err
	})
	if errors.Is(err, fleet.ErrExhausted) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	found, _, err := b.engine.backend.Get(ctx, 0, epochKey)
	return uint64(found[epochKey].Mod), err
}

func (b *blobs) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	packed, err := b.GetCompressed(ctx, d)
	if err != nil {
		return nil, err
	}
	return b.unpack(d, packed)
}

// unpack decompresses a frame and checks that it has its digest.
func (b *blobs) unpack(d fleet.Digest, packed []byte) ([]byte, error) {
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
func (b *blobs) GetCompressed(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if packed, ok := b.cache.get(d); ok {
		return packed, nil
	}
	loaded := b.loads.DoChan(string(d[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(b.engine.ctx, loadTimeout)
		defer cancel()
		return b.load(ctx, d)
	})
	select {
	case r := <-loaded:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]byte), nil
	case <-ctx.Done():
		return nil, unavailable(ctx.Err())
	}
}

// load reads head and chunks, checks the digest and keeps the frame. Most blobs have one chunk and cost one read.
func (b *blobs) load(ctx context.Context, d fleet.Digest) ([]byte, error) {
	found, _, err := b.engine.backend.Get(ctx, 0, headKey(d), chunkKey(d, 0))
	if err != nil {
		return nil, err
	}
	kv, ok := found[headKey(d)]
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "blob %s: not found", d.Short())
	}
	head, err := openHead(d, kv)
	if err != nil {
		return nil, err
	}
	if rest := chunkKeys(d, 1, int(head.GetChunks())); len(rest) > 0 {
		more, _, err := b.engine.backend.Get(ctx, 0, rest...)
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
	b.cache.put(d, packed)
	return packed, nil
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

func openHead(d fleet.Digest, kv KV) (*storev1.BlobHead, error) {
	head := new(storev1.BlobHead)
	if _, err := open("blob "+d.Short(), kv.Value, head); err != nil {
		return nil, err
	}
	if head.GetCompressed() > maxCompressed || uint64(head.GetChunks()) > maxCompressed/chunkBytes {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: head says %d bytes in %d chunks", d.Short(), head.GetCompressed(), head.GetChunks())
	}
	return head, nil
}

func sealHead(h *storev1.BlobHead) ([]byte, error) {
	payload, err := deterministic.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("blob head: %w", err)
	}
	return seal(payload, checksum(payload), 0), nil
}

// withEpoch is the head touched by an upload under an epoch.
func withEpoch(h *storev1.BlobHead, epoch uint64) *storev1.BlobHead {
	touched := proto.CloneOf(h)
	touched.Epoch = epoch
	return touched
}
