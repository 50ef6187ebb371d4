package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// Draft is what a put is going to list that is queued behind a rollout. It is known when a resolver has made it: whoever asks decides on another
// module, and waits for no source and no rendering. If its source is elsewhere that is as the source is now; what is cut when its turn comes may
// say something else.
func (c *Controller) Draft(_ context.Context, m *wire.Module, rec *storev1.ModuleRecord, number int64) record.Draft {
	key := draftOf(m, rec, number)
	if d, known := c.drafts.get(key); known {
		return d
	}
	if c.drafts.mayAsk(key, time.Now()) {
		c.fetchDraft(rec, m.Ref, false)
	}
	return record.Draft{Coming: true}
}

// draft renders a put. What cannot be rendered is going to list nothing (see record.Draft of others of its source). Of what cannot be fetched
// that is not known: at its turn the secret, the branch or the server may be there. at is the store's revision when it begins.
func (c *Controller) draft(ctx context.Context, m *wire.Module, at int64) (record.Draft, error) {
	x, err := c.makeObjects(ctx, m)
	if ctx.Err() != nil {
		return record.Draft{}, fmt.Errorf("module %s: %w", m.Ref.Display(), ctx.Err())
	}
	switch {
	case err == nil:
	case errors.As(err, new(*source.SecretError)) || errors.As(err, new(*storeError)) || isAway(err):
		return record.Draft{}, err
	case errors.As(err, new(*unfetched)):
		return record.Draft{}, err
	default:
		return record.Draft{Failed: true}, nil
	}
	out := record.Draft{Ref: x.source.Ref, Files: x.source.Digest, At: at, Entries: map[string][]fleet.BundleEntry{}, ByCapabilities: asksIn(x.variants), Known: true}
	for _, v := range x.variants {
		for _, form := range v.forms() {
			out.Entries[form.Key()] = manifest.ToBundle(v.objects)
		}
	}
	return out, nil
}

// unfetched is why a source cannot be fetched for now. Of a queued put it is no trouble of the hub's, and fails nothing before the put's turn.
type unfetched struct{ error }

// Unwrap yields the cause.
func (e *unfetched) Unwrap() error { return e.error }

// fetchDraft has a resolver fetch the source of a queued put, if this hub leads: now, or unless it is going to. A server that is away is tried
// more and more rarely, however often it is asked.
func (c *Controller) fetchDraft(rec *storev1.ModuleRecord, ref fleet.ModuleRef, now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spawn == nil {
		return
	}
	fetch := c.resolverOf(rec).ask
	if now {
		fetch = c.resolverOf(rec).add
	}
	fetch(store.ModuleKey(ref))
}

// draftAgain has the source of a queued put be fetched again, because somebody tells of something new there (told), or it may have that.
func (c *Controller) draftAgain(s *sight, told bool) {
	key := draftOf(s.m, s.rec, s.number)
	if key.rollout == 0 {
		return
	}
	c.drafts.again(key, told)
	c.fetchDraft(s.rec, s.ref, told)
}

// resolveDraft fetches the source of the module's newest put if that is queued, and has those look again who let something go
// that it may list.
func (c *Controller) resolveDraft(ctx context.Context, ref fleet.ModuleRef) error {
	var rec *storev1.ModuleRecord
	var number, at int64
	err := c.view(ctx, func(r store.Reader) error {
		at = r.Revision()
		m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		if !ok || m.GetDeleting() != "" {
			return nil
		}
		if ro := rollouts.Unresolved(r, ref); ro != nil && rollouts.Queued(r, ref, ro) {
			rec, number = m, ro.GetRollout().GetNumber()
		}
		return nil
	})
	if err != nil || rec == nil {
		return err
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return nil // its rollout is going to fail
	}
	key := draftOf(m, rec, number)
	word, wanted := c.drafts.wants(key) // before the fetch: what is told of meanwhile is fetched after it
	if !wanted || !c.drafts.mayAsk(key, time.Now()) {
		return nil
	}
	d, err := c.draft(ctx, m, at)
	switch {
	case waitsForSecret(err) || errors.As(err, new(*unfetched)) || errors.Is(err, fleet.ErrStopped):
		c.drafts.lacks(key, time.Now(), lastRetry)
		return nil // it is asked for again when that is set, and after a while; if its turn comes first, that says what is wrong
	case isAway(err):
		c.drafts.lacks(key, time.Now(), firstRetry)
		return err
	case err != nil:
		return err
	}
	c.troubles.set(ref, nil)
	c.drafts.put(key, d, word)
	if now, _ := c.drafts.wants(key); now != word {
		c.fetchDraft(rec, ref, true)
	}
	c.touchDropping(store.ModuleKey(ref), ref, "")
	c.touchAwaiters(ref)
	return nil
}

