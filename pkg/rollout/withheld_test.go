package rollout

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestWithheld: what a cluster could not have it gets as soon as it can, unless somebody has said since that it stays.
func TestWithheld(t *testing.T) {
	p := &Plan{Revision: 2, Members: []Member{{Cluster: "a"}}}
	for name, tc := range map[string]struct {
		head     Head
		record   Record
		cluster  fleet.ClusterName
		revision int64
		without  bool // the cluster has nothing of the module
		want     string
	}{
		"it runs":                                   {head: Head{State: Progressing}},
		"its failures paused it":                    {head: Head{State: Paused, Pause: &Pause{Reason: ReasonFailures}}},
		"a person paused it":                        {head: Head{State: Paused, Pause: &Pause{Reason: ReasonPausedByUser}}, want: ReasonPausedByUser},
		"it succeeded without it":                   {head: Head{State: Succeeded}},
		"it was aborted":                            {head: Head{State: Aborted}, record: Record{flags: flagLate}, want: string(Aborted)},
		"aborted, and never there":                  {head: Head{State: Aborted}, without: true, want: string(Aborted)},
		"aborted, and it came late":                 {head: Head{State: Aborted}, record: Record{flags: flagLate}, without: true},
		"aborted, and it is to have the one before": {head: Head{State: Aborted}, revision: 1},
		"superseded":                                {head: Head{State: Superseded}, want: ReasonSuperseded},
		"skipped":                                   {head: Head{State: Progressing}, record: Record{State: ClusterSkipped, Reason: ReasonSkipped}, want: ReasonSkipped},
		"its turn to go back is to come":            {head: Head{State: RollingBack, Back: &Back{To: 1}}, record: Record{flags: flagBack, Revision: 2}, want: ReasonWentBack},
		"it goes back":                              {head: Head{State: RollingBack, Back: &Back{To: 1}}, record: Record{flags: flagBack, Revision: 1}, revision: 1},
		"it does not go back with the others":       {head: Head{State: RolledBack, Back: &Back{To: 1}}, record: Record{Revision: 2}},
		"it is no member":                           {head: Head{State: Aborted}, cluster: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Head: tc.head, Chunks: [][]Record{{tc.record}}}
			cluster, revision := fleet.ClusterName("a"), int64(2)
			if tc.cluster != "" {
				cluster = tc.cluster
			}
			if tc.revision != 0 {
				revision = tc.revision
			}
			if got := s.Withheld(p, cluster, revision, !tc.without); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
