package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

type recordOrNone = proto.Message

var (
	wovenModules  = []fleet.ModuleRef{{Project: "default", Name: "one"}, {Project: "default", Name: "two"}}
	wovenClusters = []fleet.ClusterName{"a", "b", "c"}
)

// brief is how long a call waits for what others are to do first.
const brief = 50 * time.Millisecond

// call says what a person says, who does not wait for what comes of it.
func (w *interleaved) call(what string, fn func(ctx context.Context) error) {
	w.note("%s", what)
	w.single.begins(w)
	defer w.single.ends(w)
	limit := brief
	if w.single.during { // of a call
		limit /= 8
	}
	ctx, cancel := context.WithTimeout(w.ctx, limit)
	defer cancel()
	if err := fn(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.note("%s: %v", what, err)
	}
}

// word is what somebody may do.
type word func(w *interleaved, ref fleet.ModuleRef, name fleet.ClusterName)

func ofModule(f func(*interleaved, fleet.ModuleRef)) word {
	return func(w *interleaved, ref fleet.ModuleRef, _ fleet.ClusterName) { f(w, ref) }
}

func ofCluster(f func(*interleaved, fleet.ClusterName)) word {
	return func(w *interleaved, _ fleet.ModuleRef, name fleet.ClusterName) { f(w, name) }
}

// sayings are what may be done.
func sayings() []word {
	return []word{ofCluster((*interleaved).acts), ofCluster((*interleaved).changes), ofModule((*interleaved).puts), answered,
		ofCluster((*interleaved).changes), ofCluster((*interleaved).joins), (*interleaved).holds, ofModule((*interleaved).deletes),
		ofModule((*interleaved).puts), answered, ofCluster((*interleaved).leaves), (*interleaved).steers, (*interleaved).turns, ofModule((*interleaved).catalogs), (*interleaved).restoring}
}

func answered(w *interleaved, _ fleet.ModuleRef, _ fleet.ClusterName) { w.answers() }

// mixes says of what kind a run is: how much one transaction takes, and of which few words most is said, above all before commits that matter, so that
// those meet often which must come together.
func (w *interleaved) mixes() {
	all := sayings()
	w.room, w.mix = one(w.tape, usualRoom, usualRoom, room{1, 2, 2}, room{1, 1, 4}), all
	if w.tape.pick(3) != 0 {
		w.mix = []word{one(w.tape, all...), one(w.tape, all...), one(w.tape, all...), one(w.tape, all...)}
	}
}

// operation is one thing that somebody does. In the middle of another one it is mostly a person's word, else all goes on for a while.
func (w *interleaved) operation() {
	ref, name := one(w.tape, wovenModules...), one(w.tape, wovenClusters...)
	if len(w.near.modules) > 0 && w.tape.pick(4) != 3 {
		ref = one(w.tape, w.near.modules...)
	}
	if len(w.near.clusters) > 0 && w.tape.pick(4) != 3 {
		name = one(w.tape, w.near.clusters...)
	}
	switch {
	case w.depth > 1 && (w.near.orders || w.near.says) && w.tape.pick(2) == 1:
		w.against(ref, name)
	case w.depth > 1 && (w.near.orders || w.near.says): // what may be said against that
		one(w.tape, w.mix...)(w, ref, name)
	case w.depth > 1 && w.tape.pick(16) == 0:
		w.leader()
	case w.depth == 1 && w.tape.pick(24) < 10:
		w.goesOn()
	case w.depth == 1 && clusterOf(w.last, name) == nil:
		w.joins(name)
	case w.depth == 1 && moduleOf(w.last, ref) == nil:
		w.puts(ref)
	case w.tape.pick(2) == 1:
		one(w.tape, w.mix...)(w, ref, name)
	default:
		one(w.tape, sayings()...)(w, ref, name)
	}
}

// otherOf is the module of which a word is: before a commit about one module it is often of another one, which that depends on.
func (w *interleaved) otherOf(ref fleet.ModuleRef) fleet.ModuleRef {
	if w.depth > 1 && w.tape.pick(2) == 1 {
		return wovenModules[1-slices.Index(wovenModules, ref)]
	}
	return ref
}

