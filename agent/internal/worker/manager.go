// Package worker owns what happens to each module in the cluster: it drives one worker per module, which applies,
// watches, corrects, prunes and reports. It must not know how the desired state came here nor where reports go.
package worker

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// Manager keeps the cluster as the newest assemblage says.
type Manager struct {
	o        Options
	client   *apply.Client
	clock    *apply.Clock
	mapper   *apply.Mapper
	served   surveyor
	slots    chan struct{} // a write in flight has one, see lend
	slow     chan struct{} // a write has one that gave its slot back before it had its answer
	unserved unserved      // kinds that the cluster does not have
	unfound  unserved      // kinds of which that cannot be said
	unlisted unlisted      // lists of what may have owners
	together together      // who asks what would go with what is made again
	late     late
	freed    freed
	tailing  tailing
	defined  defined
	rules    healthRules
	events   *recorder
	finder   finder

	stragglers stragglers
	scalers    scalers

	// These are set by Run before the first worker starts.
	inventory *apply.Inventory
	watcher   *watch.Watcher

	eventsLag time.Duration

	claims   claims
	sequence sequence
	begun    *begun
	waves    *begun
	readers  readers
	accepts  acceptance
	hubs     hubs
	lasts    lasts
	sealed   sealed
	veil     veil
	listings listings
	secrets  received

	mu      sync.Mutex
	desired *desired
	workers map[fleet.ModuleRef]*worker
	frozen  string             // why no write is allowed; empty: they are
	open    context.Context    // of writes; ends when they are forbidden
	shut    context.CancelFunc // ends open
	signal  chan struct{}
	back    chan struct{} // a store went back
	// storeBack: it was the cluster's.
	storeBack atomic.Bool
	listed    map[fleet.ModuleRef]listed // see keeps
}

// desired is the newest word of Set and Leave.
type desired struct {
	assemblage fleet.Assemblage
	strays     []fleet.Sync
	leave      fleet.Leave // if the cluster leaves the fleet
}

// New makes a Manager; Run starts it.
func New(o Options) (*Manager, error) {
	switch {
	case o.Config == nil, o.Contents == nil, o.State == nil, o.Report == nil:
		return nil, fleet.Errorf(fleet.ErrInvalid, "worker: Config, Contents, State and Report are required")
	case o.HubID == "" || o.ClusterUID == "":
		return nil, fleet.Errorf(fleet.ErrInvalid, "worker: HubID and ClusterUID are required")
	}
	o.setDefaults()
	clock := &apply.Clock{}
	o.Config = clock.Of(o.Config)
	client, err := apply.NewClient(o.Config)
	if err != nil {
		return nil, err
	}
	m := &Manager{o: o, clock: clock, client: client, mapper: apply.NewMapper(client), slots: make(chan struct{}, o.Concurrency), slow: make(chan struct{}, slowPerSlot*o.Concurrency), eventsLag: eventsLag,
		begun: newBegun(begunName), waves: newBegun(wavesName),
		workers: map[fleet.ModuleRef]*worker{}, signal: make(chan struct{}, 1), back: make(chan struct{}, 1), rules: healthRules{of: map[fleet.ModuleRef]*health.Rules{}}}
	m.events = newRecorder(client, m.forbidden, o.Log)
	m.late.landing = o.landing
	m.stragglers.wake = make(chan struct{}, 1)
	m.finder = finder{m: m, waiting: "the inventory is not read yet", wake: make(chan struct{}, 1)}
	m.secrets.loaded, m.secrets.saving, m.lasts.saving = make(chan struct{}), semaphore.NewWeighted(1), semaphore.NewWeighted(1)
	m.open, m.shut = context.WithCancel(context.Background())
	m.accepts.wake, m.accepts.spent.saving = make(chan struct{}, 1), make(chan struct{}, 1)
	m.Accept(o.Accepts)
	return m, nil
}

