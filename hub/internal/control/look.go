package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
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
	"towline.dev/towline/pkg/wire"
)

// How looks at sources are made: beside the fetches of puts, which they hold up nowhere.
const (
	maxLooks = 8
	// maxLookTries is how often a look begins anew because the module was put meanwhile.
	maxLookTries = 3
	// calledAgain is when a module is looked at again for which a call came while it waited for its source.
	calledAgain = 10 * time.Second
	// looksStored is how old the stored time of the last look may be: a look that finds nothing new writes nothing before.
	looksStored = time.Hour
)

// sight is what a look at the source of a module begins with.
type sight struct {
	ref    fleet.ModuleRef
	rec    *storev1.ModuleRecord
	m      *wire.Module
	memory *storev1.FollowRecord
	newest *storev1.RevisionRecord // nil: it has none that can be read
	number int64                   // of its newest rollout
	last   *storev1.RolloutRecord  // that one; nil: there is none that can be read
	waits  bool                    // that one waits for its source
	behind bool                    // it waits for the rollout that runs before that
	stuck  bool                    // and nobody asked for it, so that a person's pause keeps it waiting
	found  follow.Found
	// aborted says that a person ended the newest rollout before it had a revision.
	aborted bool
	queues  bool // a rollout that begins now waits for the one that runs
	// outgrown are clusters that can do something else than when the newest revision was chosen for them.
	outgrown []record.Outgrown
	undone   bool // the newest revision was aborted, or rolled back
	called   bool // a call from outside asks for the look
	awaited  bool // a call asks for it of which another module waits for what comes: it is stored
	persists bool // it begins without those of its source whose branch moves while they are looked at
	// store is the store that was read, and read its revision then.
	store string
	read  int64
}

// sight reads it; nil: there is no such module.
func (c *Controller) sight(ctx context.Context, ref fleet.ModuleRef) (s *sight, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		if rec == nil || rec.GetDeleting() != "" {
			return nil
		}
		m, err := wire.ModuleFromProto(rec.GetModule())
		if err != nil {
			return &lookError{err, follow.ReasonInvalid}
		}
		s = &sight{ref: ref, rec: rec, m: m, memory: record.Followed(r, ref, rec), newest: record.NewestRevision(r, ref), number: rollouts.Newest(r, ref),
			waits: rollouts.Unresolved(r, ref) != nil}
		if ro := rollouts.Unresolved(r, ref); ro != nil {
			s.behind = rollouts.Queued(r, ref, ro)
		}
		hub, _, _ := store.Get[*storev1.Hub](r, store.HubKey)
		s.store, s.read = hub.GetIncarnation(), r.Revision()
		failed := record.SourceFailed(r, ref)
		last := rollouts.Last(r, ref)
		s.last = last
		if driven := rollouts.StateOf(rollouts.Driven(r, ref)); rollouts.Ended(last) { // what is under way is not begun anew because a cluster can do more
			s.outgrown, s.undone = record.OutgrownBy(r, ref, s.newest), driven == rollout.Aborted || driven == rollout.RolledBack
		}
		s.aborted = last.GetRollout().GetRevision() == 0 && rollouts.StateOf(last) == rollout.Aborted
		s.queues = rollouts.Queued(r, ref, &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: s.number + 1}})
		s.found.Paused = rollouts.PausedByPerson(r, ref)
		s.stuck = s.waits && s.found.Paused && last.GetUnasked()
		s.found.Planned = failed && last.GetRollout().GetPlan() != ""
		s.found.Unbegun = rollouts.PutsMissing(last) && !rollouts.OfLook(last) // a look begins all of a source anew
		s.found.Stopped = failed || rollouts.RolledBack(r, ref, last)
		s.found.Uncut = (failed || s.stuck) && s.newest.GetRevision().GetModuleGeneration() != rec.GetModule().GetMetadata().GetGeneration()
		return nil
	})
	if s != nil {
		if known, _ := c.Followed(ref); record.SpeaksOf(known, s.rec) {
			s.memory = known
		}
	}
	return s, err
}

// runLook looks at the source of a module, if that is due or somebody waits for it.
func (c *Controller) runLook(ctx context.Context, key string) time.Duration {
	ref, ok := store.SplitModule(key)
	if !ok {
		return 0
	}
	defer func() { c.looker.addAll(c.lookedAt.unused(key)) }()
	var again time.Duration
	err := guarded(func() (err error) {
		again, err = c.lookIfDue(ctx, ref)
		return err
	})
	if err != nil {
		t := c.looks.take(ref)
		for _, a := range t.asks {
			a.answer <- answer{err: err}
		}
		if errors.As(err, new(*lookError)) {
			err, again = nil, 0 // nobody can look at what cannot be read
		} else {
			c.looks.callAgain(ref, t, time.Now())
		}
	}
	if err != nil {
		return c.outcome(ctx, "look at "+key, err)
	}
	c.outcome(ctx, "look at "+key, nil)
	return again
}

