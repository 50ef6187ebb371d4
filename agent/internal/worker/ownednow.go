package worker

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// reach is where that is which may go with what is about to be deleted: in some namespaces, or anywhere.
type reach struct {
	spaces   map[string]bool
	anywhere bool
}

// reachOf is where the objects may be that name one of these as their owner: the owner of something may be in its namespace, or in none.
func reachOf(going []plan.Record) reach {
	out := reach{spaces: map[string]bool{}}
	for _, r := range going {
		if r.ID.Namespace != "" {
			out.spaces[r.ID.Namespace] = true
		} else {
			out.anywhere = true
		}
	}
	return out
}

// listParallel is how many kinds are listed at once. An API server whose watches of the store stand still takes three seconds for each list.
const listParallel = 8

// ownedNow lists the objects that name others as their owners, where something is to stay that may go along: as the API server has them, for a watch
// may be open with one that is behind. unseen is why that cannot be told, by namespace.
func (m *Manager) ownedNow(ctx context.Context, stays func(*apply.Record) bool, going []plan.Record) (owned map[fleet.ObjectID][]watch.Owner, unseen map[string]error) {
	owned, unseen = map[fleet.ObjectID][]watch.Owner{}, map[string]error{}
	in := reachOf(going)
	looked := map[fleet.ObjectID]bool{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(listParallel)
	for _, ref := range m.inventory.Modules() {
		for _, rec := range m.inventory.Module(ref) {
			of := fleet.ObjectID{Group: rec.ID.Group, Kind: rec.ID.Kind, Namespace: rec.ID.Namespace}
			if in.anywhere {
				of.Namespace = ""
			}
			if looked[of] || !in.anywhere && !in.spaces[of.Namespace] || !stays(rec) {
				continue
			}
			looked[of] = true
			group.Go(func() error {
				some := map[fleet.ObjectID][]watch.Owner{}
				err := guarded(m.o.Log, func() error { return m.listOwned(ctx, of, rec.Version, some) })
				mu.Lock()
				defer mu.Unlock()
				if maps.Copy(owned, some); err != nil {
					f := *apply.Explain(rec.ID, err)
					f.Message = fmt.Sprintf("stays, for it cannot be seen whether any %s that stays would go with it: %s", rec.ID.Kind, f.Message)
					unseen[of.Namespace] = &f
				}
				return nil
			})
		}
	}
	_ = group.Wait()
	if err := unseen[""]; err != nil {
		for space := range in.spaces {
			unseen[space] = err
		}
	}
	return owned, unseen
}

// blindListTime bounds a list of a kind that cannot be watched: it may be that its API server does not answer. One that only stands still does, after
// three seconds.
const blindListTime = 5 * time.Second

// listOwned adds those of a kind. One that cannot be watched may be listed all the same; if not, it is not waited for. That one API server does not know
// the path of a kind that is watched, or refuses to list it, says nothing: another one may answer, which has just started.
func (m *Manager) listOwned(ctx context.Context, of fleet.ObjectID, version string, owned map[fleet.ObjectID][]watch.Owner) error {
	res, gone, err := m.mapper.Served(ctx, of, version)
	switch sees := m.watcher.Sees(schema.GroupKind{Group: of.Group, Kind: of.Kind}); {
	case sees && gone:
		return fmt.Errorf("%s: the API server does not serve the kind now, and another one may: its watch goes on", of.Kind)
	case sees && err != nil:
		return err
	case gone || err != nil || of.Namespace != "" && !res.Namespaced:
		return nil // it was asked for before (seeAll)
	}
	if m.watcher.Blind(res) != nil {
		bounded, cancel := context.WithTimeout(ctx, blindListTime)
		defer cancel()
		ctx = bounded
	}
	err = m.client.EachMeta(ctx, res, of.Namespace, fleet.HubLabel+"="+m.o.HubID, func(o *metav1.PartialObjectMetadata) bool {
		if len(o.OwnerReferences) > 0 {
			owned[fleet.ObjectID{Group: of.Group, Kind: of.Kind, Namespace: o.Namespace, Name: o.Name}] = watch.OwnersOf(o.OwnerReferences)
		}
		return true
	})
	if lacks := m.unlisted.lacks(of, err); err == nil || lacks || m.watcher.Blind(res) != nil || m.nothingToList(ctx, res, err) {
		return nil
	}
	return err
}

// unlisted is what came of lists, of each kind in a namespace or everywhere.
type unlisted struct {
	mu sync.Mutex
	of map[fleet.ObjectID]*apply.Refusals
}

// lacks takes what came of a list, and reports that the right to it is missing.
func (u *unlisted) lacks(of fleet.ObjectID, err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !kube.Is(err, kube.Forbidden) {
		delete(u.of, of)
		return false
	}
	if u.of == nil {
		u.of = map[fleet.ObjectID]*apply.Refusals{}
	}
	if u.of[of] == nil {
		u.of[of] = &apply.Refusals{}
	}
	lacks, _ := u.of[of].Note(err, time.Now())
	return lacks
}

// owned is ownedNow with what the watches have besides, as what has lost our label.
func (m *Manager) owned(ctx context.Context, stays func(*apply.Record) bool, going []plan.Record) (map[fleet.ObjectID][]watch.Owner, map[string]error) {
	out := m.watcher.Owned()
	now, unseen := m.ownedNow(ctx, stays, going)
	maps.Copy(out, now)
	return out, unseen
}
