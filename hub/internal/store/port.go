// Package store is the port to the hub's records: View, Update, Batch, Subscribe and Feed, and blobs beside them. It owns the
// keys, the types that live under them and who writes which; it must not know how they are kept: package engine does that,
// on a backend (etcd, memory), with envelope, blobs and a read model in memory.
package store

import (
	"context"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
)

// Entry is one record. Value is shared with every reader: never change it, proto.Clone it.
type Entry struct {
	Key            string
	Value          proto.Message
	ModRevision    int64
	CreateRevision int64
}

// Reader is a snapshot of all records at one revision.
type Reader interface {
	// Get returns the record, or false.
	Get(key string) (Entry, bool)
	// Scan calls fn for the records whose key has the prefix, ascending, until fn returns false.
	Scan(prefix string, fn func(Entry) bool)
	// Damaged are the records under the prefix that cannot be read and that nothing stands in for. Scan passes over them, and
	// a Get makes what asks fail: who goes on without them asks here first.
	Damaged(prefix string) []Damage
	// Revision is the store revision of the snapshot.
	Revision() int64
}

// Damage is a record that cannot be read, and why.
type Damage struct {
	Key string
	Why error
}

// Writer is a Reader whose changes are committed together. Every key it Gets, found or not, must be unchanged at the
// commit; keys that it only Scans are not compared: Get those that the decision rests on.
type Writer interface {
	Reader
	// Put writes the record.
	Put(key string, value proto.Message)
	// Delete removes it; removing what is not there is no error.
	Delete(key string)
	// Unchanged makes the commit depend on it that no record under the prefix was made or changed since the snapshot; that one was
	// deleted is not noticed. It is for a decision that rests on more records than a commit may compare, and costs the backend a read of
	// all of them.
	Unchanged(prefix string)
	// Fence makes the commit fail with fleet.ErrStale unless the condition holds.
	Fence(f Fence)
	// Grows says that the commit adds to what the store has to hold: it fails with fleet.ErrExhausted while the store is
	// over its quota. What only says how things stand, ends or deletes something never is Grows, so that a full store can
	// always be emptied.
	Grows()
	// References says that the commit refers to blobs that were put under this GC epoch (Blobs.Epoch): it fails with
	// fleet.ErrConflict if garbage was collected since, and the caller puts the blobs again.
	References(epoch uint64)
}

// Fence is a condition on a key that the writer's right to write rests on. Exactly one of the revisions is set.
type Fence struct {
	Key            string
	ModRevision    int64 // the key's mod revision must be this
	CreateRevision int64 // the key's create revision must be this
}

// Check finds a fence that fences nothing.
func (f Fence) Check() error {
	if f.Key == "" || (f.ModRevision == 0) == (f.CreateRevision == 0) {
		return fleet.Errorf(fleet.ErrInvalid, "fence %q: exactly one of its revisions must be set", f.Key)
	}
	return nil
}

// Op is one change of a Batch.
type Op struct {
	Key    string
	Value  proto.Message
	Delete bool
}

// Change is what happened to a record. Its values are shared with every reader: never change them.
type Change struct {
	Key string
	// Value is the record; nil: it is deleted, or cannot be read.
	Value proto.Message
	// Was is the record before; nil: it was not there, or could not be read. What a watch filters by may have left it.
	Was proto.Message
}

// Store is the port, as one Owner has it: a write of what is another's fails with ErrNotOwner, and nothing of it is
// committed. All methods are safe for concurrent use. Errors wrap fleet's sentinels.
type Store interface {
	// View runs fn on a snapshot that is at least at minRevision (0: whatever there is); it waits for it.
	View(ctx context.Context, minRevision int64, fn func(Reader) error) error
	// Update runs fn and commits its changes in one transaction; fn runs again when a key it read changed, so it must be
	// pure. It returns the commit's revision, or the snapshot's when fn changed nothing. At most MaxOps changes.
	Update(ctx context.Context, fn func(Writer) error) (int64, error)
	// Batch commits ops if the fence holds, packed with other batches into shared transactions; a fence that does not
	// hold drops only its own ops with fleet.ErrStale. It returns after the commit.
	Batch(ctx context.Context, fence Fence, ops []Op) (int64, error)
	// Subscribe yields the keys under the prefixes that changed after the snapshot that fn sees: snapshot and
	// subscription are taken together. fn may be nil.
	Subscribe(fn func(Reader), prefixes ...string) Subscription
	// Feed is the changes of one class of keys, by its prefix, complete after the revision at which somebody first asked
	// for it. It is shared: a change is decoded once for all that follow, and costs nothing while nothing happens.
	Feed(prefix string) *feed.Feed[Change]
	// Barrier waits until the read model has every commit that was acknowledged to anyone before the call (a
	// linearizable read), and returns that revision.
	Barrier(ctx context.Context) (int64, error)
	// Blobs are contents by digest, outside the read model.
	Blobs() Blobs
	// Full is nil, or a fleet.ErrExhausted that says what to do: nothing that Grows and no blob is taken.
	Full() error
	// Usage is how much it holds, and how much it may.
	Usage() Usage
}

// Usage is how much a store holds.
type Usage struct {
	Bytes int64 // in use
	Limit int64 // at which it is full; 0: the store cannot tell, as one of somebody else
	// NearlyFull says that people should make room before anything is refused.
	NearlyFull bool
}

