package worker

import (
	"towline.dev/towline/pkg/fleet"
)

// share notes that the object of an item is another module's which shares it: this one waits to have it after that, and watches what
// becomes of it.
func (w *worker) share(it *item) {
	if it.resource.Resource != "" {
		w.acquire(it.resource)
	}
}

// stateOfShare is what is known of an object that another module has and this one shares. How it is there is that module's to say; what
// this one says is that it is there.
func (w *worker) stateOfShare(it *item) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}
	rec := w.m.inventory.Get(it.entry.ID)
	if rec == nil || rec.Module == w.ref {
		return state, detail{} // it has just changed hands, and is looked at again
	}
	owner := rec.Module.Display()
	d := detail{reason: fleet.ObjectShared, message: it.entry.ID.String() + ": is shared with module " + owner + ", which writes it", by: owner}
	switch f, synced := w.print(it); {
	case f != nil && f.UID == rec.UID:
		state.Health, it.old = f.Health, f.Old
		judged(it.policy, f.Reason, &state)
		if f.Health != fleet.HealthHealthy && f.Message != "" {
			d.message += "; " + w.heard(it.liveID(), "", f.Message).message
		}
	case rec.Ran():
		state.Health = ranHealth(rec.Outcome)
	case synced:
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
	default:
		state.Sync = fleet.SyncUnknown
	}
	return state, d
}
