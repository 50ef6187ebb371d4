package cli

import (
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// readyFacts are the numbers of a module for the sentence about its condition Ready.
func readyFacts(reason string, s *v1.ModuleStatus) *v1.Facts {
	f := &v1.Facts{Total: s.GetClusters(), Deferred: s.GetAway() - s.GetAhead(), Ahead: s.GetAhead(), ToGo: s.GetUnassigned(), Skipped: s.GetHeldClusters()}
	switch reason {
	case fleet.ReadyDegraded:
		f.Count = s.GetBad()
	case string(rollout.Progressing):
		f.Count = s.GetProgressing() - s.GetUnassigned()
	case fleet.ReadyAway:
		f.Count = s.GetAway()
	case fleet.ReadyRegressed:
		f.Count = s.GetAhead()
	case fleet.ReadyNowhere:
		f.Count = s.GetUnassigned()
	case string(rollout.Succeeded):
		f.Count = s.GetHealthy()
	default:
		return s.GetRolloutFacts()
	}
	return f
}

// readySays is why a module is Ready or not, by the facts that readyFacts makes; empty: it is for its rollout to say.
func readySays(reason string, f *v1.Facts) string {
	of := number(f.GetCount()) + " of " + count(f.GetTotal(), "cluster")
	ahead := f.GetAhead()
	if reason == fleet.ReadyRegressed { // which is all about them
		ahead = 0
	}
	rest := tally(counted{f.GetDeferred(), "away"}, counted{ahead, aheadOfStore}, counted{f.GetToGo(), "without it yet"}, counted{f.GetSkipped(), "held"})
	if rest != "" {
		rest = ", " + rest
	}
	switch reason {
	case fleet.ReadyDegraded:
		return of + " are not healthy" + rest
	case string(rollout.Progressing):
		if f.GetCount() == 0 {
			return ""
		}
		return of + " are moving, or have not said yet how they stand" + rest
	case fleet.ReadyAway:
		return of + " are away: how the module stands is not known"
	case fleet.ReadyRegressed:
		return of + " have seen a newer store of the hub than there is, and are told nothing until that is accepted (" + acceptRestore +
			"), or they join again: how the module stands is not known" + rest
	case fleet.ReadyNowhere:
		if f.GetTotal() == 0 {
			return "no cluster has it"
		}
		return of + " do not have it yet, and no other has it"
	case string(rollout.Succeeded):
		return of + " healthy" + rest
	}
	return ""
}

// readyText is why a module is Ready or not.
func (a *app) readyText(reason string, s *v1.ModuleStatus) string {
	if said := readySays(reason, readyFacts(reason, s)); said != "" {
		return said
	}
	return a.rolloutSays(s.GetRolloutReason(), s.GetRolloutFacts())
}
