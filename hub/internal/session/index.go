package session

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// maxStatusBytes bounds a status frame; it leaves room below gRPC's limit of 4 MiB.
const maxStatusBytes = 1 << 20

// snapshot is what the store says about the cluster at one revision.
type snapshot struct {
	cluster    *storev1.ClusterRecord
	session    *storev1.SessionRecord
	ack        *storev1.AckRecord
	hub        *storev1.Hub // with the starts of all hubs of the store up to now
	generation uint64       // the last one given in the fleet
	target     target
	restore    *storev1.Restore // of a session with an agent that follows another store of this hub, as is accepted
	accepted   bool
	stands     bool // nothing begins to leave the cluster, for the store was restored
	// capabilities is the digest of those that are known of the cluster.
	capabilities []byte
	// held are modules that holds stop in a cluster that leaves, and that target lacks, for their records cannot be read.
	held []fleet.ModuleRef
}

func (x *session) snapshot(ctx context.Context) (snapshot, error) {
	var sn snapshot
	now := time.Now()
	x.unread.Store(true) // until it is known that nothing is: a hold that this view does not have yet has it look again
	err := x.server.o.Store.View(ctx, 0, func(r store.Reader) error {
		sn.cluster = x.server.clusterRecord(r, x.cluster)
		sn.session, _, _ = store.Get[*storev1.SessionRecord](r, store.SessionKey(x.cluster))
		sn.ack, _, _ = store.Get[*storev1.AckRecord](r, store.AckKey(x.cluster))
		sn.hub = x.server.hub(r)
		sn.capabilities = record.CapabilitiesSum(r, x.cluster).GetDigest()
		sn.generation = record.LastGeneration(r)
		if x.elsewhere() {
			sn.restore, _, _ = store.Get[*storev1.Restore](r, store.RestoreKey)
			sn.accepted = record.AcceptedRestore(r, x.cluster)
		}
		f, _, _ := store.Get[*storev1.FloorRecord](r, store.FloorKey(x.cluster))
		x.known.given = sn.generation
		sn.stands = record.Stands(r)
		x.known.keep(sn.stands)
		x.known.follow(r, x.cluster, &x.server.changes)
		x.tellsAll.Store(!x.known.spares())
		floor := f.GetGeneration()
		if record.DamagedFloor(f) {
			floor = sn.generation // it was no higher
		}
		sn.target = x.known.as(f.GetHold(), floor)
		unread := x.known.unread()
		x.unread.Store(len(unread) > 0)
		if len(unread) > 0 && sn.cluster.GetRemoving() != "" {
			holds := record.ReadHolds(r, now)
			sn.held = slices.DeleteFunc(unread, func(ref fleet.ModuleRef) bool { return !holds.StopsRemoval(ref, x.cluster, true) })
		}
		return nil
	})
	return sn, err
}

// welcome answers the hello, and returns where the session stands then. An agent that has seen a newer store than ours is
// told nothing more, so that it keeps what it has, until a person looked (RELIABILITY §4.3).
func (x *session) welcome(ctx context.Context, st stream) (machine, error) {
	sn, err := x.snapshot(ctx)
	if err != nil {
		return machine{}, err
	}
	h := x.hello
	succeeds, why := x.succession(sn)
	if succeeds != "" {
		if err := x.server.o.Registry.Continued(ctx, x.cluster, x.opened); err != nil {
			return machine{}, err
		}
	} else if why == "" {
		why = x.regression(sn)
	}
	if why != "" && sn.cluster.GetRegressed() == "" {
		x.log.Warn("hub regressed", "agent_generation", h.GetGeneration(), "hub_generation", sn.generation, "because", why)
		if x.opened.Fence, err = x.server.o.Registry.Regressed(ctx, x.cluster, x.opened, why); err != nil {
			return machine{}, err
		}
	}
	hub := sn.hub
	w := &agentv1.Welcome{Epoch: x.epoch, HubId: hub.GetHubId(), Incarnation: hub.GetIncarnation(), Protocol: protocolLevel,
		Boot: bootOf(hub), Regressed: mendable(why, x.cluster, sn.restore != nil), Succeeds: succeeds,
		HeartbeatMillis: uint32(x.server.o.Heartbeat.Milliseconds()), MaxStatusBytes: maxStatusBytes,
		ReconnectSpreadMillis: uint32(x.server.o.ReconnectSpread.Milliseconds()), StatusKnown: x.opened.KnownFrom > 0}
	if x.server.o.CAs != nil {
		w.Ca = x.server.o.CAs()
	}
	if x.server.o.Hubs != nil {
		w.Hubs = x.server.o.Hubs()
	}
	w.TakesCapabilities, w.Capabilities = true, sn.capabilities
	if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Welcome{Welcome: w}}); err != nil {
		return machine{}, err
	}
	if why != "" || succeeds != "" {
		return machine{phase: regressed}, nil
	}
	if h.GetHubId() != hub.GetHubId() || h.GetIncarnation() != hub.GetIncarnation() {
		return machine{fresh: h.GetGeneration() == 0}, nil
	}
	held, err := fleet.DigestFromBytes(h.GetDigest())
	if err != nil {
		return machine{}, fleet.Errorf(fleet.ErrInvalid, "cluster %s: hello: %v", x.cluster, err)
	}
	if x.traces != nil {
		x.traces.told = h.GetGeneration()
	}
	m := begin(h.GetGeneration(), held, sn.target)
	if m.phase == settled {
		x.grants.add(sn.target)
		x.owned(sn.ack)
	}
	return m, nil
}

