package worker

import (
	"context"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// doubtfulFence cannot prove, at times, that the API server is the one of this cluster.
type doubtfulFence struct {
	openFence
	doubts atomic.Bool
	asked  chan string
}

func (f *doubtfulFence) Prove(context.Context) error {
	select {
	case f.asked <- "asked":
	default:
	}
	if f.doubts.Load() {
		return fleet.Errorf(fleet.ErrStale, "lease towline-system/towline-agent is gone")
	}
	return nil
}

// What a look does not find is forgotten only once it is proven that the look was at this cluster: an API server of another
// one behind the same address has none of its objects.
func TestNothingIsForgottenByALookAtAnotherCluster(t *testing.T) {
	f := &doubtfulFence{openFence: 1, asked: make(chan string, 1)}
	r := newRig(t)
	r.stop()
	r.options = append(r.options, func(o *Options) { o.Fence = f })
	r.start()
	never := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"kept"}}, Prune: fleet.PruneNever}}
	s := r.bundle("shop", never, configMap("a", "k: v"), configMap("b", "k: v"), configMap("kept", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for len(f.asked) > 0 {
		<-f.asked
	}
	f.doubts.Store(true)
	records := func() int { return len(r.m.inventory.Module(s.Module)) }

	next := r.bundle("shop", never, configMap("a", "k: v")) // b goes, and somebody deletes what is kept
	r.set([]fleet.Sync{next})
	r.receive(f.asked, 1)
	if err := r.res("v1", "configmaps", r.ns).Delete(context.Background(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.wait("shop", "in doubt", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Reason == "NotLeader" })
	if records() != 3 {
		t.Errorf("%d records of 3", records())
	}
	f.doubts.Store(false)
	r.eventually("what is gone is forgotten", func() bool { return records() == 1 })

	f.doubts.Store(true)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removing, in doubt", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoving && x.Reason == "NotLeader" })
	if records() != 1 {
		t.Error("forgotten")
	}
	f.doubts.Store(false)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}
