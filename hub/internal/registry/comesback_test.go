package registry_test

import (
	"errors"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// The agent of a cluster does not see it, and what asks for the session then cannot be told from the other one of a Deployment. Where the first
// one sees the cluster again, as the instance that it was, it has had the Lease all the time: the other one is of a copy of the cluster, and
// gives the session back, at once and as often as it is started anew. One that came in its place in the same cluster keeps it.
func TestAgentThatSeesTheClusterAgainHasItsSessionBack(t *testing.T) {
	for name, again := range map[string]struct {
		instance string
		blind    bool
		back     bool
	}{
		"it sees the cluster":                     {"one", false, true},
		"it does not see it yet":                  {"one", true, false},
		"it has lost the Lease, and waits for it": {"another tenure", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.run()
			i := w.join("a", "uid-1")
			w.pass(-2 * time.Hour) // what is read of conditions has no time that is to come
			one, err := w.open(i, "one", "uid-1", false)
			if err != nil {
				t.Fatal(err)
			}
			says := func(fence store.Fence, conditions ...fleet.Condition) {
				t.Helper()
				said := &storev1.ConditionsRecord{Conditions: wire.ConditionsToProto(conditions)}
				if _, err := storetest.All(w.store).Batch(t.Context(), fence, []store.Op{{Key: store.ConditionKey("a"), Value: said}}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.store.Barrier(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			asks := func(instance string, blind, alive bool) (registry.Opened, error) {
				return w.OpenSession(rpc.WithCaller(t.Context(), i.caller()), registry.Admission{Cluster: "a", InstanceID: instance, ClusterUID: "uid-1", Hub: "a", Blind: blind}, alive)
			}
			unseen := fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Since: w.time()}
			says(one.Fence, unseen)
			taken, err := asks("copy", false, true)
			if err != nil {
				t.Fatal(err)
			}
			says(taken.Fence)
			if taken, err = asks("copy that was started anew", false, false); err != nil {
				t.Fatal(err)
			}
			says(taken.Fence)
			sub := w.store.Subscribe(nil, store.ClusterKey("a"))
			defer sub.Stop()
			got, err := asks(again.instance, again.blind, true)
			if !again.back {
				if !errors.Is(err, fleet.ErrExists) {
					t.Errorf("it takes the session from the one that sees the cluster: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("the agent of the cluster is kept out: %v", err)
			}
			says(got.Fence)
			for w.cluster("a").GetAttention() != fleet.AttentionCloned { // people are told at once
				select {
				case <-sub.C():
					sub.Take()
				case <-t.Context().Done():
					t.Fatal("no attention was recorded")
				}
			}
			if _, err := asks("copy that was started anew", false, true); !errors.Is(err, fleet.ErrExists) {
				t.Errorf("the copy takes it again: %v", err)
			}
			w.pass(time.Minute)
			says(got.Fence, fleet.Condition{Type: unseen.Type, Status: unseen.Status, Since: w.time()})
			if _, err := asks("copy that was started anew", false, true); !errors.Is(err, fleet.ErrExists) {
				t.Errorf("the copy takes it the next time that the cluster is not seen: %v", err)
			}
		})
	}
}
