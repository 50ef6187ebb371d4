package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// With an object the cluster's garbage collector deletes all that names it as its owner. A module may list some of that: it took a
// Secret from the ExternalSecret that it drops, or an operator has made its own resource the owner of what the module lists.

// spare takes from what modules keep the owners that are about to go, or to go with what is, so that it stays.
func (e *eraser) spare(ctx context.Context, id fleet.ObjectID, owner string) error {
	bound := e.bound
	if since, ok := e.rebound.Load(owner); ok {
		bound, _ = since.(bindings)
	}
	if err := bound.doubt(id); err != nil {
		return err
	}
	for _, b := range bound.to[owner] {
		if err := e.w.unlessSuperseded(); err != nil { // the owner may be listed again
			return err
		}
		rec := e.w.m.inventory.Get(b.id)
		if rec == nil || !e.staying(rec) || e.goesWhole(ctx, rec) {
			continue
		}
		err := e.w.m.held(rec.Module, rec.ID)
		if err == nil {
			err = e.w.disown(ctx, rec.Record, b.owner, []watch.Owner{{UID: owner}})
		}
		switch {
		case err == nil:
		case kube.Is(err, kube.Conflict):
			return err // it is looked at again
		default:
			f := *apply.Explain(rec.ID, err)
			f.Message = fmt.Sprintf("stays, for %s %s would go with it, which module %s keeps: %s", rec.ID.Kind, rec.ID.Name, rec.Module.Display(), f.Message)
			return &f
		}
	}
	if e.w.m.freed.rests(owner, time.Now()) {
		return errFreed
	}
	return nil
}

// staying reports that an object is to stay: a module has it and is to keep it or, as far as that is not done, to leave it.
func (e *eraser) staying(rec *apply.Record) bool {
	return e.w.m.spared(rec) || rec.Module == e.w.ref && e.left[rec.ID] || e.w.m.isLeft(rec)
}

// goesWhole reports that a Namespace or a definition goes by this plan with all that is in it, as seen now: its owner may take it along.
// It may not while another module has anything there, though that is removed as well: nobody has looked at it.
func (e *eraser) goesWhole(ctx context.Context, rec *apply.Record) bool {
	if !holdsOthers(rec.ID) || rec.Module != e.w.ref || !e.doomed[rec.ID] {
		return false
	}
	in, err := e.contentsOf(ctx, rec.Record, e.kinds[kindOf(rec.Record)].Resource)
	return err == nil && in.unseen == "" && len(in.foreign)+len(in.kept) == 0 && !in.others
}

// holdsOthers reports that other objects go with an object, whoever has them.
func holdsOthers(id fleet.ObjectID) bool { return plan.TakesNamespace(id) || plan.IsCRD(id) }

// isLeft reports that the removal of its module is to leave an object in the cluster.
func (m *Manager) isLeft(rec *apply.Record) bool {
	policy, removed := m.removalOf(rec.Module)
	return removed && plan.PruneInput{Tombstone: true, Policy: policy}.Releases(rec.Record)
}

// deletes reports that an object of some module may be about to be deleted.
func (m *Manager) deletes() bool {
	for _, ref := range m.inventory.Modules() {
		policy, removed := m.removalOf(ref)
		if removed && policy != fleet.DeleteOrphan {
			return true
		}
		if !removed && slices.ContainsFunc(m.inventory.Module(ref), func(r *apply.Record) bool { return r.Goes() }) {
			return true
		}
	}
	return false
}

// isGoing reports that an owner is an object of a module that is about to delete it.
func (m *Manager) isGoing(namespace string, o watch.Owner) bool {
	id, _, ok := o.In(namespace)
	if !ok {
		return false
	}
	rec := m.inventory.Get(id)
	if rec == nil {
		rec = m.inventory.Get(bare(id))
	}
	if rec == nil || rec.State != plan.Owned || rec.UID != o.UID {
		return false
	}
	if _, removed := m.removalOf(rec.Module); removed {
		return !m.isLeft(rec)
	}
	return rec.Goes() && !m.mayKeep(rec.Module, rec.ID)
}

