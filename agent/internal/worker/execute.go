package worker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// outcome is what came of acting on an item.
type outcome struct {
	item     *item
	fail     *apply.Failure
	canceled bool
	use      *use     // a Namespace that is used, and in which nothing is ours
	reading  *reading // of an object that is only read
	again    bool     // decide once more: the object was only looked at
	ran      bool     // nothing was written: it ran, and is gone
	// annotated: its annotation holds the object, which is known by now: decide once more.
	annotated bool
	// autoscaled: an autoscaler has the replicas that were to be taken back: decide once more.
	autoscaled bool
	moved      apply.Resource // where the kind is served now, if it is not any more where it was known to be
	crd        map[string]any
}

// execute acts on items, stage by stage. It stops early when a newer target comes.
func (w *worker) execute(ctx context.Context, jobs []*item) {
	inOrder(jobs)
	if !w.persist(ctx, jobs) {
		return
	}
	w.status.began = time.Now()
	var crds []map[string]any
	for len(jobs) > 0 && ctx.Err() == nil {
		stage := plan.StageOf(jobs[0].entry.ID, jobs[0].entry.Wave)
		end := atOnce(jobs, stage)
		if stage.Class == plan.ClassWave {
			w.awaitEstablished(ctx, crds)
			crds = nil
		}
		crds = append(crds, w.stage(ctx, jobs[:end])...)
		jobs = jobs[end:]
		if w.superseded() || w.held() != "" {
			break
		}
	}
	w.awaitEstablished(ctx, crds)
	for _, it := range jobs {
		it.look = true
	}
	if len(jobs) > 0 {
		dirty.Poke(w.signal)
	}
}

// claim notes an intent for every object that is new to the inventory. It returns the items that may go on. Other modules claim at
// the same time: what nobody had when it was decided about may be another one's by now.
func (w *worker) claim(jobs []*item) []*item {
	now := time.Now()
	out := jobs[:0]
	for _, it := range jobs {
		rec := w.m.inventory.Get(it.entry.ID)
		verb := it.action.Verb
		looks := verb == plan.Use && rec == nil && it.use != nil // another hub has it
		if verb == plan.Create && (rec == nil || rec.Module != w.ref) || verb == plan.Conflict || verb == plan.Use && !looks || verb == plan.Share {
			owner, ok := w.own(it)
			if !ok && verb == plan.Share {
				w.share(it)
			} else if !ok && plan.IsNamespace(it.entry.ID) {
				it.action = plan.Action{Verb: plan.Use, Drift: fleet.DriftInSync}
			} else if !ok {
				w.inConflict(it, owner, now)
				continue
			} else if verb != plan.Create {
				it.action = w.decide(it)
			}
		}
		if it.action.Verb.Acts() {
			out = append(out, it)
		}
	}
	return out
}

// persist makes the intents durable before the first write, and what came from other modules: an object that carries the mark of
// a module which the inventory does not have it of would be nobody's, should the agent be killed after the write.
func (w *worker) persist(ctx context.Context, jobs []*item) bool {
	if !slices.ContainsFunc(jobs, w.newHere) {
		return true
	}
	err := w.m.inventory.Sync(ctx)
	if err == nil {
		return true
	}
	if !apply.Canceled(ctx, err) {
		for _, it := range jobs {
			w.failed(it, apply.Explain(it.entry.ID, err), time.Now())
		}
	}
	return false
}

// newHere reports that the module has not written the object of an item yet.
func (w *worker) newHere(it *item) bool {
	rec := w.m.inventory.Get(it.entry.ID)
	return it.action.Verb == plan.Create || rec != nil && rec.From != (fleet.ModuleRef{})
}

func (w *worker) intent(it *item) *apply.Record {
	r := &apply.Record{Record: plan.Record{ID: it.entry.ID, Version: it.entry.Version, Wave: it.entry.Wave, Module: w.ref,
		State: plan.Intent, Born: w.cur.sync.Generation, Generation: w.cur.sync.Generation, Lineage: w.cur.sync.Lineage}}
	w.remember(r, it)
	return r
}

// remember notes the policies that hold when the sync is not here any more.
func (w *worker) remember(r *apply.Record, it *item) {
	r.Prune, r.Delete, r.Named, r.Legacy = it.policy.Prune, it.policy.Delete, plan.Named(w.policies, it.entry.ID), it.policy.KeepsLegacy()
	r.Shared = it.policy.Shares()
}

// inOrder sorts the jobs as they are applied.
func inOrder(jobs []*item) {
	slices.SortStableFunc(jobs, func(a, b *item) int {
		return plan.CompareApply(a.entry.ID, a.entry.Wave, b.entry.ID, b.entry.Wave)
	})
}

// atOnce is how many of the jobs, of which the first is of the stage, are acted on at the same time: all of the stage, but that what is made finds in
// place what it is judged by.
func atOnce(jobs []*item, stage plan.Stage) int {
	end, made := 0, -1
	for ; end < len(jobs) && plan.StageOf(jobs[end].entry.ID, jobs[end].entry.Wave) == stage; end++ {
		if jobs[end].action.Verb.Makes() {
			made = end
		}
	}
	for i := range made + 1 {
		if plan.Ground(jobs[i].entry.ID) != plan.Ground(jobs[0].entry.ID) {
			return i
		}
	}
	return end
}

