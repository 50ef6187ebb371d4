package record

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// What a cluster was given is remembered until its agent has taken what came after it and says that nothing else is left.
func TestWhatWasGivenIsRemembered(t *testing.T) {
	one := fleet.ModuleRef{Project: "default", Name: "one"}
	bundle := func(n int) fleet.Digest { return fleet.DigestOf(fmt.Append(nil, n)) }
	sync := func(gen uint64, n int, zone string) *storev1.DesiredRecord {
		return &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: gen, Bundle: bundle(n), Values: map[string]string{"ZONE": zone}})}
	}
	said := func(gen uint64, n int, extras ...*agentv1.ExtraObject) *storev1.ObservedRecord {
		return &storev1.ObservedRecord{Epoch: 5, Status: &agentv1.SyncStatus{Module: one.String(), Generation: gen, Bundle: bundle(n).Bytes(), Extras: extras}}
	}
	searching := func(gen uint64, n int) *storev1.ObservedRecord {
		o := said(gen, n)
		o.Status.MoreExtras = true
		return o
	}
	given := func(n int, zone string) *storev1.Given {
		return &storev1.Given{Bundle: bundle(n).Bytes(), Values: map[string]string{"ZONE": zone}}
	}
	standIn, _ := StandIn(store.DesiredKey("c", one), fmt.Errorf("a bit is flipped"))
	many := []*storev1.DesiredRecord{}
	for n := range maxBefore + 2 {
		many = append(many, sync(uint64(n+1), n+1, "eu"))
	}
	for name, tc := range map[string]struct {
		given   []*storev1.DesiredRecord // one after the other
		said    *storev1.ObservedRecord  // before the last of them
		void    uint64
		want    []*storev1.Given
		unknown bool
	}{
		"first":                   {given: []*storev1.DesiredRecord{sync(1, 1, "eu")}},
		"another bundle":          {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu")}, want: []*storev1.Given{given(1, "eu")}},
		"another value":           {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 1, "us")}, want: []*storev1.Given{given(1, "eu")}},
		"the same anew":           {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 1, "eu")}},
		"there and back":          {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 1, "us"), sync(3, 1, "eu")}, want: []*storev1.Given{given(1, "us")}},
		"never answered":          {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, want: []*storev1.Given{given(1, "eu"), given(2, "eu")}},
		"answered":                {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, said: said(2, 2), want: []*storev1.Given{given(2, "eu")}},
		"answered before":         {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, said: said(1, 1), want: []*storev1.Given{given(1, "eu"), given(2, "eu")}},
		"something is left":       {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, said: said(2, 2, &agentv1.ExtraObject{Kind: "ConfigMap", Name: "m"}), want: []*storev1.Given{given(1, "eu"), given(2, "eu")}},
		"it searches":             {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, said: searching(2, 2), want: []*storev1.Given{given(1, "eu"), given(2, "eu")}},
		"of another cluster":      {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), sync(2, 2, "eu"), sync(3, 3, "eu")}, said: said(2, 2), void: 6, want: []*storev1.Given{given(1, "eu"), given(2, "eu")}},
		"of a damaged record":     {given: []*storev1.DesiredRecord{standIn.(*storev1.DesiredRecord), sync(2, 2, "eu")}, unknown: true},
		"more than is remembered": {given: many, want: []*storev1.Given{given(2, "eu"), given(3, "eu"), given(4, "eu"), given(5, "eu"), given(6, "eu"), given(7, "eu"), given(8, "eu"), given(9, "eu")}, unknown: true},
		"it leaves":               {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), {Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2})}}, want: []*storev1.Given{given(1, "eu")}},
		"it comes back":           {given: []*storev1.DesiredRecord{sync(1, 1, "eu"), {Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: one, Generation: 2})}, sync(3, 2, "eu")}, want: []*storev1.Given{given(1, "eu")}},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			_, err := s.Update(t.Context(), func(w store.Writer) error {
				var at *storev1.DesiredRecord
				for i, next := range tc.given {
					if i == len(tc.given)-1 && tc.said != nil {
						w.Put(store.ObservedKey("c", one), tc.said)
						w.Put(store.SessionKey("c"), &storev1.SessionRecord{Epoch: 6, VoidBefore: tc.void})
					}
					next = proto.CloneOf(next)
					Remember(w, "c", one, at, next)
					at = next
				}
				if want := (&storev1.DesiredRecord{Before: tc.want, BeforeUnknown: tc.unknown}); !proto.Equal(&storev1.DesiredRecord{Before: at.Before, BeforeUnknown: at.BeforeUnknown}, want) {
					t.Errorf("%v, more %v; want %v, more %v", at.Before, at.BeforeUnknown, tc.want, tc.unknown)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Of a module that was never reported after a join anything may be there, for the report may be lost with a store that was put back.
// What is assigned for the first time after the agent has been heard is new: it would have said that it has it.
func TestWhatMayBeThereAfterAJoin(t *testing.T) {
	one := fleet.ModuleRef{Project: "default", Name: "one"}
	there := &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: one, Generation: 1, Bundle: fleet.DigestOf([]byte("1"))})}
	for name, tc := range map[string]struct {
		d       *storev1.DesiredRecord
		void    uint64
		heard   uint64
		unknown bool
	}{
		"it never joined again":    {d: there},
		"it is assigned":           {d: there, void: 5, heard: 4, unknown: true},
		"and heard since":          {d: there, void: 5, heard: 6, unknown: true},
		"it is new":                {void: 5, heard: 4, unknown: true},
		"new, since it was heard":  {void: 5, heard: 6},
		"new, and it joined once":  {heard: 4},
		"new, and was never heard": {},
	} {
		s := storetest.New(t)
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.SessionKey("c"), &storev1.SessionRecord{Epoch: 6, VoidBefore: tc.void})
			w.Put(store.AckKey("c"), &storev1.AckRecord{Epoch: tc.heard})
			if _, unknown := mayHave(w, "c", one, tc.d); unknown != tc.unknown {
				t.Errorf("%s: more may be there %v", name, unknown)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRemovalThatTheAgentDoesNotTakeSaysSo: it stays as it is for as long as the agent does not understand the order, and that is what is said of it.
func TestRemovalThatTheAgentDoesNotTakeSaysSo(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	for generation, want := range map[uint64]string{6: fleet.TrackerRefused, 5: fleet.TrackerRemoving} {
		s := storetest.New(t)
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.SessionKey("c"), &storev1.SessionRecord{Epoch: 6})
			w.Put(store.DesiredKey("c", ref), &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: ref.String(), Generation: 6, Policy: fleet.DeleteDelete}})
			w.Put(store.AckKey("c"), &storev1.AckRecord{Epoch: 6, Refused: []*agentv1.Refusal{{Module: ref.String(), Generation: generation, Code: "UNDECODABLE", Message: "policies[0].prune: \"Archive\" is unknown"}}})
			if got, _ := Track(w, "c", ref, true); got.Tracker.Reason != want || !got.Tracker.Removing || (want == fleet.TrackerRefused) != strings.Contains(got.Tracker.Message, "Archive") {
				t.Errorf("refused at generation %d: %+v", generation, got.Tracker)
			}
			// The same where the module was put again meanwhile: what is to come there waits for the removal.
			w.Put(store.DesiredKey("c", ref), &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: ref.String(), Generation: 6, Policy: fleet.DeleteDelete}, NextRevision: 4, NextGeneration: 7})
			got, _ := Track(w, "c", ref, true)
			if failed := want == fleet.TrackerRefused; got.Tracker.Failed != failed || strings.Contains(got.Tracker.Message, "Archive") != failed || !failed && got.Tracker.Reason != fleet.TrackerRemovingFirst {
				t.Errorf("put again, refused at generation %d: %+v", generation, got.Tracker)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// An agent that cannot tell yet what its sync lists may have something that is to be dropped.
func TestDroppingWhileTheSyncCannotBeRead(t *testing.T) {
	s := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: "one"}, Generation: 1, Bundle: fleet.DigestOf([]byte("one")), Objects: 1}
	o := &fleet.SyncStatus{Module: s.Module, Generation: 1, Bundle: s.Bundle, Phase: fleet.PhaseFailed}
	x := Tracked{Desired: &storev1.DesiredRecord{Sync: wire.SyncToProto(s)}, Input: tracker.Input{Connected: true, Desired: &s, Observed: o}}
	for _, more := range []bool{false, true} {
		o.MoreExtras = more
		if x.Tracker = tracker.Fold(x.Input); x.Dropping() != more {
			t.Errorf("more extras %t, dropping %t", more, x.Dropping())
		}
	}
}