// removalOf is whether a module is on its way out, and what becomes of its objects.
func (m *Manager) removalOf(ref fleet.ModuleRef) (policy string, removed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.desired
	if d == nil {
		return "", false
	}
	var of fleet.Tombstone
	i := slices.IndexFunc(d.assemblage.Tombstones, func(t fleet.Tombstone) bool { return t.Module == ref })
	if i >= 0 {
		of = d.assemblage.Tombstones[i]
	}
	if d.leave.Objects != "" {
		return d.leaves(of), true
	}
	return of.Policy, i >= 0
}

// goesAlong reports that all owners of an object go by the plan, or with another module, so that it is left to nobody.
func (e *eraser) goesAlong(live *metav1.PartialObjectMetadata) bool {
	owners := watch.OwnersOf(live.OwnerReferences)
	return len(owners) > 0 && !slices.ContainsFunc(owners, func(o watch.Owner) bool {
		return !e.owners[o.UID] && !e.w.m.isGoing(live.Namespace, o)
	})
}

// tie is an owner of an object, and all that the object goes with by it.
type tie struct {
	owner string
	above []watch.Owner
}

// ties are the owners of an object that is to stay without our marks which go by the plan, or with what does.
func (e *eraser) ties(ctx context.Context, r plan.Record, live *metav1.PartialObjectMetadata) (out []tie, err error) {
	if !e.climbs || !e.left[r.ID] || live == nil {
		return nil, nil
	}
	for _, o := range watch.OwnersOf(live.OwnerReferences) {
		above, err := e.descent.of(ctx, live.Namespace, o)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(above, func(a watch.Owner) bool { return e.owners[a.UID] || e.w.m.isGoing(live.Namespace, a) }) {
			out = append(out, tie{o.UID, above})
		}
	}
	return out, nil
}

// free takes the owners that go from an object that is to stay without our marks. It is looked at again after a while.
func (e *eraser) free(ctx context.Context, r plan.Record, ties []tie) error {
	for _, t := range ties {
		if err := e.w.disown(ctx, r, t.owner, t.above); err != nil {
			return err
		}
	}
	return errFreed
}

// errFreed says that an owner was taken from an object just now.
var errFreed = errors.New("its owner was taken from it")

// freedText is said of what waits for that.
const freedText = "goes when what it owns has stayed without it for a moment"

// freed knows from which objects owners were taken. A controller that is at work makes itself the owner again at once, and may do so
// when its resource is gone already: an owner is not deleted before its object has stayed without it for a while.
type freed struct {
	mu   sync.Mutex
	last map[string]freeing // by the object's UID
}

type freeing struct {
	at    time.Time
	times int
	above map[string]bool // the UIDs of all that it would have gone with
}

const (
	freedRest  = time.Second // what a controller takes to hear of it and to answer
	freedTimes = 3           // in a row; then it is tried once in a while
)

// rests reports that an owner was taken a moment ago from an object with this UID, or from one that would have gone with it.
func (f *freed) rests(uid string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, x := range f.last {
		if now.Sub(x.at) < freedRest && (of == uid || x.above[uid]) {
			return true
		}
	}
	return false
}

// may reports that an owner may be taken from an object now: it is not set again each time.
func (f *freed) may(uid string, now time.Time, every time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.last[uid]
	return x.times < freedTimes || now.Sub(x.at) >= every
}

// note takes note that an owner was taken from an object.
func (f *freed) note(uid string, above []watch.Owner, now time.Time, every time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.last, func(_ string, x freeing) bool { return now.Sub(x.at) > freedTimes*every })
	x := f.last[uid]
	x.at, x.times = now, x.times+1
	if x.above == nil {
		x.above = map[string]bool{}
	}
	for _, o := range above {
		x.above[o.UID] = true
	}
	if f.last == nil {
		f.last = map[string]freeing{}
	}
	f.last[uid] = x
}

// How long a removal waits by itself for watches that have just begun.
const (
	ownedWait = 500 * time.Millisecond
	ownedPoll = 10 * time.Millisecond
)

