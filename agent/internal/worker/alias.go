package worker

import (
	"context"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// appliedUIDs are those of what the sync applied.
func (w *worker) appliedUIDs() map[string]bool {
	uids := map[string]bool{}
	for _, it := range w.items {
		if uid := w.appliedUID(it); uid != "" {
			uids[uid] = true
		}
	}
	return uids
}

// appliedUID is empty if the object was not applied.
func (w *worker) appliedUID(it *item) string {
	r := w.m.inventory.Get(it.entry.ID)
	if r == nil || r.State != plan.Owned || r.Module != w.ref {
		return ""
	}
	return r.UID
}

// aliases looks at what the sync lists in another group with the kind, namespace and name of an object that goes before
// anything is applied: the API server may have one object under both. The UIDs that it finds join those of what is applied.
// It returns which objects may be one that could not be looked at.
func (w *worker) aliases(ctx context.Context, records []plan.Record, uids map[string]bool) func(fleet.ObjectID) bool {
	ctx, cancel := context.WithTimeout(ctx, kindsTime)
	defer cancel()
	first, unseen := map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}
	for _, r := range records {
		if r.State == plan.Owned && !w.desires(r.ID) && plan.MayGoFirst(w.policies, r.ID) {
			first[groupless(r.ID)] = true
		}
	}
	if len(first) == 0 {
		return nil
	}
	for _, it := range w.items {
		name := groupless(it.entry.ID)
		if !first[name] || w.appliedUID(it) != "" {
			continue
		}
		uid, err := w.liveUID(ctx, it)
		switch {
		case err != nil:
			unseen[name] = true
		case uid != "":
			uids[uid] = true
		}
	}
	return func(id fleet.ObjectID) bool { return unseen[groupless(id)] }
}

func groupless(id fleet.ObjectID) fleet.ObjectID {
	id.Group = ""
	return id
}

// liveUID asks the API server for the UID of an item's object; empty: it has none, or not even its kind.
func (w *worker) liveUID(ctx context.Context, it *item) (string, error) {
	id, res := it.entry.ID, it.resource
	if res.Resource == "" {
		var err error
		if res, err = w.m.mapper.Resource(ctx, id, it.entry.Version); err != nil {
			if apply.Explain(id, err).Reason == apply.ReasonNoKind {
				return "", nil
			}
			return "", err
		}
	}
	live, err := w.m.client.GetMeta(ctx, res, namespaceOf(res, id), id.Name)
	switch {
	case kube.IsGone(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return string(live.UID), nil
}
