package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// TestWhatCouldNotBeAssignedIsWithheld: a cluster cannot have the new revision, for want of a label. A person says that it stays where
// it is, and then it gets the label: it has what it had, through a restart of the hub too, and its tracker says which word brings it the
// other one. That word does.
func TestWhatCouldNotBeAssignedIsWithheld(t *testing.T) {
	withheld := func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "CannotAssign" && strings.Contains(tr.GetMessage(), "r2 could be assigned now, and is not: ")
	}
	word := func(x client.Word) func(*world) { return func(w *world) { say(w, x) } }
	for name, tc := range map[string]struct{ said, ends func(*world) }{
		"aborted": {word(client.Word{Verb: "abort"}), word(client.Word{Verb: "retry"})},
		"pinned":  {word(client.Word{Verb: "pin", Clusters: []string{"a"}, Reason: "stays at r1"}), word(client.Word{Verb: "unpin", Clusters: []string{"a"}})},
		"skipped": {word(client.Word{Verb: "skip", Clusters: []string{"a"}}), word(client.Word{Verb: "retry", Clusters: []string{"a"}})},
		"paused":  {word(client.Word{Verb: "pause"}), word(client.Word{Verb: "resume"})},
		"cordoned": {func(w *world) { w.cordon("a", true) }, func(w *world) {
			_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
				Metadata: &towlinev1.Metadata{Name: "a", Labels: map[string]string{"zone": "y"}}, Spec: &towlinev1.ClusterSpec{Cordoned: new(false)}}})
			must(t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := wantingLabel(t)
			tc.said(w)
			w.labelled("a", map[string]string{"zone": "y"})
			w.awaitTracker("shop", "a", "withheld", withheld)
			w.restart()
			w.awaitTracker("shop", "a", "withheld", withheld)
			if s := w.held("a", "shop"); s.Revision != 1 {
				t.Fatalf("a is given r%d since it has the label", s.Revision)
			}
			tc.ends(w)
			w.awaitTracker("shop", "a", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && ready(tr) })
		})
	}
}

// TestWhatCouldNotBeAssignedComesByItself: nobody has said a word against it; a rollout that its failure has paused goes on with it.
func TestWhatCouldNotBeAssignedComesByItself(t *testing.T) {
	w := wantingLabel(t)
	w.until("shop", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Paused" })
	w.labelled("a", map[string]string{"zone": "y"})
	w.awaitTracker("shop", "a", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && ready(tr) })
}

// TestWhatCouldNotBeAssignedAfterAnAbortIsTheNewcomersToHave: a cluster that joins after an abort gets what clusters that come get, also
// when its label comes only then.
func TestWhatCouldNotBeAssignedAfterAnAbortIsTheNewcomersToHave(t *testing.T) {
	w := wantingLabel(t)
	say(w, client.Word{Verb: "abort"})
	w.join("late", nil, nil)
	w.awaitTracker("shop", "late", "given something", func(tr *towlinev1.Tracker) bool { return tr != nil })
	w.labelled("late", map[string]string{"zone": "z"})
	w.awaitTracker("shop", "late", "ready", ready)
}

// TestWhatCouldNotBeAssignedIsSupersededByTheNext: a newer rollout waits for an approval when the label comes. The cluster goes from what
// it has to the newer revision, at its turn.
func TestWhatCouldNotBeAssignedIsSupersededByTheNext(t *testing.T) {
	w := wantingLabel(t)
	m := listing("shop", "one", "three")
	m.Spec.Rollout = approved()
	w.put(m)
	w.until("shop", 3, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	w.labelled("a", map[string]string{"zone": "y"})
	w.awaitTracker("shop", "a", "withheld", func(tr *towlinev1.Tracker) bool { return strings.Contains(tr.GetMessage(), "is superseded") })
	if s := w.held("a", "shop"); s.Revision != 1 {
		t.Fatalf("a is given r%d, which was superseded", s.Revision)
	}
	eve, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "eve", Role: "admin"})
	must(t, err)
	_, err = w.as(eve.GetToken()).Steer(w.ctx, client.Word{Verb: "approve", Module: "shop"})
	must(t, err)
	w.awaitTracker("shop", "a", "at r3", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 3 && ready(tr) })
}

// wantingLabel is a world with a module at r1 in clusters a and b, of which a cannot have r2.
func wantingLabel(t *testing.T) *world {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.join("b", nil, map[string]string{"zone": "x"})
	w.await("shop", w.put(listing("shop", "one")).GetRevision())
	m := listing("shop", "one", "two")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	w.put(m)
	w.awaitTracker("shop", "a", "without its label", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	return w
}

func say(w *world, word client.Word) {
	word.Module = "shop"
	w.act(word)
}