// goesOn has the leader and the agents do what is due, for some time.
func (w *interleaved) goesOn() {
	for range 1 + w.tape.pick(4) {
		for range 12 {
			if w.found != "" || !w.leader() {
				break
			}
		}
		for _, name := range wovenClusters {
			w.acts(name)
		}
		if w.tape.pick(3) == 1 {
			w.answers()
		}
		if w.tape.pick(3) == 1 {
			w.note("time passes")
			<-time.After(one(w.tape, time.Second, 15*time.Second))
		}
	}
}

// spec is a module with so many objects in a zone; empty: in all. named is what stands in the names of the objects: a value that a cluster may lack.
func (w *interleaved) spec(ref fleet.ModuleRef, objects int, zone, named string) *towlinev1.Module {
	var files strings.Builder
	for i := range objects {
		fmt.Fprintf(&files, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"%s%s-%d\", namespace: default}\ndata: {a: \"%d\"}\n", ref.Name, named, i, w.number)
	}
	m := &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": files.String()}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}, AllowEmpty: objects == 0}}
	if zone != "" {
		m.Spec.Placement.Selector.MatchLabels = map[string]string{"zone": zone}
	}
	if named != "" {
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	}
	return m
}

func (w *interleaved) puts(ref fleet.ModuleRef) {
	ref = w.otherOf(ref)
	w.putsIt(ref, w.tape.pick(3) == 2)
}

// putsIt puts a module; take: also one that a catalog has.
func (w *interleaved) putsIt(ref fleet.ModuleRef, take bool) {
	w.number++
	objects, zone, named := one(w.tape, 1, 4, 1, 4, 0), one(w.tape, "", "x", "y"), one(w.tape, "", "", "-${ZONE}")
	m := w.spec(ref, objects, zone, named)
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnSupersede: one(w.tape, "", "Queue", "Reject"), OnFailure: one(w.tape, "", "Rollback", "Abort")}
	if w.tape.pick(2) == 1 {
		m.Spec.Rollout.Stages = []*towlinev1.Stage{{Name: "first", MaxConcurrency: "1"}}
	}
	w.call(fmt.Sprintf("put %s, %d objects %q in %q, take %t", ref.Name, objects, named, zone, take), func(ctx context.Context) error {
		_, err := w.api.PutModule(ctx, &towlinev1.PutModuleRequest{Module: m, Take: take})
		return err
	})
}

func (w *interleaved) deletes(ref fleet.ModuleRef) {
	w.deletesIt(w.otherOf(ref), w.tape.pick(3) == 1)
}

func (w *interleaved) deletesIt(ref fleet.ModuleRef, orphan bool) {
	w.call(fmt.Sprintf("delete %s, orphan %t", ref.Name, orphan), func(ctx context.Context) error {
		_, err := w.api.DeleteModule(ctx, &towlinev1.DeleteModuleRequest{Project: ref.Project, Name: ref.Name, Orphan: orphan})
		return err
	})
}

func (w *interleaved) holds(ref fleet.ModuleRef, name fleet.ClusterName) {
	req := &towlinev1.PutHoldRequest{}
	what := w.tape.pick(3)
	if what != 1 {
		req.Project, req.Module = ref.Project, ref.Name
	}
	if what != 2 {
		req.Cluster = string(name)
	}
	w.putsHold(req)
}

func (w *interleaved) putsHold(req *towlinev1.PutHoldRequest) {
	w.call(fmt.Sprintf("hold %q in %q", req.GetModule(), req.GetCluster()), func(ctx context.Context) error {
		_, err := w.api.PutHold(ctx, req)
		return err
	})
}

// answers ends a hold, or confirms what is asked.
func (w *interleaved) answers() {
	got, err := w.api.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
	w.must(err)
	if len(got.GetHolds()) == 0 {
		return
	}
	w.confirms(one(w.tape, got.GetHolds()...))
}

func (w *interleaved) confirms(h *towlinev1.Hold) {
	w.call(fmt.Sprintf("confirm %s %s %q in %q: %v", h.GetKind(), h.GetCode(), h.GetModule(), h.GetCluster(), h.GetItems()), func(ctx context.Context) error {
		w.said.ended[store.HoldPrefix+h.GetId()] = true
		_, err := w.api.ConfirmHold(ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId(), Digest: h.GetDigest()})
		return err
	})
}