// ownedUnknown waits a moment until the watches tell what goes with an object, or cannot tell it at all. It returns the kinds of which they do not.
func (w *worker) ownedUnknown(ctx context.Context, wait time.Duration) []string {
	if unfound := w.seeAll(ctx); len(unfound) > 0 {
		return unfound
	}
	for waited := time.Duration(0); ; waited += ownedPoll {
		settling := w.m.watcher.Settling()
		if len(settling) == 0 || waited >= wait || backoff.Wait(ctx, ownedPoll) != nil {
			return settling
		}
	}
}

// seeAll has the kinds watched of all that any module has, whatever is said of the module now. It returns those that are not, unless they cannot
// be found for as long as one that is found may go without a watch.
func (w *worker) seeAll(ctx context.Context) (unfound []string) {
	ctx, cancel := context.WithTimeout(ctx, seeTime)
	defer cancel()
	watched := w.m.watcher.Kinds()
	for _, r := range w.m.inventory.Kinds() {
		kind := schema.GroupKind{Group: r.ID.Group, Kind: r.ID.Kind}
		if watched[kind] {
			w.m.unfound.note(kind, false)
			continue
		}
		at := w.locate(ctx, r)
		if missing := w.m.unfound.note(kind, at.why != ""); at.why != "" && missing < w.m.o.blindAfter {
			unfound = append(unfound, r.ID.Kind)
		}
	}
	return unfound
}

// seeTime bounds a search for kinds that nobody watches.
const seeTime = 2 * time.Second

// awaitOwned has what is to be deleted wait until the watches tell what goes with it, as right after the agent's start. What
// cannot be watched at all is not waited for.
func (e *eraser) awaitOwned(stages [][]plan.Record, unknown []string) {
	why := "goes when it is known what would go with it; not known yet of: " + plan.Names(unknown)
	for _, r := range slices.Concat(stages...) {
		e.w.pruning.leaving = append(e.w.pruning.leaving, leaving{record: r, reason: plan.ReasonRemoving, message: why})
	}
}

// awaitHold has what is to be deleted wait for the end of a hold that the plan did not know of.
func (e *eraser) awaitHold(stages [][]plan.Record) {
	for _, r := range slices.Concat(stages...) {
		e.w.pruning.leaving = append(e.w.pruning.leaving, leaving{record: r, reason: plan.ReasonHeld, message: e.w.held()})
	}
}

// held is an error where nothing may be written for a module, whatever goes elsewhere.
func (m *Manager) held(ref fleet.ModuleRef, id fleet.ObjectID) error {
	m.mu.Lock()
	w := m.workers[ref]
	m.mu.Unlock()
	why := ""
	if w != nil {
		why = w.stops(id)
	} else if h := m.hold(id); h != nil {
		why = h.Text()
	}
	if why == "" {
		return nil
	}
	return heldFailure(id, why)
}

func heldFailure(id fleet.ObjectID, why string) *apply.Failure {
	return &apply.Failure{Reason: plan.ReasonHeld, Transient: true, Kind: fleet.ErrPrecondition, Message: id.String() + ": " + why}
}

// spared reports that an object is a module's and is to stay: it lists it, or keeps it though it does not, as by a policy, for an
// heir or until a person confirms. What is about to go has that noted, and is what its module's plan deletes.
func (m *Manager) spared(rec *apply.Record) bool {
	return m.keepsAnyway(rec) || rec.State == plan.Owned && m.mayStay(rec)
}

// keepsAnyway is spared for what stays whatever its labels are. Of what others may be in it is seen only when it is looked at itself
// whether it goes.
func (m *Manager) keepsAnyway(rec *apply.Record) bool {
	return rec.State == plan.Owned && (!rec.Goes() || holdsOthers(rec.ID) || !m.dooms(rec) || m.mayKeep(rec.Module, rec.ID) || m.held(rec.Module, rec.ID) != nil ||
		m.protects(rec))
}

// goesBy reports that an object with these labels is about to be deleted itself: no policy by labels keeps or leaves it.
func (m *Manager) goesBy(id fleet.ObjectID, labels map[string]string) bool {
	rec := m.inventory.Get(id)
	return rec != nil && rec.State == plan.Owned && !m.keepsAnyway(rec) && !m.isLeft(rec) &&
		!m.staysBy(rec, func(policies []fleet.Policy) bool { return plan.Stays(policies, rec.Record, labels) })
}

