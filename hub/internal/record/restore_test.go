package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
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
