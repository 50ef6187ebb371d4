package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/version"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// reports holds the newest report of each sync until it is committed, and the newest acknowledgement. What was not
// committed when a newer report came is dropped: the newest is all there is to know.
type reports struct {
	x         *session
	committer errand
	// taken wakes the receiver, which waits while too much is to be committed; waits: it does.
	taken chan struct{}
	waits atomic.Bool

	mu      sync.Mutex
	pending map[fleet.ModuleRef]*agentv1.SyncStatus
	bytes   int    // of pending
	seq     uint64 // highest received
	digest  []byte
	ackRec  *storev1.AckRecord          // newest acknowledgement to commit
	conds   *storev1.ConditionsRecord   // newest conditions to commit; nil: no newer ones
	can     *storev1.CapabilitiesRecord // newest capabilities to commit; nil: no newer ones
	full    map[fleet.ModuleRef]bool
	fullEnd bool
	durable uint64 // highest committed
	acked   uint64 // highest acknowledged to the agent
	owes    bool   // an acknowledgement is on its way
	last    *storev1.AckRecord
	strays  map[fleet.ModuleRef]bool // modules that the cluster was not given and of which reports are kept
	excess  excess
	// standing: the agent has said in this session that all that the hub had of it at the hello holds still; stands: and that
	// is not committed yet.
	stands, standing bool
	held             holdings
	// leaving: the agent is told to leave, and may have been given generations up to told; leaves: that is not committed yet.
	leaving, leaves bool
	told            uint64
	// lossy: a report of this session was dropped for want of room. The next session asks for all, when there may be room again. It is the
	// committing goroutine's.
	lossy bool
	// at is the revision of the last commit. The next one rests on what the store has since then. It is the committing goroutine's.
	at int64
}

func newReports(x *session) *reports {
	return &reports{x: x, taken: make(chan struct{}, 1), pending: map[fleet.ModuleRef]*agentv1.SyncStatus{}, strays: map[fleet.ModuleRef]bool{}}
}

