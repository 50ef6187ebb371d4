package tracker

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

var (
	ref     = fleet.ModuleRef{Project: "default", Name: "shop"}
	bundle  = fleet.DigestOf([]byte("bundle"))
	fine    = fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	changed = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftDrifted}
	fought  = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftConflict}
)

// blind is the condition of a cluster whose API server does not answer its agent.
var blind = &fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer", Message: "no answer"}

func health(h fleet.Health) fleet.ObjectState {
	return fleet.ObjectState{Sync: fleet.SyncSynced, Health: h, Drift: fleet.DriftInSync}
}

func desired(objects int) *fleet.Sync {
	return &fleet.Sync{Module: ref, Generation: 5, Bundle: bundle, Objects: objects}
}

func observed(phase fleet.SyncPhase, ready bool, states ...fleet.ObjectState) *fleet.SyncStatus {
	return &fleet.SyncStatus{Module: ref, Generation: 5, Bundle: bundle, Phase: phase, Ready: ready, States: states}
}

func with(s *fleet.SyncStatus, change func(*fleet.SyncStatus)) *fleet.SyncStatus {
	change(s)
	return s
}

type want struct {
	sync                    fleet.SyncState
	health                  fleet.Health
	ready, current, failed  bool
	removing, removed       bool
	reason                  string
	class                   Class
	objects, extra, drifted int
}

