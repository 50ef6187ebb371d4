package control

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A cluster is forgotten when its agent has let go of what it was given last. That a module was removed before is no word of
// that, unless the agent never took what came after.
func TestClusterIsForgottenByItsLastWord(t *testing.T) {
	for name, tc := range map[string]struct {
		removed, taken, told uint64
		refused              []*agentv1.Refusal
		gone                 bool
	}{
		"removed as it was given last":           {removed: 9, taken: 9, gone: true},
		"removed before it was given again":      {removed: 5, taken: 9},
		"the agent never took it":                {removed: 5, taken: 8, told: 8, gone: true},
		"its answer to that is on its way":       {removed: 5, taken: 8, told: 9},
		"the agent is not told to leave yet":     {removed: 5, taken: 8},
		"the agent refused it":                   {removed: 5, taken: 9, refused: []*agentv1.Refusal{{Module: shop.String(), Generation: 9}}, gone: true},
		"the agent refused what came before":     {removed: 5, taken: 9, refused: []*agentv1.Refusal{{Module: shop.String(), Generation: 7}}},
		"the agent lost what it was given":       {removed: 0, taken: 9, gone: true},
		"what the agent has is newer than noted": {removed: 10, taken: 10, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.put(func(w store.Writer) {
				rec := clusterRecord("a")
				rec.Removing = "keep"
				w.Put(store.ClusterKey("a"), rec)
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(9)})
				w.Put(store.AckKey("a"), &storev1.AckRecord{Generation: tc.taken, Refused: tc.refused, Leaving: tc.told > 0, Told: tc.told})
				w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: &agentv1.SyncStatus{Module: shop.String(),
					Generation: tc.removed, Phase: string(fleet.PhaseRemoved)}})
			})
			l.forgets(t, tc.gone)
		})
	}
}

// forgets looks at a, and wants it to be forgotten, or not.
func (l *leader) forgets(t *testing.T, gone bool) {
	t.Helper()
	l.must(l.reconcileCluster(t.Context(), "a"))
	l.read(func(r store.Reader) {
		if _, there := r.Get(store.ClusterKey("a")); there == gone {
			t.Errorf("forgotten: %t", !there)
		}
	})
}

// A module that its agent never took is reported by nobody. The cluster is forgotten without a word of it, once the agent that leaves
// has said what it has.
func TestClusterIsForgottenThatNeverTookAModule(t *testing.T) {
	refusal := func(generation uint64) []*agentv1.Refusal {
		return []*agentv1.Refusal{{Module: shop.String(), Generation: generation, Code: "UNSUPPORTED"}}
	}
	for name, tc := range map[string]struct {
		ack  *storev1.AckRecord
		gone bool
	}{
		"what came before was refused, and this it was not given any more": {&storev1.AckRecord{Epoch: 4, Generation: 6, Refused: refusal(6), Leaving: true, Told: 6, StatusDigest: []byte("all")}, true},
		"the same, and its last answer is on its way":                      {&storev1.AckRecord{Epoch: 4, Generation: 5, Refused: refusal(5), Leaving: true, Told: 6, StatusDigest: []byte("all")}, false},
		"refused": {&storev1.AckRecord{Epoch: 4, Generation: 9, Refused: refusal(9), Leaving: true, Told: 9, StatusDigest: []byte("all")}, true},
		"what came before was refused, and this may be on its way": {&storev1.AckRecord{Epoch: 4, Generation: 9, Refused: refusal(7), Leaving: true, Told: 9, StatusDigest: []byte("all")}, false},
		"its answer is of the session before":                      {&storev1.AckRecord{Epoch: 3, Generation: 9, Refused: refusal(9), Leaving: true, Told: 9, StatusDigest: []byte("all")}, false},
		"it is not told to leave yet":                              {&storev1.AckRecord{Epoch: 4, Generation: 9, Refused: refusal(9), StatusDigest: []byte("all")}, false},
		"it has reported nothing yet":                              {&storev1.AckRecord{Epoch: 4, Generation: 9, Refused: refusal(9), Leaving: true, Told: 9}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.put(func(w store.Writer) {
				rec := clusterRecord("a")
				rec.Removing = "delete"
				w.Put(store.ClusterKey("a"), rec)
				w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 4})
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(9), FirstGeneration: 3})
				w.Put(store.AckKey("a"), tc.ack)
			})
			l.forgets(t, tc.gone)
		})
	}
}

