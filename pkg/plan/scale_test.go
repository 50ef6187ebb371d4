package plan

import (
	"testing"
	"time"
)

func TestScaling(t *testing.T) {
	const hpa, other = "kube-controller-manager", "proportional"
	type look struct {
		at     time.Duration
		exists bool
		by     string
		ours   bool
		took   bool // the replicas were taken back then
	}
	for name, looks := range map[string][]look{
		"it exists":               {{0, true, hpa, false, false}, {time.Hour, true, hpa, false, false}},
		"it is gone":              {{0, true, hpa, false, false}, {time.Minute, false, hpa, false, false}, {2 * time.Minute, false, hpa, true, true}},
		"it was away for a bit":   {{0, false, hpa, false, false}, {30 * time.Second, true, hpa, false, false}, {time.Minute, false, hpa, false, false}},
		"it came while we waited": {{0, false, hpa, false, false}, {time.Minute, false, hpa, true, false}, {2 * time.Minute, true, hpa, false, false}},
		"it is gone twice":        {{0, false, hpa, false, false}, {time.Minute, false, hpa, true, true}, {2 * time.Minute, true, hpa, false, false}, {3 * time.Minute, false, hpa, false, false}, {4 * time.Minute, false, hpa, true, false}},
		"it comes back":           {{0, false, other, false, false}, {time.Minute, false, other, true, true}, {2 * time.Minute, false, other, false, false}, {time.Hour, false, other, false, false}},
		"it comes back late":      {{0, false, other, false, false}, {time.Minute, false, other, true, true}, {time.Hour, false, other, false, false}, {2 * time.Hour, false, other, true, false}},
		"somebody else comes":     {{0, false, other, false, false}, {time.Minute, false, other, true, true}, {2 * time.Minute, false, hpa, false, false}, {3 * time.Minute, false, hpa, true, false}},
	} {
		var s Scaling
		began := time.Unix(1000, 0)
		for i, l := range looks {
			if got := s.Judge(l.exists, l.by, began.Add(l.at), time.Minute); got != l.ours {
				t.Errorf("%s: look %d: ours %t", name, i, got)
			}
			if l.took {
				s.Took(l.by, began.Add(l.at))
			}
		}
	}
}
