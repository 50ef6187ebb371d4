package client

import v1 "towline.dev/towline/gen/towline/v1"

// news are the events of a stream's first response as seen by one who knows how the rollout stood: what has not changed
// is left out, and the rest begins where it was.
func news(last *v1.Rollout, events []*v1.RolloutEvent) []*v1.RolloutEvent {
	known := states(last)
	var out []*v1.RolloutEvent
	for _, e := range events {
		if was, ok := known[keyOf(e.GetSubject())]; ok && e.GetFrom() == "" {
			e.From = was
		}
		if e.GetFrom() != e.GetTo() {
			out = append(out, e)
		}
	}
	return out
}

// subject is what an event speaks of, as a key.
type subject struct{ kind, name, stage, position string }

func keyOf(s *v1.Subject) subject {
	if s.GetKind() == "Rollout" {
		return subject{kind: "Rollout"} // a stream is of one
	}
	return subject{s.GetKind(), s.GetName(), s.GetStage(), s.GetPosition()}
}

// states are those of every subject of events.
func states(r *v1.Rollout) map[subject]string {
	s := r.GetStatus()
	out := map[subject]string{{kind: "Rollout"}: s.GetState()}
	for _, g := range s.GetStages() {
		out[subject{kind: "Stage", name: g.GetName()}] = g.GetState()
		for _, gate := range g.GetGates() {
			out[subject{"Gate", gate.GetName(), g.GetName(), gate.GetPosition()}] = gate.GetState()
		}
	}
	for _, c := range s.GetClusters() {
		out[subject{kind: "Cluster", name: c.GetCluster()}] = c.GetState()
	}
	return out
}
