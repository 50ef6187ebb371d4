package rollout_test

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// bringing is a world with a canary and a rest, after a story.
func bringing(t *testing.T, story []string) *world {
	w := newWorld(t)
	for _, line := range append([]string{"fleet c1 ring=canary", "fleet d1", "stage canary sel=ring:canary", "stage rest"}, story...) {
		w.command(line)
	}
	return w
}

// TestBrings: a rollout brings the module to a cluster without a person's word, unless it waits for one before it comes there.
func TestBrings(t *testing.T) {
	joins := func(story ...string) []string { // d2 joins, and the revision before has no place for it
		return append(append([]string{"fleet d2", "unselect d2"}, story...), "select d2 now")
	}
	for name, tc := range map[string]struct {
		story  []string
		canary bool // whether it brings the module to c1, which is the canary
		rest   bool // and to d1
		joiner bool // and to d2, if there is one
	}{
		"it goes on":                             {[]string{"start r2"}, true, true, false},
		"an approval before the stage":           {[]string{"gate rest before approval", "start r2"}, true, false, false},
		"an approval after the one before":       {[]string{"gate canary after approval", "start r2"}, true, false, false},
		"an approval before all":                 {[]string{"gate canary before approval", "start r2"}, false, false, false},
		"that is given":                          {[]string{"gate canary before approval", "start r2 by=ana", "approve by=bob"}, true, true, false},
		"a check of another kind":                {[]string{"gate canary after webhook", "start r2"}, true, true, false},
		"paused":                                 {[]string{"start r2", "pause by=bob"}, false, false, false},
		"nobody is in the canary":                {[]string{"unselect c1", "start r2"}, false, false, false},
		"that was promoted":                      {[]string{"unselect c1", "start r2", "promote by=bob"}, true, true, false},
		"skipped":                                {[]string{"start r2", "skip d1 by=bob"}, true, false, false},
		"missed at its turn":                     {[]string{"strategy offline=Fail maxFailures=1", "away d1", "start r2", "ready c1", "back d1"}, true, false, false},
		"while the others are on their way":      {[]string{"strategy offline=Fail maxFailures=2", "fleet d3", "away d1", "start r2", "ready c1", "back d1"}, true, false, false},
		"aborted before it came":                 {[]string{"start r2", "abort by=bob"}, true, false, false},
		"one that joins gets what is there":      {[]string{"gate rest before approval", "start r2 from=r1", "fleet d2"}, true, false, true}, // whoever approves this one
		"one that joins for the wider placement": {joins("gate rest before approval", "start r2 from=r1"), true, false, false},
		"it comes with its stage":                {joins("start r2 from=r1"), true, true, true},
		"one that joins while it is paused":      {[]string{"start r2 from=r1", "pause by=bob", "fleet d2"}, false, false, false},
		"one that joins before a confirm":        {[]string{"fleet e1..e3 at=r1", "unselect e1..e3", "start r2 from=r1", "fleet d2"}, false, false, false},
		"one that joins before an override fits": {[]string{"start r2 from=r1 emptyOverride=edge", "fleet d2"}, false, false, false},
		"one that joins after an abort":          {[]string{"start r2 from=r1", "abort by=bob", "fleet d2"}, true, false, true},
		"so it does for the wider placement":     {joins("start r2 from=r1", "abort by=bob"), true, false, false},
		"one that gets nothing before its stage": {[]string{"strategy lateJoiners=Include", "gate rest before approval", "start r2 from=r1", "fleet d2"}, true, false, false},
		"one that joins is pinned":               {[]string{"start r2 from=r1", "pin d2 by=bob", "fleet d2"}, true, true, false},
		"while it goes back to where d2 is":      {[]string{"start r2 from=r1", "rollback by=bob", "fleet d2"}, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := bringing(t, tc.story)
			want := map[string]bool{"c1": tc.canary, "d1": tc.rest, "d2": tc.joiner}
			for i := range w.state.Len(w.plan) {
				name := string(w.state.Member(w.plan, i).Cluster)
				want, tested := want[name]
				if got := w.state.Brings(w.plan, i, w.places(name)); got != want && tested {
					t.Errorf("%s: %t (%s %s)", name, got, w.state.State, w.state.Reason)
				}
			}
		})
	}
}

