package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// embedded is an etcd server of one member in this process, without listeners, and what keeps it in shape.
type embedded struct {
	keyspace  *keyspace
	server    *embed.Etcd
	lock      *fileutil.LockedFile
	keep      int64
	history   history
	disk      *disk
	quota     int64 // of what it holds
	limit     int64 // of the file, when etcd raises its alarm
	compacted atomic.Int64
	unseen    atomic.Int64  // bytes written since what is in use was known exactly
	near      atomic.Bool   // it was said that it is nearly full
	stuck     bool          // full, and what can be freed is; of run only
	care      chan struct{} // compaction is due
	noSpace   chan struct{} // a write was refused
	running   sync.WaitGroup
}

func openEmbedded(ctx context.Context, o Options) (backend.Backend, error) {
	if o.QuotaBytes <= 0 {
		o.QuotaBytes = defaultQuota
	}
	if o.KeepRevisions <= 0 {
		o.KeepRevisions = defaultKeep
	}
	if o.KeepBytes <= 0 {
		o.KeepBytes = defaultKeepBytes
	}
	if o.DiskFree == nil {
		o.DiskFree = FreeBytes
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	if err := interrupted(o.Dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	place := &disk{dir: o.Dir, free: o.DiskFree}
	limit := fileLimit(o)
	server, err := startEtcd(ctx, o, limit)
	if err != nil {
		return nil, errors.Join(place.blames(fmt.Errorf("etcd in %s: %w", o.Dir, err)), lock.Close())
	}
	b := newKeyspace(v3client.New(server.Server), adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(server.Server)), o)
	b.limits = backend.Limits{Ops: embeddedMaxOps, Bytes: transactionBytes}
	b.embedded = &embedded{
		keyspace: b, server: server, lock: lock, keep: o.KeepRevisions, history: history{most: o.KeepBytes}, disk: place, quota: o.QuotaBytes, limit: limit,
		care: make(chan struct{}, 1), noSpace: make(chan struct{}, 1),
	}
	// The limit is above the size of the file: an alarm of before is out of date.
	if err := b.embedded.disarm(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("etcd in %s: end the alarm: %w", o.Dir, err), b.Close())
	}
	if b.embedded.pressed() {
		b.embedded.full()
	}
	b.embedded.running.Go(b.embedded.run)
	return b, nil
}

// fileLimit is how large the file may become before etcd refuses every write: the quota, or the file as it is if that is
// larger, and a reserve for what must always be possible.
func fileLimit(o Options) int64 {
	size := o.QuotaBytes
	if f, err := os.Stat(filepath.Join(o.Dir, storeFolder, "member", "snap", "db")); err == nil {
		size = max(size, f.Size())
	}
	return size + max(o.QuotaBytes/reserveShare, minReserve)
}

const (
	reserveShare = 4 // a quarter of the quota
	minReserve   = 8 << 20
)

// lockDir makes the directory and keeps other processes out of it.
func lockDir(dir string) (*fileutil.LockedFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("etcd in %s: %w", dir, err)
	}
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "%s: another process uses this directory; stop it, or take another", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd in %s: %w", dir, err)
	}
	return lock, nil
}

// memberName is that of the only member.
const memberName = "hub"

func startEtcd(ctx context.Context, o Options, limit int64) (server *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil { // where it cannot make its files
			err = fmt.Errorf("it cannot start: %v", p)
		}
	}()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = memberName, filepath.Join(o.Dir, storeFolder)
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	cfg.TickMs, cfg.ElectionMs = tickMs, electionMs
	cfg.MaxTxnOps = embeddedMaxOps
	cfg.QuotaBackendBytes = limit
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	cfg.BootstrapDefragThresholdMegabytes = bootstrapDefragMegabytes
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(o.Log))
	if server, err = embed.StartEtcd(cfg); err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err = <-server.Err():
	case <-server.Server.StopNotify():
		err = errors.New("it stopped at the start")
	case <-ctx.Done():
		err = backend.Open(ctx.Err())
	}
	server.Close()
	return nil, err
}

// A single member elects itself within an election timeout, which is the start-up; each tick costs an idle hub 60 µs.
const (
	tickMs     = 30
	electionMs = 150
)

// A single member needs no long log for others to catch up by; what it keeps, it keeps in memory.
const (
	snapshotEntries          = 2000
	catchUpEntries           = 100
	bootstrapDefragMegabytes = 256
)

// grown asks for a compaction when enough history has come together, or soon when space is short.
func (e *embedded) grown(revision int64, parts []backend.Part) {
	bytes := int64(0)
	for _, p := range parts {
		bytes += int64(p.Bytes())
	}
	e.unseen.Add(bytes)
	if e.history.add(revision, bytes) {
		wakeUp(e.care)
	}
	u := e.usage()
	over := 2 * e.keep
	if u.Bytes > e.quota-e.quota/shortShare {
		over = e.keep / 10
	}
	e.warn(u)
	if revision-e.compacted.Load() > over {
		wakeUp(e.care)
	}
}