// Run works until the context ends, then finishes what is in flight.
func (m *Manager) Run(ctx context.Context) error {
	v, err := m.openVault(ctx)
	if err != nil {
		return err
	}
	if m.inventory, err = apply.Open(ctx, m.o.State, v, m.o.Log); err != nil {
		return err
	}
	m.inventory.Recall(m.o.Newest, m.o.NoteNewest)
	m.late.inherit(m.inventory, time.Now())
	if err := errors.Join(m.accepts.spent.load(ctx, m.o.State, m.o.Log, time.Now()), m.begun.load(ctx, m.o.State, m.o.Log), m.waves.load(ctx, m.o.State, m.o.Log)); err != nil {
		return err
	}
	watcher, err := watch.New(watch.Options{Config: m.o.Config, HubID: m.o.HubID, UseManager: m.useManager(), Record: m.inventory.Get, HasStatus: m.mapper.HasStatus, Rules: m.rules.forRecord,
		Changed: m.changed, Gone: m.gone, Synced: m.synced, WentBack: m.wentBack, Reachable: m.o.Reachable, Now: m.clock.Now, BlindAfter: m.o.blindAfter, Linger: m.o.linger, Log: m.o.Log})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.watcher = watcher
	m.mu.Unlock()
	why := m.mayLack(ctx)
	if err := m.lasts.begin(ctx, m.inventory.Modules(), why != ""); err != nil {
		m.o.Log.Warn("that the last values of bindings were lost is not saved", "error", err)
	}
	if why != "" {
		m.finder.begin(ctx, why)
	}
	m.remark()
	keep, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	var background, workers sync.WaitGroup
	var kept error
	background.Go(func() { kept = m.inventory.Run(keep) })
	background.Go(func() { m.begun.keep(keep, m.o.State) })
	background.Go(func() { m.waves.keep(keep, m.o.State) })
	background.Go(func() { _ = m.watcher.Run(ctx) })
	background.Go(func() { m.events.run(ctx) })
	background.Go(func() { m.followRestores(ctx) })
	background.Go(func() { m.finder.run(ctx) })
	background.Go(func() { m.followStragglers(ctx) })
	background.Go(func() { m.follow(ctx) })
	if why == "" {
		m.finder.open(false, "")
	}
	m.dispatch(ctx, &workers)
	workers.Wait()
	stopKeeping()
	background.Wait()
	m.mu.Lock()
	m.workers = map[fleet.ModuleRef]*worker{}
	m.mu.Unlock()
	return errors.Join(kept)
}

// remark has objects written again that carry the mark of a hub which the agent does not belong to any more: the watches
// do not see them.
func (m *Manager) remark() {
	for _, ref := range m.inventory.Modules() {
		for _, r := range m.inventory.Module(ref) {
			m.inventory.Amend(ref, r.ID, func(r *apply.Record) bool {
				stale := r.State == plan.Owned && !r.Want.IsZero() && !m.o.markedFor(r.Lineage)
				if stale {
					r.Want = fleet.Digest{}
				}
				return stale
			})
		}
	}
}

// Set says what is desired now; the latest call wins. Strays are kept applied and corrected, and never deleted.
func (m *Manager) Set(a fleet.Assemblage, strays []fleet.Sync) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.desired != nil && m.desired.leave.Objects != "" {
		return
	}
	m.desired = &desired{assemblage: a, strays: strays}
	dirty.Poke(m.signal)
}

// Expect says that a Set is about to come which brings something to write, so that the fence is open by then.
func (m *Manager) Expect(ctx context.Context) {
	if m.o.Fence != nil && m.forbidden() == "" {
		m.o.Fence.Ahead(ctx)
	}
}

// Freeze stops (or allows again) every write.
func (m *Manager) Freeze(frozen bool, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if frozen == (m.frozen != "") {
		return
	}
	m.frozen = ""
	if frozen {
		m.frozen = "writes are forbidden: " + why
	}
	m.reopen()
	for _, w := range m.workers {
		w.touchAll()
	}
}

// reopen ends what is being written, or lets it begin, as is allowed now. m.mu is held.
func (m *Manager) reopen() {
	shut := m.frozen != "" || m.accepts.shut(time.Now()) != ""
	switch {
	case shut:
		m.shut()
	case m.open.Err() != nil:
		m.open, m.shut = context.WithCancel(context.Background())
	}
}

// Leave takes the cluster out of the fleet: it strips the marks from every object, or deletes them all, and reports
// each module as Removed. No later Set counts.
func (m *Manager) Leave(order fleet.Leave) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := desired{}
	if m.desired != nil {
		next = *m.desired
	}
	next.leave = order
	m.desired = &next
	dirty.Poke(m.signal)
}