// lookIfDue says in how long the next look is due. An error is the hub's own trouble.
func (c *Controller) lookIfDue(ctx context.Context, ref fleet.ModuleRef) (again time.Duration, err error) {
	s, err := c.sight(ctx, ref)
	switch {
	case err != nil:
		return 0, err
	case s == nil:
		for _, a := range c.looks.take(ref).asks {
			a.answer <- answer{err: fleet.NotFound(ref.Object(), "module %s not found", ref.Display())}
		}
		c.looks.drop(ref)
		return 0, nil
	}
	if !c.looks.asked(ref) {
		if c.stands(ctx) {
			return againStands, nil
		}
		if again, err := c.untilLook(ctx, s); again > 0 || err != nil || s.m.Follow == nil {
			return again, err
		}
	}
	if host := origin(s.rec); host != "" {
		if !c.lookedAt.enter(host, store.ModuleKey(ref)) {
			return 0, nil // the one that leaves wakes it
		}
		defer func() { c.looker.addAll(c.lookedAt.leave(host)) }()
	}
	t := c.looks.take(ref)
	s.awaited, s.called = t.awaited, t.hook
	if err := c.lookFor(ctx, s, t.asks); err != nil {
		c.looks.callAgain(ref, t, time.Now())
		return 0, err
	}
	again, err = c.untilLook(ctx, s)
	if s.m.Follow != nil {
		again = max(again, time.Second) // it has been looked at
	}
	return again, err
}

// untilLook is how long there is until the source is to be looked at; 0: it is due, or not followed.
func (c *Controller) untilLook(ctx context.Context, s *sight) (time.Duration, error) {
	if s.m.Follow == nil {
		c.looks.drop(s.ref)
		return 0, nil
	}
	next, err := c.nextLook(ctx, s.ref, s.rec, *s.m.Follow)
	return max(time.Until(next), 0), err
}

// lookFor looks for those who wait, or because it is due, and answers them.
func (c *Controller) lookFor(ctx context.Context, s *sight, asks []ask) (err error) {
	var came record.Resynced
	for tries := 1; ; tries++ {
		if came, err = c.look(ctx, s, asks); !errors.Is(err, fleet.ErrConflict) || tries == maxLookTries {
			break
		}
		next, viewed := c.sight(ctx, s.ref)
		if viewed != nil || next == nil {
			break
		}
		next.called, next.awaited, next.persists = s.called, s.awaited, tries+1 == maxLookTries
		*s = *next
	}
	told := err
	if ctx.Err() != nil {
		told = errNotLeading
	}
	for _, a := range asks {
		a.answer <- answer{came, told}
	}
	var failed *lookError
	if !errors.As(err, &failed) {
		return err
	}
	if s.called && follow.MayPass(failed.reason) {
		c.looks.call(s.ref, follow.CalledAgain(follow.Memory{Failing: record.Instant(s.memory.GetSince())}, time.Now()), true)
	}
	return nil // it is remembered
}

// lookError is what a source is to blame for, or the state of the module.
type lookError struct {
	error
	reason string
}

// Unwrap yields the cause.
func (e *lookError) Unwrap() error { return e.error }

// look looks at the source, and has a rollout begin if there is something new. A *lookError is remembered, and changes nothing.
func (c *Controller) look(ctx context.Context, s *sight, asks []ask) (came record.Resynced, err error) {
	if s.waits && !(s.stuck && len(asks) > 0) { // it is resolved by itself
		told := len(asks) > 0 || s.called
		switch {
		case s.behind:
			c.draftAgain(s, told)
		case told:
			c.resolverOf(s.rec).add(store.ModuleKey(s.ref))
		}
		if s.called && !s.behind { // what is fetched now may be older than the call
			c.looks.call(s.ref, time.Now().Add(calledAgain), true)
		}
		if s.m.Follow != nil {
			c.looks.postpone(s.ref, s.rec, time.Now().Add(s.m.Follow.Interval))
		}
		return record.Resynced{Number: s.number, Waits: true}, nil
	}
	next := s.recall()
	came, err = c.compare(ctx, s, asks, next)
	if errors.Is(err, fleet.ErrStopped) {
		err = &lookError{err, lookReason(err)} // the next look tries it again
	}
	var failed *lookError
	switch {
	case ctx.Err() != nil:
		return came, ctx.Err()
	case errors.As(err, &failed):
		s.blame(next, failed)
	case err != nil:
		return came, err
	}
	return came, errors.Join(err, c.remember(ctx, s, next))
}

