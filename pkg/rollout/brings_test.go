package rollout_test

import "testing"

// TestBrings: a rollout brings the module to a cluster without a person's word, unless it waits for one before it comes there.
func TestBrings(t *testing.T) {
	for name, tc := range map[string]struct {
		story  []string
		canary bool // whether it brings the module to c1, which is the canary
		rest   bool // and to d1
	}{
		"it goes on":                        {[]string{"start r2"}, true, true},
		"an approval before the stage":      {[]string{"gate rest before approval", "start r2"}, true, false},
		"an approval after the one before":  {[]string{"gate canary after approval", "start r2"}, true, false},
		"an approval before all":            {[]string{"gate canary before approval", "start r2"}, false, false},
		"that is given":                     {[]string{"gate canary before approval", "start r2 by=ana", "approve by=bob"}, true, true},
		"a check of another kind":           {[]string{"gate canary after webhook", "start r2"}, true, true},
		"paused":                            {[]string{"start r2", "pause by=bob"}, false, false},
		"nobody is in the canary":           {[]string{"unselect c1", "start r2"}, false, false},
		"that was promoted":                 {[]string{"unselect c1", "start r2", "promote by=bob"}, true, true},
		"skipped":                           {[]string{"start r2", "skip d1 by=bob"}, true, false},
		"aborted before it came":            {[]string{"start r2", "abort by=bob"}, true, false},
		"one that joins gets what is there": {[]string{"gate rest before approval", "start r2 from=r1", "fleet d2"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, line := range append([]string{"fleet c1 ring=canary", "fleet d1", "stage canary sel=ring:canary", "stage rest"}, tc.story...) {
				w.command(line)
			}
			want := map[string]bool{"c1": tc.canary, "d1": tc.rest, "d2": true} // d2 gets the revision before, whoever approves this one
			for i := range w.state.Len(w.plan) {
				name := string(w.state.Member(w.plan, i).Cluster)
				if got := w.state.Brings(w.plan, i); got != want[name] {
					t.Errorf("%s: %t (%s %s)", name, got, w.state.State, w.state.Reason)
				}
			}
		})
	}
}
