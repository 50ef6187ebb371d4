package worker

import (
	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// protections finds the objects of the sync that are the agent's own. The hub refuses them, too; a hub that does not is
// not to be trusted with the agent.
func (w *worker) protections() map[int]string {
	var out map[int]string
	for _, it := range w.items {
		why := fleet.OfAgent(it.entry.ID, w.m.o.Namespace)
		if why == "" {
			continue
		}
		if out == nil {
			out = map[int]string{}
		}
		out[it.ordinal] = why
	}
	return out
}

func protected(id fleet.ObjectID, why string) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonProtected, Kind: fleet.ErrDenied, Message: id.String() + ": " + why}
}

// grants refuses a binding that would give the agent itself more than its cluster does.
func (a *writer) grants() error {
	if !fleet.IsBinding(a.id) {
		return nil
	}
	object, err := a.desired.Object()
	if err != nil {
		return err
	}
	if why := fleet.BindsAgent(a.id, object, a.w.m.o.Namespace); why != "" {
		return protected(a.id, why)
	}
	return nil
}
