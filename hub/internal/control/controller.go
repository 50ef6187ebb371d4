// Package control drives the modules: it reads a snapshot, calls the pure packages, and commits what they decide. It
// owns revisions, rollouts, steps, desired, answers and floors; it runs on the leader only, under the leader's fence. It must not
// know how agents are reached, nor decide by itself how a rollout moves.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/meter"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/tracing"
)

// Sessions is what the drivers ask about agents.
type Sessions interface {
	Connected(fleet.ClusterName) bool
	// Lost is when a session of the cluster ended here last; zero: none did.
	Lost(fleet.ClusterName) time.Time
	// Started is when this hub began to serve agents.
	Started() time.Time
}

// Fetcher resolves sources.
type Fetcher interface {
	Fetch(ctx context.Context, project string, s *towlinev1.Source) (source.Artifact, error)
}

// Options of a Controller; Store, Bundles, Source, Sessions, Campaign and Log are required.
type Options struct {
	Store   store.Store
	Bundles *bundle.Cache
	Source  Fetcher
	// Vendor puts what the chart in a folder of an artifact depends on into it; nil: charts have all that they depend on.
	Vendor   func(ctx context.Context, project string, src *towlinev1.Source, folder string, a source.Artifact) (source.Artifact, error)
	Sessions Sessions
	Gates    Gates
	// Engine builds kustomizations and charts; nil: they are refused.
	Engine render.Engine
	Log    *slog.Logger
	// Meter counts what goes on; it may be nil.
	Meter *meter.Meter
	// Tracer sends spans of what goes on; nil: none are.
	Tracer *tracing.Tracer
	// Campaign blocks until this hub leads; an error ends the controller.
	Campaign func(context.Context) (store.Leadership, error)
	// News starts rollouts of modules whose sources have something else, all or none, and returns their numbers. fleet.ErrConflict: a module
	// is not what was looked at any more; fleet.ErrPrecondition: one may not begin now, a *record.StartError says which. The number 0: one
	// came to be refused when others had begun. Nil: nothing is followed.
	News func(context.Context, []record.News) (numbers []int64, err error)
	// Catalogs puts and deletes modules for catalogs; nil: there are none.
	Catalogs record.CatalogWriter
	// Audit records what was done; nil: nobody does.
	Audit func(context.Context, *towlinev1.AuditEntry)
	// Workers is how many modules are worked on at once; default 4.
	Workers int
	// Grace is how long an agent that had a session counts as connected after that ended, or after the start of the hub; 0: none does.
	Grace time.Duration
	// CollectEvery is the time between collections of garbage; default 10m.
	CollectEvery time.Duration
}

// Controller runs the drivers while it leads.
type Controller struct {
	o        Options
	listings *record.Listings
	modules  *runner
	resolver *runner // of sources that need nobody else
	fetcher  *runner // of those that another server has
	variants *runner // of revisions that clusters have come to since they were cut
	origins  *origins
	looker   *runner // of sources that are looked at again
	lookedAt *origins
	looks    looks
	upstream turns // of looks that have modules of one source begin together
	judged   turns // of servers, at the other modules of such a source: whoever looks has a place at its own already

	cataloguer   *runner // of catalogs
	catalogHosts *origins
	catalogs     catalogs

	// rev is the revision of the newest commit of this controller: it never decides on a snapshot older than that.
	rev atomic.Int64
	// unreadBundles is how many bundles the newest sweep for garbage could not read.
	unreadBundles atomic.Int64

	mu      sync.Mutex
	lead    store.Leadership
	states  map[fleet.ModuleRef]*moduleState
	backoff map[string]time.Duration
	leaving map[fleet.ClusterName]bool // clusters being removed
	// dropping are the clusters in which something may be left of a module that it does not list there.
	dropping map[fleet.ModuleRef]map[fleet.ClusterName]bool
	// unknown is since when it cannot be said in clusters who is to have what a module lets go.
	unknown map[fleet.ModuleRef]map[fleet.ClusterName]time.Time
	// headings are where modules were going when that was looked at last while something was dropped.
	headings map[fleet.ModuleRef]record.Heading
	awaiting awaiting
	leads    bool
	spawn    func(func(context.Context)) // runs beside the drivers; nil: this hub does not lead

	room     room
	prepared preparations
	drafts   drafts
	gathered gatherings
	troubles troubles
	behind   waitings
	sets     interests
	cuts     atomic.Int64 // under way
}