// owned notes that the agent has all that it should have, if what it answered last was lost: it is sent no index now, and answers none.
func (x *session) owned(last *storev1.AckRecord) {
	h := x.hello
	if len(last.GetRefused()) > 0 || last.GetCode() != "" || !bytes.Equal(last.GetDigest(), h.GetDigest()) {
		x.reports.ack(&agentv1.Ack{Epoch: x.epoch, Generation: h.GetGeneration(), Digest: h.GetDigest()})
	}
}

// look gives the machine what the store says now, or ends the session.
func (x *session) look(ctx context.Context) (*frame, error) {
	sn, err := x.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(x.dismissed(sn.cluster), x.superseded(sn.session)); err != nil {
		return nil, err
	}
	switch {
	case x.machine.phase == regressed && sn.accepted:
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cluster %s: the restored store of the hub was accepted; connect again", x.cluster)
	case sn.cluster.GetRemoving() != "" && !sn.stands:
		x.reports.leave(x.machine.told(x.hello.GetGeneration()))
		return x.machine.depart(leaveOf(sn)), nil
	}
	return x.machine.offer(sn.target, x.age()), nil
}

// leaveOf is the order to leave, with what holds say must stay for now.
func leaveOf(sn snapshot) *agentv1.Leave {
	leave := &agentv1.Leave{Objects: sn.cluster.GetRemoving(), Hold: sn.target.assemblage.Hold}
	for _, s := range sn.target.assemblage.Syncs {
		if s.Hold || len(s.Held) > 0 { // of a module of which an object is to stay, nothing goes
			leave.Held = append(leave.Held, s.Module.String())
		}
	}
	for _, t := range sn.target.assemblage.Tombstones {
		if t.Hold {
			leave.Held = append(leave.Held, t.Module.String())
		}
	}
	for _, ref := range sn.held {
		leave.Held = append(leave.Held, ref.String())
	}
	slices.Sort(leave.Held)
	return leave
}

// tell sends a frame of the machine, the contents that go ahead of an index first, or a move, which stands for both.
func (x *session) tell(ctx context.Context, st stream, f *frame) error {
	switch {
	case f == nil:
		return nil
	case f.leave != nil:
		return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Leave{Leave: f.leave}})
	}
	move, err := x.move(ctx, f)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", x.cluster, err)
	}
	if traces := x.traceFrame(ctx, f); traces != nil && slices.Contains(x.hello.GetFeatures(), wire.FeatureTraces) {
		if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Traces{Traces: traces}}); err != nil {
			return err
		}
	}
	if move != nil {
		x.grants.add(f.target)
		return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Move{Move: move}})
	}
	if err := x.sendAhead(ctx, st, f.ahead); err != nil {
		return err
	}
	x.grants.add(f.target)
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_Index{Index: f.index}})
}

// acked takes the agent's answer, which may be what the next index waits for.
func (x *session) acked(a *agentv1.Ack) {
	if d, err := fleet.DigestFromBytes(a.GetDigest()); err == nil {
		x.mu.Lock()
		x.replied = &answer{digest: d, whole: a.GetCode() == "" && len(a.GetRefused()) == 0, refused: a.GetCode() != ""}
		x.mu.Unlock()
		x.mark(dirtyAnswer)
	}
	x.reports.ack(a)
}

// takeAnswer is the newest one that the machine has not seen.
func (x *session) takeAnswer() (answer, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := x.replied
	x.replied = nil
	if a == nil {
		return answer{}, false
	}
	return *a, true
}
