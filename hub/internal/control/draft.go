package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// Draft is what a put is going to list that is queued behind a rollout. If its source is elsewhere that is as the source is now,
// and known when it has been fetched; what is cut when its turn comes may say something else.
func (c *Controller) Draft(ctx context.Context, m *wire.Module, rec *storev1.ModuleRecord, number int64) record.Draft {
	key := draftOf(m, rec, number)
	if d, known := c.drafts.get(key); known {
		return d
	}
	if key.rollout != 0 {
		c.fetchDraft(rec, m.Ref)
		return record.Draft{Coming: true}
	}
	d, err := c.draft(ctx, m)
	if err == nil {
		c.drafts.put(key, d)
	}
	return d
}

// draft renders a put. What cannot be rendered is going to list nothing; for want of a secret, or of the server that has
// its source, it cannot be rendered yet.
func (c *Controller) draft(ctx context.Context, m *wire.Module) (record.Draft, error) {
	x, err := c.makeObjects(ctx, m)
	if ctx.Err() != nil {
		return record.Draft{}, fmt.Errorf("module %s: %w", m.Ref.Display(), ctx.Err())
	}
	if errors.As(err, new(*source.SecretError)) || isAway(err) {
		return record.Draft{}, err
	}
	if err != nil {
		return record.Draft{}, nil
	}
	out := record.Draft{Entries: map[string][]fleet.BundleEntry{}, ByCapabilities: asksIn(x.variants), Known: true}
	for _, v := range x.variants {
		for _, form := range v.forms() {
			out.Entries[form.Key()] = manifest.ToBundle(v.objects)
		}
	}
	return out, nil
}

// fetchDraft has a resolver fetch the source of a queued put, if this hub leads.
func (c *Controller) fetchDraft(rec *storev1.ModuleRecord, ref fleet.ModuleRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spawn != nil {
		c.resolverOf(rec).add(store.ModuleKey(ref))
	}
}

// resolveDraft fetches the source of the module's newest put if that is queued, and has those look again who let something go
// that it may list.
func (c *Controller) resolveDraft(ctx context.Context, ref fleet.ModuleRef) error {
	var rec *storev1.ModuleRecord
	var number int64
	err := c.view(ctx, func(r store.Reader) error {
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
	if _, known := c.drafts.get(key); known || key.rollout == 0 {
		return nil
	}
	d, err := c.draft(ctx, m)
	if waitsForSecret(err) {
		return nil // it is asked for again when that is set
	}
	if err != nil {
		return err
	}
	c.troubles.set(ref, nil)
	c.drafts.put(key, d)
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

// draftKey names a put: by its spec, which says all of one that has its source with it, and else by its rollout, too.
type draftKey struct {
	module  string // the UID of one whose source is elsewhere
	rollout int64  // 0: the source is in the spec
	spec    fleet.Digest
}

func draftOf(m *wire.Module, rec *storev1.ModuleRecord, number int64) draftKey {
	key := draftKey{spec: record.Digest(rec.GetSpecDigest())}
	if !wire.Contained(m.Source) {
		key.module, key.rollout = uidOf(rec), number
	}
	return key
}

// drafts are what queued puts are going to list. Any is dropped when there are many: few modules have a queue.
type drafts struct {
	mu   sync.Mutex
	list map[draftKey]record.Draft
}

const maxDrafts = 256

func (x *drafts) get(key draftKey) (d record.Draft, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	d, known = x.list[key]
	return d, known
}

func (x *drafts) put(key draftKey, d record.Draft) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.list == nil {
		x.list = map[draftKey]record.Draft{}
	}
	if len(x.list) >= maxDrafts {
		drop := true
		maps.DeleteFunc(x.list, func(draftKey, record.Draft) bool {
			defer func() { drop = false }()
			return drop
		})
	}
	x.list[key] = d
}
