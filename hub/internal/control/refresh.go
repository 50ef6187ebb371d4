package control

import (
	"context"
	"maps"
	"slices"

	"encoding/hex"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// refresh is a change of an assigned sync that no rollout makes: a label that a binding reads, a hold, a confirm.
type refresh struct {
	cluster    fleet.ClusterName
	generation uint64 // of the sync that was looked at
	values     map[string]string
	hold       bool
	prune      bool
}

func (c *Controller) refreshed(r store.Reader, t record.Tracked, cluster fleet.Cluster, holds record.Holds, cache map[int64]*wire.Module) (refresh, bool) {
	s := t.Desired.GetSync()
	if s == nil {
		return refresh{}, false
	}
	x := refresh{cluster: cluster.Name, generation: s.GetGeneration(), values: s.GetValues(), hold: holds.Frozen(t.Module, cluster.Name), prune: s.GetPruneConfirmed() || pruneConfirmed(r, t)}
	// The last good sync below a problem keeps its values, but a freeze holds for it too.
	if m := revisionModule(r, t.Module, s.GetRevision(), cache); m != nil && t.Desired.GetProblem() == "" {
		// A value that is lost now does not take the good one away.
		if v, err := assemble.Values(m.Bindings, cluster); err == nil {
			x.values = v
		}
	}
	changed := !maps.Equal(x.values, s.GetValues()) || x.hold != s.GetHold() || x.prune != s.GetPruneConfirmed()
	return x, changed
}

func revisionModule(r store.Reader, ref fleet.ModuleRef, number int64, cache map[int64]*wire.Module) *wire.Module {
	if m, ok := cache[number]; ok {
		return m
	}
	var m *wire.Module
	if rev, _, ok := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(ref, number)); ok && len(rev.GetRevision().GetSpec().GetBindings()) > 0 {
		if v, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev)); err == nil {
			m = v
		}
	}
	cache[number] = m
	return m
}

