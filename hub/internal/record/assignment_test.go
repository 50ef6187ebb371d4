package record

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
)

func TestAssignAndLeave(t *testing.T) {
	sync := &storev1.DesiredRecord{Rollout: 2, Sync: &agentv1.Sync{Generation: 7, Revision: 4}}
	grave := &agentv1.Tombstone{Generation: 5, Policy: "Orphan"}
	fresh := &agentv1.Tombstone{Generation: 9, Policy: "Delete"}
	final := &storev1.DesiredRecord{Rollout: 1, Tombstone: grave, Final: true}
	waits := &storev1.DesiredRecord{Rollout: 2, Tombstone: grave, Final: true, NextRevision: 4, NextGeneration: 7}
	for name, tc := range map[string]struct{ got, want *storev1.DesiredRecord }{
		"where nothing was":                     {Assign(nil, sync), sync},
		"where it was leaving":                  {Assign(&storev1.DesiredRecord{Tombstone: grave}, sync), sync},
		"after a deleted module":                {Assign(final, sync), waits},
		"again, after a deleted module":         {Assign(waits, sync), waits},
		"leaves":                                {Leave(sync, fresh, false), &storev1.DesiredRecord{Rollout: 2, Tombstone: fresh}},
		"is deleted":                            {Leave(sync, fresh, true), &storev1.DesiredRecord{Rollout: 2, Tombstone: fresh, Final: true}},
		"leaves, and could not be made":         {Leave(&storev1.DesiredRecord{Problem: "no REGION"}, fresh, false), nil},
		"is deleted while it leaves":            {Leave(&storev1.DesiredRecord{Rollout: 1, Tombstone: grave}, fresh, true), final},
		"leaves before its turn":                {Leave(waits, fresh, false), &storev1.DesiredRecord{Tombstone: grave, Final: true}},
		"is deleted before its turn":            {Leave(waits, fresh, true), &storev1.DesiredRecord{Tombstone: grave, Final: true}},
		"leaves, assigned again and not made":   {Leave(&storev1.DesiredRecord{Tombstone: grave, Problem: "no REGION"}, fresh, false), &storev1.DesiredRecord{Tombstone: grave}},
		"last good sync below a problem leaves": {Leave(&storev1.DesiredRecord{Sync: sync.GetSync(), Problem: "no REGION"}, fresh, false), &storev1.DesiredRecord{Tombstone: fresh}},
	} {
		if !proto.Equal(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", name, tc.got, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		old          *storev1.DesiredRecord
		leaves, dies bool
	}{
		"assigned": {sync, false, false},
		"leaving":  {&storev1.DesiredRecord{Tombstone: grave}, true, false},
		"deleted":  {final, true, true},
		"waiting":  {waits, false, false},
	} {
		if Leaves(tc.old, false) != tc.leaves || Leaves(tc.old, true) != tc.dies {
			t.Errorf("%s: leaves %t, deleted %t", name, Leaves(tc.old, false), Leaves(tc.old, true))
		}
	}
	if Generation(waits) != 7 || Generation(final) != 5 {
		t.Errorf("generations %d, %d", Generation(waits), Generation(final))
	}
}
