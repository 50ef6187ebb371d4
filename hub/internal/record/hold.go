package record

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Kinds of holds. A Freeze is what somebody said; a Confirm is what the leader asks, and its answer is a record of its own:
// a question and its answer have two writers.
const (
	HoldFreeze  = "Freeze"
	HoldConfirm = "Confirm"
)

// FreezeID begins the id of every freeze, and of no other hold: store.FreezePrefix says whose those are.
const FreezeID = "freeze-"

// HoldID names a hold by the digest of what it is about, in as many digits as keep any two apart: of one name, the second would
// take the place of the first.
func HoldID(prefix string, d fleet.Digest) string { return prefix + hex.EncodeToString(d[:8]) }

// Lasts reports that a hold has not come to its end.
func Lasts(h *towlinev1.Hold, now time.Time) bool {
	return h.GetUntil() == nil || h.GetUntil().AsTime().After(now)
}

// DigestOfFreeze is over what a freeze is of.
func DigestOfFreeze(h *towlinev1.Hold) fleet.Digest {
	return fleet.DigestOf([]byte(freezeText(h)))
}

// DigestOfFreezeBy is over what a freeze is of, who put it and why.
func DigestOfFreezeBy(h *towlinev1.Hold) fleet.Digest {
	return fleet.DigestOf([]byte(freezeText(h) + "\x00\x00" + h.GetBy() + "\x00" + h.GetReason()))
}

func freezeText(h *towlinev1.Hold) string {
	parts := []string{h.GetKind(), h.GetProject(), h.GetModule(), h.GetCluster()}
	if h.GetObject() != nil {
		id := ObjectOf(h.GetObject())
		parts = append(parts, id.Group, id.Kind, id.Namespace, id.Name)
	}
	return strings.Join(parts, "\x00")
}

// HoldModule is project/name of the hold's module; empty: all modules.
func HoldModule(h *towlinev1.Hold) string {
	if h.GetModule() == "" {
		return ""
	}
	return fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}.String()
}

// Confirmed reports that a person released what the hold lists, and that this is asked still: what was answered another time, such
// as before the question was damaged, says nothing of now.
func Confirmed(r store.Reader, h *towlinev1.Hold) bool {
	if _, asked := r.Get(store.HoldPrefix + h.GetId()); !asked {
		return false
	}
	c, _, ok := store.Get[*storev1.ConfirmRecord](r, store.ConfirmPrefix+h.GetId())
	return ok && c.GetDigest() == h.GetDigest()
}

// EachHold calls fn for all that waits for a person or is frozen: the freezes, and what nobody has confirmed yet.
func EachHold(r store.Reader, fn func(h *towlinev1.Hold, e store.Entry)) {
	plain := store.Untracked(r)
	store.Scan(r, store.HoldPrefix, func(rec *storev1.HoldRecord, e store.Entry) bool {
		if h := rec.GetHold(); !Confirmed(plain, h) {
			fn(h, e)
		}
		return true
	})
}

// HoldKeys are the keys of the holds that fit, each behind that of its answer: what is deleted in this order leaves no answer
// behind that would count for the same question another time.
func HoldKeys(r store.Reader, fits func(*towlinev1.Hold) bool) []string {
	var keys []string
	store.Scan(r, store.HoldPrefix, func(rec *storev1.HoldRecord, e store.Entry) bool {
		if h := rec.GetHold(); fits(h) {
			keys = append(keys, store.ConfirmPrefix+h.GetId(), e.Key)
		}
		return true
	})
	return keys
}

// ConfirmedDigests are the digests of holds that people released.
func ConfirmedDigests(r store.Reader, ref fleet.ModuleRef) []fleet.Digest {
	var out []fleet.Digest
	plain := store.Untracked(r)
	store.Scan(r, store.HoldPrefix, func(rec *storev1.HoldRecord, _ store.Entry) bool {
		if h := rec.GetHold(); HoldModule(h) == ref.String() && Confirmed(plain, h) {
			if d, err := fleet.ParseDigest(h.GetDigest()); err == nil {
				out = append(out, d)
			}
		}
		return true
	})
	return out
}

// Holds says where no writes are wanted.
type Holds struct {
	frozen  map[string]bool
	objects map[string][]fleet.ObjectID // single ones, of a module in a cluster
}