// add takes one status frame. A sync status that does not validate ends the session: the agent is of another make. What
// the cluster was not given is kept of a few modules only.
func (r *reports) add(s *agentv1.Status) error {
	if n := len(s.GetDigest()); n > maxDigestBytes {
		return fleet.Errorf(fleet.ErrInvalid, "cluster %s: status: a digest of %d bytes", r.x.cluster, n)
	}
	refs, syncs := make([]fleet.ModuleRef, len(s.GetSyncs())), make([]*agentv1.SyncStatus, len(s.GetSyncs()))
	for i, st := range s.GetSyncs() {
		var err error
		if refs[i], err = fleet.ParseModuleRef(st.GetModule()); err != nil {
			return fleet.Errorf(fleet.ErrInvalid, "cluster %s: status: %v", r.x.cluster, err)
		}
		if syncs[i], err = checked(st); err != nil {
			return fleet.Errorf(fleet.ErrInvalid, "cluster %s: status of %s: %v", r.x.cluster, refs[i], err)
		}
	}
	var unasked, kept map[fleet.ModuleRef]bool
	if err := r.x.server.o.Store.View(context.Background(), 0, func(rd store.Reader) error {
		unasked, kept = r.unasked(rd, refs)
		return nil
	}); err != nil {
		return fmt.Errorf("cluster %s: status: %w", r.x.cluster, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.GetFullBegin() {
		r.full, r.fullEnd = map[fleet.ModuleRef]bool{}, false
	}
	for i, st := range syncs {
		if unasked[refs[i]] && !r.admit(refs[i], st, kept) {
			continue
		}
		r.bytes += proto.Size(st) - proto.Size(r.pending[refs[i]])
		r.pending[refs[i]] = st
		if r.full != nil {
			r.full[refs[i]] = true
		}
	}
	if len(syncs) == 0 && !s.GetFullBegin() && len(s.GetDigest()) > 0 && bytes.Equal(s.GetDigest(), r.x.hello.GetStatusDigest()) {
		r.stands, r.standing = true, true
	}
	r.fullEnd = r.fullEnd || s.GetFullEnd()
	r.seq, r.digest = max(r.seq, s.GetSequence()), s.GetDigest()
	r.signal()
	return nil
}

// maxPendingBytes is from how many bytes on of reports that wait for their commit no more is read from the agent.
const maxPendingBytes = 4 << 20

// room returns when the reports that wait for their commit are few enough to take more. However long the store takes, an
// agent fills no memory: it waits, too.
func (r *reports) room(ctx context.Context) error {
	defer r.waits.Store(false)
	for {
		r.mu.Lock()
		bytes := r.bytes
		r.mu.Unlock()
		if bytes <= maxPendingBytes {
			return nil
		}
		r.waits.Store(true)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.taken:
		}
	}
}

// ackDelay is how long an acknowledgement waits for the report that follows it, to be committed with it. Nothing rests on
// it but what people see.
const ackDelay = 200 * time.Millisecond

func (r *reports) ack(a *agentv1.Ack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := len(a.GetRefused()) == 0 && a.GetCode() == ""
	r.ackRec = &storev1.AckRecord{Epoch: r.x.epoch, Generation: a.GetGeneration(), Digest: a.GetDigest()[:min(len(a.GetDigest()), maxDigestBytes)], Refused: a.GetRefused(),
		Code: wire.CutText(a.GetCode()), Message: wire.CutText(a.GetMessage())}
	if waits {
		time.AfterFunc(ackDelay, r.signal)
		return
	}
	r.signal()
}

// leave notes that the agent is given nothing any more, and up to which generation it may have been: what was assigned after that
// it never took.
func (r *reports) leave(told uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving {
		return
	}
	r.leaving, r.leaves, r.told = true, true, told
	r.signal()
}

// conditions takes what the agent says of its cluster as a whole. Conditions that do not validate end the session, as a
// status does.
func (r *reports) conditions(in []*agentv1.Condition) error {
	all, err := wire.ConditionsFromProto(in, time.Now())
	if err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "cluster %s: %v", r.x.cluster, err)
	}
	for _, c := range all {
		if c.Type == fleet.ConditionTwoAgents {
			r.x.log.Warn("two processes with the identity of this cluster's agent take turns; stop one of them", "says", c.Message)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conds = &storev1.ConditionsRecord{Conditions: wire.ConditionsToProto(all), Epoch: r.x.epoch}
	r.signal()
	return nil
}

// capabilities takes what charts may ask of the cluster. What does not validate ends the session, as with conditions.
func (r *reports) capabilities(in *agentv1.Capabilities) error {
	all, err := wire.CapabilitiesFromProto(in)
	if err == nil {
		_, err = version.ParseGeneric(all.KubeVersion)
	}
	if err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "cluster %s: %v", r.x.cluster, err)
	}
	sum := &storev1.CapabilitiesSum{Digest: all.Digest().Bytes(), KubernetesVersion: all.KubeVersion, Apis: int32(len(all.APIs))}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.can = &storev1.CapabilitiesRecord{Sum: sum, Apis: in.GetApis(), Epoch: r.x.epoch}
	r.signal()
	return nil
}

// capabilityOps writes the capabilities if they are others than those that the store has.
func (r *reports) capabilityOps(rd store.Reader, can *storev1.CapabilitiesRecord) []store.Op {
	if can == nil || bytes.Equal(record.CapabilitiesSum(rd, r.x.cluster).GetDigest(), can.GetSum().GetDigest()) {
		return nil
	}
	return []store.Op{{Key: store.CapabilityKey(r.x.cluster), Value: can}}
}

func (r *reports) signal() {
	r.committer.call()
}

func (r *reports) takeAck() (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owes = false
	if r.durable <= r.acked {
		return 0, false
	}
	r.acked = r.durable
	return r.acked, true
}

// work is what one commit takes along.
type work struct {
	statuses map[fleet.ModuleRef]*agentv1.SyncStatus
	seq      uint64
	digest   []byte
	ack      *storev1.AckRecord
	told     *storev1.ConditionsRecord
	can      *storev1.CapabilitiesRecord
	full     map[fleet.ModuleRef]bool // set when a full status is complete
	stands   bool                     // the agent has just said that all that it reported before holds still
	leaves   bool                     // the agent is told to leave
}

func (r *reports) take() work {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := work{statuses: r.pending, digest: r.digest, ack: r.ackRec, told: r.conds, can: r.can, stands: r.stands, leaves: r.leaves}
	r.stands, r.leaves = false, false
	if r.seq > r.durable {
		w.seq = r.seq
	}
	r.bytes = 0
	dirty.Poke(r.taken)
	r.pending, r.ackRec = map[fleet.ModuleRef]*agentv1.SyncStatus{}, nil
	r.conds, r.can = nil, nil
	if r.fullEnd {
		w.full, r.full, r.fullEnd = r.full, nil, false
	}
	return w
}

// commitNew is a round of the committer.
func (r *reports) commitNew(ctx context.Context) error {
	if err := r.commit(ctx, r.take()); err != nil {
		return fmt.Errorf("cluster %s: report: %w", r.x.cluster, err)
	}
	return nil
}