// dispatch hands every module its target, and starts a worker for each.
func (m *Manager) dispatch(ctx context.Context, workers *sync.WaitGroup) {
	dirty.Poke(m.signal)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.signal:
		}
		m.mu.Lock()
		d := m.desired
		m.mu.Unlock()
		if d == nil {
			continue
		}
		targets := d.targets(m.inventory.Modules())
		m.inventory.ForgetLeft(func(ref fleet.ModuleRef) bool { return targets[ref].kind == targetTombstone })
		m.sequence.want(targets)
		handed := m.claims.hand()
		m.mu.Lock()
		for ref, w := range m.workers {
			if _, ok := targets[ref]; !ok {
				w.assign(target{kind: targetNone})
				delete(m.listed, ref)
			}
		}
		for ref, t := range targets {
			w := m.workers[ref]
			if w == nil {
				w = newWorker(m, ref)
				m.workers[ref] = w
				workers.Go(func() { w.run(ctx) })
			}
			w.assign(t)
		}
		m.mu.Unlock()
		handed()
	}
}

// targets is what each module is to be. A module that only the inventory knows is kept as it is.
func (d *desired) targets(recorded []fleet.ModuleRef) map[fleet.ModuleRef]target {
	out := map[fleet.ModuleRef]target{}
	for _, ref := range recorded {
		out[ref] = target{kind: targetUnlisted}
	}
	hold, lineage := d.assemblage.Hold, d.assemblage.Lineage
	for _, s := range d.strays {
		out[s.Module] = target{kind: targetStray, sync: s, hold: hold || s.Hold, held: s.Held, lineage: lineage}
	}
	for _, t := range d.assemblage.Tombstones {
		out[t.Module] = target{kind: targetTombstone, tombstone: t, hold: hold || t.Hold, lineage: lineage}
	}
	for _, s := range d.assemblage.Syncs {
		out[s.Module] = target{kind: targetSync, sync: s, hold: hold || s.Hold, held: s.Held, lineage: lineage}
	}
	if d.leave.Objects == "" {
		for ref, t := range out {
			t.untaken = d.assemblage.Refused
			out[ref] = t
		}
		return out
	}
	for ref, t := range out {
		generation, kept := t.sync.Generation, ""
		if t.kind == targetTombstone {
			generation, kept = t.tombstone.Generation, t.tombstone.Policies
		}
		hold := d.leave.Hold || slices.Contains(d.leave.Held, ref) || d.holdsStray(t)
		out[ref] = target{kind: targetTombstone, reported: generation, hold: hold, lineage: math.MaxUint64,
			policies: t.sync.Policies, tombstone: fleet.Tombstone{Module: ref, Generation: math.MaxUint64, Lineage: math.MaxUint64, Policy: d.leaves(t.tombstone), Policies: kept}}
	}
	return out
}

// holdsStray reports that the hold which was said last of a module that is not listed keeps its objects: the hub may not know of it, and the order
// cannot name it. Of what a hub before this one said, or a store that was put back, nobody is left who could end it; and where the objects are kept
// there is nothing to hold.
func (d *desired) holdsStray(t target) bool {
	return t.kind == targetStray && (t.sync.Hold || len(t.sync.Held) > 0) && d.leave.Objects == fleet.LeaveDelete && t.sync.Lineage == t.lineage
}

// leaves is what becomes of a module's objects when the cluster leaves the fleet; the tombstone is the module's, or none.
func (d *desired) leaves(t fleet.Tombstone) string {
	if d.leave.Objects != fleet.LeaveDelete || t.Policy == fleet.DeleteOrphan { // a person said so of this module
		return fleet.DeleteOrphan
	}
	return fleet.DeleteDelete
}

// changed routes an event to the module of the object.
func (m *Manager) changed(id fleet.ObjectID, owner string) {
	ref := fleet.ModuleRef{}
	if r := m.inventory.Get(id); r != nil {
		ref = r.Module
	} else if parsed, uid, ok := fleet.ParseOwnerMark(owner); ok && uid == m.o.ClusterUID {
		ref = parsed
		m.stragglers.meet(id)
	}
	m.touch(ref, id)
	m.touchWaiting(id)
	m.readers.touch(id)
	if plan.IsNamespace(id) {
		m.each(func(w *worker) { w.touchUsed(id) })
	}
}