// PutFreeze puts a hold that a person wants.
func PutFreeze(w store.Writer, h *towlinev1.Hold) {
	w.Put(store.HoldPrefix+h.GetId(), &storev1.HoldRecord{Hold: h})
	Count(w, store.HeldKey)
}

// ReadHolds collects the freezes that are in force. What a transaction commits depends on that no other was put since.
func ReadHolds(r store.Reader, now time.Time) Holds {
	r.Get(store.HeldKey)
	h := Holds{frozen: map[string]bool{}, objects: map[string][]fleet.ObjectID{}}
	store.Scan(r, store.FreezePrefix, func(rec *storev1.HoldRecord, _ store.Entry) bool {
		x := rec.GetHold()
		switch {
		case damaged(x):
			h.frozen[unreadable] = true
		case x.GetUntil() != nil && x.GetUntil().AsTime().Before(now):
		case x.GetObject() != nil:
			key := holdKey(HoldModule(x), x.GetCluster())
			h.objects[key] = append(h.objects[key], ObjectOf(x.GetObject()))
		default:
			h.frozen[holdKey(HoldModule(x), x.GetCluster())] = true
		}
		return true
	})
	return h
}

func holdKey(module, cluster string) string { return module + "@" + cluster }

// None reports that nothing is frozen anywhere, single objects aside.
func (h Holds) None() bool { return len(h.frozen) == 0 }

// Frozen reports whether nothing may be written for the module in the cluster.
func (h Holds) Frozen(ref fleet.ModuleRef, c fleet.ClusterName) bool {
	if len(h.frozen) == 0 {
		return false
	}
	return h.frozen[holdKey(ref.String(), "")] || h.frozen[holdKey("", string(c))] || h.frozen[holdKey(ref.String(), string(c))]
}

// ObjectOf is the identity of an object that is referred to.
func ObjectOf(o *towlinev1.ObjectReference) fleet.ObjectID {
	id := fleet.ObjectID{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	id.Group, _ = fleet.SplitAPIVersion(o.GetApiVersion())
	return id
}

// Objects are the keys of the module's objects in the cluster that nothing may be written to, though others may be written. While a
// freeze cannot be read, those that were held stay so.
func (h Holds) Objects(ref fleet.ModuleRef, c fleet.ClusterName, was []uint64) []uint64 {
	var keys []uint64
	if len(h.objects) > 0 {
		keys = assemble.HeldKeys(h.objects[holdKey(ref.String(), string(c))])
	}
	if h.frozen[unreadable] {
		keys = append(slices.Clone(was), keys...)
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	return keys
}

// Stops reports that the module, or an object of it, is held in the cluster: a rollout passes it by, and a removal waits.
func (h Holds) Stops(ref fleet.ModuleRef, c fleet.ClusterName) bool {
	return h.Frozen(ref, c) || len(h.objects) > 0 && len(h.objects[holdKey(ref.String(), string(c))]) > 0
}

// KeepsBack reports that a rollout gives a cluster nothing new of the module for now: people hold something of it, its agent writes nothing there,
// or annotations on objects hold these, also as last heard: that an agent is away ends nobody's hold.
func (h Holds) KeepsBack(r store.Reader, ref fleet.ModuleRef, c fleet.ClusterName) bool {
	place := At(r, c, false)
	t, _ := place.Track(ref)
	return h.keepsBack(place, ref, t)
}

func (h Holds) keepsBack(place *Place, ref fleet.ModuleRef, t Tracked) bool {
	return h.Stops(ref, place.cluster) || place.frozen() || len(t.HeldThere()) > 0
}

// StopsRemoval is Stops for a removal that is stopped already or not.
func (h Holds) StopsRemoval(ref fleet.ModuleRef, c fleet.ClusterName, was bool) bool {
	return h.Stops(ref, c) || was && h.frozen[unreadable]
}

// Freezes is Frozen for what is frozen already or not: while a freeze cannot be read, what was frozen stays so.
func (h Holds) Freezes(ref fleet.ModuleRef, c fleet.ClusterName, was bool) bool {
	return h.Frozen(ref, c) || was && h.frozen[unreadable]
}