// stage acts on the items of one stage, up to the manager's limit at a time, and returns the CRDs that it applied. It
// stops early when a newer target comes.
func (w *worker) stage(ctx context.Context, items []*item) (crds []map[string]any) {
	wave := w.traced.wave(items)
	defer wave.end()
	for chunk := range slices.Chunk(items, stageChunk) {
		jobs, order := make([]job, len(chunk)), w.order()
		order.wave = wave
		for i, it := range chunk {
			it.look = true // until there is an outcome
			jobs[i] = w.job(order, it)
		}
		var stop atomic.Bool
		crds = append(crds, w.gather(ctx, w.inParallel(ctx, jobs, &stop), &stop)...)
		if stop.Load() {
			w.again(items)
			return crds
		}
	}
	return crds
}

// gather takes outcomes as they come, and returns the CRDs that were applied. It does not end, however it does, before the
// jobs have: a pass that begins anew must not find them under way.
func (w *worker) gather(ctx context.Context, results *outcomes, stop *atomic.Bool) (crds []map[string]any) {
	more := true
	defer func() {
		for more {
			stop.Store(true)
			_, more = results.next()
		}
	}()
	for more {
		var list []outcome
		list, more = results.next()
		for _, done := range list {
			done.item.look = false
			if done.crd != nil {
				crds = append(crds, done.crd)
			}
			w.settle(done)
		}
		if ctx.Err() != nil || w.superseded() || w.held() != "" {
			stop.Store(true)
		}
		w.progress()
	}
	return crds
}

// stageChunk is how many jobs are made ready at once.
const stageChunk = 1024

// again has every item looked at once more that no outcome was for.
func (w *worker) again(items []*item) {
	for _, it := range items {
		if it.action.Verb.Writes() && it.fail == nil {
			it.look = true
		}
	}
	dirty.Poke(w.signal)
}

// counted is perform, in the metrics.
func (w *worker) counted(ctx context.Context, j job) outcome {
	began := time.Now()
	out := w.perform(ctx, j)
	j.wave.object(&j, began, &out)
	switch {
	case out.canceled:
	case out.fail != nil:
		w.m.o.Meter.Applied(time.Since(began), out.fail.Reason)
	default:
		w.m.o.Meter.Applied(time.Since(began), "")
	}
	return out
}

// inParallel acts on the jobs, in order, as many at a time as the manager has slots.
func (w *worker) inParallel(ctx context.Context, jobs []job, stop *atomic.Bool) *outcomes {
	results := &outcomes{wake: make(chan struct{}, 1)}
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(cap(w.m.slots), len(jobs)) {
		running.Go(func() {
			for {
				w.m.slots <- struct{}{}
				i := int(next.Add(1)) - 1
				if i >= len(jobs) || stop.Load() {
					<-w.m.slots
					return
				}
				done := w.m.lend()
				out := w.counted(ctx, jobs[i])
				done()
				results.add(out)
			}
		})
	}
	go func() {
		running.Wait()
		results.end()
	}()
	return results
}

// outcomes gathers what came of jobs, so that the worker is not woken for each.
type outcomes struct {
	wake chan struct{}

	mu    sync.Mutex
	list  []outcome
	ended bool
}

const (
	gatherOutcomes = 64
	gatherTime     = 10 * time.Millisecond
)

func (o *outcomes) add(x outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, x)
	if len(o.list) >= gatherOutcomes || x.fail != nil {
		dirty.Poke(o.wake)
	}
}

func (o *outcomes) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	dirty.Poke(o.wake)
}

