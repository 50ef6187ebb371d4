// Package etcd is a backend of the store on etcd: one that runs in this process, without a port, or one of somebody else.
// It owns the process, its compaction, quota and alarm, and the words between etcd's API and the backend's; it must not
// know what is kept in it.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// Options say which etcd a store stands on: one of Dir and Endpoints is set.
type Options struct {
	// Log takes what etcd has to say; nil: nothing is said.
	Log *slog.Logger

	// Dir is the directory of an etcd that runs in this process, without any listener. It is made if need be; a second
	// process that opens it gets an error.
	Dir string
	// QuotaBytes bounds what the embedded database holds; 0: 4 GiB. Over it, what Grows fails with ErrExhausted; a reserve
	// on top is for everything else. History is dropped in time, and given back to the disk where that helps.
	QuotaBytes int64
	// KeepRevisions is how much history the embedded etcd keeps; 0: 10,000.
	KeepRevisions int64
	// KeepBytes is how much may be written before what is older goes, however few revisions that are; 0: 64 MiB.
	KeepBytes int64
	// DiskFree is how many bytes are free on the disk of a directory, for tests; nil: the system is asked.
	DiskFree func(dir string) (bytes int64, known bool)
	// UnsafeNoFsync makes the embedded etcd forget commits when the machine stops. For tests.
	UnsafeNoFsync bool

	// Endpoints are those of an etcd of one's own, host:port. It is compacted and defragmented by who runs it.
	Endpoints []string
	// Access is for Endpoints.
	Access Access
	// SessionTTL is after how long a leader that is gone is replaced, with Endpoints; 0: 7 s.
	SessionTTL time.Duration

	// Prefix is in front of all keys; empty: towline/.
	Prefix string
}

const (
	defaultPrefix        = "towline/"
	defaultQuota         = 4 << 30
	defaultKeep          = 10_000
	defaultKeepBytes     = 64 << 20
	defaultSessionTTL    = 7 * time.Second
	etcdTimeout          = 10 * time.Second
	externalMaxOps       = 128
	embeddedMaxOps       = 512
	transactionBytes     = 1 << 20
	dialTimeout          = 5 * time.Second
	dialKeepAliveTime    = 20 * time.Second
	dialKeepAliveTimeout = 5 * time.Second
)

// Open starts the etcd of the directory, or connects to the one at the endpoints.
func Open(ctx context.Context, o Options) (backend.Backend, error) {
	if (o.Dir == "") == (len(o.Endpoints) == 0) {
		return nil, fleet.Errorf(fleet.ErrInvalid, "store: give either a directory or endpoints of etcd")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.SessionTTL < time.Second {
		o.SessionTTL = defaultSessionTTL
	}
	if o.Dir != "" {
		return openEmbedded(ctx, o)
	}
	return openExternal(ctx, o)
}

func openExternal(ctx context.Context, o Options) (backend.Backend, error) {
	cluster := &oneCluster{}
	client, err := connect(o, cluster)
	if err != nil {
		return nil, err
	}
	b := newKeyspace(client, clientv3.RetryKVClient(client), o)
	b.limits, b.cluster = backend.Limits{Ops: externalMaxOps, Bytes: transactionBytes}, cluster
	for range o.Endpoints { // they are asked in turn
		if _, err = b.Revision(ctx); err != nil {
			break
		}
	}
	if err == nil {
		err = b.mayWrite(ctx)
	}
	if err != nil {
		return nil, errors.Join(o.explained(err), client.Close())
	}
	return b, nil
}

// connect makes the client of the endpoints. Who calls is judged by etcd when there is a user, and else by its first answer.
func connect(o Options, cluster *oneCluster) (*clientv3.Client, error) {
	if err := o.Access.check(o.Endpoints); err != nil {
		return nil, err
	}
	secured, err := o.Access.tls()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: o.Endpoints, TLS: secured, Username: o.Access.Username, Password: o.Access.Password,
		DialTimeout: dialTimeout, DialKeepAliveTime: dialKeepAliveTime, DialKeepAliveTimeout: dialKeepAliveTimeout,
		DialOptions: cluster.options(),
		Logger:      zapTo(o.Log), // no PermitWithoutStream: etcd ends the connections of those who ping over one that nobody uses
	}
	if o.Access.ServerName != "" { // the client takes the endpoint's own name otherwise, whatever the configuration of TLS says
		config.DialOptions = append(config.DialOptions, grpc.WithAuthority(o.Access.ServerName))
	}
	client, err := clientv3.New(config)
	if err == nil {
		return client, nil
	}
	return nil, o.explained(err)
}