// recall is what is known before a look, for what comes of it to be noted in.
func (s *sight) recall() *storev1.FollowRecord {
	return &storev1.FollowRecord{ModuleUid: uidOf(s.rec), Generation: s.rec.GetModule().GetMetadata().GetGeneration(), Looked: timestamppb.Now(),
		ResolvedRef: s.memory.GetResolvedRef(), Artifact: s.memory.GetArtifact(), Revision: s.memory.GetRevision(), Fetched: s.memory.GetFetched(),
		Began: s.read, Incarnation: s.store, Back: s.memory.GetBack(), BackSeen: s.memory.GetBackSeen()}
}

// blame notes what is wrong, and since when something is. What was fetched and could not be taken up is not known any more when the server
// fails next: record.Succession would take it for taken up.
func (s *sight) blame(next *storev1.FollowRecord, failed *lookError) {
	if was := s.memory.GetReason(); follow.OfServer(failed.reason) && was != "" && !follow.OfServer(was) {
		next.ResolvedRef = ""
	}
	next.Reason, next.Message, next.Since = failed.reason, fleet.Clip(failed.Error(), maxLookMessage), s.memory.GetSince()
	if next.Since == nil {
		next.Since = next.Looked
	}
}

// maxLookMessage is how much is kept of what is wrong with a source.
const maxLookMessage = 1000

// compare compares what the source has with the newest revision, and has a rollout begin if that is something else.
func (c *Controller) compare(ctx context.Context, s *sight, asks []ask, next *storev1.FollowRecord) (came record.Resynced, err error) {
	v := &verdict{s: s, asks: asks, next: next}
	if err := c.judge(ctx, v); err != nil {
		return record.Resynced{Ref: v.artifact.Ref}, err
	}
	came.Ref = v.artifact.Ref
	if v.begins {
		if err := c.beginTogether(ctx, v, &came); err != nil {
			return came, err
		}
	}
	v.note()
	return came, nil
}

// sameFor reports that clusters which can do something else than when the newest revision was chosen for them have what that comes to now,
// and has the revision remember it.
func (c *Controller) sameFor(s *sight, variants []madeVariant) bool {
	for _, x := range s.outgrown {
		i := slices.IndexFunc(variants, func(v madeVariant) bool { return slices.ContainsFunc(v.forms(), x.Now.Equal) })
		if i < 0 {
			continue // it is not selected any more
		}
		if bundle, _ := assemble.BundleDigest(manifest.ToBundle(variants[i].objects)); bundle != x.Bundle {
			return false
		}
	}
	for _, x := range s.outgrown {
		c.wantVariant(s.ref, s.newest, x.Now)
	}
	return true
}

// verdict is what a look at a source comes to, before anything begins.
type verdict struct {
	s        *sight
	asks     []ask
	next     *storev1.FollowRecord
	artifact source.Artifact
	variants []madeVariant
	begins   bool
	same     bool
	backs    bool       // it begins, and goes back with that, or another one of its source does
	failed   *lookError // nil: it can begin
}

// judge fetches the source, and says whether it has what the newest revision has.
func (c *Controller) judge(ctx context.Context, v *verdict) (err error) {
	s := v.s
	if s.undone && len(v.asks) == 0 { // what a person stopped, or what failed, does not come again because a cluster can do more
		s.outgrown = nil
	}
	if v.artifact, err = c.fetchSource(ctx, s.m); err != nil {
		return &lookError{err, lookReason(err)}
	}
	v.next.Back, v.next.BackSeen = nil, 0
	found := s.found
	found.Person, found.Same, found.Aborted = len(v.asks) > 0, s.has(v.artifact.Digest) && len(s.outgrown) == 0, s.aborted && !s.moved(v.artifact.Digest)
	if !found.Same {
		if v.variants, err = c.renderSource(ctx, s.m, v.artifact); err != nil {
			return v.unrendered(err)
		}
		found.Same = s.newest != nil && record.HasVariants(s.newest) == (len(s.m.Overrides) > 0 || asksIn(v.variants)) && c.sameFor(s, v.variants) && (sameAs(s.newest, v.variants) || s.has(v.artifact.Digest))
		if found.Same {
			if found.Same, err = c.sameUnseen(ctx, s.m, s.newest, v.artifact.Files, v.variants); err != nil {
				return err
			}
		}
	}
	v.next.ResolvedRef = v.artifact.Ref
	v.same, v.begins = found.Same, found.Begins()
	if v.begins {
		if err := c.steady(ctx, v); err != nil {
			return err
		}
	}
	if found.Paused && v.begins && !found.Person {
		return &lookError{record.IsPaused(s.ref), follow.ReasonPaused}
	}
	return nil
}