func TestFold(t *testing.T) {
	tomb := &fleet.Tombstone{Module: ref, Generation: 6, Policy: fleet.DeleteDelete}
	for name, tc := range map[string]struct {
		in   Input
		want want
	}{
		"not assigned": {Input{Connected: true}, want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, reason: "NotAssigned", class: Progressing}},
		"cannot be assigned": {Input{Connected: true, Desired: desired(1), Problem: "no REGION", Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, failed: true, reason: "CannotAssign", class: Bad, objects: 1}},
		"refused": {Input{Connected: true, Desired: desired(1), Refused: "UNDECODABLE", Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, failed: true, reason: "Refused", class: Bad, objects: 1}},
		"no report yet": {Input{Connected: true, Desired: desired(2)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 2}},
		"no report, away": {Input{Desired: desired(2)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, reason: "Disconnected", class: Away, objects: 2}},
		"of an older generation": {Input{Connected: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, true, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 1}},
		"of a newer generation": {Input{Connected: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, true, fine), func(s *fleet.SyncStatus) { s.Generation = 6 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 1}},
		"of another bundle": {Input{Connected: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, true, fine), func(s *fleet.SyncStatus) { s.Bundle[0]++ })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 1}},
		"a stray": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseStray, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 1}},
		"ready": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseApplied, true, fine, health(fleet.HealthSuspended))},
			want{sync: fleet.SyncSynced, health: fleet.HealthSuspended, ready: true, current: true, class: Healthy, objects: 2}},
		"ready, away": {Input{Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "Disconnected", class: Away, objects: 1}},
		"ready, not seen": {Input{Blind: blind, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "ClusterNotSeen", class: Away, objects: 1}},
		"not read by the agent": {Input{Connected: true, Desired: desired(3), Observed: observed(fleet.PhaseFailed, false)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, current: true, failed: true, class: Bad, objects: 3}},
		"failed, not seen": {Input{Blind: blind, Desired: desired(1), Observed: observed(fleet.PhaseFailed, false, health(fleet.HealthDegraded))},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "ClusterNotSeen", class: Away, objects: 1}},
		"drifted, as a policy tolerates": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseApplied, true, fine, changed)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthHealthy, ready: true, current: true, class: Healthy, objects: 2, drifted: 1}},
		"two writers": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, fought)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthHealthy, ready: true, current: true, class: Healthy, objects: 1, drifted: 1}},
		"drifted and degraded": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, false,
			fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthDegraded, Drift: fleet.DriftDrifted})},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, current: true, class: Bad, objects: 1, drifted: 1}},
		"drifted, while others are applied": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplying, true, changed)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 1, drifted: 1}},
		"one stands still, while others are applied": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseApplying, false, health(fleet.HealthSuspended),
			fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 2}},
		"not applied yet, it says ready": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true,
			fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 1}},
		"drifted and failed, away": {Input{Desired: desired(2), Observed: observed(fleet.PhaseFailed, false, changed, health(fleet.HealthDegraded))},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "Disconnected", class: Away, objects: 2}},
		"ready, of a session before": {Input{Connected: true, Unheard: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "NotHeard", class: Progressing, objects: 1}},
		"of an older generation and a session before": {Input{Connected: true, Unheard: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, true, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "Sending", class: Progressing, objects: 1}},
		"of an older generation, of a store that was newer": {Input{Connected: true, Regressed: true, Unheard: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, true, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, reason: "Regressed", class: Ahead, objects: 1}},
		"no report yet, of a store that was newer": {Input{Connected: true, Regressed: true, Unheard: true, Desired: desired(1)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, reason: "Regressed", class: Ahead, objects: 1}},
		"is to go, of a store that was newer": {Input{Connected: true, Regressed: true, Unheard: true, Tombstone: tomb},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Regressed", class: Ahead}},
		"cannot be assigned, away": {Input{Desired: desired(1), Problem: "no REGION", Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, failed: true, reason: "CannotAssign", class: Away, objects: 1}},
		"waits for a removal": {Input{Connected: true, Desired: desired(2), Before: tomb, Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, reason: "RemovingFirst", class: Progressing, objects: 3, extra: 1}},
		"its removal is confirmed": {Input{Connected: true, Desired: desired(2), Before: tomb, Observed: with(observed(fleet.PhaseRemoved, false), func(s *fleet.SyncStatus) { s.Generation = 6 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, removed: true, reason: "RemovingFirst", class: Progressing, objects: 2}},
		"waits for a removal, away": {Input{Desired: desired(2), Before: tomb},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, reason: "Disconnected", class: Away, objects: 2}},
		"no objects": {Input{Connected: true, Desired: desired(0), Observed: observed(fleet.PhaseApplied, true)},
			want{sync: fleet.SyncSynced, health: fleet.HealthHealthy, ready: true, current: true, class: Healthy}},
		"an object unaccounted for": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 2}},
		"the agent says not ready": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, false, fine)},
			want{sync: fleet.SyncSynced, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 1}},
		"the agent says ready of what is not": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, true, health(fleet.HealthDegraded))},
			want{sync: fleet.SyncSynced, health: fleet.HealthDegraded, current: true, class: Bad, objects: 1}},
		"not pruned yet": {Input{Connected: true, Desired: desired(1), Observed: with(observed(fleet.PhaseApplied, false, fine), func(s *fleet.SyncStatus) { s.Extras = make([]fleet.ExtraObject, 3) })},
			want{sync: fleet.SyncSynced, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 4, extra: 3}},
		"failed": {Input{Connected: true, Desired: desired(2), Observed: with(observed(fleet.PhaseFailed, false, fine, changed), func(s *fleet.SyncStatus) {
			s.Exceptions = []fleet.ObjectException{{Ordinal: 1, Reason: "Forbidden", Message: "may not"}}
		})}, want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, current: true, failed: true, reason: "Forbidden", class: Bad, objects: 2, drifted: 1}},
		"its own sentence first": {Input{Connected: true, Desired: desired(1), Observed: with(observed(fleet.PhaseFailed, false, fine), func(s *fleet.SyncStatus) {
			s.Reason, s.Message = "Own", "own"
			s.Exceptions = []fleet.ObjectException{{Reason: "Forbidden", Message: "may not"}}
		})}, want{sync: fleet.SyncOutOfSync, health: fleet.HealthDegraded, current: true, failed: true, reason: "Own", class: Bad, objects: 1}},
		"held": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseHeld, false, fine)},
			want{sync: fleet.SyncSynced, health: fleet.HealthHealthy, current: true, class: Healthy, objects: 1}},
		"held, with drift that stays": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseHeld, false,
			fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftHeld})},
			want{sync: fleet.SyncSynced, health: fleet.HealthHealthy, current: true, class: Healthy, objects: 1, drifted: 1}},
		"held before it was written": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseHeld, false, fine,
			fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftHeld})},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 2, drifted: 1}},
		"held, with objects unaccounted for": {Input{Connected: true, Desired: desired(2), Observed: observed(fleet.PhaseHeld, false, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 2}},
		"held, and degraded": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseHeld, false, health(fleet.HealthDegraded))},
			want{sync: fleet.SyncSynced, health: fleet.HealthDegraded, current: true, class: Bad, objects: 1}},
		"held, and its pods are on their way": {Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseHeld, false, health(fleet.HealthProgressing))},
			want{sync: fleet.SyncSynced, health: fleet.HealthProgressing, current: true, class: Progressing, objects: 1}},
		"held, the agent too old": {Input{Connected: true, Desired: desired(1), Unable: "the agent is too old", Observed: observed(fleet.PhaseHeld, false, fine)},
			want{sync: fleet.SyncSynced, health: fleet.HealthUnknown, current: true, reason: "AgentTooOld", class: Progressing, objects: 1}},
		"held, away": {Input{Desired: desired(1), Observed: observed(fleet.PhaseHeld, false, fine)},
			want{sync: fleet.SyncUnknown, health: fleet.HealthUnknown, current: true, reason: "Disconnected", class: Away, objects: 1}},
		"leaves, not reported": {Input{Connected: true, Tombstone: tomb},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Removing", class: Progressing}},
		"leaves, and the agent does not take that": {Input{Connected: true, Tombstone: tomb, Refused: "UNDECODABLE: policy", Observed: observed(fleet.PhaseApplied, true, fine, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Refused", class: Progressing, objects: 2, extra: 2}},
		"leaves, and the agent did not take that, away": {Input{Tombstone: tomb, Refused: "UNDECODABLE: policy", Observed: observed(fleet.PhaseApplied, true, fine, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Refused", class: Away, objects: 2, extra: 2}},
		"leaves, away": {Input{Tombstone: tomb, Observed: observed(fleet.PhaseApplied, true, fine, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Disconnected", class: Away, objects: 2, extra: 2}},
		"removed by an older tombstone": {Input{Connected: true, Tombstone: tomb, Observed: with(observed(fleet.PhaseRemoved, false), func(s *fleet.SyncStatus) { s.Generation = 4 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Removing", class: Progressing}},
		"removed, it says, by a later one": {Input{Connected: true, Tombstone: tomb, Observed: with(observed(fleet.PhaseRemoved, false), func(s *fleet.SyncStatus) { s.Generation = 7 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "Removing", class: Progressing}},
		"being removed": {Input{Connected: true, Tombstone: tomb, Observed: with(observed(fleet.PhaseRemoving, false), func(s *fleet.SyncStatus) {
			s.Generation, s.Reason, s.Extras = 6, "NamespaceNotEmpty", make([]fleet.ExtraObject, 1)
		})}, want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, reason: "NamespaceNotEmpty", class: Progressing, objects: 1, extra: 1}},
		"removed": {Input{Connected: true, Tombstone: tomb, Observed: with(observed(fleet.PhaseRemoved, false), func(s *fleet.SyncStatus) { s.Generation = 6 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, removed: true, reason: "Removing", class: Progressing}},
		"assigned again, but not assignable": {Input{Tombstone: tomb, Problem: "no REGION", Observed: observed(fleet.PhaseApplied, true, fine)},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, failed: true, reason: "CannotAssign", class: Away, objects: 1, extra: 1}},
		"not assignable, and removed": {Input{Connected: true, Tombstone: tomb, Problem: "no REGION", Observed: with(observed(fleet.PhaseRemoved, false), func(s *fleet.SyncStatus) { s.Generation = 6 })},
			want{sync: fleet.SyncOutOfSync, health: fleet.HealthTerminating, removing: true, removed: true, failed: true, reason: "CannotAssign", class: Bad}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Fold(tc.in)
			have := want{got.Sync, got.Health, got.Ready, got.Current, got.Failed, got.Removing, got.Removed, got.Reason,
				Classify(got), got.Counts.Objects, got.Counts.Extra, got.Counts.Drifted}
			if have != tc.want {
				t.Errorf("%+v\nwant %+v", have, tc.want)
			}
			if !tc.in.Connected && (got.Ready || got.Health == fleet.HealthHealthy || got.Sync == fleet.SyncSynced || got.Counts.Healthy > 0) {
				t.Errorf("not seen, and called fine: %+v", got)
			}
		})
	}
}

func TestCountIsExact(t *testing.T) {
	drift := func(d fleet.Drift) fleet.ObjectState {
		return fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: d}
	}
	got := Count([]fleet.ObjectState{fine, health(fleet.HealthSuspended), health(fleet.HealthDegraded), health(fleet.HealthMissing),
		health(fleet.HealthProgressing), health(fleet.HealthTerminating), health(fleet.HealthUnknown),
		drift(fleet.DriftDrifted), drift(fleet.DriftConflict), drift(fleet.DriftHeld), drift(fleet.DriftIgnored)}, 2)
	if w := (Counts{Objects: 13, Healthy: 6, Progressing: 3, Bad: 2, Drifted: 3, Extra: 2}); got != w {
		t.Errorf("%+v, want %+v", got, w)
	}
}

func TestRows(t *testing.T) {
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}, Version: "v1"}, {ID: fleet.ObjectID{Kind: "ConfigMap", Name: "b"}, Version: "v1"}}
	began, later := time.Unix(100, 0), time.Unix(200, 0)
	report := with(observed(fleet.PhaseApplied, false, fine, changed), func(s *fleet.SyncStatus) {
		s.Exceptions = []fleet.ObjectException{{Ordinal: 1, Reason: "Drifted", Message: "m", Field: "/data/a", ChangedBy: "kubectl", Since: later},
			{Ordinal: 2, Reason: "OutOfRange"}, {Ordinal: -1, Reason: "OutOfRange"}, {Ordinal: 0, Reason: "NoTime"}}
		s.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "Secret", Name: "old"}, Version: "v1", State: fine, Reason: "Kept", Message: "by policy"}}
	})
	rows := Rows(Input{Connected: true, Desired: desired(2), Observed: report, Since: began}, Listed{Entries: entries})
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	if r := rows[0]; r.State != fine || r.Reason != "NoTime" || !r.Since.IsZero() || r.Extra {
		t.Errorf("a: %+v", r)
	}
	if r := rows[1]; r.State != changed || r.Reason != "Drifted" || r.Field != "/data/a" || r.ChangedBy != "kubectl" || !r.Since.Equal(later) {
		t.Errorf("b: %+v", r)
	}
	if r := rows[2]; !r.Extra || r.ID.Name != "old" || r.Reason != "Kept" || r.Message != "by policy" || r.State != noDrift(fine) {
		t.Errorf("extra: %+v", r)
	}
	for name, in := range map[string]Input{
		"no report":               {Desired: desired(2)},
		"of an older generation":  {Desired: desired(2), Observed: with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
		"being removed":           {Tombstone: &fleet.Tombstone{Module: ref, Generation: 6}, Observed: observed(fleet.PhaseApplied, true, fine, fine)},
		"another one goes first":  {Desired: desired(2), Before: &fleet.Tombstone{Module: ref, Generation: 6}, Observed: observed(fleet.PhaseApplied, true, fine, fine)},
		"fewer states than named": {Desired: desired(2), Observed: observed(fleet.PhaseApplying, false)},
	} {
		rows := Rows(in, Listed{Entries: entries, Left: entries})
		if got := Fold(in).Counts; got.Extra > 0 && !rows[0].Extra {
			t.Errorf("%s: %+v, and its rows are of what is listed", name, got)
		}
		if len(rows) != 2 || rows[0].State != unknownState() || rows[1].State != unknownState() || rows[1].ID.Name != "b" {
			t.Errorf("%s: %+v, want both unknown", name, rows)
		}
	}
}

// TestLastWord: what cannot be seen is Unknown, and the last word and its time are kept beside it.
func TestLastWord(t *testing.T) {
	heard := time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)
	report := with(observed(fleet.PhaseApplied, false, fine, changed), func(s *fleet.SyncStatus) {
		s.Reason, s.Message = "Drifted", "b was changed"
		s.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "Secret", Name: "old"}, State: fine}}
	})
	in := Input{Desired: desired(2), Observed: report, LastHeard: heard}
	got := Fold(in)
	if w := got.Was; w == nil || w.Sync != fleet.SyncOutOfSync || w.Health != fleet.HealthProgressing || w.Ready || w.Counts.Healthy != 2 || w.Counts.Drifted != 1 {
		t.Errorf("the last word: %+v", w)
	}
	if got.Counts != (Counts{Objects: 3, Extra: 1}) || !got.Since.Equal(heard) ||
		got.Reason != fleet.TrackerDisconnected || got.Message != "b was changed" {
		t.Errorf("%+v", got)
	}
	for i, r := range Rows(in, Listed{Entries: []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}}, {ID: fleet.ObjectID{Kind: "ConfigMap", Name: "b"}}}}) {
		want := []fleet.ObjectState{fine, changed, noDrift(fine)}[i]
		if r.State != unknownState() || r.Was == nil || *r.Was != want {
			t.Errorf("%s: %+v, was %+v", r.ID, r.State, r.Was)
		}
	}
	for name, in := range map[string]Input{
		"seen":             {Connected: true, Desired: desired(2), Observed: report},
		"no report":        {Desired: desired(2)},
		"of other objects": {Desired: desired(2), Observed: with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Bundle = fleet.Digest{1} })},
		"of a stray":       {Desired: desired(2), Observed: with(observed(fleet.PhaseStray, false, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
		"on its way":       {Connected: true, Desired: desired(2), Observed: with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })},
		"damaged":          {Desired: &fleet.Sync{}, Observed: with(observed(fleet.PhaseFailed, false), func(s *fleet.SyncStatus) { s.Bundle = fleet.Digest{} })},
	} {
		got := Fold(in)
		if got.Was != nil {
			t.Errorf("%s: was %+v", name, got.Was)
		}
		if other := name == "of other objects"; (got.Then != nil) != other || other && !got.Then.Ready {
			t.Errorf("%s: whatever was wanted then, was %+v", name, got.Then)
		}
	}
}

