package session

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// maxStatusBytes bounds a status frame; it leaves room below gRPC's limit of 4 MiB.
const maxStatusBytes = 1 << 20

// indexState is what the session has sent of the desired set. Only the sending goroutine writes it; GetObjects reads
// the bundles it allows under the session's lock.
type indexState struct {
	sent       fleet.Digest
	sentAny    bool
	sentAt     time.Time
	delta      bool // what was sent was one
	syncs      []*agentv1.Sync
	tombstones []*agentv1.Tombstone
	late       *time.Timer // for the next one, which waits for the answer to this one
	read       map[string]reading
	regressed  string
	// current and previous are the bundles and policies that GetObjects may serve.
	current, previous []allowed
}

// reading is a desired record as it was read; it is the same as long as its revision is.
type reading struct {
	revision  int64
	sync      *fleet.Sync
	tombstone *fleet.Tombstone
	floor     uint64 // of a record that is not valid
}

type allowed struct {
	module           fleet.ModuleRef
	bundle, policies fleet.Digest
}

// snapshot is what the store says about the cluster at one revision.
type snapshot struct {
	cluster    *storev1.ClusterRecord
	session    *storev1.SessionRecord
	ack        *storev1.AckRecord
	generation uint64 // the last one given in the fleet
	assemblage fleet.Assemblage
	syncs      []*agentv1.Sync
	tombstones []*agentv1.Tombstone
}

func (x *session) snapshot(ctx context.Context) (snapshot, error) {
	var sn snapshot
	err := x.server.o.Store.View(ctx, 0, func(r store.Reader) error {
		sn.cluster = x.server.clusterRecord(r, x.cluster)
		sn.session, _, _ = store.Get[*storev1.SessionRecord](r, store.SessionKey(x.cluster))
		sn.ack, _, _ = store.Get[*storev1.AckRecord](r, store.AckKey(x.cluster))
		if c, _, ok := store.Get[*storev1.Counter](r, store.GenerationKey); ok {
			sn.generation = c.GetValue()
		}
		x.readDesired(r, &sn)
		return nil
	})
	return sn, err
}

// readDesired reads what the cluster should have. A record that is not valid keeps only its own module back: the agent
// keeps what it has of that, because it is no longer listed and has no tombstone.
func (x *session) readDesired(r store.Reader, sn *snapshot) {
	var syncs []fleet.Sync
	var tombstones []fleet.Tombstone
	var floor uint64
	hold := false
	if f, _, ok := store.Get[*storev1.FloorRecord](r, store.FloorKey(x.cluster)); ok {
		floor, hold = f.GetGeneration(), f.GetHold()
	}
	before := x.index.read
	x.index.read = make(map[string]reading, len(before)+1)
	store.Scan(r, store.DesiredPrefix+string(x.cluster)+"/", func(d *storev1.DesiredRecord, e store.Entry) bool {
		got, known := before[e.Key]
		if !known || got.revision != e.ModRevision {
			got = x.readRecord(d, e, sn.generation)
		}
		x.index.read[e.Key] = got
		floor = max(floor, got.floor)
		switch {
		case got.tombstone != nil:
			tombstones, sn.tombstones = append(tombstones, *got.tombstone), append(sn.tombstones, d.GetTombstone())
		case got.sync != nil:
			syncs, sn.syncs = append(syncs, *got.sync), append(sn.syncs, d.GetSync())
		}
		return true
	})
	sn.assemblage = assemble.Build(syncs, tombstones, hold, floor)
}

func (x *session) readRecord(d *storev1.DesiredRecord, e store.Entry, given uint64) reading {
	out := reading{revision: e.ModRevision}
	var err error
	switch {
	case d.GetTombstone() != nil:
		var t fleet.Tombstone
		if t, err = wire.TombstoneFromProto(d.GetTombstone()); err == nil {
			out.tombstone = &t
		}
	case d.GetSync() != nil:
		var s fleet.Sync
		if s, err = wire.SyncFromProto(d.GetSync()); err == nil {
			out.sync = &s
		}
	}
	if err != nil {
		x.log.Warn("not sent: the record is not valid", "key", e.Key, "error", err)
		out.floor = max(d.GetTombstone().GetGeneration(), d.GetSync().GetGeneration())
	}
	if record.Damaged(d) {
		out.floor = given // any generation up to this one may have been in it
	}
	return out
}

