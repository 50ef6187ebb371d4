package store

import (
	"context"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// Put stores what is not there. A blob that is there is touched once per GC epoch, so that a collection that runs at the
// same time sees that somebody is about to refer to it.
func (b *blobs) Put(ctx context.Context, contents ...[]byte) ([]fleet.Digest, error) {
	if err := b.engine.backend.Full(); err != nil {
		return nil, err
	}
	digests := make([]fleet.Digest, len(contents))
	uploads := make(map[fleet.Digest]*upload, len(contents))
	for i, content := range contents {
		digests[i] = fleet.DigestOf(content)
		uploads[digests[i]] = &upload{digest: digests[i], content: content}
	}
	retry := newRetry()
	for tries := 0; len(uploads) > 0; tries++ {
		if tries > 1 {
			if err := b.engine.pause(ctx, retry.Next()); err != nil {
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
func (b *blobs) putOnce(ctx context.Context, uploads map[fleet.Digest]*upload) error {
	keys := make([]string, 0, len(uploads)+1)
	for d := range uploads {
		keys = append(keys, headKey(d))
	}
	found, _, err := b.engine.backend.Get(ctx, 0, append(keys, epochKey)...)
	if err != nil {
		return err
	}
	epoch := uint64(found[epochKey].Mod)
	if epoch == 0 {
		if epoch, err = b.firstEpoch(ctx); err != nil {
			return err
		}
	}
	var parts []Part
	var of []*upload
	for d, u := range uploads {
		part, done, err := b.plan(ctx, u, found[headKey(d)], epoch)
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

func (b *blobs) keep(u *upload) {
	if u.packed != nil {
		b.cache.put(u.digest, u.packed)
	}
}

// plan returns what must be committed for the upload to be done. Chunks of a large one are written on the way.
func (b *blobs) plan(ctx context.Context, u *upload, kv KV, epoch uint64) (Part, bool, error) {
	key := headKey(u.digest)
	if kv.Mod > 0 {
		head, err := openHead(u.digest, kv)
		if err == nil && head.GetEpoch() == epoch {
			return Part{}, true, nil
		}
		if err == nil {
			sealed, err := sealHead(withEpoch(head, epoch))
			return Part{If: []Compare{{Key: key, Revision: kv.Mod}}, Then: []RawOp{{Key: key, Value: sealed}}}, false, err
		}
	}
	if err := b.pack(u); err != nil {
		return Part{}, false, err
	}
	chunks := split(u.packed)
	sealed, err := sealHead(&storev1.BlobHead{
		Size: uint64(len(u.content)), Compressed: uint64(len(u.packed)), Chunks: uint32(len(chunks)), Epoch: epoch,
	})
	if err != nil {
		return Part{}, false, err
	}
	part := Part{If: []Compare{{Key: key, Revision: kv.Mod}}}
	if len(chunks) == 1 {
		part.Then = []RawOp{{Key: chunkKey(u.digest, 0), Value: chunks[0]}, {Key: key, Value: sealed}}
		return part, false, nil
	}
	for n, chunk := range chunks {
		ck := chunkKey(u.digest, n)
		rev, err := b.putChunk(ctx, RawOp{Key: ck, Value: chunk})
		if err != nil {
			return Part{}, false, err
		}
		part.If = append(part.If, Compare{Key: ck, Revision: rev})
	}
	part.Then = []RawOp{{Key: key, Value: sealed}}
	return part, false, nil
}

// pack compresses the content, once.
func (b *blobs) pack(u *upload) error {
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
	var chunks [][]byte
	for len(packed) > chunkBytes {
		chunks = append(chunks, packed[:chunkBytes:chunkBytes])
		packed = packed[chunkBytes:]
	}
	return append(chunks, packed)
}

// putChunk writes one chunk; writing it twice does no harm.
func (b *blobs) putChunk(ctx context.Context, op RawOp) (int64, error) {
	var rev int64
	err := b.engine.insist(ctx, func() error {
		var err error
		rev, _, err = b.engine.backend.Commit(ctx, []Part{{Then: []RawOp{op}}})
		return err
	})
	return rev, err
}

// commitParts commits parts in as few transactions as the limits allow and says which of them held. A part that is sent
// again after its answer was lost does not hold, and is seen to be done when its keys are read again.
func (b *blobs) commitParts(ctx context.Context, parts []Part) ([]bool, error) {
	ok := make([]bool, len(parts))
	for done := 0; done < len(parts); {
		p := newPacker(b.engine.backend.Limits())
		for done+len(p.parts) < len(parts) && p.add(parts[done+len(p.parts)]) {
		}
		err := b.engine.insist(ctx, func() error {
			_, happened, err := b.engine.backend.Commit(ctx, p.parts)
			copy(ok[done:], happened)
			return err
		})
		if err != nil {
			return ok, err
		}
		done += len(p.parts)
	}
	return ok, nil
}

// insist repeats what may be repeated while the backend is unavailable.
func (e *engine) insist(ctx context.Context, try func() error) error {
	retry := newRetry()
	for {
		err := try()
		if !isOpen(err) {
			return err
		}
		if e.pause(ctx, retry.Next()) != nil {
			return err
		}
	}
}