func noDrift(s fleet.ObjectState) fleet.ObjectState {
	s.Drift = fleet.DriftUnknown
	return s
}

// TestLastWordOutlivesWhatTheHubNotes: how a cluster that is away stood is no matter of what the hub has noted since for the same objects.
func TestLastWordOutlivesWhatTheHubNotes(t *testing.T) {
	before := with(observed(fleet.PhaseApplied, true, fine, fine), func(s *fleet.SyncStatus) { s.Generation = 4 })
	for name, in := range map[string]Input{
		"a hold":               {Desired: desired(2), Observed: before},
		"a value that is gone": {Desired: desired(2), Observed: observed(fleet.PhaseApplied, true, fine, fine), Problem: "no value"},
	} {
		got := Fold(in)
		if w := got.Was; w == nil || !w.Ready || w.Health != fleet.HealthHealthy || w.Counts.Healthy != 2 {
			t.Errorf("%s: the last word: %+v", name, w)
		}
		if got.Current || got.Written || got.Ready || got.Counts.Healthy != 0 || got.Health != fleet.HealthUnknown {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestWritten: a revision is in a cluster when all of it was applied there once. That drift is corrected changes nothing in that.
func TestWritten(t *testing.T) {
	missing := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}
	deleted, taken, unseen := missing, missing, unknownState()
	deleted.Drift, taken.Drift, unseen.Drift = fleet.DriftDrifted, fleet.DriftConflict, fleet.DriftInSync
	for name, tc := range map[string]struct {
		report *fleet.SyncStatus
		want   bool
	}{
		"applied":                        {observed(fleet.PhaseApplied, true, fine, fine), true},
		"applied, not watched yet":       {observed(fleet.PhaseApplied, true, fine, unseen), true},
		"applied, two writers":           {observed(fleet.PhaseApplied, true, fine, taken), true},
		"drift that is corrected":        {observed(fleet.PhaseApplying, false, fine, changed), true},
		"drift that cannot be corrected": {observed(fleet.PhaseFailed, false, fine, deleted), true},
		"held afterwards":                {observed(fleet.PhaseHeld, false, fine, changed), true},
		"held before":                    {observed(fleet.PhaseHeld, false, fine, missing), false},
		"on its way":                     {observed(fleet.PhaseApplying, false, fine, missing), false},
		"failed":                         {observed(fleet.PhaseFailed, false, fine, missing), false},
		"somebody else's":                {observed(fleet.PhaseFailed, false, fine, taken), false},
		"a sync that cannot be read":     {observed(fleet.PhaseFailed, false), false},
		"a stray":                        {observed(fleet.PhaseStray, false, fine, fine), false},
		"failed, with all of it there":   {observed(fleet.PhaseFailed, false, fine, fine), true},
	} {
		for _, connected := range []bool{true, false} {
			if got := Fold(Input{Connected: connected, Desired: desired(2), Observed: tc.report}); got.Written != tc.want {
				t.Errorf("%s, connected %t: written %t", name, connected, got.Written)
			}
		}
	}
	for phase, want := range map[fleet.SyncPhase]bool{fleet.PhaseApplied: true, fleet.PhaseFailed: false, fleet.PhaseApplying: false} {
		if got := Fold(Input{Connected: true, Desired: desired(0), Observed: observed(phase, false)}); got.Written != want {
			t.Errorf("nothing to write, %s: written %t", phase, got.Written)
		}
	}
}

// TestUnseenObjectsAreNotInSync: an object that its agent cannot see has no drift state, either.
func TestUnseenObjectsAreNotInSync(t *testing.T) {
	rows := Rows(Input{Connected: true, Desired: desired(1), Observed: observed(fleet.PhaseApplied, false, fleet.UnpackState(0))}, Listed{Entries: []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "Widget", Name: "a"}}}})
	if rows[0].State != unknownState() || rows[0].Was != nil {
		t.Errorf("%+v", rows[0])
	}
}

