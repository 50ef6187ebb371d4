package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/manifest"
)

type targetKind int

const (
	// targetNone: the module is done with; nothing is left of it.
	targetNone targetKind = iota
	// targetSync: keep the cluster as the sync says.
	targetSync
	// targetStray: the same, but nothing is ever deleted.
	targetStray
	// targetTombstone: take the module away.
	targetTombstone
	// targetUnlisted: only the inventory knows the module; touch nothing.
	targetUnlisted
)

// target is what a module is to be.
type target struct {
	kind      targetKind
	sync      fleet.Sync
	tombstone fleet.Tombstone
	hold      bool
	// lineage is the one that the hub speaks for now.
	lineage uint64
	// reported is the generation in reports of a tombstone that the hub did not number.
	reported uint64
}

// worker keeps one module. Everything below mu's group belongs to its goroutine.
type worker struct {
	m   *Manager
	ref fleet.ModuleRef
	log *slog.Logger

	signal chan struct{}
	mu     sync.Mutex
	next   *target // newest target that was not taken yet
	owes   bool    // a target was given and its claims are not made yet
	dirty  map[fleet.ObjectID]bool
	groups map[[2]string]bool // group and kind (or all kinds) to look at again
	all    bool
	hurry  []fleet.ObjectID // to be tried at once, also while they back off
	anew   bool             // what the API server could not do is to be tried at once
	// erasedUIDs are what this worker deleted: what they own is garbage, not foreign.
	erasedUIDs map[types.UID]bool
	keptBehind map[string]bool         // by the tombstone
	uses       map[fleet.ObjectID]bool // Namespaces in which nothing is the module's
	kinds      map[apply.Resource]bool // watches in use
	onHold     atomic.Bool             // what the newest target says

	cur         target
	loadError   *apply.Failure
	loadRetry   time.Time
	loadTries   int
	policies    []fleet.Policy
	healthRules []fleet.HealthRule
	judging     *health.Rules // healthRules, compiled
	values      fleet.Digest
	items       []*item
	byID        map[fleet.ObjectID]*item
	unsure      map[fleet.ObjectID]bool // see desires
	yields      map[int]yielded         // by ordinal: what other modules own
	protected   map[int]string          // by ordinal: why the agent keeps it to itself
	busy        bool                    // writes are under way: what failed is no verdict on the sync yet
	corrections uint64
	pruning     pruneState
	search      kindSearch
	status      reporter
	falls       int       // panics in a row
	rest        time.Time // until when nothing is tried after one
}

func newWorker(m *Manager, ref fleet.ModuleRef) *worker {
	return &worker{m: m, ref: ref, log: m.o.Log.With("module", ref.Display()), signal: make(chan struct{}, 1),
		dirty: map[fleet.ObjectID]bool{}, groups: map[[2]string]bool{}, kinds: map[apply.Resource]bool{}, byID: map[fleet.ObjectID]*item{}}
}

// assign gives the worker a target; the latest counts.
func (w *worker) assign(t target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = &t
	w.onHold.Store(t.hold)
	if !w.owes {
		w.owes = true
		w.m.unclaimed.Add(1)
	}
	dirty.Poke(w.signal)
}

// touch has an object looked at, or, if the module does not list it, all that is to go.
func (w *worker) touch(id fleet.ObjectID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirty[id] = true
	dirty.Poke(w.signal)
}

// touchUsed has a Namespace looked at, if the module uses it.
func (w *worker) touchUsed(id fleet.ObjectID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.uses[id] {
		w.dirty[id] = true
		dirty.Poke(w.signal)
	}
}

// noteUse notes whether the module uses a Namespace that is somebody else's.
func (w *worker) noteUse(id fleet.ObjectID, does bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !does {
		delete(w.uses, id)
		return
	}
	if w.uses == nil {
		w.uses = map[fleet.ObjectID]bool{}
	}
	w.uses[id] = true
}

func (w *worker) touchKind(group, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.groups[[2]string{group, kind}] = true
	dirty.Poke(w.signal)
}

func (w *worker) touchAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = true
	dirty.Poke(w.signal)
}

// touchUnreached has all tried again at once that the API server could not do.
func (w *worker) touchUnreached() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.anew = true
	dirty.Poke(w.signal)
}

// claimed says that every object of the target which this module wants is claimed, or known to be another module's.
func (w *worker) claimed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owes && w.next == nil {
		w.owes = false
		w.m.unclaimed.Add(-1)
	}
}

// superseded reports that a newer target waits.
func (w *worker) superseded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next != nil
}

func (w *worker) run(ctx context.Context) {
	defer w.releaseKinds(nil)
	defer w.claimed()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.signal:
		case <-timer.C:
		}
		wake := w.attempt(ctx)
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(time.Until(wake), time.Millisecond))
		}
	}
}