// explained says which etcd it is, and what to do about it.
func (o Options) explained(err error) error {
	if denied := o.Access.denied(err, o.Prefix); denied != nil {
		err = denied
	} else if why := o.Access.refusal(o.Endpoints); why != nil {
		err = why
	}
	return fmt.Errorf("etcd at %s: %w", strings.Join(o.Endpoints, ","), err)
}

// keyspace is the backend.Backend on a client, in process or not.
type keyspace struct {
	client   *clientv3.Client
	txns     pb.KVClient // of the same client
	prefix   string
	access   Access
	log      *slog.Logger
	limits   backend.Limits
	ttl      time.Duration
	embedded *embedded      // nil: external
	cluster  *oneCluster    // of an external one
	seats    *backend.Seats // of an embedded one

	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	watching atomic.Int32
	shown    atomic.Int64 // the newest revision that a watch has handed out
	closing  sync.Once
}

func newKeyspace(client *clientv3.Client, txns pb.KVClient, o Options) *keyspace {
	b := &keyspace{client: client, txns: txns, prefix: o.Prefix, access: o.Access, log: o.Log, ttl: o.SessionTTL, seats: backend.NewSeats()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (b *keyspace) Limits() backend.Limits { return b.limits }

// call bounds a request and ends it at the close.
func (b *keyspace) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	stop := context.AfterFunc(b.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func (b *keyspace) kv(kv *mvccpb.KeyValue) backend.KV {
	return backend.KV{
		Key: strings.TrimPrefix(string(kv.Key), b.prefix), Value: kv.Value, Mod: kv.ModRevision, Create: kv.CreateRevision,
	}
}

// read runs a read, which returns its revision. Of an embedded etcd it is serializable: with one member, what is applied is all
// there is. But etcd hands a change to watches a moment before reads see it, so a read that is behind what a watch has shown is
// repeated: a linearizable one waits until the change is applied.
func (b *keyspace) read(ctx context.Context, read func(ctx context.Context, opts ...clientv3.OpOption) (int64, error)) error {
	ctx, cancel := b.call(ctx)
	defer cancel()
	if b.embedded != nil {
		shown := b.shown.Load()
		now, err := read(ctx, clientv3.WithSerializable())
		if err == nil && now >= shown {
			return nil
		}
		if err != nil && !errors.Is(err, rpctypes.ErrFutureRev) {
			return b.failure(err)
		}
	}
	if _, err := read(ctx); err != nil {
		return b.failure(err)
	}
	return nil
}

// show hands changes to who watches; what they have, reads have from then on.
func (b *keyspace) show(c backend.Changes, fn func(backend.Changes)) {
	for {
		shown := b.shown.Load()
		if c.Revision <= shown || b.shown.CompareAndSwap(shown, c.Revision) {
			break
		}
	}
	fn(c)
}

func (b *keyspace) Get(ctx context.Context, revision int64, keys ...string) (map[string]backend.KV, int64, error) {
	found := make(map[string]backend.KV, len(keys))
	now := int64(0)
	for some := range slices.Chunk(keys, externalMaxOps) {
		var resp *clientv3.TxnResponse
		err := b.read(ctx, func(ctx context.Context, opts ...clientv3.OpOption) (rev int64, err error) {
			ops := make([]clientv3.Op, len(some))
			for i, k := range some {
				ops[i] = clientv3.OpGet(b.prefix+k, append(opts, clientv3.WithRev(revision))...)
			}
			if resp, err = b.client.Txn(ctx).Then(ops...).Commit(); err == nil {
				rev = resp.Header.Revision
			}
			return rev, err
		})
		if err != nil {
			return nil, 0, err
		}
		for _, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().GetKvs() {
				got := b.kv(kv)
				found[got.Key] = got
			}
		}
		now = max(now, resp.Header.Revision)
		if revision == 0 {
			revision = resp.Header.Revision
		}
	}
	return found, now, nil
}

func (b *keyspace) Range(ctx context.Context, q backend.RangeQuery) (backend.Page, error) {
	end := clientv3.GetPrefixRangeEnd(b.prefix + q.Prefix)
	opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(int64(q.Limit)), clientv3.WithRev(q.Revision),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
	if q.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	start := b.prefix + q.Prefix
	if q.After != "" {
		start = b.prefix + q.After + "\x00"
	}
	resp, err := b.get(ctx, start, opts...)
	if err != nil {
		return backend.Page{}, err
	}
	page := backend.Page{Revision: resp.Header.Revision, More: resp.More, KVs: make([]backend.KV, len(resp.Kvs))}
	if q.Revision != 0 {
		page.Revision = q.Revision
	}
	for i, kv := range resp.Kvs {
		page.KVs[i] = b.kv(kv)
	}
	return page, nil
}

// Revision reads a key that is never there, for the header of the answer.
func (b *keyspace) Revision(ctx context.Context) (int64, error) {
	resp, err := b.get(ctx, b.prefix+"none", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

func (b *keyspace) get(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = b.read(ctx, func(ctx context.Context, more ...clientv3.OpOption) (rev int64, err error) {
		if resp, err = b.client.Get(ctx, key, append(more, opts...)...); err == nil {
			rev = resp.Header.Revision
		}
		return rev, err
	})
	return resp, err
}

// watchContext is the context of the watch stream; requests for progress must name the same stream.
func (b *keyspace) watchContext(ctx context.Context) context.Context {
	if b.embedded != nil {
		return ctx
	}
	return clientv3.WithRequireLeader(ctx)
}

func (b *keyspace) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	b.watching.Add(1)
	defer b.watching.Add(-1)
	events := b.client.Watch(b.watchContext(ctx), b.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for resp := range events {
		if err := resp.Err(); err != nil {
			return b.failure(err)
		}
		if resp.IsProgressNotify() {
			b.show(backend.Changes{Revision: resp.Header.Revision}, fn)
		}
		if len(resp.Events) > 0 {
			b.show(b.changes(resp.Events), fn)
		}
	}
	return fleet.Errorf(fleet.ErrUnavailable, "etcd: the watch ended")
}

// changes takes the revision of the last event: the header's may be ahead of what has been sent.
func (b *keyspace) changes(events []*clientv3.Event) backend.Changes {
	c := backend.Changes{List: make([]backend.Change, len(events))}
	for i, ev := range events {
		c.List[i] = backend.Change{KV: b.kv(ev.Kv), Delete: ev.Type == clientv3.EventTypeDelete}
		c.Revision = ev.Kv.ModRevision
	}
	return c
}

func (b *keyspace) Progress(ctx context.Context) error {
	if b.watching.Load() == 0 {
		return nil
	}
	return b.client.RequestProgress(b.watchContext(ctx))
}

func (b *keyspace) Close() error {
	var err error
	b.closing.Do(func() {
		b.cancel()
		if err = b.client.Close(); errors.Is(err, context.Canceled) {
			err = nil
		}
		if b.embedded != nil {
			err = errors.Join(err, b.embedded.close())
		}
	})
	return err
}

// noSpace is etcd's alarm in words that say what to do.
func (b *keyspace) noSpace() error {
	if b.embedded == nil {
		return fleet.Errorf(fleet.ErrExhausted, "etcd is full (alarm NOSPACE): compact and defragment it or raise its quota, then: etcdctl alarm disarm; until then it takes no change, and only reads go on")
	}
	b.embedded.full()
	return b.embedded.exhausted()
}

// Full asks the embedded etcd only: how full an etcd of someone else is, it says itself, by refusing.
func (b *keyspace) Full() error {
	if b.embedded == nil || !b.embedded.pressed() {
		return nil
	}
	b.embedded.full()
	return b.embedded.exhausted()
}

// Usage asks the embedded etcd only, as Full does.
func (b *keyspace) Usage() backend.Usage {
	if b.embedded == nil {
		return backend.Usage{}
	}
	return b.embedded.usage()
}

// failure says in fleet's words what an error of etcd means.
func (b *keyspace) failure(err error) error {
	if b.cluster != nil {
		if other := b.cluster.other.Load(); other != nil {
			return *other
		}
	}
	if denied := b.access.denied(err, b.prefix); denied != nil {
		return denied
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return b.noSpace()
	case errors.Is(err, rpctypes.ErrCompacted):
		return backend.ErrCompacted
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrDuplicateKey):
		return fleet.Errorf(fleet.ErrInvalid, "etcd: %v", err)
	}
	return backend.Open(fmt.Errorf("etcd: %w", err))
}
