package backend

import "context"

// Announcement is a key that is there for as long as a process is.
type Announcement interface {
	// Set puts another value.
	Set(ctx context.Context, value []byte) error
	// Close deletes the key.
	Close(ctx context.Context) error
}

// AnnounceAlone is Announce on a backend that ends with its process, or is kept by nobody else.
func AnnounceAlone(ctx context.Context, b committer, key string, value []byte) (Announcement, error) {
	a := alone{backend: b, key: key}
	return a, a.Set(ctx, value)
}

type alone struct {
	backend committer
	key     string
}

func (a alone) commit(ctx context.Context, op Op) error {
	_, _, err := a.backend.Commit(ctx, []Part{{Then: []Op{op}}})
	return err
}

func (a alone) Set(ctx context.Context, value []byte) error {
	return a.commit(ctx, Op{Key: a.key, Value: value})
}

func (a alone) Close(ctx context.Context) error {
	return a.commit(ctx, Op{Key: a.key, Delete: true})
}
