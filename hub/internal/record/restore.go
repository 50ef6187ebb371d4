package record

import (
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A store that was restored from a backup stands still: what was under way in the backup may have been stopped since, and a cluster may
// have what came after it. Nothing begins in the clusters before all of them were heard and none is ahead, or a person says that it may.

// SettleHint is what a person can do about it.
const SettleHint = "towline restore show says what for, and towline restore accept or resume has it go on"

// Stands reports that nothing may begin in the clusters now, for the store was restored and that is not settled.
func Stands(r store.Reader) bool {
	rec, _, ok := store.Get[*storev1.Restore](r, store.RestoreKey)
	return ok && rec.GetStands() && settledBy(r) == nil
}

// AcceptedRestore reports that a person has accepted the restore for a cluster, alone or with all.
func AcceptedRestore(r store.Reader, c fleet.ClusterName) bool {
	return wordOn(r, store.AcceptedKey) != nil || wordOn(r, store.AcceptedFor(c)) != nil
}

// settledBy is the word by which all goes on; nil: there is none.
func settledBy(r store.Reader) *storev1.Acceptance {
	for _, key := range []string{store.SettledKey, store.ResumedKey, store.AcceptedKey} {
		if word := wordOn(r, key); word != nil {
			return word
		}
	}
	return nil
}

// wordOn is what is under a key about the last restore; nil: nothing.
func wordOn(r store.Reader, key string) *storev1.Acceptance {
	hub, _, _ := store.Get[*storev1.Hub](r, store.HubKey)
	word, _, ok := store.Get[*storev1.Acceptance](r, key)
	if !ok || word.GetIncarnation() != hub.GetIncarnation() {
		return nil
	}
	return word
}

// Restored is what there is to know of the last restore.
type Restored struct {
	Record *storev1.Restore
	// Accepted is the word that what came after the backup counts no more for any cluster, and Settled the one by which all goes on; nil:
	// there is none.
	Accepted, Settled *storev1.Acceptance
	// Ahead are the clusters that have seen what came after the backup, Unheard those of which that is not known, and Alone those for which
	// alone it is accepted. All are sorted.
	Ahead, Unheard, Alone []string
}

// MarkRestored notes at a time that the store was put back from a backup of the hub as it was. The clock may be behind that by which clusters joined:
// it counts as after all of these.
func MarkRestored(w store.Writer, was *storev1.Hub, now time.Time) {
	store.Scan(store.Untracked(w), store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
		if joined := c.GetJoined(); joined != nil && joined.AsTime().After(now) {
			now = joined.AsTime()
		}
		return true
	})
	w.Put(store.RestoreKey, &storev1.Restore{Incarnation: was.GetIncarnation(), Generation: LastGeneration(w), At: timestamppb.New(now), Stands: true})
}

// ReadRestored reads it; nil: the store was never restored.
func ReadRestored(r store.Reader) *Restored {
	rec, _, ok := store.Get[*storev1.Restore](r, store.RestoreKey)
	if !ok {
		return nil
	}
	out := &Restored{Record: rec, Accepted: wordOn(r, store.AcceptedKey), Settled: settledBy(r)}
	hub, _, _ := store.Get[*storev1.Hub](r, store.HubKey)
	store.Scan(r, store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
		name := c.GetCluster().GetMetadata().GetName()
		s, _, _ := store.Get[*storev1.SessionRecord](r, store.SessionKey(fleet.ClusterName(name)))
		switch placeAfter(restoredAt(rec), hub.GetIncarnation(), c, s) {
		case isAhead:
			out.Ahead = append(out.Ahead, name)
		case isUnheard:
			out.Unheard = append(out.Unheard, name)
		}
		if wordOn(r, store.AcceptedFor(fleet.ClusterName(name))) != nil {
			out.Alone = append(out.Alone, name)
		}
		return true
	})
	for _, list := range [][]string{out.Ahead, out.Unheard, out.Alone} {
		slices.Sort(list)
	}
	return out
}

// Stands is as the function.
func (x *Restored) Stands() bool { return x != nil && x.Record.GetStands() && x.Settled == nil }

// Awaits are the clusters for which it stands: those that are ahead or were not heard, but for those for which a person has accepted that.
func (x *Restored) Awaits() (out []string) {
	for _, name := range slices.Sorted(slices.Values(slices.Concat(x.Ahead, x.Unheard))) {
		if _, accepted := slices.BinarySearch(x.Alone, name); !accepted {
			out = append(out, name)
		}
	}
	return out
}

// restoredAt is when the store was restored. Of a restore that cannot be read nobody is known to have joined after it.
func restoredAt(rec *storev1.Restore) time.Time {
	if rec.GetAt() == nil {
		return time.Unix(math.MaxInt32, 0).AddDate(1000, 0, 0)
	}
	return rec.GetAt().AsTime()
}

// Where a cluster is after a restore.
type after uint8

const (
	// hasFollowed: its agent follows the restored store, or there is none that the backup knows.
	hasFollowed after = iota
	isUnheard
	isAhead
)

// placeAfter says where a cluster is that has the session s, after a restore at a time into the store of the incarnation. Who joins after
// it follows it from the beginning.
func placeAfter(restored time.Time, incarnation string, c *storev1.ClusterRecord, s *storev1.SessionRecord) after {
	switch {
	case c.GetRevoked() || c.GetJoined() == nil:
		return hasFollowed
	case c.GetRegressed() != "":
		return isAhead
	case s.GetFollows() == incarnation, c.GetJoined().AsTime().After(restored):
		return hasFollowed
	}
	return isUnheard
}
