package counts

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

var (
	names = []fleet.ClusterName{"c1", "c2", "c3"}
	refs  = []fleet.ModuleRef{{Project: "default", Name: "shop"}, {Project: "default", Name: "shop-eu"}, {Project: "ops", Name: "shop"}}
	digA  = fleet.DigestOf([]byte("a"))
	digB  = fleet.DigestOf([]byte("b"))
)

// fleetOf is a store whose records change at random, and who is connected.
type fleetOf struct {
	*storetest.Store
	ctx       context.Context
	connected map[fleet.ClusterName]bool
	index     *Index
}

// step changes one record, or who is connected.
func (f *fleetOf) step(t *rapid.T) {
	c, ref := rapid.SampledFrom(names).Draw(t, "cluster"), rapid.SampledFrom(refs).Draw(t, "module")
	n := rapid.IntRange(1, 3).Draw(t, "n")
	switch what := rapid.SampledFrom([]string{"desired", "desired", "observed", "observed", "observed", "session", "ack", "condition", "connect", "cluster", "module", "revision", "rollout", "rollout", "nothing"}).Draw(t, "what"); what {
	case "cluster":
		f.change(t, store.ClusterKey(c), clusterRecord(t, c))
	case "module":
		f.change(t, store.ModuleKey(ref), moduleRecord(t, ref))
	case "revision":
		f.change(t, store.RevisionKey(ref, int64(n)), &storev1.RevisionRecord{Revision: &v1.Revision{Number: int64(n), Spec: moduleSpec(t)}})
	case "rollout":
		f.change(t, store.RolloutKey(ref, int64(n)), rolloutRecord(t, n))
	case "connect":
		f.connected[c] = !f.connected[c]
		f.index.Touch(c)
	case "desired":
		f.change(t, store.DesiredKey(c, ref), desired(t, ref, n))
	case "observed":
		f.change(t, store.ObservedKey(c, ref), observed(t, ref, n))
	case "session":
		f.change(t, store.SessionKey(c), session(t, n))
	case "ack":
		a := &storev1.AckRecord{Epoch: uint64(n), Generation: uint64(n), WordFrom: uint64(rapid.IntRange(0, 2).Draw(t, "word"))}
		if rapid.Bool().Draw(t, "refused") {
			a.Refused = []*agentv1.Refusal{{Module: ref.String(), Generation: uint64(n), Code: "INVALID"}}
		}
		f.change(t, store.AckKey(c), a)
	case "condition":
		status := rapid.SampledFrom([]string{fleet.ConditionTrue, fleet.ConditionFalse}).Draw(t, "status")
		f.change(t, store.ConditionKey(c), &storev1.ConditionsRecord{Conditions: wire.ConditionsToProto([]fleet.Condition{
			{Type: fleet.ConditionAPIServerReachable, Status: status, Reason: "X", Since: time.Unix(int64(n), 0)}})})
	}
}

