package rollout_test

import (
	"slices"

	"towline.dev/towline/pkg/rollout"
)

// outlook is what a state tells those who do not read its members.
func (c *chaos) outlook(s *rollout.State) rollout.Outlook {
	head, err := rollout.EncodeHead(c.plan, s)
	if err != nil {
		c.rt.Fatal(err)
	}
	return rollout.OutlookOf(c.plan.Revision, c.plan.From, c.plan.Strategy.LateJoiners, s.State, head)
}

// foreseen holds that no cluster is given what the outlook does not name: who keeps objects for a module that is to come, and who
// keeps revisions for later, go by that.
func (c *chaos) foreseen(in rollout.Input, o rollout.Outlook, a rollout.Assign) {
	if a.Leave || slices.Contains(o.Revisions(), a.Revision) {
		return
	}
	if i := int(a.Member); i < len(in.Observed) && a.Revision == in.Observed[i].Revision {
		return // it keeps what it has
	}
	c.rt.Fatalf("%+v is assigned, the outlook is %+v", a, o)
}
