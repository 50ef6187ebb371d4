package api

import (
	"context"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

// Reseal seals with the hub's newest key what is sealed with an older one, and tells what cannot be read. It goes on until all is done,
// or ctx ends.
func (a *API) Reseal(ctx context.Context) {
	for wait := firstReseal; ; wait = min(2*wait, lastReseal) {
		err := guard.Run(func() error { return a.resealAll(ctx) })
		if stack := guard.Stack(err); stack != "" {
			a.o.Log.Error("a loop panicked; it goes on", "at", "encrypt secrets anew", "stack", stack)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		a.o.Log.Warn("secrets are not all encrypted with the newest key yet; it is tried again", "after", wait, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

const (
	firstReseal = time.Second
	lastReseal  = time.Minute
)

func (a *API) resealAll(ctx context.Context) error {
	if a.o.Keys.NewestID() == "" {
		return nil // which is said where keys are loaded
	}
	var stale []scoped
	var unreadable []string
	var why error
	err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		store.Scan(r, store.SecretPrefix, func(rec *storev1.SecretRecord, e store.Entry) bool {
			proj, name, ok := store.SplitSecret(e.Key)
			for _, part := range record.SecretParts(rec) {
				ref := scoped{fleet.ModuleRef{Project: proj, Name: name}, part.Scope}
				if _, err := a.valuesOf(ref.ModuleRef, part); err != nil {
					unreadable, why = append(unreadable, ref.display()), err
				} else if ok && part.Values.GetKeyId() != a.o.Keys.NewestID() {
					stale = append(stale, ref)
				}
			}
			return true
		})
		return nil
	})
	if len(unreadable) > 0 {
		a.o.Log.Error("secrets cannot be read; sources that need them are not fetched", "secrets", len(unreadable), "names", someOf("secret", unreadable), "error", why)
	}
	for _, ref := range stale {
		if err == nil {
			_, err = a.o.Store.Update(ctx, func(w store.Writer) error { return a.reseal(w, ref) })
		}
	}
	if err == nil && len(stale) > 0 {
		a.o.Log.Info("secrets are encrypted with the newest key; older ones are needed for backups of before only", "secrets", len(stale), "key", a.o.Keys.NewestID())
	}
	return err
}

// reseal leaves what was changed, or cannot be read any more, as it is.
func (a *API) reseal(w store.Writer, ref scoped) error {
	key := store.SecretKey(ref.Project, ref.Name)
	rec, _, _ := store.Get[*storev1.SecretRecord](w, key)
	part, ok := record.PartOf(rec, ref.scope)
	if !ok || part.Values.GetKeyId() == a.o.Keys.NewestID() {
		return nil
	}
	values, err := a.valuesOf(ref.ModuleRef, part)
	if err != nil {
		return nil
	}
	if part.Values, err = a.o.Keys.Seal(ref.Project, ref.Name, ref.scope, values); err != nil {
		return err
	}
	w.Put(key, record.WithPart(rec, part))
	return nil
}
