package worker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
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
	held      []uint64 // single objects that are held (assemble.HeldKeys)
	// lineage is the one that the hub speaks for now.
	lineage uint64
	// untaken are the modules whose newest sync is not known. A cluster that leaves the fleet waits for nobody.
	untaken []fleet.ModuleRef
	// policies are those of the sync that a tombstone takes the place of because the cluster leaves; zero: there are none.
	policies fleet.Digest
	claim    uint64 // its number in claims
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
	dirty  map[fleet.ObjectID]bool
	groups map[[2]string]bool // group and kind (or all kinds) to look at again
	all    bool
	hurry  []fleet.ObjectID // to be tried at once, also while they back off
	anew   bool             // what the API server could not do is to be tried at once
	// rejudge: what the cluster's policy denied is to be tried at once.
	rejudge bool
	rebind  bool // the bindings are to be evaluated again
	// erasedUIDs are what this worker deleted: what they own is garbage, not foreign.
	erasedUIDs map[types.UID]bool
	uses       map[fleet.ObjectID]bool                 // Namespaces in which nothing is the module's
	kinds      map[apply.Resource]bool                 // watches in use
	onHold     atomic.Bool                             // what the newest target says
	objects    atomic.Pointer[[]uint64]                // which of them are held, by that
	singles    map[fleet.ObjectID]watch.Single         // watches of what is only read
	doomed     atomic.Pointer[map[fleet.ObjectID]bool] // what the last plan deletes
	// later is what the module lists, and claims when its turn comes (inReach), or when nothing stops it any more (stopped).
	later atomic.Pointer[[]fleet.ObjectID]

	cur         target
	loadError   *apply.Failure
	loadRetry   time.Time
	loadTries   int
	policies    []fleet.Policy
	how         *fleet.Substitution // what placeholders mean; nil: ${NAME} alone
	healthRules []fleet.HealthRule
	values      fleet.Digest
	items       []*item
	foreign     []*foreign // in the order of the policies
	binder      binder
	byID        map[fleet.ObjectID]*item
	unsure      map[fleet.ObjectID]bool // see desires
	yields      map[int]yielded         // by ordinal: what other modules own
	protected   map[int]string          // by ordinal: why the agent keeps it to itself
	busy        bool                    // writes are under way: what failed is no verdict on the sync yet
	corrections uint64
	begun       time.Time // when the sync was that is not applied yet; zero: it is
	pruning     pruneState
	search      kindSearch
	status      reporter
	ends        holdEnds
	falls       int       // panics in a row
	rest        time.Time // until when nothing is tried after one
	started     bool      // the revision is begun: what it depends on is not asked for again
	awaits      string    // what is waited for before it is
	waves       waveRun
	traced      *traced // nil: what is done now belongs to no trace
	// previews is of who asks what a sync would do; nil: nobody asks.
	previews writes
}

func newWorker(m *Manager, ref fleet.ModuleRef) *worker {
	return &worker{m: m, ref: ref, log: m.o.Log.With("module", ref.Display()), signal: make(chan struct{}, 1),
		dirty: map[fleet.ObjectID]bool{}, groups: map[[2]string]bool{}, kinds: map[apply.Resource]bool{}, byID: map[fleet.ObjectID]*item{}}
}

func (w *worker) run(ctx context.Context) {
	defer w.releaseKinds(nil)
	defer w.setForeign(nil)
	defer w.releaseSources(func(*source) bool { return false })
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
	w.endHolds()
	jobs, known := w.wants(ctx, now)
	if known {
		w.m.claims.made(w.ref, w.cur.claim)
	}
	switch w.cur.kind {
	case targetNone:
		return time.Time{}
	case targetTombstone:
		return w.removal(ctx, now)
	case targetUnlisted:
		return w.report(now)
	}
	if !known {
		return earliest(w.report(now), w.loadRetry)
	}
	w.findForeign(ctx, now)
	w.prune(ctx, now)
	if len(jobs) > 0 {
		w.busy = true
		w.execute(ctx, jobs)
		w.busy = false
		now = time.Now()
		w.prune(ctx, now)
		w.followWaves(now)
	}
	w.unbound(ctx, now)
	again := earliest(w.diagnose(ctx, now), w.rescale(ctx, now), w.firstPods(ctx, now))
	return earliest(w.report(now), w.due(now), w.pruning.retry, w.search.retry, w.foreignDue(), w.binder.due, again)
}

// wants claims what the target lists that is new to the module, and returns what is to be done. It is not known while what the module
// lists cannot be read.
func (w *worker) wants(ctx context.Context, now time.Time) (jobs []*item, known bool) {
	if w.cur.kind != targetSync && w.cur.kind != targetStray {
		return nil, true
	}
	if w.loadError != nil {
		return nil, false
	}
	if !w.search.retry.IsZero() && !now.Before(w.search.retry) {
		w.findKinds(ctx, now)
	}
	w.giveBack(ctx)
	w.takeTurn(ctx)
	w.bind(ctx, now)
	jobs, later := w.inReach(w.jobs(now))
	jobs = w.claim(jobs)
	later = append(later, w.stopped()...)
	w.later.Store(&later)                                         // all the others are claimed
	return w.withValues(w.inWave(ctx, w.inTurn(jobs), now)), true // what its bindings read may come with what it waits for
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

// due is when the next object is to be tried again, or has waited long enough for its bindings to count as failed.
func (w *worker) due(now time.Time) time.Time {
	var out time.Time
	for _, it := range w.items {
		if it.waiting {
			out = earliest(out, it.next)
		}
		if at := it.verdictAt(); now.Before(at) {
			out = earliest(out, at)
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