// touchWaiting has the modules look at an object that list it, and that another one has.
func (m *Manager) touchWaiting(id fleet.ObjectID) {
	for _, x := range m.inventory.Wishes(id) {
		m.touch(x.Module, id)
	}
}

func (m *Manager) touch(ref fleet.ModuleRef, id fleet.ObjectID) {
	m.mu.Lock()
	w := m.workers[ref]
	m.mu.Unlock()
	if w != nil {
		w.touch(id)
	}
}

// retry has a module look at an object again at once, also while it backs off.
func (m *Manager) retry(ref fleet.ModuleRef, id fleet.ObjectID) {
	m.mu.Lock()
	w := m.workers[ref]
	m.mu.Unlock()
	if w != nil {
		w.retry(id)
	}
}

// synced wakes everyone who may wait for a kind.
func (m *Manager) synced(r apply.Resource) {
	m.each(func(w *worker) { w.touchKind(r.Group, r.Kind) })
}

// Behind reports that a kind in use is not watched at this moment, so that what is known of it may be old.
func (m *Manager) Behind() bool {
	m.mu.Lock()
	w := m.watcher
	m.mu.Unlock()
	return w != nil && w.Behind()
}

// Reached says that the API server is reached again after it was not: what failed for that is tried again at once.
func (m *Manager) Reached() { m.each((*worker).touchUnreached) }

// established wakes everyone who waits for a kind to exist, or whose object is not one as the kind was defined before.
func (m *Manager) established(group string) {
	m.each(func(w *worker) { w.touchKind(group, "") })
}

func (m *Manager) each(f func(*worker)) {
	m.mu.Lock()
	all := make([]*worker, 0, len(m.workers))
	for _, w := range m.workers {
		all = append(all, w)
	}
	m.mu.Unlock()
	for _, w := range all {
		f(w)
	}
}

// forbidden says why nothing may be written now; empty: it may.
func (m *Manager) forbidden() string { return cmp.Or(m.lockedOut(), m.accepts.shut(time.Now())) }

// lockedOut says why this agent may write nothing at all, whatever the cluster accepts; empty: it may.
func (m *Manager) lockedOut() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.frozen
}

// marks are what an object of the module carries. id is its live identity: without a namespace where it has none.
func (m *Manager) marks(ref fleet.ModuleRef, id fleet.ObjectID) apply.Marks {
	return apply.Marks{Hub: m.o.HubID, Owner: fleet.OwnerMark(ref, m.o.ClusterUID, id)}
}

// claimant is the module in the words of the rules of ownership.
func (m *Manager) claimant(ref fleet.ModuleRef) plan.Claimant {
	return plan.Claimant{Module: ref, Hub: m.o.HubID, ClusterUID: m.o.ClusterUID, Hubs: m.o.Hubs}
}

// claimantOf is the claimant of a live object as far as what stands on it is to tell. A hub that the agent belonged to before, and for which
// another one works in the cluster by now, is that one's: it carries the same marks. An error says that this is not known now.
func (m *Manager) claimantOf(ctx context.Context, ref fleet.ModuleRef, labels map[string]string) (plan.Claimant, error) {
	c, hub := m.claimant(ref), labels[fleet.HubLabel]
	if !slices.Contains(m.o.formerHubs(), hub) {
		return c, nil
	}
	if served, err := m.hubs.serves(ctx, &m.o, hub); !served || err != nil {
		return c, err
	}
	c.Hubs = slices.Clone(c.Hubs)
	for i, x := range c.Hubs {
		if x == hub {
			c.Hubs[i] = "" // the others stay those of their lineages
		}
	}
	return c, nil
}

// removing reports that a module is on its way out.
func (m *Manager) removing(ref fleet.ModuleRef) bool {
	_, removed := m.removalOf(ref)
	return removed
}

// leaving reports that the cluster leaves the fleet.
func (m *Manager) leaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.desired != nil && m.desired.leave.Objects != ""
}

// remove deletes an object behind the gate and the fence.
func (a *writer) remove(ctx context.Context, live metav1.Object) error {
	x := act{verb: localpolicy.Recreate, id: a.liveID()}
	return a.w.writeDecided(ctx, x, func(ctx context.Context) error { return a.w.takeAway(ctx, x, a.resource, live) })
}
