package plan

import (
	"cmp"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// deleteStage is a step of a deletion; the next begins when everything in it is gone. It is the apply order backwards,
// but for what a controller has to finish: objects of custom kinds, and what shows workloads to the outside, have
// finalizers that controllers of the same module may have to take. They go before the workloads that run these.
type deleteStage struct {
	class int
	wave  int32 // counts backwards
	part  int
}

// Classes of delete stages, in order.
const (
	// deleteAdmission may refuse every other request, and nothing waits for it.
	deleteAdmission = iota
	// deleteOwnKind are objects of kinds that the module itself brings along, in whichever wave: their controllers are
	// most likely its own.
	deleteOwnKind
	// deleteAPIService serve own kinds from workloads of the module.
	deleteAPIService
	deleteWave
	deleteCRD
	deleteNamespace
)

// Parts of a wave, in order.
const (
	partCustom = iota
	partExposed
	partWorkload
	partRest
)

// parts of a wave that kinds of Kubernetes belong to; all others are the rest.
var parts = map[string]int{
	"Ingress": partExposed, "Service": partExposed, "HorizontalPodAutoscaler": partExposed,
	"DaemonSet": partWorkload, "Pod": partWorkload, "ReplicationController": partWorkload, "ReplicaSet": partWorkload,
	"Deployment": partWorkload, "StatefulSet": partWorkload, "Job": partWorkload, "CronJob": partWorkload,
}

// IsCustom reports that the kind is none of Kubernetes.
func IsCustom(id fleet.ObjectID) bool {
	_, known := manifest.Namespaced(id.Group, id.Kind)
	return !known
}

func (s deleteStage) compare(b deleteStage) int {
	return cmp.Or(cmp.Compare(s.class, b.class), cmp.Compare(b.wave, s.wave), cmp.Compare(s.part, b.part))
}

// deleteStageOf is the stage of an object. own are the API groups that the module itself brings along.
func deleteStageOf(r Record, own map[string]bool) deleteStage {
	id := r.ID
	switch {
	case TakesNamespace(id):
		return deleteStage{class: deleteNamespace}
	case IsCRD(id):
		return deleteStage{class: deleteCRD}
	case id.Group == "admissionregistration.k8s.io":
		return deleteStage{class: deleteAdmission}
	case isAPIService(id):
		return deleteStage{class: deleteAPIService}
	case own[id.Group]:
		return deleteStage{class: deleteOwnKind, wave: r.Wave}
	case IsCustom(id):
		return deleteStage{class: deleteWave, wave: r.Wave, part: partCustom}
	}
	part, ok := parts[id.Kind]
	if !ok {
		part = partRest
	}
	return deleteStage{class: deleteWave, wave: r.Wave, part: part}
}

func isAPIService(id fleet.ObjectID) bool {
	return id.Group == "apiregistration.k8s.io" && id.Kind == "APIService"
}

// ownGroups are the API groups that CRDs and APIServices of a module bring along: both are named after what they define,
// PLURAL.GROUP and VERSION.GROUP.
func ownGroups(records []Record) map[string]bool {
	own := map[string]bool{}
	for _, r := range records {
		if _, group, found := strings.Cut(r.ID.Name, "."); found && (IsCRD(r.ID) || isAPIService(r.ID)) {
			own[group] = true
		}
	}
	return own
}

// DeleteStages groups records for deletion. of are all records of the module, with those that stay.
func DeleteStages(records, of []Record) [][]Record {
	own := ownGroups(of)
	sorted := slices.Clone(records)
	slices.SortFunc(sorted, func(a, b Record) int {
		return cmp.Or(deleteStageOf(a, own).compare(deleteStageOf(b, own)), CompareApply(b.ID, b.Wave, a.ID, a.Wave))
	})
	var out [][]Record
	var last deleteStage
	for i, r := range sorted {
		s := deleteStageOf(r, own)
		if i == 0 || s != last {
			out, last = append(out, nil), s
		}
		out[len(out)-1] = append(out[len(out)-1], r)
	}
	return out
}

// inOrder keeps what has to wait for objects that are not in this plan: of kinds that nothing can be said about now, that stay for now and
// may use it, or of another module that is removed as well and needs the controllers of this one.
func (in PruneInput) inOrder(doomed []Record, out *PrunePlan) []Record {
	own := ownGroups(in.Records)
	stage := func(r Record) deleteStage { return deleteStageOf(r, own) }
	unseen := in.firstUnseen(out, stage)
	dependent, needed := in.dependent(own)
	first := in.firstStaying(out, stage)
	return slices.DeleteFunc(doomed, func(r Record) bool {
		s := stage(r)
		switch {
		case unseen.before(r, stage):
			out.Kept = append(out.Kept, unseen.goesFirst(r))
		case first.before(r, stage) && in.awaitsPods(r):
			out.Kept = append(out.Kept, first.goesFirst(r))
		case in.Tombstone && in.Old != "" && s.class >= deleteWave && s.part > partWorkload:
			out.Kept = append(out.Kept, Kept{r, RuleOrder, ReasonAwaitingUpdate, oldText + " (delete --orphan leaves it): " + in.Old})
		case needed && s.class != deleteAdmission && s.class != deleteOwnKind && !IsCustom(r.ID):
			out.Kept = append(out.Kept, Kept{r, RuleOrder, ReasonRemoving, "goes after " + dependent.ID.String() + " of module " + dependent.Module.Display()})
		default:
			return false
		}
		return true
	})
}

// firstUnseen is the object that would go first of those whose kinds nothing can be said about.
func (in PruneInput) firstUnseen(out *PrunePlan, stage func(Record) deleteStage) (first staying) {
	const why = "of which nothing can be said now"
	for _, k := range out.Kept {
		if k.Reason == ReasonUnknownKind && !in.Releases(k.Record) {
			first.take(k.Record, why, stage)
		}
	}
	for _, r := range out.Settle {
		if in.kind(r) != KindUnknown || in.Releases(r) {
			continue
		}
		_, moves := in.moves(r)
		if _, reason, _ := in.keeps(r); !moves && !keptByPolicy(reason) {
			first.take(r, why, stage)
		}
	}
	return first
}

// dependent is an object of the module's own kinds that another module has, which is removed as well.
func (in PruneInput) dependent(own map[string]bool) (r Record, found bool) {
	if !in.Tombstone || len(own) == 0 {
		return Record{}, false
	}
	return in.Dependent(own)
}
