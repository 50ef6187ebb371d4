package control

import (
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// words are what people said, and to whom, as of the commits by which they did. They are of Kubernetes clusters, by their UIDs, and not of the names
// which those have: what somebody said of one is no word about another that takes its name.
type words struct {
	given     map[string]map[uint64]string // by the key of what is ordered and its generation: the cluster that had the name
	deleted   map[string]map[fleet.ClusterName]string
	dropped   map[fleet.ClusterName]string            // when the catalog was deleted with its modules
	asked     map[string]map[fleet.ClusterName]string // by the key of the question
	confirmed map[string]bool                         // see confirmation
	ended     map[string]bool                         // the keys of the holds that somebody ended
	steps     map[uint64]bool                         // the generations of what was ordered before it was written for each cluster
	labels    map[fleet.ClusterName]map[string]bool   // the values of the label that bindings read
	listed    map[string]bool                         // the modules of the catalog's files, as they were read last
	// looked and take say that a person asked for a look at the catalog, and for what is of others.
	looked, take bool
}

func newWords() words {
	return words{given: map[string]map[uint64]string{}, deleted: map[string]map[fleet.ClusterName]string{}, asked: map[string]map[fleet.ClusterName]string{},
		confirmed: map[string]bool{}, ended: map[string]bool{}, steps: map[uint64]bool{}, labels: map[fleet.ClusterName]map[string]bool{"a": {}, "b": {}, "c": {}}}
}

// confirmation names what a person let go: a module of a Kubernetes cluster.
func confirmation(code string, ref fleet.ModuleRef, uid string) string {
	return code + " " + ref.String() + " " + uid
}

// have are the clusters that have the names.
func have(r store.Reader) map[fleet.ClusterName]string {
	out := map[fleet.ClusterName]string{}
	for _, name := range wovenClusters {
		out[name] = clusterOf(r, name).GetUid()
	}
	return out
}

// notes takes down what a commit says.
func (x *words) notes(was, is store.Reader) {
	before := all[*storev1.DesiredRecord](was, store.DesiredPrefix)
	for key, d := range all[*storev1.DesiredRecord](is, store.DesiredPrefix) {
		name, _, _ := store.SplitClusterModule(key)
		if g := record.GivenGeneration(d); g != record.GivenGeneration(before[key]) {
			x.gives(key, g, clusterOf(was, name).GetUid())
		}
		// What was said of it before was of another time, but for one that is assigned and could not have it yet: a person was asked about that, too.
		if d.GetTombstone() == nil && (before[key] == nil || before[key].GetTombstone() != nil) {
			_, ref, _ := store.SplitClusterModule(key)
			delete(x.confirmed, confirmation(fleet.HoldLeaves, ref, clusterOf(is, name).GetUid()))
		}
	}
	for _, name := range wovenClusters {
		x.labels[name][clusterOf(is, name).GetCluster().GetMetadata().GetLabels()["zone"]] = true
	}
	if catalogOf(is).GetDeleting() && !catalogOf(was).GetDeleting() {
		x.dropped = have(was)
	}
	for key, m := range all[*storev1.ModuleRecord](is, store.ModulePrefix) {
		old, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(was), key)
		if m.GetDeleting() != "" && old.GetDeleting() == "" {
			x.deleted[uidOf(m)] = x.deletedIn(was, key, old)
		}
	}
	questions := all[*storev1.HoldRecord](was, store.HoldPrefix)
	for key, h := range all[*storev1.HoldRecord](is, store.HoldPrefix) {
		if h.GetHold().GetKind() == record.HoldConfirm && questions[key] != h {
			x.asked[key] = have(was)
		}
	}
	answers := all[*storev1.ConfirmRecord](was, store.ConfirmPrefix)
	for key, c := range all[*storev1.ConfirmRecord](is, store.ConfirmPrefix) {
		if answers[key] != c {
			x.answered(questions, store.HoldPrefix+strings.TrimPrefix(key, store.ConfirmPrefix))
		}
	}
}

// deletedIn are the clusters in which a module is deleted that is from now on: if it goes with its catalog, those that had the names when somebody
// said that of the catalog.
func (x *words) deletedIn(was store.Reader, key string, m *storev1.ModuleRecord) map[fleet.ClusterName]string {
	ref, _ := store.SplitModule(key)
	if catalogOf(was).GetDeleting() && record.OwnerOf(store.Untracked(was), ref, m) == fleet.CatalogOrigin(wovenCatalog.Name) {
		return x.dropped
	}
	return have(was)
}

// gives notes to whom something is ordered: with a step it is to those who had the names when that was.
func (x *words) gives(key string, generation uint64, uid string) {
	if x.given[key] == nil {
		x.given[key] = map[uint64]string{}
	}
	if _, was := x.given[key][generation]; !was {
		x.given[key][generation] = uid
	}
}

// answered notes what a person let go: of the clusters about which that was asked.
func (x *words) answered(questions map[string]*storev1.HoldRecord, key string) {
	h := questions[key].GetHold()
	if h.GetCatalog() != "" {
		for _, item := range h.GetItems() {
			x.confirmed["goes "+item] = true
		}
		return
	}
	ref := fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}
	for _, c := range append([]string{h.GetCluster()}, h.GetItems()...) {
		if uid := x.asked[key][fleet.ClusterName(c)]; uid != "" {
			x.confirmed[confirmation(h.GetCode(), ref, uid)] = true
			for _, item := range h.GetItems() {
				x.confirmed[confirmation(item, ref, uid)] = true
			}
		}
	}
}

// isOf reports that what is ordered of a module is an order to the Kubernetes cluster that has the name now. A removal is one to whom it was given;
// what a deleted module had there goes if somebody deleted that since the cluster has the name.
func (x *words) isOf(r store.Reader, name fleet.ClusterName, ref fleet.ModuleRef, d *storev1.DesiredRecord) bool {
	uid, m := clusterOf(r, name).GetUid(), moduleOf(r, ref)
	if d.GetTombstone() != nil {
		return x.given[store.DesiredKey(name, ref)][record.GivenGeneration(d)] == uid
	}
	return m.GetDeleting() == "" || x.deleted[uidOf(m)][name] == uid
}

// owes reports that something is ordered of the Kubernetes cluster that has the name, and that its agent has not said that it is removed.
func (w *interleaved) owes(r store.Reader, name fleet.ClusterName) bool {
	uid := clusterOf(r, name).GetUid()
	for key, d := range all[*storev1.DesiredRecord](r, store.DesiredPrefix+string(name)+"/") {
		_, ref, _ := store.SplitClusterModule(key)
		given := record.GivenGeneration(d)
		if w.said.given[key][given] == uid && (d.GetTombstone() == nil || w.made[uid].removed[ref] < given) {
			return true
		}
	}
	return false
}
