package blobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// errRaced says that somebody else wrote the head of a blob meanwhile.
var errRaced = errors.New("somebody else puts it")

// maxStreamTries is how often a content is read anew because others put or collected the same one meanwhile.
const maxStreamTries = 10

// PutFrom stores the content of a digest that open yields, holding a chunk of it at a time, and keeps it until then although
// nobody refers to it.
func (b *Blobs) PutFrom(ctx context.Context, d fleet.Digest, open func() (io.Reader, error), until time.Time) error {
	done, err := b.streams.enter(ctx, b.life, d)
	if err != nil {
		return err
	}
	defer done()
	retry := backend.NewRetry()
	for tries := 0; ; tries++ {
		if err := b.backend.Full(); err != nil {
			return err
		}
		if err := b.Keep(ctx, d, until); !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
		r, err := open()
		if err != nil {
			return err
		}
		if err = b.putStream(ctx, d, r, until); !errors.Is(err, errRaced) {
			return err
		}
		if tries == maxStreamTries {
			return fleet.Errorf(fleet.ErrUnavailable, "blob %s: others put or collect it all the time", d.Short())
		}
		if err := backend.Pause(ctx, b.life, retry.Next()); err != nil {
			return err
		}
	}
}

// turns has those that put the same content do so one after the other: they write the same chunks.
type turns struct {
	mu   sync.Mutex
	busy map[fleet.Digest]chan struct{} // closed when the turn is over
}

func (t *turns) enter(ctx, life context.Context, d fleet.Digest) (leave func(), err error) {
	for {
		t.mu.Lock()
		other, busy := t.busy[d]
		if !busy {
			if t.busy == nil {
				t.busy = map[fleet.Digest]chan struct{}{}
			}
			t.busy[d] = make(chan struct{})
		}
		t.mu.Unlock()
		if !busy {
			return func() { t.leave(d) }, nil
		}
		select {
		case <-other:
		case <-life.Done():
			return nil, backend.Closed()
		case <-ctx.Done():
			return nil, backend.Open(ctx.Err())
		}
	}
}

func (t *turns) leave(d fleet.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[d])
	delete(t.busy, d)
}

func (b *Blobs) putStream(ctx context.Context, d fleet.Digest, r io.Reader, until time.Time) error {
	found, _, err := b.backend.Get(ctx, 0, headKey(d))
	if err != nil {
		return err
	}
	epoch, err := b.Epoch(ctx)
	if err != nil {
		return err
	}
	out := &chunkWriter{b: b, ctx: ctx, digest: d, head: backend.Compare{Key: headKey(d), Revision: found[headKey(d)].Mod}}
	enc, err := zstd.NewWriter(out, zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true))
	if err != nil {
		return fmt.Errorf("blob encoder: %w", err)
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(enc, sum), io.LimitReader(r, maxContent+1))
	closed := enc.Close()
	switch {
	case err != nil:
		return err
	case closed != nil:
		return closed
	case size > maxContent:
		return fleet.Errorf(fleet.ErrExhausted, "blob %s: more than %d bytes", d.Short(), maxContent)
	case fleet.Digest(sum.Sum(nil)) != d:
		return fleet.Errorf(fleet.ErrCorrupt, "blob %s: its content has digest %x", d.Short(), sum.Sum(nil))
	}
	if err := out.flush(); err != nil {
		return err
	}
	return b.putHead(ctx, out, &storev1.BlobHead{Size: uint64(size), Compressed: uint64(out.written), Chunks: uint32(len(out.revisions)),
		Epoch: epoch, KeptUntil: until.Unix()})
}

// putHead makes the blob, if its chunks are still those that were written for it.
func (b *Blobs) putHead(ctx context.Context, out *chunkWriter, head *storev1.BlobHead) error {
	sealed, err := sealHead(head)
	if err != nil {
		return err
	}
	part := backend.Part{If: []backend.Compare{out.head}, Then: []backend.Op{{Key: out.head.Key, Value: sealed}}}
	for n, rev := range out.revisions {
		part.If = append(part.If, backend.Compare{Key: chunkKey(out.digest, n), Revision: rev})
	}
	done, err := b.commitParts(ctx, []backend.Part{part})
	if err != nil {
		return err
	}
	if !done[0] { // also if the answer to the first of two tries was lost: then it is there, and kept
		return errRaced
	}
	b.damaged.Delete(out.digest)
	return nil
}

// chunkWriter writes a frame into chunks.
type chunkWriter struct {
	b         *Blobs
	ctx       context.Context
	digest    fleet.Digest
	head      backend.Compare // holds as long as nobody else has put the blob
	buf       []byte
	written   int
	revisions []int64 // of the chunks
}

