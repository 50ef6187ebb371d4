package secrets

import (
	"context"
	"fmt"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Reader reads the store.
type Reader interface {
	View(ctx context.Context, minRevision int64, fn func(store.Reader) error) error
	// Barrier is the newest revision of the store.
	Barrier(ctx context.Context) (int64, error)
}

// Vault gives out values to those that fetch sources.
type Vault struct {
	Store Reader
	Keys  *Keys
}

// Values are those of a secret that are for every cluster, as it is now: what the hub fetches is for all of them.
func (v Vault) Values(ctx context.Context, project, name string) (map[string][]byte, error) {
	rev, err := v.Store.Barrier(ctx)
	if err != nil {
		return nil, err
	}
	var rec *storev1.SecretRecord
	err = v.Store.View(ctx, rev, func(r store.Reader) error {
		if why := store.DamageOf(r, store.SecretKey(project, name)); why != nil {
			return Damaged(project, name)
		}
		var ok bool
		if rec, _, ok = store.Get[*storev1.SecretRecord](r, store.SecretKey(project, name)); !ok {
			return Missing(project, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if rec.GetSecret() == nil {
		return nil, OnlyScoped(project, name)
	}
	return v.Keys.Open(project, name, fleet.SecretScope{}, rec.GetValues())
}

// OnlyScoped says that a secret has nothing for what is not of one cluster.
func OnlyScoped(project, name string) error {
	shown := Display(project, name)
	return fleet.NotFound(Object(project, name), "secret %s has values for some clusters only, and a source is fetched for all: towline secret set %s KEY=-, or name another secret in the source", shown, shown)
}

// Missing says that there is no such secret.
func Missing(project, name string) error {
	shown := Display(project, name)
	return fleet.NotFound(Object(project, name), "secret %s is not there: towline secret set %s KEY=-", shown, shown)
}

// Damaged says that the record of a secret cannot be read.
func Damaged(project, name string) error {
	return fleet.Errorf(fleet.ErrCorrupt, "secret %s: the hub's record of it is damaged, with all that it has for some clusters: set all of it anew, with --replace, or delete it", Display(project, name))
}

// Object is a secret as errors speak of it.
func Object(project, name string) fleet.Object {
	return fleet.Object{Kind: "Secret", Name: fmt.Sprintf("%s/%s", project, name)}
}