// history finds the revision that is by a number of bytes older than the newest one: a few large records that are written
// again and again must not fill the store with what they were, before there are many revisions.
type history struct {
	most int64

	mu      sync.Mutex
	written int64 // since newer
	older   int64 // what was before it may go
	newer   int64 // will be older when as much is written again
}

// add reports that there is more that may go.
func (h *history) add(revision, bytes int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.written += bytes; h.written < h.most {
		return false
	}
	h.written, h.older, h.newer = 0, h.newer, revision
	return h.older > 0
}

// from is the first revision to keep.
func (h *history) from() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.older
}

// warn says once that the store will be full, and again when there was room in between.
func (e *embedded) warn(u backend.Usage) {
	switch {
	case u.NearlyFull() && e.near.CompareAndSwap(false, true):
		e.keyspace.log.Warn("etcd: the store is nearly full, and will take nothing new when it is: delete modules, or start the hub with a larger --store-quota",
			"bytes", u.Bytes, "quota", u.Limit)
	case u.Bytes < e.quota-e.quota/shortShare:
		e.near.Store(false)
	}
}

func (e *embedded) usage() backend.Usage { return backend.Usage{Bytes: e.inUse(), Limit: e.quota} }

// shortShare is the part of the quota below which space is short: a quarter.
const shortShare = 4

// inUse is what the database holds. etcd knows it as of its last write to the disk, at most a tenth of a second ago: in
// that time much may come.
func (e *embedded) inUse() int64 {
	if e.unseen.Load() > e.quota/unseenShare {
		e.unseen.Store(0)
		e.server.Server.Backend().ForceCommit()
	}
	return e.server.Server.Backend().SizeInUse()
}

// unseenShare is the part of the quota that may be written before what is in use is looked at anew: a sixteenth.
const unseenShare = 16

// pressed reports that the store holds as much as it should, or its disk does, or that etcd itself says so.
func (e *embedded) pressed() bool {
	_, short := e.disk.short()
	return short || e.inUse() >= e.quota || e.alarmed()
}

func (e *embedded) exhausted() error {
	if err := e.disk.exhausted(); err != nil && e.inUse() < e.quota {
		return err
	}
	return fleet.Errorf(fleet.ErrExhausted, "the store is full: %s are in use: delete modules, or start the hub with a larger --store-quota; reads and deletions go on", e.usage())
}

// full says that a write was refused for want of space.
func (e *embedded) full() { wakeUp(e.noSpace) }

func wakeUp(c chan struct{}) {
	dirty.Poke(c)
}

// run compacts and frees space when it is told to; it is idle otherwise.
func (e *embedded) run() {
	ctx := e.keyspace.ctx
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.care:
			e.compact(ctx, e.oldest())
			continue
		case <-e.noSpace:
			if again != nil {
				continue
			}
		case <-again:
		}
		again = nil
		if e.pressed() && !e.free(ctx) {
			again = time.After(freeEvery)
		}
	}
}

const freeEvery = time.Second

// oldest is the first revision to keep: less of them when space is short.
func (e *embedded) oldest() int64 {
	keep := e.keep
	if e.inUse() > e.quota-e.quota/shortShare {
		keep /= 100
	}
	return max(e.server.Server.KV().Rev()-keep, e.history.from())
}

func (e *embedded) compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) {
	_, err := e.keyspace.client.Compact(ctx, revision, opts...)
	if ctx.Err() != nil {
		return // it closes
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		e.keyspace.log.Warn("etcd: compaction", "revision", revision, "error", err)
		return
	}
	e.compacted.Store(revision)
}

// free drops all history, gives the space back where etcd refuses writes for the size of its file, and ends its alarm if
// that helped. It reports whether the store takes everything again.
func (e *embedded) free(ctx context.Context) bool {
	log := e.keyspace.log
	e.compact(ctx, e.server.Server.KV().Rev(), clientv3.WithCompactPhysical())
	e.server.Server.Backend().ForceCommit() // so that what is in use is known
	if e.alarmed() && e.inUse() < e.limit-e.limit/freeShare {
		if err := e.server.Server.Defragment(); err != nil {
			log.Error("etcd: defragment", "error", err)
			return false
		}
		if err := e.disarm(ctx); err != nil {
			log.Error("etcd: end the alarm", "error", err)
			return false
		}
	}
	full := e.pressed()
	switch {
	case full && !e.stuck:
		log.Error("etcd: the store is full and stays so", "because", e.exhausted(), "bytes", e.inUse(), "quota", e.quota)
	case !full:
		log.Warn("etcd: the store was full; space is free again", "bytes", e.inUse(), "quota", e.quota)
	}
	e.stuck = full
	return !full
}

// freeShare is the part of the file's limit that must be free before etcd lets writes in: a tenth.
const freeShare = 10

func (e *embedded) disarm(ctx context.Context) error {
	for _, a := range e.server.Server.Alarms() {
		if _, err := e.server.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			return err
		}
	}
	return nil
}

func (e *embedded) alarmed() bool {
	for _, a := range e.server.Server.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}

func (e *embedded) close() error {
	e.running.Wait()
	e.server.Close()
	err := e.lock.Close()
	if err != nil && strings.Contains(err.Error(), "already closed") {
		return nil
	}
	return err
}