// unrendered is why what was fetched comes to nothing: by the hub's own trouble, after which it is looked at again, or by what the source has,
// which is noted as seen then.
func (v *verdict) unrendered(err error) error {
	if errors.As(err, new(*storeError)) {
		return err
	}
	failed := &lookError{err, lookReason(err)}
	if !follow.OfServer(failed.reason) {
		v.next.ResolvedRef = v.artifact.Ref
	}
	return failed
}

// note keeps what was seen. What was aborted is known until something else begins: a server that is behind may have something else for a while.
func (v *verdict) note() {
	if !v.s.aborted || v.begins || len(v.next.Fetched) == 0 {
		v.next.Fetched = v.artifact.Digest.Bytes()
	}
	if v.same {
		v.next.Artifact, v.next.Revision = v.artifact.Digest.Bytes(), v.s.newest.GetRevision().GetNumber()
		if last := v.s.last.GetRollout(); !v.begins && last.GetRevision() == 0 {
			v.next.CaughtUp = last.GetNumber()
		}
	}
}

// has reports that it is known what files render to: what the newest revision has.
func (s *sight) has(artifact fleet.Digest) bool {
	if s.newest == nil {
		return false
	}
	return artifact == record.Digest(s.newest.GetArtifact()) && s.newest.GetRevision().GetModuleGeneration() == s.rec.GetModule().GetMetadata().GetGeneration() ||
		artifact == record.Digest(s.memory.GetArtifact()) && s.memory.GetRevision() == s.newest.GetRevision().GetNumber()
}

// moved reports that the source has something else than what the newest rollout, which was aborted, had begun with: what a look found that began it, or
// else the first one after it.
func (s *sight) moved(artifact fleet.Digest) bool {
	before := s.last.GetFetched()
	if len(before) == 0 {
		before = s.memory.GetFetched()
	}
	return len(before) > 0 && record.Digest(before) != artifact
}

// news is what a rollout begins with.
func (v *verdict) news() record.News {
	meta := v.s.rec.GetModule().GetMetadata()
	n := record.News{Module: v.s.ref, UID: meta.GetUid(), Generation: meta.GetGeneration(), Rollout: v.s.number, Ref: v.artifact.Ref, Fetched: v.artifact.Digest,
		Ask: record.Ask{By: record.ByFollow}, Person: len(v.asks) > 0}
	if v.s.called {
		n.Ask.By = record.ByWebhook
	}
	if n.Person {
		n.Ask = v.asks[0].Ask
	}
	return n
}

// lookReason is why a look came to nothing, in a word.
func lookReason(err error) string {
	switch {
	case errors.As(err, new(*source.SecretError)) && !errors.Is(err, fleet.ErrUnavailable):
		return follow.ReasonNeedsSecret
	case errors.Is(err, fleet.ErrUnavailable):
		return follow.ReasonUnavailable
	case errors.Is(err, fleet.ErrNotFound):
		return follow.ReasonNotFound
	case errors.As(err, new(*source.UnverifiedError)):
		return follow.ReasonUnverified
	case errors.Is(err, fleet.ErrDenied):
		return follow.ReasonDenied
	case errors.Is(err, fleet.ErrExhausted):
		return follow.ReasonTooLarge
	}
	return follow.ReasonInvalid
}

// remember keeps what came of a look. It is stored when it says something new.
func (c *Controller) remember(ctx context.Context, s *sight, next *storev1.FollowRecord) error {
	if s.m.Follow == nil {
		return nil
	}
	c.logLook(s, next)
	c.looks.remember(s.ref, s.rec, next)
	return c.update(ctx, func(w store.Writer) error {
		m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(s.ref))
		old, _, _ := store.Get[*storev1.FollowRecord](w, store.FollowKey(s.ref))
		if m.GetDeleting() != "" || !record.SpeaksOf(next, m) || !s.awaited && !saysMore(old, next) {
			return nil
		}
		w.Put(store.FollowKey(s.ref), next)
		return nil
	})
}

// saysMore reports that a record is worth a write.
func saysMore(old, next *storev1.FollowRecord) bool {
	if old == nil || next.GetLooked().AsTime().Sub(old.GetLooked().AsTime()) >= looksStored {
		return true
	}
	same := proto.CloneOf(old)
	same.Looked, same.Began = next.GetLooked(), next.GetBegan()
	return !proto.Equal(same, next)
}

// logLook logs when a source cannot be followed any more, and when it can be again.
func (c *Controller) logLook(s *sight, next *storev1.FollowRecord) {
	switch was := s.memory.GetReason(); {
	case next.GetReason() != was && next.GetReason() != "":
		c.o.Log.Warn("a source cannot be followed; what runs stays", "module", s.ref.Display(), "reason", next.GetReason(), "error", next.GetMessage())
	case next.GetReason() != was:
		c.o.Log.Info("a source can be followed again", "module", s.ref.Display(), "ref", next.GetResolvedRef())
	}
}