// What the hub does not count as given may be there nevertheless, and what it only meant to give is not.
func TestClusterIsForgottenWithNothingInIt(t *testing.T) {
	lost := fleet.ModuleRef{Project: "default", Name: "lost"}
	reported := func(w store.Writer, epoch uint64, phase string) {
		w.Put(store.ObservedKey("a", lost), &storev1.ObservedRecord{Epoch: epoch, Status: &agentv1.SyncStatus{Module: lost.String(), Generation: 7, Phase: phase}})
	}
	for name, tc := range map[string]struct {
		put  func(store.Writer)
		gone bool
	}{
		"nothing":                                     {put: func(store.Writer) {}, gone: true},
		"a module that it was not given":              {put: func(w store.Writer) { reported(w, 4, string(fleet.PhaseStray)) }},
		"one that is removed":                         {put: func(w store.Writer) { reported(w, 4, string(fleet.PhaseRemoved)) }, gone: true},
		"one of the cluster that had the name before": {put: func(w store.Writer) { reported(w, 2, string(fleet.PhaseStray)) }, gone: true},
		"a module that could never be given": {put: func(w store.Writer) {
			w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Problem: "no value", ProblemGeneration: 9})
		}, gone: true},
		"one that could not, and was before by its word": {put: func(w store.Writer) {
			w.Put(store.DesiredKey("a", lost), &storev1.DesiredRecord{Problem: "no value", ProblemGeneration: 9})
			reported(w, 4, string(fleet.PhaseApplied))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.put(func(w store.Writer) {
				rec := clusterRecord("a")
				rec.Removing = "delete"
				w.Put(store.ClusterKey("a"), rec)
				w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 4, VoidBefore: 3})
				tc.put(w)
			})
			l.forgets(t, tc.gone)
		})
	}
}

// An assignment that came after the agent was told to leave, or while it was away, may have taken the place of one that the agent
// was given and has not reported on. The cluster is not forgotten before it has; nobody waits for what it was never given.
func TestClusterIsNotForgottenWithAnEarlierWordInIt(t *testing.T) {
	sync := func(generation uint64) *storev1.DesiredRecord {
		return &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String(), Generation: generation, Revision: 1}}
	}
	again := record.Assign(record.Assign(nil, sync(3)), sync(9))
	unkept := sync(9)
	cannot := new(assigner).problem(nil, 3, "no value")
	for name, tc := range map[string]struct {
		desired *storev1.DesiredRecord
		told    uint64
		removed uint64 // the generation that the agent reports it Removed for; 0: it reports nothing
		gone    bool
	}{
		"it may have what came before":                    {desired: again, told: 5},
		"it is away with what came before":                {desired: again, told: 3},
		"it never had any of it":                          {desired: again, told: 2, gone: true},
		"it has lost what it was given":                   {desired: again, gone: true},
		"it has removed what came before":                 {desired: again, told: 5, removed: 3, gone: true},
		"what it removed came before all of that":         {desired: again, told: 5, removed: 2},
		"what came after is its removal":                  {desired: record.Leave(again, tomb(9), true), told: 5},
		"what came after is the next module of the name":  {desired: record.Assign(record.Leave(again, tomb(9), true), sync(11)), told: 5},
		"what came after cannot be made, then it can":     {desired: record.Assign(new(assigner).problem(again, 10, "no value"), sync(11)), told: 5},
		"what came before could not be made":              {desired: record.Assign(cannot, sync(9)), told: 5, gone: true},
		"nobody kept what came first":                     {desired: unkept, told: 5},
		"nobody kept what came first, and it has nothing": {desired: unkept, gone: true},
		"nobody kept what came first, and it is removed":  {desired: unkept, told: 5, removed: 3, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.put(func(w store.Writer) {
				rec := clusterRecord("a")
				rec.Removing = "delete"
				w.Put(store.ClusterKey("a"), rec)
				w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 4})
				w.Put(store.DesiredKey("a", shop), tc.desired)
				w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 4, Leaving: true, Told: tc.told, StatusDigest: []byte("nothing")})
				if tc.removed > 0 {
					w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Epoch: 4, Status: &agentv1.SyncStatus{Module: shop.String(),
						Generation: tc.removed, Phase: string(fleet.PhaseRemoved)}})
				}
			})
			l.forgets(t, tc.gone)
		})
	}
}
