package watch

import (
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Lost is a write of ours that the API server had answered and does not have any more.
type Lost struct {
	ID  fleet.ObjectID
	UID string
	// Version is what the object has now.
	Version uint64
}

// begin says that a list is about to be read. What is answered from now on may be newer than what it shows.
func (k *kind) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since, k.elsewhere, k.due, k.begun = map[Key]*Fingerprint{}, map[Key]bool{}, time.Time{}, time.Now()
	for _, f := range k.flying {
		f.listing = false
	}
}

// note keeps for the list that is being read, if one is, what was heard meanwhile. Answers may be heard in another order than they were given.
func (k *kind) note(f *Fingerprint) {
	if k.since != nil && !k.since[f.Key()].outdoes(f) {
		k.since[f.Key()] = f
	}
}

// wroteElsewhere says that a write of an object in another version of its kind was answered: a list that is being read need not show it.
func (k *kind) wroteElsewhere(at Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.elsewhere != nil {
		k.elsewhere[at] = true
	}
}

// outdoes reports that g, of the same object, says nothing that f does not. f may be nil.
func (f *Fingerprint) outdoes(g *Fingerprint) bool {
	return f == g || f != nil && g.Version != 0 && (f.Version > g.Version || f.Version == g.Version && f.Paths != nil && g.Paths == nil)
}

// Replace takes a complete list of the reflector. It is what there is, whatever versions were seen before: those of a
// store that was restored from an older copy are lower. Only what was heard since the list began can be newer.
func (k *kind) Replace(list []any, version string) error {
	asOf := apply.ParseVersion(version)
	k.mu.Lock()
	first, old, since, elsewhere := !k.synced, k.prints, k.since, k.elsewhere
	k.prints, k.since, k.elsewhere, k.synced = make(map[Key]*Fingerprint, len(list)), nil, nil, true
	clear(k.buried)
	clear(k.answers) // an event of the same number may be another write's by now
	var changed []*Fingerprint
	var lost []Lost
	for _, obj := range list {
		i, ok := obj.(*item)
		if !ok || i.print == nil {
			continue
		}
		f, at := i.print, i.print.Key()
		if s := since[at]; s != nil && s.Version >= f.Version && !s.disproved(f) {
			k.prints[at] = latest(old[at], s)
			continue
		}
		if f.lost && !elsewhere[at] {
			lost = append(lost, Lost{k.id(at), f.UID, f.Version})
		}
		f.stillSays(old[at])
		if was := old[at]; was != nil && was.same(f) {
			k.prints[at] = was
			continue
		}
		k.place(f)
		changed = append(changed, f)
	}
	for at, s := range since {
		if k.prints[at] == nil && (s.Version > asOf || asOf == 0) {
			k.prints[at] = latest(old[at], s)
		}
	}
	for at, f := range old {
		if k.prints[at] != nil {
			continue
		}
		changed = append(changed, f)
		if f.Outcome != plan.Running { // else nobody saw how it went
			k.gone(f)
		}
	}
	k.dropGone(asOf)
	back := asOf != 0 && asOf < k.asOf
	k.asOf, k.listed = asOf, time.Now()
	if !k.begun.IsZero() {
		k.took = k.listed.Sub(k.begun)
	}
	k.mu.Unlock()
	k.sees()
	if back || len(lost) > 0 {
		k.w.o.WentBack(k.resource, lost)
	}
	k.tell(first, changed)
	return nil
}

func (k *kind) tell(first bool, changed []*Fingerprint) {
	if first {
		k.w.o.Synced(k.resource)
		return // everybody looks at everything
	}
	for _, f := range changed {
		k.w.o.Changed(k.id(f.Key()), f.Owner)
	}
}

// latest is an answer as it is now: its health may have changed with time alone.
func latest(now, answer *Fingerprint) *Fingerprint {
	if now != nil && now.Version == answer.Version && now.UID == answer.UID {
		return now
	}
	return answer
}

// disproved reports that a list shows other values than the answer of the same version gave: what the API server drops
// as it reads an object changes with the definition of the kind, and not the version.
func (f *Fingerprint) disproved(list *Fingerprint) bool {
	return f.Version == list.Version && f.UID == list.UID && f.Paths != nil && f.Paths == list.Paths && f.Values != list.Values
}

// same reports that g says nothing new. What the API server shows under one version may change: see disproved.
func (f *Fingerprint) same(g *Fingerprint) bool {
	return f.Version != 0 && f.Version == g.Version && f.UID == g.UID && f.Paths == g.Paths && f.Values == g.Values && f.Owner == g.Owner &&
		f.Health == g.Health && f.Reason == g.Reason && f.Message == g.Message && f.Old == g.Old && f.Outcome == g.Outcome && f.Terminating == g.Terminating
}
