package blobs

import (
	"context"
	"errors"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// Put stores what is not there. A blob that is there is touched once per GC epoch, so that a collection that runs at the
// same time sees that somebody is about to refer to it.
func (b *Blobs) Put(ctx context.Context, contents ...[]byte) ([]fleet.Digest, error) {
	if err := b.backend.Full(); err != nil {
		return nil, err
	}
	digests := make([]fleet.Digest, len(contents))
	uploads := make(map[fleet.Digest]*upload, len(contents))
	for i, content := range contents {
		digests[i] = fleet.DigestOf(content)
		uploads[digests[i]] = &upload{digest: digests[i], content: content}
	}
	retry := backend.NewRetry()
	for tries := 0; len(uploads) > 0; tries++ {
		if tries > 1 {
			if err := backend.Pause(ctx, b.life, retry.Next()); err != nil {
				return nil, err
			}
		}
		if err := b.putOnce(ctx, uploads); err != nil {
			return nil, err
		}
	}
	return digests, nil
}

type upload struct {
	digest  fleet.Digest
	content []byte
	packed  []byte
}

// putOnce looks which uploads are there, tries the others and removes those that are done.
func (b *Blobs) putOnce(ctx context.Context, uploads map[fleet.Digest]*upload) error {
	keys := make([]string, 0, len(uploads)+1)
	for d := range uploads {
		keys = append(keys, headKey(d))
	}
	found, _, err := b.backend.Get(ctx, 0, append(keys, EpochKey)...)
	if err != nil {
		return err
	}
	epoch := uint64(found[EpochKey].Mod)
	if epoch == 0 {
		if epoch, err = b.firstEpoch(ctx); err != nil {
			return err
		}
	}
	var parts []backend.Part
	var of []*upload
	for d, u := range uploads {
		part, done, err := b.plan(ctx, u, found[headKey(d)], epoch)
		if errors.Is(err, errRaced) {
			continue // it is looked at again
		}
		if err != nil {
			return err
		}
		if done {
			delete(uploads, d)
			continue
		}
		parts, of = append(parts, part), append(of, u)
	}
	ok, err := b.commitParts(ctx, parts)
	for i, done := range ok {
		if done {
			delete(uploads, of[i].digest)
			b.keep(of[i])
		}
	}
	return err
}

func (b *Blobs) keep(u *upload) {
	if u.packed != nil {
		b.damaged.Delete(u.digest)
	}
	if u.packed != nil && len(u.packed) <= largeFrame {
		b.cache.put(u.digest, u.packed)
	}
}

// plan returns what must be committed for the upload to be done. Chunks of a large one are written on the way.
func (b *Blobs) plan(ctx context.Context, u *upload, kv backend.KV, epoch uint64) (backend.Part, bool, error) {
	key := headKey(u.digest)
	if _, damaged := b.damaged.Load(u.digest); kv.Mod > 0 && !damaged {
		head, err := openHead(u.digest, kv)
		if err == nil && head.GetEpoch() == epoch {
			return backend.Part{}, true, nil
		}
		if err == nil {
			sealed, err := sealHead(withEpoch(head, epoch))
			return backend.Part{If: []backend.Compare{{Key: key, Revision: kv.Mod}}, Then: []backend.Op{{Key: key, Value: sealed}}}, false, err
		}
	}
	if err := b.pack(u); err != nil {
		return backend.Part{}, false, err
	}
	chunks := split(u.packed)
	sealed, err := sealHead(&storev1.BlobHead{
		Size: uint64(len(u.content)), Compressed: uint64(len(u.packed)), Chunks: uint32(len(chunks)), Epoch: epoch,
	})
	if err != nil {
		return backend.Part{}, false, err
	}
	part := backend.Part{If: []backend.Compare{{Key: key, Revision: kv.Mod}}}
	if len(chunks) == 1 {
		part.Then = []backend.Op{{Key: chunkKey(u.digest, 0), Value: chunks[0]}, {Key: key, Value: sealed}}
		return part, false, nil
	}
	for n, chunk := range chunks {
		ck := chunkKey(u.digest, n)
		rev, err := b.putChunk(ctx, part.If[0], backend.Op{Key: ck, Value: chunk})
		if err != nil {
			return backend.Part{}, false, err
		}
		part.If = append(part.If, backend.Compare{Key: ck, Revision: rev})
	}
	part.Then = []backend.Op{{Key: key, Value: sealed}}
	return part, false, nil
}

// pack compresses the content, once.
func (b *Blobs) pack(u *upload) error {
	if u.packed != nil {
		return nil
	}
	if len(u.content) > maxContent {
		return fleet.Errorf(fleet.ErrExhausted, "blob %s: %d bytes, more than %d", u.digest.Short(), len(u.content), maxContent)
	}
	packed := b.encoder.EncodeAll(u.content, make([]byte, 0, len(u.content)/4+64))
	if len(packed) > maxCompressed {
		return fleet.Errorf(fleet.ErrExhausted, "blob %s: %d bytes compressed, more than %d", u.digest.Short(), len(packed), maxCompressed)
	}
	u.packed = append([]byte(nil), packed...) // without the spare room, for the cache
	return nil
}

func split(packed []byte) [][]byte {
	size := chunkBytes
	if len(packed) > largeFrame {
		size = largeChunkBytes
	}
	var chunks [][]byte
	for len(packed) > size {
		chunks = append(chunks, packed[:size:size])
		packed = packed[size:]
	}
	return append(chunks, packed)
}

// putChunk writes one chunk, if the head is still as it was seen: the chunks of a blob that is there are its own. Writing it twice
// does no harm.
func (b *Blobs) putChunk(ctx context.Context, head backend.Compare, op backend.Op) (int64, error) {
	var rev int64
	var done []bool
	err := backend.Insist(ctx, b.life, func() error {
		var err error
		rev, done, err = b.backend.Commit(ctx, []backend.Part{{If: []backend.Compare{head}, Then: []backend.Op{op}}})
		return err
	})
	if err == nil && !done[0] {
		err = errRaced
	}
	return rev, err
}

// commitParts commits parts in as few transactions as the limits allow and says which of them held. A part that is sent
// again after its answer was lost does not hold, and is seen to be done when its keys are read again.
func (b *Blobs) commitParts(ctx context.Context, parts []backend.Part) ([]bool, error) {
	ok := make([]bool, len(parts))
	for done := 0; done < len(parts); {
		p := backend.NewPacker(b.backend.Limits())
		for done+len(p.Parts()) < len(parts) && p.Add(parts[done+len(p.Parts())]) {
		}
		err := backend.Insist(ctx, b.life, func() error {
			_, happened, err := b.backend.Commit(ctx, p.Parts())
			copy(ok[done:], happened)
			return err
		})
		if err != nil {
			return ok, err
		}
		done += len(p.Parts())
	}
	return ok, nil
}