// next waits for some outcomes, or for a moment, and reports whether there will be more.
func (o *outcomes) next() (list []outcome, more bool) {
	t := time.NewTimer(gatherTime)
	defer t.Stop()
	select {
	case <-o.wake:
	case <-t.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	list, o.list = o.list, nil
	return list, !o.ended
}

// settle takes the outcome of one item.
func (w *worker) settle(o outcome) {
	it, now := o.item, time.Now()
	w.situateKnown(it)
	if o.canceled {
		it.look = true
		return
	}
	if o.annotated || o.autoscaled {
		if o.autoscaled {
			it.leavesReplicas()
		}
		it.clear()
		it.look = true
		dirty.Poke(w.signal)
		return
	}
	if o.moved.Resource != "" {
		w.moved(it, o.moved, now)
		return
	}
	it.took(o)
	if o.fail != nil {
		w.failed(it, o.fail, now)
		if it.lacksNamespace() {
			w.lookAtNamespace(it.entry.ID.Namespace)
		}
		return
	}
	drift := it.action.Drift == fleet.DriftDrifted && it.action.Verb.Writes() && !o.ran
	if it.action.Verb.Writes() {
		it.tookReplicas(now)
	}
	if it.action.Verb.Writes() || it.action.Verb == plan.Keep {
		w.rereads(it)
	}
	it.clear()
	if it.use = o.use; plan.IsNamespace(it.entry.ID) {
		w.noteUse(it.liveID(), o.use != nil)
	}
	if drift {
		w.corrections++
		w.m.o.Meter.Corrected()
		w.log.Info("drift corrected", "object", it.entry.ID.String())
		it.makeRare().history.Corrected()
	}
	it.action = w.decide(it)
	w.readsInTime(it, now)
	if o.again || it.action.Verb.Acts() { // no event tells of an object that is gone and was not made again
		it.look = true
		dirty.Poke(w.signal)
	}
}

// lookAtNamespace has the module's own Namespace object created again, if it is the one that is missing.
func (w *worker) lookAtNamespace(name string) {
	if it := w.byID[fleet.ObjectID{Kind: "Namespace", Name: name}]; it != nil && it.use != nil {
		it.use, it.look = nil, true
	}
}

// order is what the jobs of a sync have in common. It is never changed.
type order struct {
	sync     fleet.Sync
	policies []fleet.Policy // of the sync
	wave     *tracedWave    // nil: it is in no trace
	asOf     time.Time      // what the jobs are by was known then
}

func (w *worker) order() *order {
	return &order{sync: w.cur.sync, policies: w.policies, asOf: time.Now()}
}

// job is what perform may know of an item: a copy, because items belong to the worker's goroutine. There are many at a
// time.
type job struct {
	*order
	item  *item
	id    fleet.ObjectID
	entry fleet.BundleEntry
	verb  plan.Verb
	drift fleet.Drift
	want  fleet.Digest
	*treatment
	named    bool
	resource apply.Resource
	record   *apply.Record
	scaled   bool // leave /spec/replicas to an autoscaler
	unasked  bool // whether there is one was not asked since somebody else set them, who is none
	retakes  bool // it is to be taken back from who set it, for no autoscaler had it when that was asked last
	takes    bool // and whoever set it is a program that may set it anew until then: it is taken all the same
	print    *watch.Fingerprint
	values   map[string]string // that the object is read with
	hidden   []string          // those that nobody may be shown
	guessed  *apply.Failure    // why one of them may be another than the object has; nil: none is
}

func (w *worker) job(o *order, it *item) job {
	j := job{order: o, item: it, id: it.entry.ID, entry: it.entry, verb: it.action.Verb, drift: it.action.Drift, want: it.want, treatment: it.treatment,
		named: plan.Named(w.policies, it.entry.ID), record: w.m.inventory.Get(it.entry.ID)}
	j.values, j.hidden = w.bound(it), it.late.secrets()
	if it.late != nil {
		j.guessed = it.late.guessed
	}
	j.resource = it.resource
	j.print, _ = w.print(it)
	j.scaled, j.retakes = j.record != nil && j.print != nil && j.print.UID == j.record.UID && it.autoscaled(j.print, j.record), it.takesReplicas()
	j.takes = j.retakes && !it.rare.scaling.person
	j.unasked = j.scaled && !j.print.Scaled && (it.rare == nil || it.rare.scaling == nil || it.rare.scaling.asked.IsZero())
	if j.verb.Repeats() {
		by, hash := "", apply.Hash{}
		if j.print != nil {
			hash = j.print.Values.Hash
			if j.print.Change != nil {
				by = j.print.Change.By
			}
		}
		it.makeRare().history.Observe(by, hash, j.drift == fleet.DriftDrifted, time.Now())
	}
	return j
}

// awaitEstablished waits until the CRDs that were just applied serve their kinds, so that no object of them is tried
// too early.
func (w *worker) awaitEstablished(ctx context.Context, crds []map[string]any) {
	if len(crds) == 0 {
		return
	}
	deadline := time.NewTimer(w.m.o.EstablishTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(establishPoll)
	defer tick.Stop()
	began := time.Now()
	for {
		crds = slices.DeleteFunc(crds, w.establishedNow)
		if len(crds) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			return
		case <-tick.C:
		}
		if time.Since(began) > establishAsk {
			began = time.Now()
			w.askEstablished(ctx, crds)
		}
	}
}

const (
	establishPoll = 5 * time.Millisecond
	establishAsk  = time.Second
)

// establishedNow reports whether the CRD serves its kinds, and has the mapper learn them.
func (w *worker) establishedNow(crd map[string]any) bool {
	f, _ := w.m.watcher.Look(apply.CRDs, "", apply.NameOf(crd))
	if f == nil || f.Health != fleet.HealthHealthy {
		return false
	}
	w.m.mapper.Learn(crd)
	w.m.established(apply.GroupOfCRD(crd))
	return true
}

// askEstablished reads the CRDs, should the watch be slow.
func (w *worker) askEstablished(ctx context.Context, crds []map[string]any) {
	ctx, cancel := context.WithTimeout(ctx, establishAsk)
	defer cancel()
	for _, crd := range crds {
		if live, err := w.m.client.Get(ctx, apply.CRDs, "", apply.NameOf(crd)); err == nil {
			w.m.watcher.Observe(apply.CRDs, live, w.m.inventory.Get(fleet.ObjectID{Group: apply.CRDs.Group, Kind: apply.CRDs.Kind, Name: apply.NameOf(crd)}))
		}
	}
}
