package worker

import (
	"context"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
)

// restorePause is for how long signs of a restored store are of the one that was just put right: each kind gives one when
// it is read anew. A store cannot be restored twice in that time.
const restorePause = 20 * time.Second

// WentBack says that the cluster's store was restored from an older copy: what the API server answered since that copy was
// made counts for nothing. It returns at once.
func (m *Manager) WentBack() {
	m.storeBack.Store(true)
	dirty.Poke(m.back)
}

// wentBack takes what a watch found of that. A record must not speak of a write that never was. An API server of its own has a store of its own,
// and may count anew whenever it begins: that says nothing of the cluster's.
func (m *Manager) wentBack(r apply.Resource, lost []watch.Lost) {
	for _, l := range lost {
		m.inventory.Outdate(l.ID, l.UID, l.Version)
	}
	own := m.mapper.Aggregated(r)
	m.o.Log.Warn("what the API server had answered is not in the cluster any more", "kind", r.String(), "writes", len(lost), "has_its_own_api_server", own)
	if own {
		dirty.Poke(m.back)
		return
	}
	m.WentBack()
}

// followRestores puts right what a restored store makes wrong, once for each.
func (m *Manager) followRestores(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.back:
		}
		cluster := m.storeBack.Swap(false)
		m.restored(ctx, cluster)
		if backoff.Wait(ctx, restorePause) != nil {
			return
		}
		select {
		case <-m.back:
		default:
		}
		if cluster {
			m.storeBack.Store(false)
		} else if m.storeBack.Load() {
			dirty.Poke(m.back)
		}
	}
}

// restored reads everything anew, also where an API server of its own went back and not the cluster: watches may wait for versions that are long to
// come, and the inventory, if it is in the cluster, went back as well. What is not as wanted is applied as ever. Of what came back that no record
// knows, the agent only says that it is there.
func (m *Manager) restored(ctx context.Context, cluster bool) {
	why := "the store of an API server of its own was restored"
	if cluster {
		why = "the cluster's store was restored"
		m.o.Restored()
		m.inventory.Rewrite()
	}
	m.o.Log.Warn("restored from an older copy; everything is looked at anew", "cause", why)
	m.mapper.ResetAll()
	m.watcher.Restart()
	m.finder.begin(ctx, why)
	m.each((*worker).touchAll)
	dirty.Poke(m.signal)
}
