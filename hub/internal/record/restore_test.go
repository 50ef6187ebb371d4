package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// Only a session of an agent that follows the restored store, or a join after the restore, shows that a cluster is not ahead of it.
func TestWhereAClusterIsAfterARestore(t *testing.T) {
	restored := time.Unix(1000, 0)
	at := func(s int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(s, 0)) }
	for name, tc := range map[string]struct {
		cluster *storev1.ClusterRecord
		session *storev1.SessionRecord
		want    after
	}{
		"as in the backup":                       {&storev1.ClusterRecord{Joined: at(10)}, &storev1.SessionRecord{Epoch: 4, Follows: "before"}, isUnheard},
		"by a hub that did not note it":          {&storev1.ClusterRecord{Joined: at(10)}, &storev1.SessionRecord{Epoch: 4}, isUnheard},
		"its session is lost":                    {&storev1.ClusterRecord{Joined: at(10)}, nil, isUnheard},
		"it follows the store":                   {&storev1.ClusterRecord{Joined: at(10)}, &storev1.SessionRecord{Epoch: 5, Follows: "now"}, hasFollowed},
		"it is ahead":                            {&storev1.ClusterRecord{Joined: at(10), Regressed: "why"}, &storev1.SessionRecord{Epoch: 5}, isAhead},
		"a copy was put back since":              {&storev1.ClusterRecord{Joined: at(10), Regressed: "why"}, &storev1.SessionRecord{Epoch: 5, Follows: "now"}, isAhead},
		"it never joined":                        {&storev1.ClusterRecord{}, nil, hasFollowed},
		"it is revoked":                          {&storev1.ClusterRecord{Joined: at(10), Revoked: true}, nil, hasFollowed},
		"it joined since, and has not connected": {&storev1.ClusterRecord{Joined: at(2000)}, nil, hasFollowed},
	} {
		if got := placeAfter(restored, "now", tc.cluster, tc.session); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// The time of a restore is that of another machine's clock than the one by which the clusters joined. No cluster of the backup counts as one that
// joined after it.
func TestRestoreIsAfterWhatIsInTheBackup(t *testing.T) {
	s := storetest.New(t)
	joined := time.Unix(2000, 0)
	if _, err := s.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.HubKey, &storev1.Hub{Incarnation: "now"})
		for name, at := range map[string]*timestamppb.Timestamp{"a": timestamppb.New(joined.Add(-time.Minute)), "b": timestamppb.New(joined), "c": nil} {
			w.Put(store.ClusterKey(fleet.ClusterName(name)), &storev1.ClusterRecord{Joined: at, Cluster: &v1.Cluster{Metadata: &v1.Metadata{Name: name}}})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for now, want := range map[time.Time]time.Time{joined.Add(-time.Hour): joined, joined.Add(time.Hour): joined.Add(time.Hour)} {
		rev, err := s.Update(t.Context(), func(w store.Writer) error {
			MarkRestored(w, &storev1.Hub{Incarnation: "before"}, now)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.View(t.Context(), rev, func(r store.Reader) error {
			x := ReadRestored(r)
			if at := x.Record.GetAt().AsTime(); !at.Equal(want) {
				t.Errorf("restored at %s: counts as restored at %s, want %s", now, at, want)
			}
			if len(x.Unheard) != 2 {
				t.Errorf("restored at %s: of a and b unheard are %v", now, x.Unheard)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
