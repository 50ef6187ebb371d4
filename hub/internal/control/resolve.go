package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracing"
	"towline.dev/towline/pkg/wire"
)

// rendered is a source turned into what a revision refers to.
type rendered struct {
	artifact fleet.Digest
	variants []storedVariant // without overrides, and without asks, it is one
	// overrides says that the module has some, and asks that its templates ask what clusters can do: variants may be added.
	overrides, asks bool
	policies        fleet.Digest // with variants as far as they do not depend on the variant
	input           fleet.Digest
	epoch           uint64
	ref             string // what the source's ref was, exactly
	sourceTime      time.Time
	charts          []*towlinev1.FetchedChart
}

// varies reports that there may be more variants.
func (r rendered) varies() bool { return r.overrides || r.asks }

// named is what a plan is made of: the bundle, or with variants the source, since which there are is up to the clusters.
func (r rendered) named() fleet.Digest {
	if r.varies() {
		return r.artifact
	}
	return r.variants[0].bundle
}

// resolved is what the source of a put came to: what its revision refers to, or why it gets none.
type resolved struct {
	put      *storev1.ModuleRecord
	number   int64 // of its rollout
	rendered rendered
	failed   *rollout.SourceFailed
}

// resolve fetches and renders the source of the module's newest rollout, and hands what it came to over to the run of the module's key.
// That alone decides on the module's rollouts, so nothing is held while a source is fetched, and no two assign one cluster.
func (c *Controller) resolve(ctx context.Context, ref fleet.ModuleRef) error {
	handed := c.state(ref).handedOver() // before the look: what is cut meanwhile is seen by that
	rec, number, bound, err := c.unresolved(ctx, ref)
	switch {
	case err != nil:
		return err
	case rec == nil:
		return c.resolveDraft(ctx, ref)
	case handed != nil && handed.number == number && samePut(rec, handed.put):
		return nil
	}
	if waits, err := c.awaitsPuts(ctx, ref, number); waits || err != nil {
		c.resolverOf(rec).addAt(store.ModuleKey(ref), time.Now().Add(record.BatchPatience))
		return err
	}
	within, timings := c.o.Tracer.Collect(ctx)
	r, err := c.resolvePut(within, rec, bound)
	c.traceTimings(ctx, ref, number, timings)
	if err != nil {
		r, err = c.whileAway(ref, number, rec, err, time.Now())
	}
	if err != nil {
		return err
	}
	r.number = number
	c.state(ref).handOver(r)
	c.modules.add(store.ModuleKey(ref))
	return nil
}

// resolvePut makes what a revision of a put refers to. An error is the hub's own trouble: what the source is to blame for is what
// it came to. One that is bound to a plan comes to that or to nothing.
func (c *Controller) resolvePut(ctx context.Context, rec *storev1.ModuleRecord, bound string) (*resolved, error) {
	fails := func(reason string, cause error) (*resolved, error) {
		return &resolved{put: rec, failed: &rollout.SourceFailed{Reason: reason, Message: cause.Error()}}, nil
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return fails("InvalidModule", err)
	}
	r, err := c.prepare(ctx, m, record.Digest(rec.GetSpecDigest()))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, fleet.ErrConflict) || errors.As(err, new(*storeError)) || errors.As(err, new(*source.SecretError)) || isAway(err) || errors.Is(err, fleet.ErrStopped):
		return nil, err
	case err != nil:
		return fails("SourceFailed", err)
	}
	spec, err := wire.SpecDigest(rec.GetModule().GetSpec())
	if err == nil && bound != "" && bound != record.Plan(spec, r.named(), r.policies).String() {
		return fails("SourceFailed", errors.New(record.OtherPlan))
	}
	r.input = fleet.DigestOf(slices.Concat(spec.Bytes(), r.artifact.Bytes(), r.policies.Bytes()))
	return &resolved{put: rec, rendered: r}, err
}

// unresolved returns the module, and the number of its newest rollout with the plan that it is bound to, if that waits for its source.
func (c *Controller) unresolved(ctx context.Context, ref fleet.ModuleRef) (rec *storev1.ModuleRecord, number int64, bound string, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		if !ok || m.GetDeleting() != "" {
			return nil
		}
		if ro := rollouts.Unresolved(r, ref); ro != nil && !rollouts.Queued(r, ref, ro) {
			rec, number, bound = m, ro.GetRollout().GetNumber(), ro.GetRollout().GetPlan()
		}
		return nil
	})
	return rec, number, bound, err
}

// storeError is the hub's own trouble: no fault of the source, so the rollout waits for its end.
type storeError struct{ error }

// Unwrap yields the cause.
func (e *storeError) Unwrap() error { return e.error }

// made is a source turned into objects, of which nothing is stored yet.
type made struct {
	source   source.Artifact
	variants []madeVariant
}

