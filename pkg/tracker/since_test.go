package tracker

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

var (
	sinceBegan = time.Unix(100, 0)
	sinceLater = time.Unix(200, 0)
	sinceHeard = time.Unix(300, 0)
)

// TestSinceIsOfWhatIsSaid: the time of a report dates what that report says, and nothing that the hub says of its own.
func TestSinceIsOfWhatIsSaid(t *testing.T) {
	report := observed(fleet.PhaseApplied, true, fine, fine)
	older := with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })
	gone := &fleet.Tombstone{Module: ref, Generation: 5}
	later := &fleet.Tombstone{Module: ref, Generation: 6}
	for name, tc := range map[string]struct {
		in   Input
		want time.Time
	}{
		"as reported":               {Input{Connected: true, Desired: desired(2), Observed: report}, sinceBegan},
		"not assignable":            {Input{Connected: true, Desired: desired(2), Observed: report, Problem: "no REGION"}, time.Time{}},
		"refused":                   {Input{Connected: true, Desired: desired(2), Observed: older, Refused: "Invalid"}, time.Time{}},
		"on its way":                {Input{Connected: true, Desired: desired(2), Observed: older}, time.Time{}},
		"an agent that is too old":  {Input{Connected: true, Desired: desired(2), Observed: report, Unable: "too old"}, time.Time{}},
		"another one goes first":    {Input{Connected: true, Desired: desired(2), Before: later, Observed: report}, time.Time{}},
		"another one is going":      {Input{Connected: true, Desired: desired(2), Before: gone, Observed: report}, sinceBegan},
		"to be removed":             {Input{Connected: true, Tombstone: later, Observed: report}, time.Time{}},
		"being removed":             {Input{Connected: true, Tombstone: gone, Observed: report}, sinceBegan},
		"away":                      {Input{Desired: desired(2), Observed: report, LastHeard: sinceHeard}, sinceHeard},
		"away, and not assignable":  {Input{Desired: desired(2), Observed: report, Problem: "no REGION", LastHeard: sinceHeard}, sinceHeard},
		"to be removed, while away": {Input{Tombstone: later, Observed: report, LastHeard: sinceHeard}, sinceHeard},
	} {
		tc.in.Since = sinceBegan
		if got := Fold(tc.in); !got.Since.Equal(tc.want) {
			t.Errorf("%s: %s %s since %s, want %s", name, got.Health, got.Reason, got.Since, tc.want)
		}
	}
}

// TestSinceOfAnObject: an object stands as it does since the time that its agent says; else since its module is ready, if it is healthy; of
// all others nobody noted since when. What cannot be seen is Unknown since its cluster was heard of last.
func TestSinceOfAnObject(t *testing.T) {
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}}, {ID: fleet.ObjectID{Kind: "Deployment", Name: "b"}}}
	seen := Input{Connected: true, Desired: desired(2), Since: sinceBegan}
	reported := func(in Input, s *fleet.SyncStatus) Input {
		in.Observed = s
		return in
	}
	dated := with(observed(fleet.PhaseApplied, false, fine, health(fleet.HealthDegraded)), func(s *fleet.SyncStatus) {
		s.Exceptions = []fleet.ObjectException{{Ordinal: 1, Reason: "Failed", Since: sinceLater}}
		s.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "Secret", Name: "old"}, State: fine}}
	})
	away := reported(Input{Desired: desired(2), Since: sinceBegan, LastHeard: sinceHeard}, dated)
	none := time.Time{}
	for name, tc := range map[string]struct {
		in   Input
		want []time.Time
	}{
		"ready":                  {reported(seen, observed(fleet.PhaseApplied, true, fine, fine)), []time.Time{sinceBegan, sinceBegan}},
		"suspended":              {reported(seen, observed(fleet.PhaseApplied, true, fine, health(fleet.HealthSuspended))), []time.Time{sinceBegan, none}},
		"with a time of its own": {reported(seen, dated), []time.Time{none, sinceLater, none}},
		"on its way": {reported(seen, with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })),
			[]time.Time{none, none}},
		"not assignable now": {func() Input {
			in := reported(seen, observed(fleet.PhaseApplied, true, fine, fine))
			in.Problem = "no REGION"
			return in
		}(), []time.Time{sinceBegan, sinceBegan}},
		"away": {away, []time.Time{sinceHeard, sinceHeard, sinceHeard}},
	} {
		rows := Rows(tc.in, Listed{Entries: entries})
		if len(rows) != len(tc.want) {
			t.Fatalf("%s: %d rows", name, len(rows))
		}
		for i, r := range rows {
			if !r.Since.Equal(tc.want[i]) {
				t.Errorf("%s: %s %s since %s, want %s", name, r.ID, r.State.Health, r.Since, tc.want[i])
			}
		}
	}
}
