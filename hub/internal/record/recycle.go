package record

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// Parts are the trackers of a module in a cluster by revision; see tracker.Parts.
func (t *Tracked) Parts(rooted int) []tracker.Part {
	t.ListExtras()
	return tracker.Parts(t.Input, t.Revision(), rooted)
}

// LegacyDigest names what the deletion of a part deletes: a person who was shown that orders nothing else. Empty: nothing.
func LegacyDigest(t Tracked, p tracker.Part) string {
	if len(p.Legacy) == 0 {
		return ""
	}
	b := []byte(t.Module.String() + "\x00" + string(t.Cluster) + "\x00" + strconv.FormatInt(p.Revision, 10))
	for _, k := range legacyKeys(p) {
		b = binary.BigEndian.AppendUint64(b, k)
	}
	return fleet.DigestOf(b).String()
}

func legacyKeys(p tracker.Part) []uint64 {
	keys := make([]uint64, len(p.Legacy))
	for i, id := range p.Legacy {
		keys[i] = assemble.HeirKey(id)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// RecycleOrder is the order to delete a part.
func RecycleOrder(p tracker.Part) *storev1.RecycleOrder {
	return &storev1.RecycleOrder{Recycle: &agentv1.Recycle{Revision: p.Revision, Keys: legacyKeys(p)}}
}

// Recycles are the orders to delete trackers of a module in a cluster that stand, by revision.
func Recycles(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) (out []*agentv1.Recycle) {
	rec, _, _ := store.Get[*storev1.RecycleRecord](r, store.RecycleKey(c, ref))
	for _, o := range rec.GetOrders() {
		out = append(out, o.GetRecycle())
	}
	return out
}

// SameRecycles reports that both lists order the same.
func SameRecycles(a, b []*agentv1.Recycle) bool {
	return slices.EqualFunc(a, b, func(x, y *agentv1.Recycle) bool {
		return x.GetRevision() == y.GetRevision() && slices.Equal(x.GetKeys(), y.GetKeys())
	})
}

// Recycled reports that nothing is left to be done for the orders which the cluster was given, or that its agent does not know
// them and so keeps nothing.
func (t *Tracked) Recycled(orders []*agentv1.Recycle, features []string) bool {
	if len(wire.Missing([]string{wire.FeatureKeepLegacy}, features)) > 0 {
		return true
	}
	if s := t.Desired.GetSync(); s == nil || !SameRecycles(s.GetRecycles(), orders) || !t.answered() {
		return false
	}
	t.ListExtras()
	o := t.Input.Observed
	return t.Unlisted() == 0 && !o.MoreExtras && !slices.ContainsFunc(o.Extras, func(x fleet.ExtraObject) bool {
		return x.Reason != plan.ReasonKept && slices.ContainsFunc(orders, func(r *agentv1.Recycle) bool { return names(r, x) })
	})
}

// Unrecycled are the objects that an order names and that stay all the same, by what the agent says of each: another policy keeps them,
// or the order was given before the hub had heard what is there.
func (t *Tracked) Unrecycled(order *agentv1.Recycle) map[string][]fleet.ObjectID {
	if t.Input.Observed == nil {
		return nil
	}
	t.ListExtras()
	out := map[string][]fleet.ObjectID{}
	for _, x := range t.Input.Observed.Extras {
		if x.Reason == plan.ReasonKept && names(order, x) {
			out[x.Message] = append(out[x.Message], x.ID)
		}
	}
	return out
}

// names reports that an object is of those that an order deletes.
func names(order *agentv1.Recycle, x fleet.ExtraObject) bool {
	_, named := slices.BinarySearch(order.GetKeys(), assemble.HeirKey(x.ID))
	return named && order.GetRevision() == x.Revision
}

// answered reports that the agent has said how the sync stands that it is to have, whatever came of it.
func (t *Tracked) answered() bool {
	s, o := t.Desired.GetSync(), t.Observed.GetStatus()
	return t.Input.Observed != nil && o.GetGeneration() == s.GetGeneration() && bytes.Equal(o.GetBundle(), s.GetBundle())
}