// welcome answers the hello. An agent that has seen a newer store than ours is told nothing more, so that it keeps what
// it has, until a person looked (RELIABILITY §4.3).
func (x *session) welcome(ctx context.Context, st stream) error {
	sn, err := x.snapshot(ctx)
	if err != nil {
		return err
	}
	h := x.hello
	x.index.regressed = x.regression(sn)
	if x.index.regressed != "" && sn.cluster.GetRegressed() == "" {
		x.log.Warn("hub regressed", "agent_generation", h.GetGeneration(), "hub_generation", sn.generation, "because", x.index.regressed)
		if err := x.server.o.Registry.Regressed(ctx, x.cluster, x.index.regressed); err != nil {
			return err
		}
	}
	hub := x.server.o.Hub
	w := &agentv1.Welcome{Epoch: x.epoch, HubId: hub.GetHubId(), Incarnation: hub.GetIncarnation(), Protocol: protocolLevel,
		Boot: bootOf(hub), Regressed: x.index.regressed,
		HeartbeatMillis: uint32(x.server.o.Heartbeat.Milliseconds()), MaxStatusBytes: maxStatusBytes,
		ReconnectSpreadMillis: uint32(x.server.o.ReconnectSpread.Milliseconds()), StatusKnown: x.opened.KnownFrom > 0}
	if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Welcome{Welcome: w}}); err != nil {
		return err
	}
	if h.GetHubId() != hub.GetHubId() || h.GetIncarnation() != hub.GetIncarnation() || x.index.regressed != "" {
		return nil
	}
	held, err := fleet.DigestFromBytes(h.GetDigest())
	if err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "cluster %s: hello: %v", x.cluster, err)
	}
	if held == sn.assemblage.Digest && h.GetGeneration() == sn.assemblage.Generation {
		x.keep(sn, false)
		x.taken.set(answer{digest: held, whole: true})
	}
	return nil
}

// keep notes what the agent was sent.
func (x *session) keep(sn snapshot, delta bool) {
	x.index.sent, x.index.sentAny, x.index.sentAt, x.index.delta = sn.assemblage.Digest, true, time.Now(), delta
	x.index.syncs, x.index.tombstones = sn.syncs, sn.tombstones
	if x.index.late != nil {
		x.index.late.Stop()
		x.index.late = nil
	}
	x.allow(sn)
}

// sendDesired sends the index if it differs from the last one sent, or tells the agent to leave, or ends the session.
func (x *session) sendDesired(ctx context.Context, st stream) error {
	sn, err := x.snapshot(ctx)
	if err != nil {
		return err
	}
	switch {
	case sn.cluster == nil || sn.cluster.GetRevoked():
		return fleet.Errorf(fleet.ErrDenied, "cluster %s is revoked or removed; its agent must join again: towline cluster join %s --reissue", x.cluster, x.cluster)
	case sn.session.GetEpoch() > x.epoch:
		return fleet.Errorf(fleet.ErrStale, "cluster %s: a newer session took over", x.cluster)
	case sn.cluster.GetRemoving() != "":
		return x.sendLeave(st, sn)
	case x.index.regressed != "":
		return nil
	}
	x.taken.wait(true)
	taken := x.taken.get()
	again := x.index.delta && taken.digest == x.index.sent && taken.refused
	switch {
	case x.index.sentAny && sn.assemblage.Digest == x.index.sent && !again:
		x.taken.wait(false)
		return nil
	case x.index.sentAny && taken.digest != x.index.sent && time.Since(x.index.sentAt) < ackPatience:
		if x.index.late == nil {
			x.index.late = time.AfterFunc(time.Until(x.index.sentAt.Add(ackPatience)), func() { x.mark(dirtyDesired) })
		}
		return nil
	}
	x.taken.wait(false)
	if err := x.sendDeltas(ctx, st, sn); err != nil {
		return err
	}
	ix := x.nextIndex(sn, taken)
	x.keep(sn, !ix.GetComplete())
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Index{Index: ix}})
}