// changes puts another label on a cluster, or cordons it, or ends that.
func (w *interleaved) changes(name fleet.ClusterName) {
	rec, what := clusterOf(w.last, name), w.tape.pick(3)
	if rec == nil {
		return
	}
	zone, cordoned := rec.GetCluster().GetMetadata().GetLabels()["zone"], rec.GetCluster().GetSpec().GetCordoned()
	if what != 1 {
		zone = one(w.tape, "x", "y", "")
	}
	if what != 2 {
		cordoned = !cordoned
	}
	w.isIn(name, zone, cordoned)
}

func (w *interleaved) leaves(name fleet.ClusterName) {
	objects, force := one(w.tape, "keep", "delete"), w.tape.pick(3) == 1
	w.removes(name, objects, force)
}

func (w *interleaved) removes(name fleet.ClusterName, objects string, force bool) {
	w.call(fmt.Sprintf("remove %s, objects %s, force %t", name, objects, force), func(ctx context.Context) error {
		_, err := w.api.RemoveCluster(ctx, &towlinev1.RemoveClusterRequest{Name: string(name), Objects: objects, Force: force})
		return err
	})
}

// turns has an agent come or go, a module fail there, or another hub lead.
func (w *interleaved) turns(ref fleet.ModuleRef, name fleet.ClusterName) {
	k := w.kubes[name]
	switch w.tape.pick(3) {
	case 0:
		if k != nil {
			k.up = !k.up
			w.note("agent of %s is up: %t", name, k.up)
			w.ClusterChanged(name)
		}
	case 1:
		if k != nil {
			k.fails[ref] = !k.fails[ref]
			w.note("%s fails in %s: %t", ref.Name, name, k.fails[ref])
		}
	case 2:
		w.note("another hub leads")
		w.leads()
	}
}

func (w *interleaved) steers(ref fleet.ModuleRef, name fleet.ClusterName) {
	w.steersIt(one(w.tape, "pause", "resume", "abort", "retry", "skip", "pin", "unpin", "roll back"), ref, name)
}

// steersIt is one of what may be said of a rollout.
func (w *interleaved) steersIt(verb string, ref fleet.ModuleRef, name fleet.ClusterName) {
	p, m, some := ref.Project, ref.Name, []string{string(name)}
	w.call(fmt.Sprintf("%s %s in %s", verb, ref.Name, name), func(ctx context.Context) (err error) {
		switch verb {
		case "pause":
			_, err = w.api.PauseRollout(ctx, &towlinev1.PauseRolloutRequest{Project: p, Module: m})
		case "resume":
			_, err = w.api.ResumeRollout(ctx, &towlinev1.ResumeRolloutRequest{Project: p, Module: m})
		case "abort":
			_, err = w.api.AbortRollout(ctx, &towlinev1.AbortRolloutRequest{Project: p, Module: m})
		case "retry":
			_, err = w.api.RetryRollout(ctx, &towlinev1.RetryRolloutRequest{Project: p, Module: m})
		case "skip":
			_, err = w.api.SkipClusters(ctx, &towlinev1.SkipClustersRequest{Project: p, Module: m, Clusters: some})
		case "pin":
			_, err = w.api.PinClusters(ctx, &towlinev1.PinClustersRequest{Project: p, Module: m, Clusters: some})
		case "unpin":
			_, err = w.api.UnpinClusters(ctx, &towlinev1.UnpinClustersRequest{Project: p, Module: m, Clusters: some})
		case "roll back":
			_, err = w.api.RollBackRollout(ctx, &towlinev1.RollBackRolloutRequest{Project: p, Module: m})
		}
		return err
	})
}

// all are the records below a prefix, by their keys.
func all[T proto.Message](r store.Reader, prefix string) map[string]T {
	out := map[string]T{}
	store.Scan(r, prefix, func(v T, e store.Entry) bool {
		out[e.Key] = v
		return true
	})
	return out
}

// frozen are the holds that people put.
func frozen(r store.Reader) record.Holds { return record.ReadHolds(store.Untracked(r), time.Now()) }

// clusterOf is the record of a cluster; nil: there is none.
func clusterOf(r store.Reader, name fleet.ClusterName) *storev1.ClusterRecord {
	rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
	return rec
}

// moduleOf is the record of a module; nil: there is none.
func moduleOf(r store.Reader, ref fleet.ModuleRef) *storev1.ModuleRecord {
	rec, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(r), store.ModuleKey(ref))
	return rec
}