// change puts a record, or deletes it.
func (f *fleetOf) change(t *rapid.T, key string, value proto.Message) {
	gone := rapid.IntRange(0, 4).Draw(t, "gone") == 0
	if _, err := f.Update(f.ctx, func(w store.Writer) error {
		if gone {
			w.Delete(key)
			return nil
		}
		w.Put(key, value)
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
}

func clusterRecord(t *rapid.T, c fleet.ClusterName) *storev1.ClusterRecord {
	rec := &storev1.ClusterRecord{Cluster: &v1.Cluster{Spec: &v1.ClusterSpec{},
		Metadata: &v1.Metadata{Name: string(c), Labels: map[string]string{"env": rapid.SampledFrom([]string{"prod", "test"}).Draw(t, "env")}}},
		Removing: rapid.SampledFrom([]string{"", "", "", "delete"}).Draw(t, "removing")}
	if rapid.IntRange(0, 2).Draw(t, "tainted") == 0 {
		rec.Cluster.Spec.Taints = []*v1.Taint{{Key: "new"}}
	}
	return rec
}

func moduleRecord(t *rapid.T, ref fleet.ModuleRef) *storev1.ModuleRecord {
	rec := &storev1.ModuleRecord{Module: &v1.Module{Metadata: &v1.Metadata{Name: ref.Name, Project: ref.Project}, Spec: moduleSpec(t)},
		Deleting: rapid.SampledFrom([]string{"", "", "", fleet.DeleteDelete}).Draw(t, "deleting")}
	if rapid.IntRange(0, 4).Draw(t, "external") == 0 {
		rec.Module.Spec.Rollout = &v1.RolloutStrategy{External: &v1.ExternalRollout{}}
	}
	return rec
}

func moduleSpec(t *rapid.T) *v1.ModuleSpec {
	return &v1.ModuleSpec{Source: &v1.Source{Inline: &v1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
		Placement: rapid.SampledFrom(placements).Draw(t, "placement")}
}

// rolloutRecord is a rollout whose revision is cut, or not yet.
func rolloutRecord(t *rapid.T, n int) *storev1.RolloutRecord {
	states := []rollout.RunState{rollout.Progressing, rollout.Succeeded, rollout.Failed, rollout.Aborted, rollout.Superseded}
	ro := &v1.Rollout{Number: int64(n), Status: &v1.RolloutStatus{State: string(rapid.SampledFrom(states).Draw(t, "state"))}}
	if rapid.IntRange(0, 3).Draw(t, "cut") > 0 {
		ro.Revision = int64(n)
	}
	return &storev1.RolloutRecord{Rollout: ro}
}

var placements = []*v1.Placement{
	{Selector: &v1.LabelSelector{}},
	{Selector: &v1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}},
	{Clusters: []string{"c2"}},
}

func desired(t *rapid.T, ref fleet.ModuleRef, n int) *storev1.DesiredRecord {
	d := &storev1.DesiredRecord{}
	switch rapid.SampledFrom([]string{"sync", "sync", "tombstone", "problem", "next"}).Draw(t, "desired") {
	case "problem":
		d.Problem, d.ProblemRevision, d.ProblemGeneration = "no value", int64(n), uint64(n)
		fallthrough
	case "sync":
		d.Sync = wire.SyncToProto(fleet.Sync{Module: ref, Generation: uint64(n), Revision: int64(n), Bundle: rapid.SampledFrom([]fleet.Digest{digA, digA, digA, digB}).Draw(t, "bundle"), Objects: 2, Hold: rapid.Bool().Draw(t, "hold")})
	case "next":
		d.NextRevision, d.NextGeneration = int64(n), uint64(n)
		fallthrough
	case "tombstone":
		d.Tombstone = wire.TombstoneToProto(fleet.Tombstone{Module: ref, Generation: uint64(n), Policy: fleet.DeleteDelete})
	}
	return d
}

func observed(t *rapid.T, ref fleet.ModuleRef, n int) *storev1.ObservedRecord {
	state := func() fleet.ObjectState {
		return fleet.ObjectState{Sync: fleet.SyncSynced,
			Health: rapid.SampledFrom([]fleet.Health{fleet.HealthHealthy, fleet.HealthDegraded, fleet.HealthProgressing}).Draw(t, "health"),
			Drift:  rapid.SampledFrom([]fleet.Drift{fleet.DriftInSync, fleet.DriftDrifted}).Draw(t, "drift")}
	}
	st := fleet.SyncStatus{Module: ref, Generation: uint64(n), Bundle: digA, Ready: rapid.Bool().Draw(t, "ready"),
		Phase:  rapid.SampledFrom([]fleet.SyncPhase{fleet.PhaseApplied, fleet.PhaseApplied, fleet.PhaseFailed, fleet.PhaseStray, fleet.PhaseHeld}).Draw(t, "phase"),
		States: []fleet.ObjectState{state(), state()}}
	for i := range rapid.IntRange(0, 2).Draw(t, "extras") {
		st.Extras = append(st.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "Secret", Name: fmt.Sprint(i)}, Version: "v1", State: state()})
		st.ExtraCount = len(st.Extras) + rapid.IntRange(0, 3).Draw(t, "unlisted")
	}
	o := &storev1.ObservedRecord{Epoch: uint64(rapid.IntRange(0, 3).Draw(t, "epoch")), Since: int64(n), Status: wire.SyncStatusToProto(st)}
	if rapid.Bool().Draw(t, "corrected") {
		o.Corrections = []*storev1.HourCount{{Hour: 1, Count: 1}}
	}
	return o
}

