package api

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// started are the sessions of a hub that has just started, and that nobody has come back to.
type started struct {
	away
	at time.Time
}

func (s started) Started() time.Time { return s.at }

// Whom a watch shows as expected back, or as unknown to the hub, changes with time alone, and an agent that is unknown is in no record.
func TestRowsThatChangeWithTimeAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(w store.Writer) {
			w.Put(store.ClusterKey("c"), &storev1.ClusterRecord{Joined: timestamppb.Now(), Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c"}}})
			w.Put(store.SessionKey("c"), &storev1.SessionRecord{})
		})
		began := time.Now()
		a.o.Sessions, a.o.Grace = started{at: began}, 10*time.Minute
		s, leave := a.watchClustersFrom(t, &towlinev1.WatchClustersRequest{})
		expect := func(kind, name, attention string, after time.Duration) {
			t.Helper()
			deadline := time.After(time.Hour)
			for {
				select {
				case m := <-s.ch:
					c := m.GetCluster()
					if m.GetType() == eventSynced {
						continue
					}
					if at := time.Since(began); m.GetType() != kind || clusterKey(c) != name || c.GetStatus().GetAttention().GetCode() != attention || at < after || at > after+time.Minute {
						t.Fatalf("after %s %s %s, %s; want %s %s, %s after %s", at, m.GetType(), clusterKey(c), c.GetStatus().GetAttention().GetCode(), kind, name, attention, after)
					}
					return
				case <-deadline:
					t.Fatalf("no %s %s, %s", kind, name, attention)
				}
			}
		}
		expect(eventAdded, "c", fleet.AttentionExpected, 0)
		<-time.After(time.Minute)
		if err := a.o.Registry.Check(rpc.Caller{Cluster: "stranger"}, nil); err == nil {
			t.Fatal("an agent that the hub does not know is let in")
		}
		expect(eventAdded, "stranger", fleet.AttentionUnregistered, time.Minute)
		expect(eventDeleted, "stranger", fleet.AttentionUnregistered, 6*time.Minute)
		expect(eventModified, "c", "", 10*time.Minute)
		_ = leave()
		a.clusterBoards.mu.Lock()
		for question, s := range a.clusterBoards.asked {
			a.clusterBoards.end(question, s)
		}
		a.clusterBoards.mu.Unlock()
	})
}