// New checks the options.
func New(o Options) (*Controller, error) {
	if o.Store == nil || o.Bundles == nil || o.Source == nil || o.Sessions == nil || o.Campaign == nil || o.Log == nil {
		return nil, fmt.Errorf("control: Store, Bundles, Source, Sessions, Campaign and Log are required")
	}
	if o.Workers == 0 {
		o.Workers = 4
	}
	if o.CollectEvery == 0 {
		o.CollectEvery = 10 * time.Minute
	}
	return &Controller{o: o, listings: record.NewListings(o.Store), judged: turns{room: maxFromOrigin}, room: usualRoom}, nil
}

// Run campaigns, leads until leadership is lost, and campaigns again, until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		lead, err := c.o.Campaign(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("control: campaign: %w", err)
		}
		c.leadOnce(ctx, lead)
	}
	return nil
}

func (c *Controller) leadOnce(ctx context.Context, lead store.Leadership) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.lead, c.states, c.backoff = lead, map[fleet.ModuleRef]*moduleState{}, map[string]time.Duration{}
	c.leaving = map[fleet.ClusterName]bool{}
	c.dropping = map[fleet.ModuleRef]map[fleet.ClusterName]bool{}
	c.headings, c.unknown = map[fleet.ModuleRef]record.Heading{}, nil
	c.awaiting = awaiting{}
	c.sets.clear()
	c.gathered.reset()
	c.modules = newRunner(c.o.Workers, c.timed("modules", c.runModule))
	c.resolver, c.fetcher, c.origins = newRunner(maxResolvers, c.timed("revisions", c.runResolve)), newRunner(maxFetchers, c.timed("fetches", c.runFetch)), &origins{}
	c.looker, c.lookedAt = newRunner(maxLooks, c.timed("looks", c.runLook)), &origins{}
	c.looks.begin(time.Now())
	c.cataloguer, c.catalogHosts = newRunner(maxCatalogs, c.timed("catalogs", c.runCatalog)), &origins{}
	c.catalogs.begin(time.Now())
	c.variants = newRunner(maxResolvers, c.timed("variants", c.runVariants))
	var wg sync.WaitGroup
	c.leads = true
	c.spawn = func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	c.mu.Unlock()
	c.o.Log.Info("leading")
	wg.Go(func() { c.modules.loop(ctx) })
	wg.Go(func() { c.resolver.loop(ctx) })
	wg.Go(func() { c.fetcher.loop(ctx) })
	wg.Go(func() { c.looker.loop(ctx) })
	wg.Go(func() { c.cataloguer.loop(ctx) })
	wg.Go(func() { c.variants.loop(ctx) })
	wg.Go(func() { c.watch(ctx) })
	wg.Go(func() { c.collectLoop(ctx) })
	wg.Go(func() { c.freezeLoop(ctx) })
	wg.Go(func() { c.restoreLoop(ctx) })
	if c.o.Tracer != nil {
		wg.Go(func() { c.traceRollouts(ctx) })
	}
	select {
	case <-ctx.Done():
	case <-lead.Lost():
		c.o.Log.Warn("no longer leading")
	}
	cancel()
	c.mu.Lock()
	c.spawn, c.leads = nil, false
	c.mu.Unlock()
	wg.Wait()
	c.looks.end()
	c.catalogs.end()
	end, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	if err := lead.Resign(end); err != nil {
		c.o.Log.Debug("resign", "error", err)
	}
}

// update commits under the leader's fence.
func (c *Controller) update(ctx context.Context, fn func(store.Writer) error) error {
	rev, err := c.o.Store.Update(ctx, func(w store.Writer) error {
		w.Fence(c.fence())
		return fn(w)
	})
	for err == nil {
		old := c.rev.Load()
		if rev <= old || c.rev.CompareAndSwap(old, rev) {
			break
		}
	}
	return err
}