func (w *chunkWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if w.buf == nil {
			w.buf = make([]byte, 0, largeChunkBytes)
		}
		n := min(len(rest), largeChunkBytes-len(w.buf))
		w.buf, rest = append(w.buf, rest[:n]...), rest[n:]
		if len(w.buf) == largeChunkBytes {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// flush writes what is not written yet.
func (w *chunkWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if w.written += len(w.buf); w.written > maxCompressed {
		return fleet.Errorf(fleet.ErrExhausted, "blob %s: more than %d bytes compressed", w.digest.Short(), maxCompressed)
	}
	rev, err := w.b.putChunk(w.ctx, w.head, backend.Op{Key: chunkKey(w.digest, len(w.revisions)), Value: w.buf})
	w.revisions, w.buf = append(w.revisions, rev), nil // a backend may keep what it was given
	return err
}

// Keep has a blob stay until a time although nobody refers to it. Like a put it touches the blob, so that a collection that runs at
// the same time sees it.
func (b *Blobs) Keep(ctx context.Context, d fleet.Digest, until time.Time) error {
	key, retry := headKey(d), backend.NewRetry()
	for {
		epoch, err := b.Epoch(ctx)
		if err != nil {
			return err
		}
		found, _, err := b.backend.Get(ctx, 0, key)
		if err != nil {
			return err
		}
		kv, there := found[key]
		head, err := openHead(d, kv)
		if _, damaged := b.damaged.Load(d); !there || damaged || err != nil {
			return fleet.Errorf(fleet.ErrNotFound, "blob %s: not found", d.Short())
		}
		kept := proto.CloneOf(head)
		kept.Epoch, kept.KeptUntil = epoch, max(head.GetKeptUntil(), until.Unix())
		if head.GetEpoch() == epoch && kept.GetKeptUntil()-head.GetKeptUntil() < int64(keptSlack/time.Second) {
			return nil
		}
		sealed, err := sealHead(kept)
		if err != nil {
			return err
		}
		done, err := b.commitParts(ctx, []backend.Part{{If: []backend.Compare{{Key: key, Revision: kv.Mod}}, Then: []backend.Op{{Key: key, Value: sealed}}}})
		if err != nil || done[0] {
			return err
		}
		if err := backend.Pause(ctx, b.life, retry.Next()); err != nil {
			return err
		}
	}
}

// keptSlack is how much earlier than it was asked for a keep may end: repeated asking does not write each time.
const keptSlack = time.Minute

// Read returns the content, checked against its digest. It reads a chunk at a time and keeps none.
func (b *Blobs) Read(ctx context.Context, d fleet.Digest) ([]byte, error) {
	found, _, err := b.backend.Get(ctx, 0, headKey(d))
	if err != nil {
		return nil, err
	}
	head, err := headIn(found, d)
	if err != nil {
		return nil, err
	}
	content, err := b.readAll(ctx, d, head)
	if errors.Is(err, fleet.ErrCorrupt) {
		b.damaged.Store(d, true)
	}
	return content, err
}

func (b *Blobs) readAll(ctx context.Context, d fleet.Digest, head *storev1.BlobHead) ([]byte, error) {
	if head.GetSize() > maxContent {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: head says %d bytes", d.Short(), head.GetSize())
	}
	chunks := &chunkReader{b: b, ctx: ctx, digest: d, chunks: int(head.GetChunks())}
	dec, err := zstd.NewReader(chunks, zstd.WithDecoderMaxMemory(maxContent), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("blob decoder: %w", err)
	}
	defer dec.Close()
	content := make([]byte, head.GetSize())
	_, err = io.ReadFull(dec, content)
	if err == nil {
		if _, more := io.ReadFull(dec, make([]byte, 1)); !errors.Is(more, io.EOF) {
			err = errors.New("it has more bytes than its head says")
		}
	}
	switch {
	case chunks.failed != nil:
		return nil, chunks.failed
	case err != nil:
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: %v", d.Short(), err)
	case fleet.DigestOf(content) != d:
		return nil, fleet.Errorf(fleet.ErrCorrupt, "blob %s: its content has digest %s", d.Short(), fleet.DigestOf(content).Short())
	}
	return content, nil
}

// chunkReader reads a frame from its chunks.
type chunkReader struct {
	b            *Blobs
	ctx          context.Context
	digest       fleet.Digest
	next, chunks int
	rest         []byte
	failed       error
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.next == r.chunks {
			return 0, io.EOF
		}
		key := chunkKey(r.digest, r.next)
		found, _, err := r.b.backend.Get(r.ctx, 0, key)
		if err == nil && found[key].Mod == 0 {
			err = fleet.Errorf(fleet.ErrCorrupt, "blob %s: chunk %d is not there", r.digest.Short(), r.next)
		}
		if err != nil {
			r.failed = err
			return 0, err
		}
		r.rest, r.next = found[key].Value, r.next+1
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