// refresh gives the changed syncs a new generation, one for each transaction.
func (c *Controller) refresh(ctx context.Context, ref fleet.ModuleRef, list []refresh) error {
	for chunk := range slices.Chunk(list, batchClusters) {
		err := c.update(ctx, func(w store.Writer) error {
			var generation uint64
			for _, x := range chunk {
				key := store.DesiredKey(x.cluster, ref)
				old, _, ok := store.Get[*storev1.DesiredRecord](w, key)
				if !ok || old.GetSync().GetGeneration() != x.generation {
					continue // assigned anew meanwhile, and looked at again
				}
				if generation == 0 {
					generation = nextGeneration(w)
				}
				next := proto.CloneOf(old)
				next.Sync.Generation, next.Sync.Values, next.Sync.Hold, next.Sync.PruneConfirmed = generation, x.values, x.hold, x.prune
				w.Put(key, next)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pruneHold is the wait for a person that an agent asks for; nil: it asks for none.
func pruneHold(t record.Tracked) *storev1.HoldRecord {
	o := t.Input.Observed
	if o == nil || !t.Tracker.Current || len(o.PruneHold) == 0 || t.Desired.GetSync().GetPruneConfirmed() {
		return nil
	}
	h := &towlinev1.Hold{Kind: record.HoldConfirm, Project: t.Module.Project, Module: t.Module.Name, Cluster: string(t.Cluster),
		Reason: "the new revision drops more than half of the module's objects", Items: o.PruneHold, By: "agent of " + string(t.Cluster),
		Since: timestamppb.New(t.Tracker.Since)}
	d := pruneDigest(t, o.PruneHold)
	h.Digest, h.Id = d.String(), "prune-"+hex.EncodeToString(d[:4])
	return &storev1.HoldRecord{Hold: h, Generation: t.Generation()}
}

func pruneDigest(t record.Tracked, items []string) fleet.Digest {
	b := []byte(t.Module.String() + "\x00" + string(t.Cluster) + "\x00" + hex.EncodeToString(t.Desired.GetSync().GetBundle()))
	for _, i := range items {
		b = append(append(b, 0), i...)
	}
	return fleet.DigestOf(b)
}

// pruneConfirmed reports that a person released exactly the list that the agent now waits with.
func pruneConfirmed(r store.Reader, t record.Tracked) bool {
	h := pruneHold(t)
	if h == nil {
		return false
	}
	rec, _, ok := store.Get[*storev1.HoldRecord](r, store.HoldPrefix+h.GetHold().GetId())
	return ok && rec.GetConfirmed() && rec.GetHold().GetDigest() == h.GetHold().GetDigest()
}

// putHolds brings the Confirm holds of the clusters that were looked at in line with what their agents wait for.
func (c *Controller) putHolds(ctx context.Context, ref fleet.ModuleRef, want []*storev1.HoldRecord, dirty map[fleet.ClusterName]struct{}, all bool) error {
	puts := map[string]proto.Message{}
	for _, h := range want {
		puts[store.HoldPrefix+h.GetHold().GetId()] = h
	}
	err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
			x := h.GetHold()
			if x.GetKind() != record.HoldConfirm || record.HoldModule(x) != ref.String() || x.GetCluster() == "" {
				return true
			}
			if _, wanted := puts[e.Key]; wanted {
				delete(puts, e.Key)
				return true
			}
			if _, looked := dirty[fleet.ClusterName(x.GetCluster())]; !looked && !all {
				return true
			}
			puts[e.Key] = nil
			return true
		})
		return nil
	})
	if err != nil || len(puts) == 0 {
		return err
	}
	return c.write(ctx, puts)
}

// rolloutHolds brings the Confirm holds of a rollout in line with what its decision asks for.
func (c *Controller) rolloutHolds(ctx context.Context, run *record.Run, holds []rollout.Hold) error {
	puts := map[string]proto.Message{}
	for _, h := range holds {
		puts[store.HoldPrefix+h.ID] = &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: h.ID, Kind: record.HoldConfirm, Project: run.Module.Project,
			Module: run.Module.Name, Reason: h.Reason, Items: h.Items, Digest: h.Digest.String(), By: run.Plan.ID.String(), Since: timestamppb.New(h.Since)}}
	}
	err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
			x := h.GetHold()
			if x.GetKind() != record.HoldConfirm || record.HoldModule(x) != run.Module.String() || x.GetCluster() != "" {
				return true
			}
			if _, wanted := puts[e.Key]; wanted {
				delete(puts, e.Key)
			} else if !h.GetConfirmed() {
				puts[e.Key] = nil
			}
			return true
		})
		return nil
	})
	if err != nil || len(puts) == 0 {
		return err
	}
	return c.write(ctx, puts)
}

// startAgain makes a new rollout of a revision on a person's word, in the transaction that answers that word.
func startAgain(w store.Writer, run *record.Run, s rollout.Start) {
	m, _, ok := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(run.Module))
	if !ok || m.GetDeleting() != "" || m.GetLastRollout() != run.Number {
		return
	}
	next := proto.CloneOf(m)
	next.LastRollout++
	id := fleet.RolloutID{Module: run.Module, Number: next.LastRollout}
	old := run.Record.GetRollout()
	ro := &towlinev1.Rollout{ApiVersion: fleet.APIVersion, Kind: "Rollout", Module: run.Module.Name, Number: next.LastRollout, Id: id.String(),
		Metadata: &towlinev1.Metadata{Name: run.Module.Name + "-" + id.String()[len(run.Module.Display())+1:], Project: run.Module.Project, CreationTimestamp: timestamppb.Now()},
		Revision: s.Revision, FromRevision: lastSucceeded(w, run.Module), ModuleGeneration: old.GetModuleGeneration(), Strategy: old.GetStrategy(),
		Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing), StartedBy: s.By, StartReason: s.Why, Started: timestamppb.Now()}}
	w.Put(store.RolloutKey(run.Module, next.LastRollout), &storev1.RolloutRecord{Rollout: ro})
	w.Put(store.ModuleKey(run.Module), next)
}