func (c *Controller) view(ctx context.Context, fn func(store.Reader) error) error {
	return c.o.Store.View(ctx, c.rev.Load(), fn)
}

func (c *Controller) fence() store.Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lead.Fence()
}

// watched are the prefixes of the keys whose changes concern the drivers.
var watched = []string{store.ModulePrefix, store.RevisionPrefix, store.FollowPrefix, store.StartPrefix, store.BatchPrefix, store.RolloutPrefix, store.VerbPrefix, store.RequestPrefix, store.DesiredPrefix, store.ObservedPrefix,
	store.ClusterPrefix, store.AckPrefix, store.ConditionPrefix, store.CapabilityPrefix, store.HoldPrefix, store.ConfirmPrefix, store.RecyclePrefix, store.SecretPrefix, store.CatalogPrefix, store.CatalogStates, store.AcceptedKey, store.ResumedKey, store.SettledKey}

// watch turns changed keys into modules to look at.
func (c *Controller) watch(ctx context.Context) {
	sub := c.o.Store.Subscribe(c.takeStock, watched...)
	defer sub.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-sub.C():
			if !ok {
				return
			}
			keys, _ := sub.Take()
			for _, k := range keys {
				c.follow(k)
			}
		}
	}
}

// takeStock looks at all that there is.
func (c *Controller) takeStock(r store.Reader) {
	store.Scan(r, store.ModulePrefix, func(_ *storev1.ModuleRecord, e store.Entry) bool {
		c.follow(e.Key)
		return true
	})
	for _, prefix := range []string{store.CatalogPrefix, store.CatalogStates} { // the catalog of a state may be gone
		r.Scan(prefix, func(e store.Entry) bool {
			if ref, ok := store.SplitCatalog(e.Key); ok {
				c.follow(store.CatalogKey(ref))
			}
			return true
		})
	}
	for _, prefix := range []string{store.RequestPrefix, store.BatchPrefix} { // the module of a request may be gone
		r.Scan(prefix, func(e store.Entry) bool {
			c.follow(e.Key)
			return true
		})
	}
	bug := c.round("look at holds", func() error {
		c.touchHeld(r)
		return nil
	})
	store.Scan(r, store.ClusterPrefix, func(rec *storev1.ClusterRecord, e store.Entry) bool {
		if rec.GetRemoving() != "" || bug != nil {
			c.modules.add(e.Key)
		}
		return true
	})
}

// follow has looked at what a changed key concerns. After a bug nobody knows what that is, so that everything is looked at:
// a change that is missed would leave modules standing still. A bug in that, too, ends the process.
func (c *Controller) follow(key string) {
	err := c.round("follow "+key, func() error {
		c.touchKey(key)
		return nil
	})
	if err == nil {
		return
	}
	c.touchAll()
	if strings.HasPrefix(key, store.ModulePrefix) || strings.HasPrefix(key, store.ClusterPrefix) {
		c.modules.add(key)
	}
}

// round is one round of a loop: a bug in it is an error, whose stack is logged, and the loop goes on.
func (c *Controller) round(what string, part func() error) error {
	err := guarded(part)
	if stack := guard.Stack(err); stack != "" {
		c.o.Log.Error("a loop panicked; it goes on", "at", what, "stack", stack)
	}
	return err
}

// ClusterChanged tells that a cluster connected or was lost. Nothing changes when it is not expected back any more, so that it is looked
// at again then.
func (c *Controller) ClusterChanged(name fleet.ClusterName) {
	if c.o.Grace > 0 && !c.o.Sessions.Connected(name) {
		time.AfterFunc(c.o.Grace, func() { c.touchConnection(name) })
	}
	c.touchConnection(name)
}

// touchConnection has every module look at a cluster whose agent is there, or is not.
func (c *Controller) touchConnection(name fleet.ClusterName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.modules == nil {
		return
	}
	for ref, st := range c.states {
		if st.mark(name) {
			c.modules.add(store.ModuleKey(ref))
		}
	}
}

