package control

import (
	"context"
	"errors"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// outside is what a decision rests on that is in no record of the store.
type outside struct {
	now     time.Time
	bundles record.Bundles
	drafts  record.Drafts
	voided  *[]voided // orders that the transaction ends before they are carried out; it may run more than once
}

// outside looks things up when they are asked for: for a look at the store, which may take its time.
func (c *Controller) outside() outside {
	return outside{now: time.Now(), bundles: c.o.Bundles, drafts: c.Draft, voided: new([]voided)}
}

// updateWith commits what rests on things outside of the store, too. fn looks nothing up: it gets what is known already, and
// what it lacks is read between two runs of it, so that a commit never waits for contents or a rendering.
func (c *Controller) updateWith(ctx context.Context, fn func(w store.Writer, o outside) error) error {
	k := &known{c: c, bundles: map[fleet.Digest]found[fleet.Bundle]{}, contents: map[fleet.Digest]found[[]byte]{}, drafts: map[draftKey]record.Draft{}}
	o := outside{now: time.Now(), bundles: k, drafts: k.draft, voided: new([]voided)}
	for {
		err := c.update(ctx, func(w store.Writer) error {
			k.lacks, *o.voided = map[any]func() error{}, nil
			if err := fn(w, o); len(k.lacks) == 0 {
				return err
			}
			return errLacks
		})
		if len(k.lacks) == 0 && err == nil {
			c.noteVoided(ctx, *o.voided)
		}
		if len(k.lacks) == 0 {
			return err
		}
		for _, read := range k.lacks {
			if err := read(); err != nil {
				return err
			}
		}
	}
}

// errLacks is that a transaction was run without something that it needs.
var errLacks = errors.New("something outside of the store is to be read first")

// known is what one transaction knows of things outside of the store. What it lacks is nothing, for that run of the transaction,
// which goes on so that it is found out what else it lacks, and comes to nothing.
type known struct {
	c        *Controller
	bundles  map[fleet.Digest]found[fleet.Bundle]
	contents map[fleet.Digest]found[[]byte]
	drafts   map[draftKey]record.Draft
	lacks    map[any]func() error // how to read it, by what it is
}

// found is what a look came to.
type found[T any] struct {
	value T
	err   error
}

// Get is a bundle that is known.
func (k *known) Get(ctx context.Context, d fleet.Digest) (fleet.Bundle, error) {
	if b, ok := k.bundles[d]; ok {
		return b.value, b.err
	}
	if b, ok := k.c.o.Bundles.Known(d); ok {
		k.bundles[d] = found[fleet.Bundle]{value: b}
		return b, nil
	}
	type bundle fleet.Digest
	k.lacks[bundle(d)] = func() error {
		b, err := k.c.o.Bundles.Get(ctx, d)
		k.bundles[d] = found[fleet.Bundle]{b, err}
		return passing(ctx, err)
	}
	return fleet.Bundle{}, nil
}

// Content is a content that is known.
func (k *known) Content(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if b, ok := k.contents[d]; ok {
		return b.value, b.err
	}
	type content fleet.Digest
	k.lacks[content(d)] = func() error {
		b, err := k.c.o.Bundles.Content(ctx, d)
		k.contents[d] = found[[]byte]{b, err}
		return passing(ctx, err)
	}
	return nil, nil
}

// draft is what a queued put is going to list, if that is known.
func (k *known) draft(ctx context.Context, m *wire.Module, rec *storev1.ModuleRecord, number int64) record.Draft {
	key := draftOf(m, rec, number)
	if d, ok := k.drafts[key]; ok {
		return d
	}
	if d, ok := k.c.drafts.get(key); ok {
		k.drafts[key] = d
		return d
	}
	k.lacks[key] = func() error {
		k.drafts[key] = k.c.Draft(ctx, m, rec, number)
		return ctx.Err()
	}
	return record.Draft{Coming: true}
}

// passing is the error of a look if another look may come to something else; whatever else it came to, the transaction judges.
func passing(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, fleet.ErrUnavailable) {
		return err
	}
	return nil
}
