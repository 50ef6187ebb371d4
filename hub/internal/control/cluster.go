package control

import (
	"context"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// reconcileCluster has a cluster's hold stand where its session reads it, and forgets a cluster that is to leave the fleet once its agent has confirmed, or at once if it never had
// one or a person forces it. The record of the cluster goes last, so that a crash in between is finished later.
func (c *Controller) reconcileCluster(ctx context.Context, name fleet.ClusterName) error {
	if err := c.holdCluster(ctx, name); err != nil {
		return err
	}
	done, leaving := false, false
	// Before the look: a report that comes after it must bring us here again.
	c.mu.Lock()
	c.leaving[name] = true
	c.mu.Unlock()
	err := c.view(ctx, func(r store.Reader) error {
		rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
		leaving = ok && rec.GetRemoving() != ""
		done = leaving && mayBeForgotten(r, name, rec)
		return nil
	})
	if err == nil && done {
		done, err = c.forgetCluster(ctx, name)
	}
	c.mu.Lock()
	if !leaving || done {
		delete(c.leaving, name)
	}
	c.mu.Unlock()
	if err != nil || !done {
		return err
	}
	c.o.Log.Info("cluster forgotten", "cluster", name)
	c.touchCluster(name)
	return nil
}

// mayBeForgotten reports that nobody waits any more for the agent of a cluster that is to leave.
func mayBeForgotten(r store.Reader, name fleet.ClusterName, rec *storev1.ClusterRecord) bool {
	return rec.GetRevoked() || rec.GetJoined() == nil || leftFleet(r, name)
}

// forgetCluster deletes all that is stored of a cluster that may be forgotten, as of each commit: what another part of the hub writes of it in that
// moment would be of the next cluster of the name.
func (c *Controller) forgetCluster(ctx context.Context, name fleet.ClusterName) (forgotten bool, err error) {
	own := []string{store.SessionKey(name), store.AckKey(name), store.ConditionKey(name), store.CapabilityKey(name), store.FloorKey(name), store.AcceptedFor(name), store.ClusterKey(name)}
	for more := true; more && err == nil; {
		err = c.update(ctx, func(w store.Writer) error {
			for _, k := range append(own, store.HeldKey) {
				if store.DamageOf(w, k) == nil {
					w.Get(k)
				}
			}
			rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(w), store.ClusterKey(name))
			more, forgotten = false, ok && rec.GetRemoving() != "" && mayBeForgotten(store.Untracked(w), name, rec)
			if !forgotten {
				return nil
			}
			keys := append(keysOfCluster(w, name), own...)
			more = len(keys) > store.MaxOps
			for _, k := range keys[:min(len(keys), store.MaxOps)] {
				w.Delete(k)
			}
			return nil
		})
	}
	return forgotten, err
}

// keysOfCluster are those of what is stored of a cluster beside what each has one of.
func keysOfCluster(r store.Reader, name fleet.ClusterName) (keys []string) {
	for _, prefix := range []string{store.DesiredPrefix, store.ObservedPrefix, store.RecyclePrefix} {
		r.Scan(prefix+string(name)+"/", func(e store.Entry) bool {
			keys = append(keys, e.Key)
			return true
		})
	}
	keys = append(keys, record.HoldKeys(r, func(h *towlinev1.Hold) bool { return h.GetCluster() == string(name) })...) // they must not freeze another cluster of that name
	store.Scan(r, store.TokenPrefix, func(t *storev1.TokenRecord, e store.Entry) bool {
		if t.GetToken().GetCluster() == string(name) {
			keys = append(keys, e.Key)
		}
		return true
	})
	return keys
}

// leftFleet reports that the agent has confirmed for every module that it is removed or let go. What it says it has counts,
// whether it was given that or not: a module that it kept from another store of the hub is in the cluster, too.
func leftFleet(r store.Reader, name fleet.ClusterName) bool {
	ack, _, _ := store.Get[*storev1.AckRecord](r, store.AckKey(name))
	session, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(name))
	place := record.At(r, name, true)
	for _, ref := range record.ModulesOf(r, name) {
		t, _ := place.Track(ref)
		generation := given(t.Desired, ack, session)
		switch {
		case generation == 0, t.Observed == nil && untaken(t.Desired, ack, session, ref):
		case t.Observed == nil, earlier(t.Observed.GetStatus().GetGeneration(), generation, ack, ref):
			return false
		}
	}
	left := true
	store.Scan(r, store.ObservedPrefix+string(name)+"/", func(o *storev1.ObservedRecord, _ store.Entry) bool {
		left = o.GetStatus().GetPhase() == string(fleet.PhaseRemoved) || place.Void(o)
		return left
	})
	return left
}

// given is the generation of the newest word of the module that the agent may have been given, as far as is known; 0: it was given
// none. What could not be made it was not given, nor what came only after it was told to leave. Where that took the place of what
// came before, it may have that.
func given(d *storev1.DesiredRecord, ack *storev1.AckRecord, s *storev1.SessionRecord) uint64 {
	generation, told := record.GivenGeneration(d), ack.GetTold()
	switch {
	case record.Damaged(d), !ack.GetLeaving(), ack.GetEpoch() != s.GetEpoch(), generation <= max(told, ack.GetGeneration()):
		return generation
	case told == 0 || d.GetFirstGeneration() > told: // of an agent that has lost what it was given, told is what it was given since
		return 0
	}
	return max(d.GetFirstGeneration(), 1)
}

// untaken reports that the cluster never had a module of which there is no report: its agent, which was told to leave, has refused what it
// was given of it. Of what it had taken before it would have reported, as of others.
func untaken(d *storev1.DesiredRecord, ack *storev1.AckRecord, s *storev1.SessionRecord, ref fleet.ModuleRef) bool {
	last := record.GivenGeneration(d)
	switch {
	case !ack.GetLeaving(), ack.GetEpoch() != s.GetEpoch(), len(ack.GetStatusDigest()) == 0:
		return false
	case refused(ack, ref, last):
		return true
	}
	// The last word it was not given any more, and it has answered all that it was.
	return last > max(ack.GetTold(), ack.GetGeneration()) && ack.GetGeneration() >= ack.GetTold() &&
		slices.ContainsFunc(ack.GetRefused(), func(x *agentv1.Refusal) bool { return x.GetModule() == ref.String() })
}

// earlier reports that a module which is Removed was removed for an earlier word than the agent was given since, so that it
// may be there again. An agent that has lost what it was given knows no generation, and lets go of all that it finds.
func earlier(removed, given uint64, ack *storev1.AckRecord, ref fleet.ModuleRef) bool {
	if removed == 0 || removed >= given {
		return false
	}
	return !refused(ack, ref, given)
}

// refused reports that the agent did not take what it was given of the module.
func refused(ack *storev1.AckRecord, ref fleet.ModuleRef, generation uint64) bool {
	return slices.ContainsFunc(ack.GetRefused(), func(x *agentv1.Refusal) bool {
		return x.GetModule() == ref.String() && x.GetGeneration() == generation
	})
}
