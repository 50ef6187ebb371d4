package client

import v1 "towline.dev/towline/gen/towline/v1"

// news are the events of a stream's first response as seen by one who knows how the rollout stood: what has not changed
// is left out, and the rest begins where it was.
func news(last *v1.Rollout, events []*v1.RolloutEvent) []*v1.RolloutEvent {
	known := states(last)
	var out []*v1.RolloutEvent
	for _, e := range events {
		was := known[e.GetSubject()]
		if e.GetFrom() == "" && len(was) > 0 {
			known[e.GetSubject()] = was[1:]
			e.From = was[0]
		}
		if e.GetFrom() != e.GetTo() {
			out = append(out, e)
		}
	}
	return out
}

// states are those of every subject of events. Two gates of one name, before and after a stage, are one subject with two
// states, in the order in which they are told.
func states(r *v1.Rollout) map[string][]string {
	s := r.GetStatus()
	out := map[string][]string{"rollout": {s.GetState()}}
	for _, g := range s.GetStages() {
		out["stage/"+g.GetName()] = []string{g.GetState()}
		for _, gate := range g.GetGates() {
			subject := "gate/" + g.GetName() + "/" + gate.GetName()
			out[subject] = append(out[subject], gate.GetState())
		}
	}
	for _, c := range s.GetClusters() {
		out["cluster/"+c.GetCluster()] = []string{c.GetState()}
	}
	return out
}
