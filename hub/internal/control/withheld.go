package control

import (
	"fmt"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// withholder says for which clusters of a module a person's word holds against what they could not have and could have now. It serves
// one look, under one view of the store.
type withholder struct {
	r    store.Reader
	ref  fleet.ModuleRef
	now  time.Time
	pins []rollout.Pin
	read bool // the pins
	runs map[int64]withholding
	// ledTo are the revisions to which rollouts lead clusters; nil: they are not read yet.
	ledTo map[int64]bool
}

// withholding is a rollout whose word is asked for; without a run it has none.
type withholding struct {
	run     *rollouts.Run
	damaged string
	outside bool // another program says where its revision goes
}

// why is why the cluster is not given what its record says it could not have; empty: it is given that as soon as it can have it.
// passes says that this may end without another assignment.
func (x *withholder) why(cluster fleet.ClusterName, d *storev1.DesiredRecord) (why string, passes bool) {
	revision, number := d.GetProblemRevision(), d.GetRollout()
	if revision == 0 || revision == d.GetSync().GetRevision() || number == 0 {
		return "", false // it has the revision, and had the values for it
	}
	by := x.of(number)
	id, name := fleet.RolloutID{Module: x.ref, Number: number}, x.ref.Display()
	say := func(format string, args ...any) string {
		return fmt.Sprintf("r%d could be assigned now, and is not: ", revision) + fmt.Sprintf(format, args...)
	}
	switch {
	case by.outside:
		return "", false
	case by.damaged != "":
		return say("%s", by.damaged), true
	case x.cordoned(cluster):
		return say("the cluster is cordoned; to end that: towline cluster uncordon %s", cluster), true
	case x.pinned(cluster):
		return say("the cluster is pinned; to end that: towline rollout unpin %s --cluster %s", name, cluster), true
	case by.run == nil && x.superseded(number, revision):
		return say("rollout %s is superseded; the newer one decides", id), false
	case by.run == nil:
		return "", false
	}
	switch by.run.State.Withheld(by.run.Plan, cluster, revision, d.GetSync() != nil) {
	case string(rollout.Aborted):
		return say("rollout %s was aborted; the next one assigns it: towline rollout retry %s", id, name), false
	case rollout.ReasonPausedByUser:
		return say("somebody paused rollout %s; to let it go on: towline rollout resume %s", id, name), true
	case rollout.ReasonSkipped:
		return say("the cluster was skipped in rollout %s; to take it up again: towline rollout retry %s --cluster %s", id, name, cluster), true
	case rollout.ReasonWentBack:
		return say("rollout %s goes back", id), true
	case rollout.ReasonSuperseded:
		return say("rollout %s is superseded; the newer one decides", id), false
	}
	return "", false
}

func (x *withholder) cordoned(cluster fleet.ClusterName) bool {
	rec, _, _ := store.Get[*storev1.ClusterRecord](x.r, store.ClusterKey(cluster))
	return rec.GetCluster().GetSpec().GetCordoned()
}

func (x *withholder) pinned(cluster fleet.ClusterName) bool {
	if !x.read {
		x.pins, x.read = rollouts.StandingPins(x.r, x.ref, x.now), true
	}
	for _, p := range x.pins {
		if p.Cluster == cluster {
			return true
		}
	}
	return false
}

// superseded reports that rollouts came after one that is not kept any more, and that none of them leads clusters to its revision.
func (x *withholder) superseded(number, revision int64) bool {
	if x.ledTo == nil {
		x.ledTo = record.LedTo(x.r, x.ref)
	}
	return rollouts.Driven(x.r, x.ref).GetRollout().GetNumber() > number && !x.ledTo[revision]
}

// of reads a rollout, once. One that is damaged moves nothing. Of one that is not kept any more it is known only that newer ones came after it.
func (x *withholder) of(number int64) withholding {
	if known, ok := x.runs[number]; ok {
		return known
	}
	var out withholding
	if damaged, what := rollouts.Damaged(x.r, x.ref); damaged >= number {
		out.damaged = what
	} else if rec := rollouts.Get(x.r, x.ref, number); rec.GetRollout().GetStrategy().GetExternal() != nil {
		out.outside = true
	} else if run, err := rollouts.Load(x.r, x.ref, number); err != nil {
		out.damaged = err.Error()
	} else if out.run = run; rec == nil { // it is not kept any more, and who said then where revisions go says so still
		out.outside = rollouts.Driven(x.r, x.ref).GetRollout().GetStrategy().GetExternal() != nil
	}
	if x.runs == nil {
		x.runs = map[int64]withholding{}
	}
	x.runs[number] = out
	return out
}