// places says which placement has a cluster.
func (w *world) places(name string) func(int64) bool {
	return func(revision int64) bool {
		if revision == w.plan.Revision {
			return !w.clusters[name].unselected
		}
		return !w.clusters[name].outside
	}
}

// TestBringsNew: so it is with a cluster that is no member yet.
func TestBringsNew(t *testing.T) {
	for name, tc := range map[string]struct {
		story        []string
		ring         string
		wider, where bool // whether it comes for the wider placement, and where the revision before has it, too
	}{
		"it goes on":                           {[]string{"start r2 from=r1"}, "", true, true},
		"an approval before the stage":         {[]string{"gate rest before approval", "start r2 from=r1"}, "", false, true},
		"an approval before another stage":     {[]string{"gate rest before approval", "start r2 from=r1"}, "canary", true, true},
		"paused":                               {[]string{"start r2 from=r1", "pause by=bob"}, "", false, false},
		"before a confirm":                     {[]string{"fleet e1..e3 at=r1", "unselect e1..e3", "start r2 from=r1"}, "", false, false},
		"for which the stage waits":            {[]string{"unselect c1", "start r2 from=r1"}, "canary", true, true},
		"behind the stage that waits":          {[]string{"unselect c1", "start r2 from=r1"}, "", false, true},
		"not before the end":                   {[]string{"strategy lateJoiners=Ignore", "gate rest after approval", "start r2 from=r1"}, "", false, false},
		"at the end":                           {[]string{"strategy lateJoiners=Ignore", "start r2 from=r1"}, "", true, true},
		"nothing before its stage":             {[]string{"strategy lateJoiners=Include", "gate rest before approval", "start r2 from=r1"}, "", false, false},
		"after an abort":                       {[]string{"start r2 from=r1", "abort by=bob"}, "", false, true},
		"after an abort, to where it had been": {[]string{"start r2 from=r1", "abort by=bob"}, "canary", true, true},
		"pinned":                               {[]string{"start r2 from=r1", "pin n by=bob"}, "", false, false},
		"superseded":                           {[]string{"start r2 from=r1", "successor 2"}, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := bringing(t, tc.story)
			c := fleet.Cluster{Name: "n", Labels: map[string]string{"ring": tc.ring}}
			for older, want := range map[bool]bool{false: tc.wider, true: tc.where} {
				got := w.state.BringsNew(w.plan, c, func(revision int64) bool { return revision == w.plan.Revision || older })
				if got != want {
					t.Errorf("placed by the revision before %t: %t (%s %s)", older, got, w.state.State, w.state.Reason)
				}
			}
		})
	}
}

// TestNoStageTakesWhoJoins: by unmatched: Fail a cluster that no stage takes does not join, whether others that no stage takes are to leave or not.
func TestNoStageTakesWhoJoins(t *testing.T) {
	for _, leaver := range []bool{false, true} {
		w := newWorld(t)
		w.quiet = true
		for _, line := range []string{"fleet c1 at=r1 ring=canary", "fleet x1 at=r1", "unselect x1", "strategy unmatched=Fail", "stage canary sel=ring:canary"} {
			if leaver || line != "fleet x1 at=r1" && line != "unselect x1" {
				w.command(line)
			}
		}
		w.command("start r2 from=r1")
		w.command("fleet x2")
		if i := w.state.IndexOf(w.plan, "x2"); i >= 0 {
			t.Errorf("beside a leaver %t: it joins in stage %d", leaver, w.state.Record(i).Stage)
		}
		all := func(int64) bool { return true }
		if w.state.BringsNew(w.plan, fleet.Cluster{Name: "x2"}, all) || w.plan.Strategy.Unmatched != rollout.UnmatchedFail {
			t.Errorf("beside a leaver %t: it is said to come", leaver)
		}
	}
}