// newSuccession is the succession of a module, with what is known of puts that are queued.
func newSuccession(o outside, ref fleet.ModuleRef) *record.Succession {
	x := record.NewSuccession(o.bundles, ref)
	x.Drafts = o.drafts
	return x
}

// draftKey names a put: by its module, whose name and project are in what charts render, and its spec, which says all else of one that has its source with
// it, and else by its rollout, too.
type draftKey struct {
	module  string // its UID
	rollout int64  // 0: the source is in the spec
	spec    fleet.Digest
}

func draftOf(m *wire.Module, rec *storev1.ModuleRecord, number int64) draftKey {
	key := draftKey{module: uidOf(rec), spec: record.Digest(rec.GetSpecDigest())}
	if !wire.Contained(m.Source) {
		key.rollout = number
	}
	return key
}

// drafts are what queued puts are going to list. Any is dropped when there are many: few modules have a queue.
type drafts struct {
	mu   sync.Mutex
	list map[draftKey]drafted
}

const maxDrafts = 4096

// lastDraftRetry is how often a source that cannot be had is tried at last: each time all of it may be fetched, for nothing begins by it.
const lastDraftRetry = 5 * time.Minute

// drafted is a draft, and whether its source is to be fetched again.
type drafted struct {
	record.Draft
	made bool
	// wanted and fetched are how often its source was to be fetched again, and of these how often it was.
	wanted, fetched int
	// lacked is when the source could not be had last, zero: it could, or somebody has said since that it may; waits is how long it is not tried
	// after that.
	lacked time.Time
	waits  time.Duration
	// told says that somebody has told of something new, so that it is not known before that is fetched.
	told bool
}

// get is what is known of a draft.
func (x *drafts) get(key draftKey) (d record.Draft, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	return at.Draft, at.made && !at.told
}

// again has a draft be made again. told: until then it is not known.
func (x *drafts) again(key draftKey, told bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	at.wanted++
	if told {
		at.told, at.lacked, at.waits = true, time.Time{}, 0
	}
	x.set(key, at)
}

// lacks notes that a draft cannot be made for want of a secret, of what its source says is not there, or of a server. It is not tried again
// for the time that first says, and for twice as long each time after that.
func (x *drafts) lacks(key draftKey, now time.Time, first time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	at.lacked, at.waits = now, min(max(first, 2*at.waits), lastDraftRetry)
	x.set(key, at)
}

// secretSet has drafts be made for which one was missing.
func (x *drafts) secretSet() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, at := range x.list {
		at.lacked, at.waits = time.Time{}, 0
		x.list[key] = at
	}
}

// mayAsk reports that a draft may be asked for: not at once for want of what it lacked, unless somebody has set a secret since, or told of
// something new.
func (x *drafts) mayAsk(key draftKey, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	return now.Sub(at.lacked) >= at.waits
}

// wants reports that a draft is to be made, as of which word.
func (x *drafts) wants(key draftKey) (word int, wanted bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	return at.wanted, !at.made || at.wanted != at.fetched
}

// put keeps what a draft came to as of a word. One that cannot be rendered now is what it was, if it was known.
func (x *drafts) put(key draftKey, d record.Draft, word int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := x.list[key]
	if d.Known || !at.made {
		at.Draft = d
	}
	at.Failed = !d.Known
	at.made, at.fetched, at.lacked, at.waits = true, word, time.Time{}, 0
	at.told = at.told && at.wanted != word
	x.set(key, at)
}

// set is under the lock.
func (x *drafts) set(key draftKey, at drafted) {
	if x.list == nil {
		x.list = map[draftKey]drafted{}
	}
	if _, there := x.list[key]; !there && len(x.list) >= maxDrafts {
		drop := true
		maps.DeleteFunc(x.list, func(draftKey, drafted) bool {
			defer func() { drop = false }()
			return drop
		})
	}
	x.list[key] = at
}
