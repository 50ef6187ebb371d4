package store

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

	"towline.dev/towline/pkg/fleet"
)

// embedded is an etcd server of one member in this process, without listeners, and what keeps it in shape.
type embedded struct {
	backend   *etcd
	server    *embed.Etcd
	lock      *fileutil.LockedFile
	keep      int64
	quota     int64
	compacted atomic.Int64
	care      chan struct{} // compaction is due
	noSpace   chan struct{} // a write was refused
	running   sync.WaitGroup
}

func openEmbedded(ctx context.Context, o EtcdOptions) (Backend, error) {
	if o.QuotaBytes <= 0 {
		o.QuotaBytes = defaultQuota
	}
	if o.KeepRevisions <= 0 {
		o.KeepRevisions = defaultKeep
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	server, err := startEtcd(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd in %s: %w", o.Dir, err), lock.Close())
	}
	b := newEtcd(v3client.New(server.Server), adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(server.Server)), o)
	b.limits = Limits{Ops: embeddedMaxOps, Bytes: transactionBytes}
	b.embedded = &embedded{
		backend: b, server: server, lock: lock, keep: o.KeepRevisions, quota: o.QuotaBytes,
		care: make(chan struct{}, 1), noSpace: make(chan struct{}, 1),
	}
	if b.embedded.alarmed() {
		b.embedded.full()
	}
	b.embedded.running.Go(b.embedded.run)
	return b, nil
}

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

func startEtcd(ctx context.Context, o EtcdOptions) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "hub", filepath.Join(o.Dir, "etcd")
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	cfg.TickMs, cfg.ElectionMs = tickMs, electionMs
	cfg.MaxTxnOps = embeddedMaxOps
	cfg.QuotaBackendBytes = o.QuotaBytes
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	cfg.BootstrapDefragThresholdMegabytes = bootstrapDefragMegabytes
	cfg.UnsafeNoFsync = o.UnsafeNoFsync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(o.Log))
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err = <-server.Err():
	case <-server.Server.StopNotify():
		err = errors.New("it stopped at the start")
	case <-ctx.Done():
		err = unavailable(ctx.Err())
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

// grown asks for a compaction when enough history has come together.
func (e *embedded) grown(revision int64) {
	if revision-e.compacted.Load() > 2*e.keep {
		wakeUp(e.care)
	}
}

// full says that a write was refused for want of space.
func (e *embedded) full() { wakeUp(e.noSpace) }

func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run compacts and frees space when it is told to; it is idle otherwise.
func (e *embedded) run() {
	ctx := e.backend.ctx
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.care:
			e.compact(ctx, e.server.Server.KV().Rev()-e.keep)
			continue
		case <-e.noSpace:
		case <-again:
		}
		again = nil
		if !e.free(ctx) {
			again = time.After(freeEvery)
		}
	}
}

const freeEvery = 30 * time.Second

func (e *embedded) compact(ctx context.Context, revision int64, opts ...clientv3.CompactOption) {
	_, err := e.backend.client.Compact(ctx, revision, opts...)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		e.backend.log.Warn("etcd: compaction", "revision", revision, "error", err)
		return
	}
	e.compacted.Store(revision)
}

// free drops all history, gives the space back and, if that helped, lets writes in again.
func (e *embedded) free(ctx context.Context) bool {
	log := e.backend.log
	if !e.alarmed() {
		return true
	}
	e.compact(ctx, e.server.Server.KV().Rev(), clientv3.WithCompactPhysical())
	if err := e.server.Server.Defragment(); err != nil {
		log.Error("etcd: defragment", "error", err)
		return false
	}
	size := e.server.Server.Backend().Size()
	if size >= e.quota-e.quota/freeShare {
		log.Error("etcd: the store is full and stays so: raise its quota or delete something", "bytes", size, "quota", e.quota)
		return false
	}
	for _, a := range e.server.Server.Alarms() {
		if _, err := e.server.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			log.Error("etcd: end the alarm", "error", err)
			return false
		}
	}
	log.Warn("etcd: the store was full; space is free again", "bytes", size, "quota", e.quota)
	return true
}

// freeShare is the part of the quota that must be free before writes are let in: a tenth.
const freeShare = 10

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