// ackPatience is how long the next index waits for the agent to take the last one. An agent that is still fetching gets
// one index for all that changes meanwhile; one that cannot take the last gets the next all the same.
const ackPatience = time.Second

// answer is what the agent said of an index.
type answer struct {
	digest fleet.Digest
	// whole says that all of it was taken, refused that nothing was.
	whole, refused bool
}

// taken is the newest answer; the receiving goroutine sets it.
type taken struct {
	mu      sync.Mutex
	now     answer
	awaited bool // by the sender
}

// set reports whether the sender has to look.
func (t *taken) set(a answer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = a
	return t.awaited || a.refused
}

func (t *taken) wait(awaited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awaited = awaited
}

func (t *taken) get() answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// acked takes the agent's answer, which may be what the next index waits for.
func (x *session) acked(a *agentv1.Ack) {
	if d, err := fleet.DigestFromBytes(a.GetDigest()); err == nil {
		if x.taken.set(answer{digest: d, whole: a.GetCode() == "" && len(a.GetRefused()) == 0, refused: a.GetCode() != ""}) {
			x.mark(dirtyDesired)
		}
	}
	x.reports.ack(a)
}

// nextIndex is a delta against what the agent took in full, or else complete.
func (x *session) nextIndex(sn snapshot, t answer) *agentv1.Index {
	ix := &agentv1.Index{Complete: true, ResultsIn: sn.assemblage.Digest.Bytes(), Generation: sn.assemblage.Generation,
		Syncs: sn.syncs, Tombstones: sn.tombstones, Hold: sn.assemblage.Hold}
	if !x.index.sentAny || !t.whole || t.digest != x.index.sent {
		return ix
	}
	syncs, gone := changedBy(x.index.syncs, sn.syncs, (*agentv1.Sync).GetModule)
	tombstones, forgotten := changedBy(x.index.tombstones, sn.tombstones, (*agentv1.Tombstone).GetModule)
	replaced := map[string]bool{}
	for _, t := range tombstones {
		replaced[t.GetModule()] = true
	}
	if slices.ContainsFunc(gone, func(m string) bool { return !replaced[m] }) {
		return ix // a delta cannot drop a sync that leaves no tombstone
	}
	ix.Complete, ix.AppliesTo, ix.Syncs, ix.Tombstones, ix.Forgotten = false, t.digest.Bytes(), syncs, tombstones, forgotten
	return ix
}

// changedBy lists what is in next and not the same in last, and the modules that are in last only. Records that did not
// change are the same messages.
func changedBy[T interface {
	comparable
	proto.Message
}](last, next []T, module func(T) string) (changed []T, gone []string) {
	before := make(map[string]T, len(last))
	for _, x := range last {
		before[module(x)] = x
	}
	for _, x := range next {
		if old, ok := before[module(x)]; !ok || old != x {
			changed = append(changed, x)
		}
		delete(before, module(x))
	}
	return changed, slices.Sorted(maps.Keys(before))
}

func (x *session) sendLeave(st stream, sn snapshot) error {
	leave := &agentv1.Leave{Objects: sn.cluster.GetRemoving(), Hold: sn.assemblage.Hold}
	for _, s := range sn.assemblage.Syncs {
		if s.Hold {
			leave.Held = append(leave.Held, s.Module.String())
		}
	}
	for _, t := range sn.assemblage.Tombstones {
		if t.Hold {
			leave.Held = append(leave.Held, t.Module.String())
		}
	}
	slices.Sort(leave.Held)
	if proto.Equal(x.leaving, leave) {
		return nil
	}
	x.leaving = leave
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: leave}})
}

// allow lets GetObjects serve what this index and the one before refer to.
func (x *session) allow(sn snapshot) {
	next := make([]allowed, 0, len(sn.assemblage.Syncs))
	for _, s := range sn.assemblage.Syncs {
		next = append(next, allowed{module: s.Module, bundle: s.Bundle, policies: s.Policies})
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index.previous, x.index.current = x.index.current, next
}

func (x *session) allowedContents() []allowed {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append(append([]allowed(nil), x.index.current...), x.index.previous...)
}
