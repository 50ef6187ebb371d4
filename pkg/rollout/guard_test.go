package rollout_test

import "towline.dev/towline/pkg/rollout"

// guards: no rollout takes the module from most of the clusters that have it, or lost it to the same rollout, or the last module from one, unless a person confirmed that
// of each. It is counted a second time, over all decisions.
func (c *chaos) guards(in rollout.Input, d rollout.Decision) {
	s := &d.State
	for i := range s.Len(c.plan) {
		if r := s.Record(i); !r.Leaving() || r.Step == 0 {
			delete(c.unasked, int32(i)) // it is selected again, or has come anew and has nothing
		}
	}
	for _, a := range d.Assign {
		r := s.Record(int(a.Member))
		if !a.Leave || r.Confirmed() {
			continue
		}
		name := s.Member(c.plan, int(a.Member)).Cluster
		if int(a.Member) < len(in.Observed) && in.Observed[a.Member].Last {
			c.rt.Fatalf("%s loses the last module there, and nobody was asked", name)
		}
		c.unasked[a.Member] = true
		if n, had := len(c.unasked), c.had(in); n > 1 && 2*n > had {
			c.rt.Fatalf("%s loses the module: %d of %d clusters did unasked", name, n, had)
		}
	}
}

// had is how many clusters have the module, or lost it unasked.
func (c *chaos) had(in rollout.Input) int {
	n := 0
	for i := range in.Observed {
		o := &in.Observed[i]
		if has := o.Revision != 0 && !o.Gone; has || c.unasked[int32(i)] {
			n++
		}
	}
	return n
}
