package rollout

import "towline.dev/towline/pkg/fleet"

// Withheld says why a cluster is not given by itself what the rollout gave it and what it could not have then: since that, somebody
// has said that it stays where it is, or another rollout decides. Empty: it is given that as soon as it can have it. has says that
// the cluster has another revision of the module.
func (s *State) Withheld(p *Plan, cluster fleet.ClusterName, revision int64, has bool) (reason string) {
	switch {
	case revision != p.Revision: // the one that stood before, or to which the rollout goes back
		return ""
	case s.State == Superseded:
		return ReasonSuperseded
	case s.Pause != nil && s.Pause.Reason == ReasonPausedByUser:
		return ReasonPausedByUser
	}
	i := s.IndexOf(p, cluster)
	if i < 0 {
		return ""
	}
	switch r := s.record(i); {
	case s.State == Aborted && (has || !r.has(flagLate)): // who comes to the module after that gets it in a stage that has begun
		return string(Aborted)
	case s.awaitsBack(r):
		return ReasonWentBack
	case r.State == ClusterSkipped && r.Reason == ReasonSkipped:
		return ReasonSkipped
	}
	return ""
}