func session(t *rapid.T, n int) *storev1.SessionRecord {
	s := &storev1.SessionRecord{Epoch: uint64(n), Started: timestamppb.New(time.Unix(int64(n), 0)), WordFrom: uint64(rapid.IntRange(0, n).Draw(t, "from")),
		VoidBefore: uint64(rapid.IntRange(0, 1).Draw(t, "void"))}
	if rapid.Bool().Draw(t, "ended") {
		s.Ended = timestamppb.New(time.Unix(int64(n)+1, 0))
	}
	return s
}

// check holds the sums against a fold of everything.
func (f *fleetOf) check(t *rapid.T) {
	if _, err := f.Barrier(f.ctx); err != nil {
		t.Fatal(err)
	}
	modules, clusters := map[fleet.ModuleRef]Module{}, map[fleet.ClusterName]Cluster{}
	updated := map[string]int{}
	if err := f.View(f.ctx, 0, func(r store.Reader) error {
		for _, c := range names {
			sum := Cluster{}
			for _, ref := range record.ModulesOf(r, c) {
				tr, _ := record.Track(r, c, ref, f.connected[c])
				m := modules[ref]
				addTo(&m, tr)
				modules[ref] = m
				if tr.Tracker.Written && !tr.Tracker.Removing {
					updated[fmt.Sprint(ref, tr.Revision())]++
				}
				addToCluster(&sum, tr)
			}
			store.Scan(r, store.ObservedPrefix+string(c)+"/", func(o *storev1.ObservedRecord, _ store.Entry) bool {
				if o.GetStatus().GetPhase() == string(fleet.PhaseStray) {
					sum.Strays = append(sum.Strays, o.GetStatus().GetModule())
				}
				return true
			})
			slices.Sort(sum.Strays)
			clusters[c] = sum
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.checkUnassigned(t)
	if err := f.index.Read(f.ctx, func(v *View) error {
		for _, ref := range refs {
			got, has := v.Module(ref)
			for n := range int64(4) {
				if got.Updated(n) != updated[fmt.Sprint(ref, n)] {
					t.Fatalf("module %s: %d clusters run r%d, want %d", ref, got.Updated(n), n, updated[fmt.Sprint(ref, n)])
				}
			}
			got.written = nil
			if want, wanted := modules[ref]; has != wanted || !reflect.DeepEqual(got, want) {
				t.Fatalf("module %s: %+v, want %+v", ref, got, want)
			}
		}
		for _, c := range names {
			if got := v.Cluster(c); !reflect.DeepEqual(got, clusters[c]) {
				t.Fatalf("cluster %s: %+v, want %+v", c, got, clusters[c])
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// checkUnassigned holds who waits for a module against a look at everything.
func (f *fleetOf) checkUnassigned(t *rapid.T) {
	want := map[fleet.ModuleRef]Unassigned{}
	if err := f.View(f.ctx, 0, func(r store.Reader) error {
		for _, ref := range refs {
			rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
			placement := record.PlacementOf(store.Untracked(r), ref, rec)
			if placement == nil {
				continue
			}
			u := want[ref]
			for _, c := range record.Clusters(r) {
				cluster := record.Cluster(c)
				_, has := r.Get(store.DesiredKey(cluster.Name, ref))
				switch seen := record.Seen(r, cluster.Name, f.connected[cluster.Name]); {
				case has || c.GetRemoving() != "" || !assemble.Places(*placement, cluster, false):
				case seen:
					u.Seen++
				default:
					u.Away++
				}
			}
			want[ref] = u
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.index.Read(f.ctx, func(v *View) error {
		for _, ref := range refs {
			if got := v.Unassigned(ref); got != want[ref] {
				t.Fatalf("module %s: unassigned %+v, want %+v", ref, got, want[ref])
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func addTo(m *Module, t record.Tracked) {
	m.Clusters++
	m.Objects += t.Tracker.Counts.Objects
	m.Drifted += t.Tracker.Counts.Drifted
	m.Unjudged += t.Tracker.Counts.Unjudged
	if t.Desired.GetSync().GetHold() {
		m.Holds++
	}
	if t.Input.Leaving() || t.Input.Observed != nil && t.Input.Observed.Extra() > 0 {
		m.Unlisted++
	}
	var bundle fleet.Digest
	if s := t.Desired.GetSync(); s != nil {
		bundle = record.Digest(s.GetBundle())
	}
	if m.bundles == nil {
		m.bundles = map[fleet.Digest]int{}
	}
	m.bundles[bundle]++
	*map[tracker.Class]*int{tracker.Healthy: &m.Healthy, tracker.Progressing: &m.Progressing, tracker.Bad: &m.Bad, tracker.Away: &m.Away, tracker.Ahead: &m.Ahead}[tracker.Classify(t.Tracker)]++
}

func addToCluster(s *Cluster, t record.Tracked) {
	s.Modules++
	s.Drifted += t.Tracker.Counts.Drifted
	s.Bad += t.Tracker.Counts.Bad
	entries := make([]fleet.BundleEntry, t.Desired.GetSync().GetObjects())
	for i := range entries {
		entries[i].ID = fleet.ObjectID{Kind: "ConfigMap", Name: fmt.Sprint(i)}
	}
	t.ListExtras()
	rows := len(tracker.Rows(t.Input, tracker.Listed{Entries: entries, Left: entries})) + t.Unlisted()
	extras := t.Input.Observed != nil && t.Input.Observed.Extra() > 0
	unsure := t.Input.Leaving() || extras && t.Desired.GetSync() != nil
	if unsure {
		s.Unsure++
	} else {
		s.Rows += rows
	}
	if !t.Input.Seen() && (rows > 0 || unsure) {
		s.Unseen++
	}
	if extras {
		s.Extras++
	}
	if len(t.Observed.GetCorrections()) > 0 {
		s.Corrected++
	}
	if d := t.Input.Desired; d != nil && t.Input.Observed != nil && (t.Input.Problem != "" || t.Input.Refused != "" || t.Input.Before != nil) {
		if o := t.Input.Observed; o.Generation == d.Generation && o.Bundle == d.Bundle && o.Phase != fleet.PhaseStray {
			s.Uncounted++
		}
	}
	s.Generation = max(s.Generation, t.Generation())
	if t.Tracker.Fine() {
		s.Healthy++
	}
	if was := t.Tracker.Then; was != nil {
		s.WasDrifted += was.Counts.Drifted
		if was.Ready {
			s.WasHealthy++
		}
	}
}

// TestSumsAreThoseOfAllRecords: whatever changes, the sums are those of a fold of everything.
func TestSumsAreThoseOfAllRecords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &fleetOf{Store: storetest.New(t), ctx: t.Context(), connected: map[fleet.ClusterName]bool{}}
		f.index = New(f.Store, func(c fleet.ClusterName) bool { return f.connected[c] })
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			f.step(rt)
			if rapid.IntRange(0, 3).Draw(rt, "look") == 0 {
				f.check(rt)
			}
		}
		f.check(rt)
	})
}

// late is a store in which something happens between what its feeds say and what a view shows.
type late struct {
	store.Store
	before func()
}

func (l *late) View(ctx context.Context, minRevision int64, fn func(store.Reader) error) error {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	return l.Store.View(ctx, minRevision, fn)
}

// TestWhatIsKnownOfAClusterHoldsForAllItsModules: what is known of a cluster as a whole may be seen before anybody says that it
// has changed, when one of its modules is looked at for a reason of its own. It holds for the others, too.
func TestWhatIsKnownOfAClusterHoldsForAllItsModules(t *testing.T) {
	const c = fleet.ClusterName("c1")
	sess := func(epoch, wordFrom uint64) *storev1.SessionRecord {
		return &storev1.SessionRecord{Epoch: epoch, WordFrom: wordFrom, Started: timestamppb.New(time.Unix(1, 0))}
	}
	assigned := func(ref fleet.ModuleRef, hold bool) *storev1.DesiredRecord {
		return &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: 1, Revision: 1, Bundle: digA, Objects: 1, Hold: hold})}
	}
	start := func(t *testing.T) (f *fleetOf, l *late, put func(key string, value proto.Message)) {
		f = &fleetOf{Store: storetest.New(t), ctx: t.Context(), connected: map[fleet.ClusterName]bool{c: true}}
		l = &late{Store: f.Store}
		f.index = New(l, func(c fleet.ClusterName) bool { return f.connected[c] })
		put = func(key string, value proto.Message) {
			t.Helper()
			rev, err := f.Update(f.ctx, func(w store.Writer) error { w.Put(key, value); return nil })
			if err != nil {
				t.Fatal(err)
			}
			if err := f.View(f.ctx, rev, func(store.Reader) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		put(store.SessionKey(c), sess(1, 1))
		for _, ref := range refs {
			put(store.DesiredKey(c, ref), assigned(ref, false))
			put(store.ObservedKey(c, ref), &storev1.ObservedRecord{Epoch: 1, Since: 1, Status: wire.SyncStatusToProto(fleet.SyncStatus{Module: ref,
				Generation: 1, Bundle: digA, Ready: true, Phase: fleet.PhaseApplied,
				States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}}})})
		}
		return f, l, put
	}
	healthy := func(t *testing.T, f *fleetOf) (n int) {
		t.Helper()
		if err := f.index.Read(f.ctx, func(v *View) error { n = v.Cluster(c).Healthy; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("lost", func(t *testing.T) {
		f, _, put := start(t)
		if n := healthy(t, f); n != len(refs) {
			t.Fatalf("%d modules are healthy, want all %d", n, len(refs))
		}
		f.connected[c] = false
		put(store.DesiredKey(c, refs[0]), assigned(refs[0], true))
		healthy(t, f)
		f.index.Touch(c)
		if n := healthy(t, f); n != 0 {
			t.Errorf("%d modules of a cluster that is lost are healthy", n)
		}
	})
	t.Run("refused anew", func(t *testing.T) {
		f, _, put := start(t)
		bad := func() (n int) {
			if err := f.index.Read(f.ctx, func(v *View) error {
				m, _ := v.Module(refs[0])
				n = m.Bad
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		refused := func(epoch uint64) *storev1.AckRecord {
			return &storev1.AckRecord{Epoch: epoch, WordFrom: 1, Refused: []*agentv1.Refusal{{Module: refs[0].String(), Generation: 1, Code: "INVALID"}}}
		}
		put(store.AckKey(c), refused(1))
		if n := bad(); n != 1 {
			t.Fatalf("%d clusters refused the module, want 1", n)
		}
		s := sess(2, 1)
		s.VoidBefore = 2
		put(store.SessionKey(c), s)
		if n := bad(); n != 0 {
			t.Fatalf("%d clusters refused the module by a word that does not count any more", n)
		}
		put(store.AckKey(c), refused(2))
		if n := bad(); n != 1 {
			t.Errorf("%d clusters refused the module again, want 1", n)
		}
	})
	t.Run("new session", func(t *testing.T) {
		f, l, put := start(t)
		if n := healthy(t, f); n != len(refs) {
			t.Fatalf("%d modules are healthy, want all %d", n, len(refs))
		}
		put(store.DesiredKey(c, refs[0]), assigned(refs[0], true))
		l.before = func() { put(store.SessionKey(c), sess(2, 2)) }
		healthy(t, f)
		if n := healthy(t, f); n != 0 {
			t.Errorf("%d modules are healthy by the word of a session that nobody stands by", n)
		}
	})
}
