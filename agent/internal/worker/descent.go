package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// descent finds with what an object goes: with its owners, and with the owners of those. Most owners are nobody's here, so that no
// watch shows them: they are read, each once.
type descent struct {
	m *Manager

	mu    sync.Mutex
	known map[string][]watch.Owner // the owners of an object, by its UID
}

// of lists all that something in a namespace goes with which names this owner.
func (d *descent) of(ctx context.Context, namespace string, o watch.Owner) ([]watch.Owner, error) {
	out := []watch.Owner{o}
	for at := 0; at < len(out); at++ {
		above, err := d.ownersOf(ctx, namespace, out[at])
		if err != nil {
			return out, err
		}
		for _, next := range above {
			if !slices.ContainsFunc(out, func(known watch.Owner) bool { return known.UID == next.UID }) {
				out = append(out, next)
			}
		}
	}
	return out, nil
}

// ownersOf reads the owners of an owner. It is in the namespace of what it owns, or in none.
func (d *descent) ownersOf(ctx context.Context, namespace string, o watch.Owner) ([]watch.Owner, error) {
	d.mu.Lock()
	list, known := d.known[o.UID]
	d.mu.Unlock()
	if known {
		return list, nil
	}
	list, err := d.read(ctx, namespace, o)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string][]watch.Owner{}
	}
	d.known[o.UID] = list
	return list, nil
}

// forget has all owners read again: what they are may have changed while what goes first was deleted.
func (d *descent) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = nil
}

func (d *descent) read(ctx context.Context, namespace string, o watch.Owner) ([]watch.Owner, error) {
	id, version, ok := o.In(namespace)
	if !ok {
		return nil, nil // the garbage collector does not find it either
	}
	res, gone, err := d.m.mapper.Served(ctx, id, version)
	if err == nil && !plan.IsCustom(id) && d.m.unserved.note(schema.GroupKind{Group: id.Group, Kind: id.Kind}, gone) < unservedFor && gone {
		err = fmt.Errorf("%s: the API server does not serve its kind now, in no version, and another one may; after %s without it, it counts as gone", id, unservedFor)
	}
	if gone || err != nil || res.Namespaced && namespace == "" { // the garbage collector leaves what names such an owner
		return nil, err
	}
	live, err := d.m.client.GetMeta(ctx, res, namespaceOf(res, id), o.Name)
	switch {
	case kube.IsGone(err):
		return nil, nil
	case kube.Is(err, kube.Unserved): // the kind has gone since it was found
		d.m.mapper.Reset(res.Group)
		return nil, fmt.Errorf("%s: %w", id, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", id, err)
	case string(live.UID) != o.UID:
		return nil, nil
	}
	return watch.OwnersOf(live.OwnerReferences), nil
}

// bindings are the objects that stay and would go with others.
type bindings struct {
	to      map[string][]binding // by the UID of what they would go with
	unclear map[string]error     // by namespace: why it is not known with what something in it would go
}

// binding is an object that would go with another one, and which owner of it has to be taken from it for that not to happen.
type binding struct {
	id    fleet.ObjectID
	owner string
}

// bindings finds out what stays and would go with one of these.
func (m *Manager) bindings(ctx context.Context, d *descent, stays func(*apply.Record) bool, going []plan.Record) bindings {
	if len(going) == 0 {
		return bindings{}
	}
	owned, unseen := m.owned(ctx, stays, going)
	out := bindings{to: map[string][]binding{}, unclear: unseen}
	for id, owners := range owned {
		near := slices.ContainsFunc(going, func(r plan.Record) bool { return r.ID.Namespace == "" || r.ID.Namespace == id.Namespace })
		rec := m.inventory.Get(id)
		if !near || rec == nil || !stays(rec) {
			continue
		}
		for _, o := range owners {
			above, err := d.of(ctx, id.Namespace, o)
			if err != nil && m.goesLive(ctx, rec) {
				continue
			}
			if err != nil {
				f := *apply.Explain(id, err)
				f.Message = fmt.Sprintf("stays, for it cannot be seen whether %s %s would go with it: %s", id.Kind, id.Name, f.Message)
				out.unclear[id.Namespace] = &f
			}
			for _, a := range above {
				out.to[a.UID] = append(out.to[a.UID], binding{id, o.UID})
			}
		}
	}
	return out
}

// goesLive is goesBy by the labels that the live object has.
func (m *Manager) goesLive(ctx context.Context, rec *apply.Record) bool {
	if m.keepsAnyway(rec) {
		return false
	}
	res, gone, err := m.mapper.Served(ctx, rec.ID, rec.Version)
	if gone || err != nil {
		return false
	}
	live, err := m.client.GetMeta(ctx, res, namespaceOf(res, rec.ID), rec.ID.Name)
	return err == nil && string(live.UID) == rec.UID && m.goesBy(rec.ID, live.Labels)
}

// doubt is why it is not known whether something that stays would go with an object; nil: it is. What goes with one that has a
// namespace is in it.
func (b bindings) doubt(id fleet.ObjectID) error {
	if id.Namespace != "" {
		return b.unclear[id.Namespace]
	}
	for _, err := range b.unclear {
		return err
	}
	return nil
}

// names are what would go with an object.
func (b bindings) names(uid string) (out []string) {
	for _, x := range b.to[uid] {
		out = append(out, x.id.Kind+" "+x.id.Name)
	}
	return out
}
