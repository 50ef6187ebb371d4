package worker

import (
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestKindOfAnAPIServerThatStarts: the kind of an object is that of an API server of its own, which is registered and whose pods start
// yet. That is waited for as a webhook is, and said.
func TestKindOfAnAPIServerThatStarts(t *testing.T) {
	r := aloneRig(t) // a group that does not answer keeps namespaces of others from being judged, and from going
	r.register()
	s := r.bundle("shop", nil, "apiVersion: broken-"+r.group()+"/v1\nkind: Gizmo\nmetadata: {name: g, namespace: $NS}\n")
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Message != "" })
	if x.Phase != fleet.PhaseApplying {
		t.Errorf("status %+v", x)
	}
	f := apply.Failure{Reason: x.Exceptions[0].Reason, Transient: true}
	now := time.Now()
	for after, want := range map[time.Duration]bool{time.Minute: true, awaited: false} {
		it := &item{entry: fleet.BundleEntry{ID: fleet.ObjectID{Group: "broken-" + r.group(), Kind: "Gizmo", Namespace: r.ns, Name: "g"}}, fail: &f, tries: 9}
		f.Since = now.Add(-after)
		w := &worker{m: &Manager{o: Options{Reachable: func() bool { return true }}}}
		if got := w.passing(it, now); got != want {
			t.Errorf("after %s: %t", after, got)
		}
	}
}