func (c *Controller) touchKey(key string) {
	if store.AboutRestore(key) {
		c.touchAll()
		return
	}
	prefix, _, _ := strings.Cut(key, "/")
	switch prefix + "/" {
	case store.DesiredPrefix, store.ObservedPrefix:
		if cluster, ref, ok := store.SplitClusterModule(key); ok {
			c.touchAssigned(cluster, ref, prefix+"/" == store.ObservedPrefix)
		}
	case store.RecyclePrefix:
		if cluster, ref, ok := store.SplitClusterModule(key); ok {
			c.state(ref).mark(cluster)
			c.modules.add(store.ModuleKey(ref))
		}
	case store.ClusterPrefix:
		c.touchCluster(fleet.ClusterName(strings.TrimPrefix(key, store.ClusterPrefix)))
		c.modules.add(key)
	case store.AckPrefix:
		c.touchLeaving(fleet.ClusterName(strings.TrimPrefix(key, store.AckPrefix)))
		if c.refused(key) {
			c.touchCluster(fleet.ClusterName(strings.TrimPrefix(key, store.AckPrefix)))
		}
	case store.ConditionPrefix:
		c.touchCluster(fleet.ClusterName(strings.TrimPrefix(key, store.ConditionPrefix)))
	case store.CapabilityPrefix:
		c.touchCluster(fleet.ClusterName(strings.TrimPrefix(key, store.CapabilityPrefix)))
	case store.HoldPrefix:
		c.touchHold(key)
	case store.ConfirmPrefix:
		c.touchHold(store.HoldPrefix + strings.TrimPrefix(key, store.ConfirmPrefix))
	case store.SecretPrefix:
		c.touchSecret(key)
	case store.CatalogPrefix:
		if c.o.Catalogs != nil {
			c.cataloguer.add(key)
		}
	case store.BatchPrefix:
		c.modules.add(key)
	case store.FollowPrefix, store.CatalogStates:
		c.touchUnknown()
	case store.RequestPrefix:
		if ref, ok := store.SplitModule(key); ok {
			c.modules.add(store.ModuleKey(ref))
		}
	default:
		if ref, ok := store.SplitModule(key); ok {
			c.state(ref)
			c.modules.add(store.ModuleKey(ref))
			c.touchDropping(key, ref, "")
			c.touchAwaiting(ref)
			c.touchCatalogsAwaiting(ref)
			c.touchDependents(ref, 0)
		}
	}
}

// touchAssigned looks at a module in a cluster where what is desired or observed has changed.
func (c *Controller) touchAssigned(cluster fleet.ClusterName, ref fleet.ModuleRef, reported bool) {
	st := c.state(ref)
	rest := st.rest()
	if reported {
		rest = st.hear(cluster)
	} else {
		st.contest(cluster, true)
		c.touchWaiting(cluster, ref)
		c.touchDropping("", ref, cluster)
		c.touchCatalogsAwaiting(ref)
	}
	c.modules.addAt(store.ModuleKey(ref), time.Now().Add(rest))
	c.touchDependents(ref, rest)
	c.touchLeaving(cluster)
}

// touchLeaving looks at a cluster that is to leave the fleet.
func (c *Controller) touchLeaving(cluster fleet.ClusterName) {
	if c.removing(cluster) {
		c.modules.add(store.ClusterKey(cluster))
	}
}

// touchWaiting looks at the modules of the cluster that wait for objects of this one: it may have let some go.
func (c *Controller) touchWaiting(cluster fleet.ClusterName, owner fleet.ModuleRef) {
	var waiting []fleet.ModuleRef
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		waiting = c.listings.Waiting(r, cluster, owner)
		return nil
	})
	c.touchRivals(cluster, waiting)
}

// touchRivals has modules look again at what they own in the cluster.
func (c *Controller) touchRivals(cluster fleet.ClusterName, list []fleet.ModuleRef) {
	for _, ref := range list {
		c.state(ref).contest(cluster, false)
		c.modules.add(store.ModuleKey(ref))
	}
}

func (c *Controller) removing(name fleet.ClusterName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving[name]
}