// pass does what is to be done now, and says when to look again without an event.
func (w *worker) pass(ctx context.Context) time.Time {
	now := time.Now()
	w.take(ctx, now)
	switch w.cur.kind {
	case targetNone:
		w.claimed()
		return time.Time{}
	case targetTombstone:
		w.claimed()
		return w.removal(ctx, now)
	case targetUnlisted:
		w.claimed()
		return w.report(now)
	}
	if w.loadError != nil {
		return earliest(w.report(now), w.loadRetry) // what the module lists is not known, so its claims are still owed
	}
	if !w.search.retry.IsZero() && !now.Before(w.search.retry) {
		w.findKinds(ctx, now)
	}
	w.giveBack(ctx)
	if jobs := w.claim(w.jobs(now)); len(jobs) > 0 {
		w.claimed()
		w.prune(ctx, now)
		w.busy = true
		w.execute(ctx, jobs)
		w.busy = false
		now = time.Now()
	}
	w.claimed()
	w.prune(ctx, now)
	again := earliest(w.diagnose(ctx, now), w.rescale(ctx, now))
	return earliest(w.report(now), w.due(), w.pruning.retry, w.search.retry, again)
}

// take makes the newest target the current one, and collects what changed.
func (w *worker) take(ctx context.Context, now time.Time) {
	w.mu.Lock()
	next, dirty, groups, all, hurry, anew := w.next, w.dirty, w.groups, w.all, w.hurry, w.anew
	w.next, w.all, w.hurry, w.anew = nil, false, nil, false
	if len(dirty) > 0 {
		w.dirty = map[fleet.ObjectID]bool{}
	} else {
		dirty = nil // the map is still the one that others write to
	}
	if len(groups) > 0 {
		w.groups = map[[2]string]bool{}
	} else {
		groups = nil
	}
	w.mu.Unlock()
	reload := w.loadError != nil && !now.Before(w.loadRetry)
	if next != nil {
		w.retarget(ctx, *next, now)
	} else if reload {
		w.load(ctx, now)
		w.pruning.touched = true
	}
	for id := range dirty {
		if it := w.byID[id]; it != nil {
			it.look = true
		} else {
			w.pruning.touched = true
		}
	}
	for _, id := range hurry {
		if it := w.byID[id]; it != nil {
			it.clear()
		}
	}
	if anew {
		w.retryUnreached(now)
	}
	if all || len(groups) > 0 {
		for _, it := range w.items {
			hit := groups[[2]string{it.entry.ID.Group, it.entry.ID.Kind}]
			exists := groups[[2]string{it.entry.ID.Group, ""}] && it.fail != nil && it.fail.Reason == apply.ReasonNoKind
			if exists {
				it.next = time.Time{}
			}
			if exists && it.resource.Resource == "" && !w.search.retry.IsZero() {
				w.search.retry = now
			}
			it.look = it.look || all || hit || exists
		}
		w.pruning.touched = true // what is not wanted any more may be one of them
	}
}

// retryUnreached ends the back-off of what the API server could not do.
func (w *worker) retryUnreached(now time.Time) {
	for _, it := range w.items {
		if it.fail != nil && it.fail.Unreached() {
			it.clear()
			it.look = true
		}
	}
	if !w.search.retry.IsZero() {
		w.search = kindSearch{retry: now}
	}
	if w.pruning.failed != nil && w.pruning.failed.Unreached() {
		w.pruning.retry, w.pruning.touched = now, true
	}
}

// retarget goes over to a new target.
func (w *worker) retarget(ctx context.Context, t target, now time.Time) {
	old := w.cur
	w.cur = t
	w.yields = yieldsOf(t.sync)
	w.pruning = pruneState{}
	same := old.kind == targetSync || old.kind == targetStray
	same = same && (t.kind == targetSync || t.kind == targetStray) && w.loadError == nil && old.sync.Bundle == t.sync.Bundle &&
		old.sync.Policies == t.sync.Policies && valuesDigest(old.sync.Values) == valuesDigest(t.sync.Values)
	switch {
	case t.kind == targetNone, t.kind == targetTombstone, t.kind == targetUnlisted:
		w.items, w.byID, w.unsure, w.loadError = nil, map[fleet.ObjectID]*item{}, nil, nil
		w.unwant()
		w.status.reset()
		if t.kind == targetNone {
			w.releaseKinds(nil)
			w.healthRules, w.judging = nil, nil
			w.m.rules.set(w.ref, nil)
		}
	case same:
		for _, it := range w.items {
			it.look = true
		}
		w.clearYielded(old.sync, t.sync)
	default:
		w.corrections = 0
		w.loadTries = 0
		w.load(ctx, now)
		w.renew(old.sync, t.sync)
	}
	w.pruning.touched = true
}

// renew notes that a revision follows another one.
func (w *worker) renew(old, now fleet.Sync) {
	if old.Revision == now.Revision && old.Bundle == now.Bundle {
		return
	}
	for _, it := range w.items {
		it.renewed = old.Generation != 0
	}
}

// unwant ends the wait for objects of other modules that this one does not list any more.
func (w *worker) unwant() { w.m.inventory.Unwant(w.ref, w.desires) }