// makeObjects fetches and renders the source of a module.
func (c *Controller) makeObjects(ctx context.Context, m *wire.Module) (out made, err error) {
	fetched := tracing.Time(ctx, tracing.Fetch)
	out.source, err = c.fetchSource(ctx, m)
	if fetched(err); err != nil {
		return made{}, &unfetched{err}
	}
	rendered := tracing.Time(ctx, tracing.Render)
	out.variants, err = c.renderSource(ctx, m, out.source)
	rendered(err)
	return out, err
}

// fetchSource fetches the source of a module, with what its chart depends on.
func (c *Controller) fetchSource(ctx context.Context, m *wire.Module) (source.Artifact, error) {
	a, err := c.o.Source.Fetch(ctx, m.Ref.Project, m.Source)
	if err != nil {
		if m.Source.GetUpload() != nil && errors.Is(err, fleet.ErrUnavailable) { // it is in the store
			err = &storeError{err}
		}
		return a, err
	}
	if m.Package.Helm == nil || c.o.Vendor == nil {
		return a, nil
	}
	return c.o.Vendor(ctx, m.Ref.Project, m.Source, m.Package.Helm.Path, a)
}

// asksIn reports that what clusters can do makes a difference to one of the variants.
func asksIn(variants []madeVariant) bool {
	return slices.ContainsFunc(variants, func(v madeVariant) bool { return len(v.capabilities) > 0 })
}