// What is only watched counts for the module, and has rows of its own.
func TestWatchedObjectsCount(t *testing.T) {
	missing := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Name: "a"}}}
	watched := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "Database", Name: "db"}, Version: "v1"}, {ID: fleet.ObjectID{Kind: "Node", Name: "n"}}}
	want := desired(1)
	want.Watched = 2
	report := func(ready bool, states ...fleet.ObjectState) *fleet.SyncStatus {
		return with(observed(fleet.PhaseApplied, ready, fine), func(s *fleet.SyncStatus) {
			s.Watched = states
			s.Exceptions = []fleet.ObjectException{{Ordinal: 1, Reason: "Missing", Message: "Database db: does not exist"}}
		})
	}
	for name, tt := range map[string]struct {
		report *fleet.SyncStatus
		ready  bool
		health fleet.Health
		counts Counts
		state  fleet.ObjectState
	}{
		"no report":      {nil, false, fleet.HealthProgressing, Counts{Objects: 3}, unknownState()},
		"one is missing": {report(false, missing, fine), false, fleet.HealthMissing, Counts{Objects: 3, Healthy: 2, Bad: 1}, missing},
		"that is not told as ready whatever the agent says": {report(true, missing, fine), false, fleet.HealthMissing, Counts{Objects: 3, Healthy: 2, Bad: 1}, missing},
		"all are there":           {report(true, fine, fine), true, fleet.HealthHealthy, Counts{Objects: 3, Healthy: 3}, fine},
		"of one nothing was said": {report(true, fine), false, fleet.HealthProgressing, Counts{Objects: 3, Healthy: 2}, fine},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Connected: true, Desired: want, Observed: tt.report}
			if got := Fold(in); got.Ready != tt.ready || got.Health != tt.health || got.Counts != tt.counts {
				t.Errorf("%+v", got)
			}
			rows := Rows(in, Listed{Entries: entries, Watched: watched})
			if len(rows) != 3 || rows[0].Watched || !rows[1].Watched || rows[1].ID != watched[0].ID || rows[1].State != tt.state {
				t.Errorf("%+v", rows)
			}
			if tt.report != nil && rows[1].Message != "does not exist" {
				t.Errorf("it says %q", rows[1].Message)
			}
		})
	}
	left := Fold(Input{Connected: true, Tombstone: &fleet.Tombstone{Module: ref, Generation: 6}, Observed: report(true, fine, fine)})
	if left.Counts.Extra != 1 {
		t.Errorf("%d objects are to go with the module, want its own only", left.Counts.Extra)
	}
}