// Candidate is a hub that wants to lead, as the others are told of it.
type Candidate struct {
	// Instance names the process.
	Instance string
	// Address is where it serves agents.
	Address string
	// Since is when it began to want it.
	Since time.Time
}

// Leadership is the right to run the controllers.
type Leadership interface {
	// Fence goes into every leader write.
	Fence() Fence
	// Lost is closed when leadership is lost.
	Lost() <-chan struct{}
	// Resign gives it up.
	Resign(ctx context.Context) error
}

// Subscription is a set of dirty keys; it coalesces and never blocks the store.
type Subscription interface {
	// C carries a wake-up when there are dirty keys; it is closed when the store closes.
	C() <-chan struct{}
	// Take returns the dirty keys, sorted, and empties the set; Revision of the newest change among them is at least rev.
	Take() (keys []string, rev int64)
	// Stop ends it.
	Stop()
}

// Blobs holds contents of up to 66 MiB compressed, zstd in chunks, by SHA-256 of the content.
type Blobs interface {
	// Epoch is the present GC epoch: read it before Put, pass it to Writer.References in the commit that refers to them.
	Epoch(ctx context.Context) (uint64, error)
	// Put stores contents and returns their digests; what is there already costs one read.
	Put(ctx context.Context, contents ...[]byte) ([]fleet.Digest, error)
	// Get returns the content, or fleet.ErrNotFound; ErrCorrupt if it does not have its digest.
	Get(ctx context.Context, d fleet.Digest) ([]byte, error)
	// GetCompressed returns the content as one zstd frame, as it goes on the wire.
	GetCompressed(ctx context.Context, d fleet.Digest) ([]byte, error)
	// PutFrom stores the content of a digest that open yields, piece by piece, and keeps it until then although nobody refers to it. It may
	// call open again. fleet.ErrCorrupt if the content has another digest.
	PutFrom(ctx context.Context, d fleet.Digest, open func() (io.Reader, error), until time.Time) error
	// Keep keeps a content until then although nobody refers to it; fleet.ErrNotFound if it is not there.
	Keep(ctx context.Context, d fleet.Digest, until time.Time) error
	// Read returns a large content as Get does, and keeps nothing of it in memory.
	Read(ctx context.Context, d fleet.Digest) ([]byte, error)
	// Collect raises the GC epoch and deletes what live does not name now and did not name at the Collect before. Where live
	// returns a function, it could not name all, and only contents go for which that is true.
	Collect(ctx context.Context, live func(yield func(fleet.Digest)) (goes func(content []byte) bool)) (deleted int, err error)
}

// MaxOps is how many changes one Update may hold: etcd's default limit of operations in a transaction, less the fences.
const MaxOps = 120

// Get returns the typed record of a key.
func Get[T proto.Message](r Reader, key string) (T, Entry, bool) {
	e, ok := r.Get(key)
	if !ok {
		var none T
		return none, e, false
	}
	v, ok := e.Value.(T)
	return v, e, ok
}

// Dry lets the code of an update run on a snapshot without writing.
func Dry(r Reader) Writer { return dry{r} }

type dry struct{ Reader }

func (dry) Put(string, proto.Message) {}
func (dry) Delete(string)             {}
func (dry) Unchanged(string)          {}
func (dry) Fence(Fence)               {}
func (dry) Grows()                    {}
func (dry) References(uint64)         {}

// Untracked reads without making the commit of an update depend on what is read. A record that cannot be read is as none.
func Untracked(r Reader) Reader {
	if u, is := r.(untracked); is {
		return u
	}
	return untracked{r}
}

type untracked struct{ Reader }

// Peeker is a Reader that finds a record that can be read without any commit depending on it.
type Peeker interface {
	Peek(key string) (Entry, bool)
}

// Assigner is a Reader that knows where a module is without a look at every cluster.
type Assigner interface {
	// Assigned are the clusters that have a desired record of the module, and perhaps others, in no order; false: it does not
	// know. No commit depends on it.
	Assigned(m fleet.ModuleRef) (clusters []fleet.ClusterName, known bool)
}

// Assigned asks the reader, if it is an Assigner.
func Assigned(r Reader, m fleet.ModuleRef) (clusters []fleet.ClusterName, known bool) {
	a, is := r.(Assigner)
	if !is {
		return nil, false
	}
	return a.Assigned(m)
}

func (u untracked) Assigned(m fleet.ModuleRef) ([]fleet.ClusterName, bool) {
	return Assigned(u.Reader, m)
}
func (d dry) Assigned(m fleet.ModuleRef) ([]fleet.ClusterName, bool) { return Assigned(d.Reader, m) }

// Get peeks, or finds the record by a scan, which no commit depends on either.
func (u untracked) Get(key string) (found Entry, ok bool) {
	if p, is := u.Reader.(Peeker); is {
		return p.Peek(key)
	}
	u.Scan(key, func(e Entry) bool {
		if ok = e.Key == key; ok {
			found = e
		}
		return false
	})
	return found, ok
}

// DamageOf is why the record cannot be read; nil: it can, or there is none.
func DamageOf(r Reader, key string) error {
	for _, d := range r.Damaged(key) {
		if d.Key == key {
			return d.Why
		}
	}
	return nil
}

// Scan calls fn for the typed records under a prefix.
func Scan[T proto.Message](r Reader, prefix string, fn func(T, Entry) bool) {
	r.Scan(prefix, func(e Entry) bool {
		v, ok := e.Value.(T)
		return !ok || fn(v, e)
	})
}