func (r *reports) commit(ctx context.Context, w work) error {
	chunks, err := r.ops(ctx, w)
	if err != nil || len(chunks) == 0 {
		return err
	}
	began := r.x.age()
	for _, chunk := range chunks {
		if r.at, err = r.x.server.o.Store.Batch(ctx, r.x.opened.Fence, chunk); err != nil {
			return err
		}
	}
	took := r.x.age() - began
	r.x.server.o.Meter.Reported(took)
	r.x.traceReports(w.statuses, took)
	if w.stands {
		if err := r.tell(ctx); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.durable = max(r.durable, w.seq)
	if w.seq > 0 && !r.owes {
		r.owes = true
		time.AfterFunc(statusAckDelay, func() { r.x.mark(dirtyAck) })
	}
	return nil
}

// tell has everyone look at the cluster again: reports count that did not, though none of them has changed.
func (r *reports) tell(ctx context.Context) error {
	if err := r.x.server.o.Store.View(ctx, r.at, func(store.Reader) error { return nil }); err != nil {
		return err
	}
	r.x.server.changed(r.x.cluster)
	return nil
}

// statusAckDelay is how long the acknowledgement of a report waits for others, or for a frame that goes to the agent
// anyway.
const statusAckDelay = 50 * time.Millisecond

// maxCommitBytes bounds what one batch of the store takes.
const maxCommitBytes = 1 << 20

// cut divides ops into batches that the store takes: reports of failing modules are large.
func cut(ops []store.Op) [][]store.Op {
	var out [][]store.Op
	start, bytes := 0, 0
	for i, op := range ops {
		n := len(op.Key)
		if op.Value != nil {
			n += proto.Size(op.Value)
		}
		if i > start && (i-start == store.MaxOps || bytes+n > maxCommitBytes) {
			out, start, bytes = append(out, ops[start:i]), i, 0
		}
		bytes += n
	}
	if start < len(ops) {
		out = append(out, ops[start:])
	}
	return out
}

// ops are the puts of a commit, the acknowledgement last: it must not be durable before what it stands for. What the session itself
// has committed is in what they are compared with: a commit returns before it can be read. They go in as many batches as they need.
func (r *reports) ops(ctx context.Context, w work) ([][]store.Op, error) {
	var ops []store.Op
	now := time.Now()
	err := r.x.server.o.Store.View(ctx, max(r.at, r.x.opened.Fence.ModRevision), func(rd store.Reader) error {
		ops = append(ops, r.conditionOps(rd, w.told)...)
		ops = append(ops, r.capabilityOps(rd, w.can)...)
		var reported []store.Op
		for ref, st := range w.statuses {
			reported = append(reported, r.observedOp(rd, ref, st, now))
		}
		if w.full != nil {
			reported = append(reported, r.forgotten(rd, w.full)...)
		}
		ops = append(ops, r.bounded(rd, reported)...)
		if w.ack != nil {
			w.ack.Refused = r.refusals(rd, w.ack.GetRefused())
		}
		if r.last == nil {
			r.last = r.before(rd)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	ack := r.nextAck(w)
	if ack == nil {
		return cut(ops), nil
	}
	chunks := cut(append(ops, store.Op{Key: store.AckKey(r.x.cluster), Value: ack}))
	if len(chunks) > 1 && len(r.last.GetStatusDigest()) > 0 {
		chunks = slices.Insert(chunks, 0, []store.Op{{Key: store.AckKey(r.x.cluster), Value: nameless(r.last)}})
	}
	r.last = ack
	return chunks, nil
}

// nameless is an acknowledgement of no status: what is there while a commit is done in part is neither that of before nor the next one,
// and an agent that has come back to the one of before by the time of its next session must not be told that the hub has that.
func nameless(last *storev1.AckRecord) *storev1.AckRecord {
	out := proto.CloneOf(last)
	out.StatusDigest = nil
	return out
}

// before is the acknowledgement that the next one goes on from; nil: there is none that counts.
func (r *reports) before(rd store.Reader) *storev1.AckRecord {
	last, _, _ := store.Get[*storev1.AckRecord](rd, store.AckKey(r.x.cluster))
	s, _, _ := store.Get[*storev1.SessionRecord](rd, store.SessionKey(r.x.cluster))
	if record.Voided(s, last) {
		return nil
	}
	return last
}

// conditionOps writes the conditions if they are others than those that the store has. Most clusters have none, and no
// record.
func (r *reports) conditionOps(rd store.Reader, told *storev1.ConditionsRecord) []store.Op {
	if told == nil {
		return nil
	}
	key := store.ConditionKey(r.x.cluster)
	old, _, ok := store.Get[*storev1.ConditionsRecord](rd, key)
	switch {
	case len(told.GetConditions()) == 0 && !ok:
		return nil
	case len(told.GetConditions()) == 0:
		return []store.Op{{Key: key, Delete: true}}
	case ok && slices.EqualFunc(old.GetConditions(), told.GetConditions(), func(a, b *agentv1.Condition) bool { return proto.Equal(a, b) }):
		return nil
	}
	return []store.Op{{Key: key, Value: told}}
}

func (r *reports) nextAck(w work) *storev1.AckRecord {
	if w.ack == nil && w.seq == 0 && !w.leaves {
		return nil
	}
	ack := w.ack
	if ack == nil {
		l := r.last
		ack = &storev1.AckRecord{Generation: l.GetGeneration(), Digest: l.GetDigest(), Refused: l.GetRefused(), Code: l.GetCode(), Message: l.GetMessage()}
	}
	ack.Epoch = r.x.epoch
	r.mu.Lock()
	if r.standing {
		ack.WordFrom = r.x.opened.KnownFrom
	}
	ack.Leaving, ack.Told = r.leaving, r.told
	ack.Unasked, ack.UnaskedModule, ack.Shortened = r.excess.unasked, r.excess.unaskedModule, r.excess.shortened
	r.mu.Unlock()
	ack.StatusDigest = r.last.GetStatusDigest()
	if w.seq > 0 {
		ack.StatusDigest = w.digest
	}
	if r.lossy {
		ack.StatusDigest = nil
	}
	return ack
}

// observedOp writes the report, or drops the record when the module has left the cluster for good.
func (r *reports) observedOp(rd store.Reader, ref fleet.ModuleRef, st *agentv1.SyncStatus, now time.Time) store.Op {
	key := store.ObservedKey(r.x.cluster, ref)
	_, wanted := rd.Get(store.DesiredKey(r.x.cluster, ref))
	if !wanted && st.GetPhase() == string(fleet.PhaseRemoved) {
		return store.Op{Key: key, Delete: true}
	}
	st.ObservedMillis = 0 // by the agent's clock, which nobody here goes by: without it what clusters report alike is equal
	rec := &storev1.ObservedRecord{Status: st, Epoch: r.x.epoch, Since: now.UnixMilli()}
	old, _, ok := store.Get[*storev1.ObservedRecord](rd, key)
	if ok && sameState(old.GetStatus(), st) {
		rec.Since = old.GetSince()
	}
	rec.Corrections = record.AddCorrections(old, st, now)
	return store.Op{Key: key, Value: rec}
}

// sameState reports that a module stands as it did: what the agent says of it as a whole, and its health and sync, which may change under a
// module that is as ready as before.
func sameState(a, b *agentv1.SyncStatus) bool {
	return a.GetGeneration() == b.GetGeneration() && a.GetPhase() == b.GetPhase() && a.GetReady() == b.GetReady() && a.GetReason() == b.GetReason() &&
		(bytes.Equal(a.GetStates(), b.GetStates()) || shownAs(a) == shownAs(b))
}

// shown is how a module is shown to stand.
type shown struct {
	sync   fleet.SyncState
	health fleet.Health
}

// shownAs is how a report shows a module of which all is wanted that it lists.
func shownAs(st *agentv1.SyncStatus) shown {
	s, err := wire.SyncSummaryFromProto(st)
	if err != nil {
		return shown{}
	}
	want := fleet.Sync{Module: s.Module, Generation: s.Generation, Bundle: s.Bundle, Objects: len(s.States), Watched: len(s.Watched)}
	t := tracker.Fold(tracker.Input{Connected: true, Desired: &want, Observed: &s})
	return shown{t.Sync, t.Health}
}

// forgotten drops what a full status does not list: the agent knows nothing of it, so neither does the hub.
func (r *reports) forgotten(rd store.Reader, listed map[fleet.ModuleRef]bool) []store.Op {
	var ops []store.Op
	store.Scan(rd, store.ObservedPrefix+string(r.x.cluster)+"/", func(_ *storev1.ObservedRecord, e store.Entry) bool {
		if _, ref, ok := store.SplitClusterModule(e.Key); ok && !listed[ref] {
			ops = append(ops, store.Op{Key: e.Key, Delete: true})
		}
		return true
	})
	return ops
}