// renderSource renders what was fetched for a module, for each variant that the selected clusters have. What is not available then is the
// store or a process that renders, and no fault of the source.
func (c *Controller) renderSource(ctx context.Context, m *wire.Module, a source.Artifact) (out []madeVariant, err error) {
	defer func() {
		if errors.Is(err, fleet.ErrUnavailable) {
			err = &storeError{err}
		}
	}()
	wanted, err := c.wantedVariants(ctx, m)
	if err != nil {
		return nil, err
	}
	x := renderer{c: c, m: m, files: a.Files, several: len(wanted) > 1}
	for _, w := range wanted {
		v, err := x.render(ctx, w)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return x.merged(out), nil
}

// inOrder refuses objects that could never be applied, because each waits for a field of the other.
func inOrder(m *wire.Module, objects []manifest.Object) error {
	late := m.Late()
	if len(late) == 0 {
		return nil
	}
	users := assemble.Users{}
	for _, o := range objects {
		users[o.ID] = o.Placeholders
	}
	if circle := assemble.ObjectCircle(late, users, nil); circle != nil {
		return fleet.Invalidf("spec.bindings", "%s: what has to be applied first cannot be told; read the field of another object", strings.Join(circle, " → "))
	}
	return nil
}

// render makes the objects of a module, and puts all contents into the blobs.
func (c *Controller) render(ctx context.Context, m *wire.Module) (rendered, error) {
	x, err := c.makeObjects(ctx, m)
	if err != nil {
		return rendered{}, err
	}
	return c.keep(ctx, m, x)
}

// keep puts all contents into the blobs.
func (c *Controller) keep(ctx context.Context, m *wire.Module, x made) (rendered, error) {
	out := rendered{artifact: x.source.Digest, overrides: len(m.Overrides) > 0, asks: asksIn(x.variants), ref: x.source.Ref, sourceTime: x.source.Made, charts: x.source.Charts}
	set, err := c.policySet(ctx, m)
	if err != nil {
		return out, err
	}
	if out.epoch, err = c.o.Store.Blobs().Epoch(ctx); err != nil {
		return out, &storeError{err}
	}
	if out.variants, err = c.store(ctx, m, set, x.variants); err != nil {
		return out, err
	}
	contents := [][]byte{x.source.Archive}
	if out.policies = out.variants[0].policies; out.varies() {
		policies, err := wire.PolicySetContent(set)
		if err != nil {
			return out, err
		}
		out.policies, contents = fleet.DigestOf(policies), append(contents, policies)
	}
	return out, c.put(ctx, m, contents)
}

func (c *Controller) put(ctx context.Context, m *wire.Module, contents [][]byte) error {
	if _, err := c.o.Store.Blobs().Put(ctx, contents...); err != nil {
		return fmt.Errorf("module %s: %w", m.Ref.Display(), &storeError{err})
	}
	return nil
}

// substitution is what agents have to know of placeholders; nil: nothing but ${NAME}.
func substitution(m *wire.Module, objects []manifest.Object) *fleet.Substitution {
	extended := slices.ContainsFunc(objects, func(o manifest.Object) bool { return o.Extended })
	for _, o := range m.Watch {
		extended = extended || manifest.IsExtended(o.Namespace) || manifest.IsExtended(o.Name)
	}
	if !extended {
		return nil
	}
	return &fleet.Substitution{Strict: m.Strict, Types: m.Placeholders().Types}
}

// policySet are the module's policies and of the health rules that hold for it: its own, then those of its
// project.
func (c *Controller) policySet(ctx context.Context, m *wire.Module) (fleet.PolicySet, error) {
	set := fleet.PolicySet{Policies: m.Policies, HealthRules: m.HealthRules, Watch: m.Watch}
	var project *storev1.ProjectRecord
	err := c.view(ctx, func(r store.Reader) error {
		project, _, _ = store.Get[*storev1.ProjectRecord](r, store.ProjectPrefix+m.Ref.Project)
		return nil
	})
	if err != nil {
		return set, err
	}
	more, err := wire.HealthRulesFromProto(project.GetProject().GetSpec().GetHealthRules())
	if err != nil {
		return set, fmt.Errorf("project %s: %w", m.Ref.Project, err)
	}
	set.HealthRules = append(set.HealthRules[:len(set.HealthRules):len(set.HealthRules)], more...)
	return set, nil
}

// cutResolved cuts the revision that the resolver has handed over, if there is one. Only then does the new rollout supersede an active
// one; a source that failed fails the new rollout and leaves the old one running.
func (c *Controller) cutResolved(ctx context.Context, ref fleet.ModuleRef, st *moduleState) error {
	if err := errors.Join(c.endOutdated(ctx, ref), c.endAborted(ctx, ref)); err != nil {
		return err
	}
	r := st.handedOver()
	if r == nil {
		return nil
	}
	if r.failed == nil {
		if waits, err := c.waitsAhead(ctx, ref); waits || err != nil {
			return err
		}
	}
	err := guarded(func() error {
		if r.failed != nil {
			return c.failRollout(ctx, ref, r)
		}
		return c.cut(ctx, ref, r)
	})
	if said := new(saidError); errors.As(err, &said) {
		c.modules.addAt(store.ModuleKey(ref), st.awaitSaid(said.key, time.Now())) // the run that is under way takes it in
		return nil
	}
	c.troubles.set(ref, err)
	if err == nil || errors.Is(err, fleet.ErrConflict) { // contents may have been collected since: then they are made again
		st.settle(r)
	}
	return err
}

// saidError is a cut before which the rollout that decides is to take in what a person said of it: what is pinned there is pinned in the next one.
type saidError struct{ key string }

func (e *saidError) Error() string { return "what was said is taken in first: " + e.key }

// cut writes the revision, gives it to the rollout and supersedes older ones, in one transaction.
func (c *Controller) cut(ctx context.Context, ref fleet.ModuleRef, r *resolved) (err error) {
	defer c.traceCut(ctx, ref, r.number)(&err)
	defer c.cuts.Add(-1)
	if c.cuts.Add(1) > maxBeginnings {
		return c.cutAnd(ctx, ref, r, false)
	}
	err = c.cutAnd(ctx, ref, r, true)
	if errors.Is(err, errLater) || errors.Is(err, fleet.ErrExhausted) {
		return c.cutAnd(ctx, ref, r, false)
	}
	return err
}

// cutAnd begins the rollout in the same transaction, if it is told to.
func (c *Controller) cutAnd(ctx context.Context, ref fleet.ModuleRef, r *resolved, begin bool) error {
	var begun func()
	err := c.updateWith(ctx, func(w store.Writer, o outside) (err error) {
		begun = nil
		w.References(r.rendered.epoch)
		m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
		if !samePut(m, r.put) || rollouts.Newest(w, ref) != r.number {
			return nil
		}
		ro := rollouts.Get(w, ref, r.number)
		if ro == nil || ro.GetRollout().GetRevision() != 0 || rollouts.Ended(ro) || rollouts.Queued(w, ref, ro) {
			return nil // what came to be queued meanwhile takes what is there when its turn comes
		}
		w.Get(rollouts.NextVerb(w, ref, r.number))
		if abortOf(w, ref, r.number) != nil {
			return nil // it ends without a revision, and takes the place of no other rollout
		}
		if said := rollouts.Unheard(w, ref); said != "" && c.state(ref).awaitsSaid(said, o.now) {
			return &saidError{said}
		}
		why := fellBack(w, ref, m, ro, r.rendered)
		if back := bringsBack(w, ref, m, ro, r.rendered); back != 0 {
			why = fmt.Sprintf("the source has what r%d has, which was rolled back or aborted, and nobody asked for it again: towline resync %s", back, ref.Display())
		}
		if why != "" {
			return rollouts.Close(w, ref, func(n int64) bool { return n == r.number }, rollout.Module{SourceFailed: &rollout.SourceFailed{Reason: "SourceFailed", Message: why}}, o.now)
		}
		rev := revisionFor(w, ref, m, ro.GetRollout().GetStatus(), r.rendered, timestamppb.New(o.now))
		if ro, err = rollouts.Begin(w, ref, saysBack(w, ref, ro, rev), rev, o.now); err != nil {
			return err
		}
		if begin && !rollouts.Ended(ro) {
			begun, err = c.begin(ctx, w, o, ref, ro, m)
		}
		return err
	})
	if err == nil && begun != nil {
		begun()
	}
	return err
}

// bringsBack is the revision that was rolled back or aborted since a look began the rollout, if the source has that again; 0: it begins. What
// waits its turn takes what is there then, so that the look could not tell.
func bringsBack(r store.Reader, ref fleet.ModuleRef, m *storev1.ModuleRecord, ro *storev1.RolloutRecord, made rendered) int64 {
	if len(ro.GetFetched()) == 0 {
		return 0 // no look began it
	}
	by, newest, driven := ro.GetRollout().GetStatus().GetStartedBy(), record.NewestRevision(r, ref), rollouts.StateOf(rollouts.Driven(r, ref))
	found := follow.Found{Person: by != record.ByFollow && by != record.ByWebhook && record.Digest(ro.GetFetched()) == made.artifact, // who asked has seen that
		Stopped: driven == rollout.RolledBack || driven == rollout.RollingBack || driven == rollout.Aborted,
		Same: newest != nil && newest.GetRevision().GetModuleGeneration() == m.GetModule().GetMetadata().GetGeneration() &&
			made.alike(newest)}
	if !found.Stopped || found.Begins() {
		return 0
	}
	return newest.GetRevision().GetNumber()
}

// revisionFor returns the number of the newest revision if its inputs are the same, else of a new one. Of one that is damaged
// nobody knows what they were, and its number is taken.
func revisionFor(w store.Writer, ref fleet.ModuleRef, m *storev1.ModuleRecord, by *towlinev1.RolloutStatus, r rendered, now *timestamppb.Timestamp) int64 {
	newest, taken := record.NewestRevision(w, ref), record.NewestNumber(w, ref)
	same := record.Digest(newest.GetInputDigest()) == r.input && r.alike(newest) && !r.outgrows(w, ref, newest)
	if newest != nil && newest.GetRevision().GetNumber() == taken && same {
		if next := withVariants(newest, r.records()); next != nil {
			w.Put(store.RevisionKey(ref, taken), next)
		}
		return taken
	}
	n := max(taken+1, m.GetFirstRevision(), 1)
	key := store.RevisionKey(ref, n)
	w.Get(key) // the number must still be free at the commit
	meta := m.GetModule().GetMetadata()
	rev := &storev1.RevisionRecord{
		Revision: &towlinev1.Revision{ApiVersion: fleet.APIVersion, Kind: "Revision", Module: ref.Name, Number: n,
			Metadata: &towlinev1.Metadata{Name: fmt.Sprintf("%s-r%d", ref.Name, n), Project: ref.Project, CreationTimestamp: now,
				ChangedBy: by.GetStartedBy(), ChangeReason: by.GetStartReason()},
			Spec: m.GetModule().GetSpec(), Artifact: r.artifact.String(), ModuleGeneration: meta.GetGeneration(), ResolvedRef: r.ref, Charts: r.charts},
		Artifact: r.artifact.Bytes(), Policies: r.policies.Bytes(), InputDigest: r.input.Bytes(), ByCapabilities: r.asks,
	}
	if !r.sourceTime.IsZero() {
		rev.Revision.SourceTime = timestamppb.New(r.sourceTime)
	}
	rev.Revision.GoesBack = goesBack(w, ref, rev.GetRevision(), newest.GetRevision()).Why
	if r.varies() {
		rev = withVariants(rev, r.records())
	} else {
		v := r.variants[0]
		rev.Bundle, rev.Needs, rev.Revision.Bundle, rev.Revision.Objects = v.bundle.Bytes(), v.needs, v.bundle.String(), int32(v.objects)
	}
	w.Put(key, rev)
	return n
}

// samePut reports that a module is there still as it was when its source began to be fetched. A module of the name that was deleted
// and put again may count its rollouts anew, so that their numbers do not tell.
func samePut(now, then *storev1.ModuleRecord) bool {
	return now.GetDeleting() == "" && uidOf(now) == uidOf(then)
}

func uidOf(m *storev1.ModuleRecord) string { return m.GetModule().GetMetadata().GetUid() }

// failRollout fails the rollout of a put whose source gave nothing.
func (c *Controller) failRollout(ctx context.Context, ref fleet.ModuleRef, r *resolved) error {
	failed, now := rollout.Module{SourceFailed: r.failed}, time.Now()
	return c.update(ctx, func(w store.Writer) error {
		if m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref)); uidOf(m) != uidOf(r.put) {
			return nil
		}
		return rollouts.Close(w, ref, func(n int64) bool { return n == r.number }, failed, now)
	})
}