// refused reports that the agent could not take a sync; an acknowledgement without that changes nothing for a module.
func (c *Controller) refused(key string) bool {
	found := false
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		ack, _, ok := store.Get[*storev1.AckRecord](r, key)
		found = ok && len(ack.GetRefused()) > 0
		return nil
	})
	return found
}

// touchCluster marks the cluster in every module: its labels, its connection or its acknowledgements may matter.
func (c *Controller) touchCluster(name fleet.ClusterName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref, st := range c.states {
		st.mark(name)
		c.modules.add(store.ModuleKey(ref))
	}
}

func (c *Controller) touchAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref, st := range c.states {
		st.markAll()
		c.modules.add(store.ModuleKey(ref))
	}
}

func (c *Controller) state(ref fleet.ModuleRef) *moduleState {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.states[ref]
	if st == nil {
		st = &moduleState{all: true}
		c.states[ref] = st
	}
	return st
}

func (c *Controller) dropState(ref fleet.ModuleRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.states, ref)
	delete(c.dropping, ref)
	delete(c.unknown, ref)
	delete(c.headings, ref)
	c.awaiting.drop(ref)
	c.sets.want(ref, nil)
}

// runModule works on one module, one cluster that is to be forgotten, or one batch of puts.
func (c *Controller) runModule(ctx context.Context, key string) time.Duration {
	if strings.HasPrefix(key, store.BatchPrefix) {
		var again time.Duration
		err := guarded(func() (err error) {
			again, err = c.runBatch(ctx, key)
			return err
		})
		return max(c.outcome(ctx, key, err), again)
	}
	if name, ok := strings.CutPrefix(key, store.ClusterPrefix); ok {
		return c.outcome(ctx, key, guarded(func() error { return c.reconcileCluster(ctx, fleet.ClusterName(name)) }))
	}
	ref, ok := store.SplitModule(key)
	if !ok {
		return 0
	}
	began, st := time.Now(), c.state(ref)
	err := guarded(func() error { return c.reconcileModule(ctx, ref) })
	if err != nil {
		st.reset()
	}
	st.took.Store(int64(time.Since(began)))
	return c.outcome(ctx, key, err)
}

func (c *Controller) runResolve(ctx context.Context, key string) time.Duration {
	ref, ok := store.SplitModule(key)
	if !ok {
		return 0
	}
	err := guarded(func() error { return c.resolve(ctx, ref) })
	if err != nil {
		c.troubles.set(ref, err)
	}
	if waitsForSecret(err) {
		c.o.Log.Info("a source waits for its secret", "module", ref.Display(), "error", err)
		err = nil // it is tried again when the secret is set
	}
	again := c.outcome(ctx, "resolve "+key, err)
	if isAway(err) && again > 0 {
		again = max(again, awayRetry)
	}
	return again
}

// runVariants renders what clusters have come to since a revision of a module was cut.
func (c *Controller) runVariants(ctx context.Context, key string) time.Duration {
	ref, ok := store.SplitModule(key)
	if !ok {
		return 0
	}
	return c.outcome(ctx, "render "+key, guarded(func() error { return c.renderWanted(ctx, ref) }))
}

// guarded runs a part of a driver. A bug that one key runs into keeps no other from being driven, and comes back with each
// start of the hub, because what sets it off is stored: it is an error, so the key backs off.
func guarded(part func() error) error {
	return guard.Bug(guard.Run(part), "stopped by a bug in the hub; its log has the details")
}

const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// outcome says when to run again: not by itself after success, later and later after errors.
func (c *Controller) outcome(ctx context.Context, key string, err error) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		delete(c.backoff, key)
		return 0
	}
	d := min(max(firstRetry, 2*c.backoff[key]), lastRetry)
	if errors.Is(err, fleet.ErrStopped) {
		d = lastRetry
	}
	c.backoff[key] = d
	c.o.Meter.WorkFailed()
	if stack := guard.Stack(err); stack != "" {
		c.o.Log.Error("a driver panicked; it will be tried again", "key", key, "after", d, "stack", stack)
		return d
	}
	if !errors.Is(err, fleet.ErrConflict) {
		c.o.Log.Warn("will be tried again", "key", key, "after", d, "error", err)
	}
	return d
}