// TestAlteredUnderAHold: what is held and was changed by somebody may be healthy, and shows nothing of what the module has there; also by the
// last word of a cluster that is away.
func TestAlteredUnderAHold(t *testing.T) {
	altered := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftHeld}
	unwritten := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthHealthy, Drift: fleet.DriftHeld}
	leftMissing := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftDrifted}
	ignoredMissing := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthMissing, Drift: fleet.DriftIgnored}
	heldMissing := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftHeld}
	for name, tc := range map[string]struct {
		observed     *fleet.SyncStatus
		proves, well bool
	}{
		"as it was written":                         {observed(fleet.PhaseApplied, true, fine, fine), true, true},
		"one object held and changed":               {observed(fleet.PhaseApplied, true, fine, altered), false, false},
		"all held":                                  {observed(fleet.PhaseHeld, false, fine, fine), false, true},
		"all held, and one changed":                 {observed(fleet.PhaseHeld, false, altered, fine), false, false},
		"changed, and left so by policy":            {observed(fleet.PhaseApplied, true, fine, changed), true, true},
		"changed, left so by policy, and held":      {observed(fleet.PhaseHeld, false, fine, changed), false, true},
		"deleted, left so by policy":                {observed(fleet.PhaseApplied, true, fine, leftMissing), true, true},
		"deleted, left so by policy, and held":      {observed(fleet.PhaseHeld, false, fine, leftMissing), false, true},
		"deleted, nobody minds, and held":           {observed(fleet.PhaseHeld, false, fine, ignoredMissing), false, true},
		"deleted under the hold":                    {observed(fleet.PhaseHeld, false, fine, heldMissing), false, false},
		"not as it is wanted, a conflict, and held": {observed(fleet.PhaseHeld, false, fine, fought), false, false},
		"all held, and one not written":             {observed(fleet.PhaseHeld, false, fine, unwritten), false, false},
	} {
		for _, connected := range []bool{true, false} {
			got := Fold(Input{Connected: connected, Desired: desired(2), Observed: tc.observed})
			if got.Proves() != (tc.proves && connected) || got.DoesWell() != tc.well {
				t.Errorf("%s, connected %t: proves %t, does well %t: %+v", name, connected, got.Proves(), got.DoesWell(), got)
			}
		}
	}
}