// dooms reports that the object of a record is about to be deleted now. That it was to be is noted in the record, and stays noted when a
// later word keeps it.
func (m *Manager) dooms(rec *apply.Record) bool {
	m.mu.Lock()
	w := m.workers[rec.Module]
	m.mu.Unlock()
	if w == nil || w.superseded() {
		return false
	}
	doomed := w.doomed.Load()
	return doomed != nil && (*doomed)[rec.ID]
}

// mayStay reports that a policy by labels may keep or leave an object that is about to be deleted: which labels it has is seen only then.
func (m *Manager) mayStay(rec *apply.Record) bool {
	return m.staysBy(rec, func(policies []fleet.Policy) bool { return plan.MayStay(policies, rec.Record) })
}

// staysBy reports what the policies of its module's sync say of an object that is about to be deleted. What cannot be read may say of each
// that it stays.
func (m *Manager) staysBy(rec *apply.Record, say func([]fleet.Policy) bool) bool {
	s, removed := m.wordOn(rec.Module)
	if removed || s == nil {
		return false
	}
	set, err := m.o.Contents.Policies(s.Policies)
	return err != nil || say(set.Policies)
}

// protects reports that the cluster's own policy does not let an object be deleted, whatever was noted before it was put in force.
func (m *Manager) protects(rec *apply.Record) bool {
	return m.accepts.policy().Judge(localpolicy.Request{Verb: localpolicy.Delete, Module: rec.Module, ID: rec.ID}) != nil
}

// disown takes an owner from the object of a record, which would go by that with what is above. One that is gone, is another one, or
// does not have that owner needs nothing.
func (w *worker) disown(ctx context.Context, r plan.Record, owner string, above []watch.Owner) error {
	at := w.locateNow(ctx, r)
	switch {
	case at.why != "":
		return fleet.Errorf(fleet.ErrUnavailable, "%s", at.why)
	case at.gone:
		return nil
	}
	live, err := w.m.client.GetMeta(ctx, at.Resource, namespaceOf(at.Resource, r.ID), r.ID.Name)
	if kube.IsGone(err) || err == nil && string(live.UID) != r.UID {
		return nil
	}
	if err != nil {
		return err
	}
	if why := w.annotation(live); why != "" {
		return heldFailure(r.ID, why)
	}
	patch, err := withoutOwner(live, owner)
	if patch == nil || err != nil {
		return err
	}
	if !w.m.freed.may(r.UID, time.Now(), w.m.o.Recheck) {
		if w.m.goesBy(r.ID, live.Labels) {
			return nil
		}
		return &apply.Failure{Reason: apply.ReasonConflict, Transient: true, Kind: fleet.ErrConflict,
			Message: r.ID.String() + ": its owner is set again each time that it is taken away; stop what sets it, or keep the owner"}
	}
	x := act{verb: localpolicy.Update, id: r.ID}
	if x.id.Namespace = namespaceOf(at.Resource, r.ID); err == nil {
		err = w.m.denied(r.Module, x)
	}
	if err != nil {
		return err
	}
	_, err = w.m.client.Patch(ctx, at.Resource, namespaceOf(at.Resource, r.ID), r.ID.Name, patch)
	if kube.IsGone(err) {
		return nil
	}
	if err != nil {
		return w.worded(ctx, at.Resource, r.ID, nil, nil, err)
	}
	w.m.freed.note(r.UID, above, time.Now(), w.m.o.Recheck)
	w.log.Info("object is kept from going with its owner", "object", r.ID.String(), "uid", r.UID, "owner", owner)
	return nil
}

// withoutOwner is the JSON patch that takes an owner from exactly the version of an object that was seen; nil: it has no such one.
func withoutOwner(live *metav1.PartialObjectMetadata, owner string) ([]byte, error) {
	rest := []metav1.OwnerReference{}
	for _, o := range live.OwnerReferences {
		if string(o.UID) != owner {
			rest = append(rest, o)
		}
	}
	if len(rest) == len(live.OwnerReferences) {
		return nil, nil
	}
	return json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/ownerReferences", "value": rest},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": live.ResourceVersion},
	})
}
