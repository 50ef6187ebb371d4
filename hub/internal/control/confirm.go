package control

import (
	"context"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// pruneHold is the wait for a person that an agent asks for; nil: it asks for none.
func pruneHold(t record.Tracked) *storev1.HoldRecord {
	o := t.Input.Observed
	if o == nil || !t.Tracker.Current || o.Waiting() == 0 {
		return nil
	}
	t.ListExtras()
	names := t.Input.Observed.Held()
	items := fleet.AndMore(names, o.Waiting())
	h := &towlinev1.Hold{Kind: record.HoldConfirm, Project: t.Module.Project, Module: t.Module.Name, Cluster: string(t.Cluster),
		Code: fleet.HoldDrops, Count: int32(o.Waiting()), By: "agent of " + string(t.Cluster),
		Since: timestamppb.New(t.Input.Since)} // of the wait, also while the cluster is away
	d := pruneDigest(t, items)
	h.Digest, h.Id = d.String(), record.HoldID("prune-", d)
	h.Items = fitItems(names, o.Waiting())
	return &storev1.HoldRecord{Hold: h}
}

func pruneDigest(t record.Tracked, items []string) fleet.Digest {
	b := []byte(t.Module.String() + "\x00" + string(t.Cluster) + "\x00" + hex.EncodeToString(t.Desired.GetSync().GetBundle()))
	for _, i := range items {
		b = append(append(b, 0), i...)
	}
	return fleet.DigestOf(b)
}

// pruneConfirmed reports that a person released exactly the list that the agent now waits with, or the one that it waited
// with last, and which objects are on it, as far as that is known. An agent that waits though its sync is confirmed has found something that
// was not on that list: it is asked for anew.
func pruneConfirmed(r store.Reader, t record.Tracked) (confirmed bool, shown []uint64) {
	s, h := t.Desired.GetSync(), pruneHold(t)
	switch {
	case s.GetPruneConfirmed() && h == nil:
		return true, s.GetPruneShown()
	case s.GetPruneConfirmed(), h == nil, !record.Confirmed(r, h.GetHold()):
		return false, nil
	}
	return true, shownOf(t)
}

// shownOf are the objects on the list that an agent waits with, which may have grown there when the answer comes. Of a list that is cut the
// person was told how many more there are, and they are in his word: it has no list then.
func shownOf(t record.Tracked) []uint64 {
	t.ListExtras()
	o := t.Input.Observed
	var keys []uint64
	for _, x := range o.Extras {
		if x.Held {
			keys = append(keys, assemble.HeirKey(x.ID))
		}
	}
	if len(keys) < o.Waiting() {
		return nil
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// lapses reports that what a person let go is not all that goes now: what waited for an heir was on no list, and of the heirs that the module
// is to be told now nobody is to have some of it, who does not have it by now (taken). Nobody can tell that of what is not listed.
func lapses(t record.Tracked, heirs []*agentv1.Heir, taken func(fleet.ObjectID) bool) bool {
	if len(record.HeirsOf(t.Desired)) == 0 {
		return false
	}
	now, err := wire.HeirsFromProto(heirs)
	t.ListExtras()
	o := t.Input.Observed
	if err != nil || o == nil || o.MoreExtras || t.Unlisted() > 0 {
		return true
	}
	return slices.ContainsFunc(o.Extras, func(x fleet.ExtraObject) bool {
		_, promised := assemble.HeirOf(now, x.ID)
		return x.Reason == plan.ReasonAwaitingHeir && !promised && !taken(x.ID)
	})
}

// unsaid reports that nobody can tell now whether an agent still waits with what it was asked about last: its sync has another generation of the
// same bundle, of which it has not told yet, or it has just started and has not looked yet at what goes. The question stands meanwhile, with a
// person's answer: that counts if the list is the same, and ends with the question if it is not.
func unsaid(t record.Tracked) bool {
	o, s := t.Input.Observed, t.Desired.GetSync()
	if o == nil || s == nil || t.Input.Regressed || s.GetPruneConfirmed() {
		return false
	}
	if t.Tracker.Current {
		t.ListExtras()
		return o.Waiting() == 0 && slices.ContainsFunc(t.Input.Observed.Extras, func(x fleet.ExtraObject) bool { return x.Reason == plan.ReasonAwaitingApply })
	}
	return o.Waiting() > 0 && o.Phase != fleet.PhaseStray && o.Bundle == record.Digest(s.GetBundle())
}

// putHolds brings the Confirm holds of the clusters that were looked at in line with what their agents wait for, but for those that have not
// said it yet. Of a list that is cut nobody could tell whether the next one is the same: it ends at once.
func (c *Controller) putHolds(ctx context.Context, ref fleet.ModuleRef, want []*storev1.HoldRecord, dirty map[fleet.ClusterName]struct{}, all bool, unsaid map[fleet.ClusterName]bool) error {
	return c.alignHolds(ctx, ref, want, func(h *storev1.HoldRecord) bool {
		cluster := h.GetHold().GetCluster()
		_, looked := dirty[fleet.ClusterName(cluster)]
		return cluster != "" && (looked || all) && (!unsaid[fleet.ClusterName(cluster)] || isCut(h.GetHold()))
	})
}

// isCut reports that what a question lists is not all that it is about.
func isCut(h *towlinev1.Hold) bool {
	items := h.GetItems()
	n := len(items)
	return n > 0 && slices.Equal(items, fleet.AndMore(slices.Clip(items[:n-1]), int(h.GetCount())))
}

// holdRecords are the holds that a decision asks for.
func holdRecords(run *rollouts.Run, holds []rollout.Hold) []*storev1.HoldRecord {
	want := make([]*storev1.HoldRecord, len(holds))
	for i, h := range holds {
		want[i] = &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: h.ID, Kind: record.HoldConfirm, Project: run.Module.Project,
			Module: run.Module.Name, Code: fleet.HoldLeaves, Items: h.Items, Digest: h.Digest.String(), By: run.Plan.ID.String(), Since: timestamppb.New(h.Since)}}
	}
	return want
}

// rolloutHolds brings the Confirm holds of a module's rollouts in line with what is asked for. One that was confirmed is in the
// decision's state, and says nothing of what is to be confirmed later.
func (c *Controller) rolloutHolds(ctx context.Context, ref fleet.ModuleRef, want []*storev1.HoldRecord) error {
	return c.alignHolds(ctx, ref, want, func(h *storev1.HoldRecord) bool {
		return h.GetHold().GetCluster() == ""
	})
}

// alignHolds asks of a module what is not asked yet, and ends what nobody wants to know any more. Nothing is answered of what is
// asked anew.
func (c *Controller) alignHolds(ctx context.Context, ref fleet.ModuleRef, want []*storev1.HoldRecord, ends func(*storev1.HoldRecord) bool) error {
	puts := map[string]proto.Message{}
	for _, h := range want {
		id := h.GetHold().GetId()
		puts[store.HoldPrefix+id], puts[store.ConfirmPrefix+id] = h, nil
	}
	err := c.view(ctx, func(r store.Reader) error {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
			if h.GetHold().GetKind() != record.HoldConfirm || record.HoldModule(h.GetHold()) != ref.String() {
				return true
			}
			answer := store.ConfirmPrefix + h.GetHold().GetId()
			if _, wanted := puts[e.Key]; wanted {
				delete(puts, e.Key)
				delete(puts, answer)
			} else if ends(h) {
				puts[e.Key], puts[answer] = nil, nil
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