const maxLoadRetry = 30 * time.Second

// load reads the sync's bundle and policies and makes the items.
func (w *worker) load(ctx context.Context, now time.Time) {
	w.loadError = nil
	if err := w.read(ctx, now); err != nil {
		w.loadError = &apply.Failure{Reason: apply.ReasonContent, Message: err.Error(), Kind: fleet.ErrNotFound}
		w.loadTries++
		w.loadRetry = now.Add(min(time.Second<<min(w.loadTries, 5), maxLoadRetry))
	}
}

func (w *worker) read(ctx context.Context, now time.Time) error {
	s := w.cur.sync
	bundle, err := w.m.o.Contents.Bundle(s.Bundle)
	if err != nil {
		return fleet.Errorf(fleet.ErrNotFound, "bundle %s is not here: %v", s.Bundle.Short(), err)
	}
	if len(bundle.Entries) != s.Objects {
		return fleet.Errorf(fleet.ErrCorrupt, "bundle %s has %d objects, not %d", s.Bundle.Short(), len(bundle.Entries), s.Objects)
	}
	var set fleet.PolicySet
	if !s.Policies.IsZero() {
		if set, err = w.m.o.Contents.Policies(s.Policies); err != nil {
			return fleet.Errorf(fleet.ErrNotFound, "policies %s are not here: %v", s.Policies.Short(), err)
		}
	}
	rejudge, err := w.judgeBy(set.HealthRules)
	if err != nil {
		return err
	}
	old := w.byID
	w.policies, w.values = set.Policies, valuesDigest(s.Values)
	w.items = make([]*item, 0, len(bundle.Entries))
	w.byID = make(map[fleet.ObjectID]*item, len(bundle.Entries))
	shared := map[[8]string]*fleet.Policy{}
	for i, e := range bundle.Entries {
		e.ID = manifest.ExpandID(e.ID, s.Values)
		it := &item{ordinal: i, entry: e, want: apply.WantDigest(e.Digest, w.values), look: true}
		w.place(it)
		policy, err := w.policyOf(e)
		if err != nil {
			return err
		}
		if it.policy = shared[policy.Rules()]; it.policy == nil {
			it.policy = &policy
			shared[policy.Rules()] = it.policy
		}
		if before := old[it.entry.ID]; before != nil && before.rare != nil {
			it.rare = &rare{flaps: before.rare.flaps}
		}
		it.rejudge = rejudge(it.entry.ID)
		w.items = append(w.items, it)
	}
	w.protected = w.protections()
	w.status.reset()
	w.useKinds(ctx, now)
	w.unwant()
	return nil
}

// policyOf resolves the policies for an object; its labels are read only if a policy asks for them.
func (w *worker) policyOf(e fleet.BundleEntry) (fleet.Policy, error) {
	var labels map[string]string
	if slices.ContainsFunc(w.policies, func(p fleet.Policy) bool { return p.Match.Labels != nil }) {
		content, err := w.m.o.Contents.Object(e.Digest)
		if err != nil {
			return fleet.Policy{}, fleet.Errorf(fleet.ErrNotFound, "%s: content %s is not here: %v", e.ID, e.Digest.Short(), err)
		}
		if labels, err = apply.Labels(content); err != nil {
			return fleet.Policy{}, fleet.Errorf(fleet.ErrCorrupt, "%s: %v", e.ID, err)
		}
	}
	return fleet.Resolve(w.policies, e.ID, labels), nil
}

// acquire starts the watch of a kind, once for a worker.
func (w *worker) acquire(r apply.Resource) {
	w.mu.Lock()
	known := w.kinds[r]
	w.kinds[r] = true
	w.mu.Unlock()
	if !known {
		w.m.watcher.Acquire(r)
	}
}

func (w *worker) releaseKinds(except map[apply.Resource]bool) {
	var ended []apply.Resource
	w.mu.Lock()
	for r := range w.kinds {
		if !except[r] {
			delete(w.kinds, r)
			ended = append(ended, r)
		}
	}
	w.mu.Unlock()
	for _, r := range ended {
		w.m.watcher.Release(r)
	}
}

// due is when the next object is to be tried again.
func (w *worker) due() time.Time {
	var out time.Time
	for _, it := range w.items {
		if it.waiting {
			out = earliest(out, it.next)
		}
	}
	return out
}

// earliest is the first of the times that are set.
func earliest(times ...time.Time) time.Time {
	var out time.Time
	for _, t := range times {
		if !t.IsZero() && (out.IsZero() || t.Before(out)) {
			out = t
		}
	}
	return out
}

// valuesDigest names a set of values.
func valuesDigest(values map[string]string) fleet.Digest {
	if len(values) == 0 {
		return fleet.Digest{}
	}
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	slices.Sort(names)
	var b []byte
	for _, n := range names {
		b = append(append(append(append(b, n...), 0), values[n]...), 0)
	}
	return fleet.DigestOf(b)
}
