package blobs

import (
	"container/list"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// frames keeps the compressed blobs that were used last, up to a number of bytes.
type frames struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	order *list.List // of *frame, the newest use in front
	byKey map[fleet.Digest]*list.Element
}

type frame struct {
	digest fleet.Digest
	data   []byte
}

// frameOverhead is about what an entry costs beside its data.
const frameOverhead = 160

func newFrames(limit int64) *frames {
	return &frames{limit: limit, order: list.New(), byKey: make(map[fleet.Digest]*list.Element)}
}

func (f *frames) get(d fleet.Digest) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	el, ok := f.byKey[d]
	if !ok {
		return nil, false
	}
	f.order.MoveToFront(el)
	return el.Value.(*frame).data, true
}

func (f *frames) put(d fleet.Digest, data []byte) {
	cost := int64(len(data)) + frameOverhead
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.byKey[d]; ok {
		f.order.MoveToFront(el)
		return
	}
	if cost > f.limit {
		return
	}
	f.byKey[d] = f.order.PushFront(&frame{digest: d, data: data})
	f.bytes += cost
	for f.bytes > f.limit {
		f.drop(f.order.Back())
	}
}

func (f *frames) remove(d fleet.Digest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.byKey[d]; ok {
		f.drop(el)
	}
}

func (f *frames) drop(el *list.Element) {
	old := f.order.Remove(el).(*frame)
	delete(f.byKey, old.digest)
	f.bytes -= int64(len(old.data)) + frameOverhead
}

func (f *frames) size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}
