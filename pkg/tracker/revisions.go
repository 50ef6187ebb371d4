package tracker

import (
	"cmp"
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Part is the tracker of one revision in a cluster: the objects of which that revision is the newest that listed them there. Each
// object is in one part only, which executes its removal.
type Part struct {
	// Revision 0: the agent does not know which.
	Revision int64
	// Current: the cluster is to have what it lists.
	Current bool
	Objects int
	// Root are those that live as long as the module, or longer, in whichever revision.
	Root int
	// Legacy are those that stay until a person deletes the part, and Leaving those that are to go and wait for something.
	Legacy  []fleet.ObjectID
	Leaving int
	// Reason and Message say why the first of what is leaving is still there.
	Reason, Message string
}

// Parts are the trackers of a module in a cluster by revision, the current one first, then from the newest on. revision is the one that
// the cluster is to have, and rooted how many of its objects live as long as the module.
func Parts(in Input, revision int64, rooted int) []Part {
	var out []Part
	if in.Desired != nil {
		out = append(out, Part{Revision: revision, Current: true, Objects: in.Desired.Objects, Root: rooted})
	}
	if in.Observed == nil {
		return out
	}
	at := map[int64]int{}
	part := func(revision int64) *Part {
		i, known := at[revision]
		if !known {
			i = len(out)
			at[revision] = i
			out = append(out, Part{Revision: revision})
		}
		return &out[i]
	}
	if in.Leaving() {
		if n := in.leavingObjects(); n > 0 {
			p := part(0)
			p.Objects, p.Leaving, p.Reason = n, n, in.leavingReason()
		}
	}
	for _, x := range in.Observed.Extras {
		part(x.Revision).add(x)
	}
	if n := in.Observed.ExtraCount - len(in.Observed.Extras); n > 0 {
		part(0).Objects += n
	}
	slices.SortStableFunc(out, func(a, b Part) int {
		return cmp.Or(boolFirst(a.Current, b.Current), cmp.Compare(b.Revision, a.Revision))
	})
	return out
}

func (p *Part) add(x fleet.ExtraObject) {
	p.Objects++
	switch {
	case x.Root:
		p.Root++
	case x.Reason == plan.ReasonLegacy:
		p.Legacy = append(p.Legacy, x.ID)
	default:
		if p.Leaving++; p.Leaving == 1 {
			p.Reason, p.Message = x.Reason, x.Message
		}
	}
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
