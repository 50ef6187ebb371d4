package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// noteGone remembers that this worker deleted an object.
func (w *worker) noteGone(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.erasedUIDs == nil {
		w.erasedUIDs = map[types.UID]bool{}
	}
	w.erasedUIDs[uid] = true
}

// keptText says what a tombstone left in the cluster.
func (w *worker) keptText() string {
	left := w.m.inventory.Left(w.ref)
	if len(left) == 0 {
		return ""
	}
	return "kept: " + plan.Names(left)
}

// contents is what a namespace holds, or what there is of a kind, by what becomes of it.
type contents struct {
	unseen  string   // why nothing can be said, for good
	foreign []string // not ours
	kept    []string // ours, and it stays
	going   []string // on its way out
	others  bool     // some of that is another module's, whose removal may be held, or wait
}

// occupied reports that a namespace or a CRD holds what stays, or that something else takes along what does, or says (wait) what it holds
// that is on its way out.
func (e *eraser) occupied(ctx context.Context, r plan.Record, res apply.Resource) (kept *plan.Kept, wait string, err error) {
	reason, what := plan.ReasonNotEmpty, "the namespace holds"
	switch {
	case plan.IsCRD(r.ID):
		reason, what = plan.ReasonInUse, "of the kind there are"
	case !plan.TakesNamespace(r.ID):
		return e.followed(ctx, r)
	}
	in, err := e.contentsOf(ctx, r, res)
	stays := func(message string) *plan.Kept {
		return &plan.Kept{Record: r, Rule: plan.RuleSensitiveKind, Reason: reason, Message: message}
	}
	switch {
	case err != nil:
		return nil, "", err
	case in.unseen != "":
		return stays(in.unseen), "", nil
	case len(in.foreign) > 0:
		return stays(what + " objects that are not ours: " + plan.Names(in.foreign)), "", nil
	case len(in.kept) > 0 && !e.in.Tombstone:
		return stays(what + " objects that stay: " + plan.Names(in.kept)), "", nil
	case len(in.kept)+len(in.going) > 0:
		return nil, "goes when these have gone: " + plan.Names(append(in.kept, in.going...)), nil
	}
	return nil, "", nil
}

// contentsOf is what a namespace holds, or what there is of the kind that a CRD defines; of anything else it is nothing.
func (e *eraser) contentsOf(ctx context.Context, r plan.Record, res apply.Resource) (contents, error) {
	switch {
	case plan.TakesNamespace(r.ID):
		return e.inNamespace(ctx, r.ID)
	case plan.IsCRD(r.ID):
		return e.ofKind(ctx, r, res)
	}
	return contents{}, nil
}

// inside lists what is in a namespace, or of the kind that a CRD defines, apart from what the cluster makes itself.
func (w *worker) inside(ctx context.Context, r plan.Record, res apply.Resource) ([]string, error) {
	in, err := (&eraser{w: w}).contentsOf(ctx, r, res)
	if err == nil && in.unseen != "" {
		err = &apply.Failure{Reason: apply.ReasonUnseen, Kind: fleet.ErrPrecondition, Message: r.ID.String() + ": " + in.unseen}
	}
	return slices.Concat(in.foreign, in.kept, in.going), err
}

// found is one object in a namespace.
type found struct {
	id      fleet.ObjectID
	uid     types.UID
	owners  []metav1.OwnerReference
	leaving bool
	ours    bool
	goes    bool // is ours, and about to be deleted
	free    bool // made by the cluster for every namespace
}

// inNamespace sorts what is in a namespace; what the cluster makes for every namespace does not count. An API group of
// which nothing can be seen may hold anything, so that nothing can be said.
func (e *eraser) inNamespace(ctx context.Context, id fleet.ObjectID) (contents, error) {
	w := e.w
	survey, err := w.m.served.get(ctx, w.m.mapper)
	if err != nil {
		return contents{}, err
	}
	if failed := slices.DeleteFunc(slices.Clone(survey.Failed), func(f apply.Unavailable) bool { return holdsNothing(f.Group) }); len(failed) > 0 {
		return contents{}, w.unseen(ctx, id, failed)
	}
	all, err := e.count(ctx, id, survey.Resources)
	if err != nil {
		return contents{}, err
	}
	var out contents
	namespace := fleet.ObjectID{Kind: "Namespace", Name: id.Name}
	beside := w.listedBeside(func(x fleet.ObjectID) bool { return x.Namespace == id.Name || x == namespace && x != id })
	if namespace != id && e.in.Desired != nil && e.in.Desired(namespace) {
		out.kept = append(out.kept, "Namespace "+id.Name) // which would go with the Project
	}
	for _, f := range all.all {
		text := f.id.Kind + " " + f.id.Name
		out.others = out.others || f.ours && !f.leaving && w.isOfAnother(f.id)
		_, listed := beside[f.id]
		delete(beside, f.id)
		switch {
		case listed:
			out.foreign = append(out.foreign, text)
		case f.free:
		case f.leaving, f.goes, all.isGarbage(f, 0):
			out.going = append(out.going, text)
		case f.ours:
			out.kept = append(out.kept, text)
		default:
			out.foreign = append(out.foreign, text)
		}
	}
	for x, by := range beside {
		out.foreign = append(out.foreign, x.Kind+" "+x.Name+aboutToCome(by))
	}
	return out, nil
}

// count lists what is in a namespace.
func (e *eraser) count(ctx context.Context, id fleet.ObjectID, resources []apply.Resource) (census, error) {
	w := e.w
	all := census{all: map[types.UID]*found{}, namespaced: map[schema.GroupKind]bool{}, erased: w.erased}
	var mu sync.Mutex
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(listParallel)
	for _, res := range resources {
		if !res.Namespaced {
			continue
		}
		all.namespaced[schema.GroupKind{Group: res.Group, Kind: res.Kind}] = true
		group.Go(func() error {
			return guarded(w.m.o.Log, func() error {
				err := w.m.client.EachMeta(bounded, res, id.Name, "", func(o *metav1.PartialObjectMetadata) bool {
					f := e.foundIn(ctx, id.Name, res, o)
					key := o.UID
					if key == "" { // as some API servers of their own have them: each is one all the same
						key = types.UID(f.id.String())
					}
					mu.Lock()
					defer mu.Unlock()
					all.all[key] = f
					return true
				})
				if err != nil && !w.m.nothingToList(bounded, res, err) {
					return w.unseen(ctx, id, []apply.Unavailable{{GroupVersion: res.GroupVersion(), Err: fmt.Errorf("list of %s: %w", res.Resource, err)}})
				}
				return nil
			})
		})
	}
	return all, group.Wait()
}

func (e *eraser) foundIn(ctx context.Context, namespace string, res apply.Resource, o *metav1.PartialObjectMetadata) *found {
	id := fleet.ObjectID{Group: res.Group, Kind: res.Kind, Namespace: namespace, Name: o.Name}
	ours := e.w.isRecorded(id, o.UID)
	return &found{id: id, uid: o.UID, owners: o.OwnerReferences, leaving: o.DeletionTimestamp != nil,
		ours: ours, goes: ours && e.goes(ctx, id, o), free: ofEveryNamespace(id, o)}
}

// listedBeside are the objects that other modules have, or are about to make, with the module of each: an object that is not there at
// this moment is in no list of the API server's. What is on its way out, alone or with its module, is not among them.
func (w *worker) listedBeside(here func(fleet.ObjectID) bool) map[fleet.ObjectID]fleet.ModuleRef {
	out := map[fleet.ObjectID]fleet.ModuleRef{}
	for _, ref := range w.m.inventory.Modules() {
		if ref == w.ref || w.m.removing(ref) {
			continue
		}
		w.m.inventory.Each(ref, func(r *apply.Record) {
			if !r.Goes() && here(r.ID) {
				out[r.ID] = ref
			}
		})
	}
	w.m.each(func(o *worker) {
		later := o.later.Load()
		if later == nil || o == w || w.m.removing(o.ref) {
			return
		}
		for _, id := range *later {
			if here(id) {
				out[id] = o.ref
			}
		}
	})
	return out
}

// aboutToCome is said of an object that is not there, and that a module lists.
func aboutToCome(by fleet.ModuleRef) string { return " (listed by module " + by.Display() + ")" }

// nothingToList reports that a list failed because the kind has gone meanwhile, or cannot be listed at all. A kind that is Kubernetes' own takes no
// objects along: that it is not served says no more than that another API server answers, and which kinds there are is asked anew.
func (m *Manager) nothingToList(ctx context.Context, res apply.Resource, err error) bool {
	if kube.Is(err, kube.Unsupported) {
		return true
	}
	kind := fleet.ObjectID{Group: res.Group, Kind: res.Kind}
	if !kube.Is(err, kube.Unserved, kube.Gone) || !plan.IsCustom(kind) {
		return false
	}
	m.mapper.Reset(res.Group)
	_, gone, err := m.mapper.Served(ctx, kind, res.Version)
	return err == nil && gone
}

// goes reports that an object of ours is going to be deleted by this plan, as far as can be seen on it, or by the removal of its own
// module, which may also leave it.
func (e *eraser) goes(ctx context.Context, id fleet.ObjectID, live *metav1.PartialObjectMetadata) bool {
	r := e.w.m.inventory.Get(id)
	switch {
	case r == nil:
		return false
	case r.Module != e.w.ref:
		return !e.w.m.isLeft(r)
	case !e.doomed[id] || e.w.annotation(live) != "":
		return false
	}
	claimant, err := e.w.m.claimantOf(ctx, e.w.ref, live.Labels)
	if err != nil {
		return false
	}
	verdict, _ := plan.Verify(e.in, r.Record, e.w.seenOn(r.ID, live), claimant)
	return verdict == plan.Delete
}

// isOfAnother reports that another module has an object.
func (w *worker) isOfAnother(id fleet.ObjectID) bool {
	r := w.m.inventory.Get(id)
	return r != nil && r.Module != w.ref
}

// isRecorded reports that this module owns the object, or another one that is on its way out.
func (w *worker) isRecorded(id fleet.ObjectID, uid types.UID) bool {
	r := w.m.inventory.Get(id)
	return r != nil && r.UID == string(uid) && (r.Module == w.ref || w.m.removing(r.Module))
}

// unseen says which API groups keep the contents of a namespace from being seen, and what to do about them.
func (w *worker) unseen(ctx context.Context, id fleet.ObjectID, failed []apply.Unavailable) error {
	parts := make([]string, 0, len(failed))
	for _, f := range failed {
		parts = append(parts, w.m.unavailable(ctx, f))
	}
	return &apply.Failure{Reason: apply.ReasonUnseen, Transient: true, Kind: fleet.ErrUnavailable,
		Message: fmt.Sprintf("%s: stays, because what it may hold cannot be seen: %s", id, plan.Names(parts))}
}

// unavailable says what is wrong with a version of an API group, and first how it is mended.
func (m *Manager) unavailable(ctx context.Context, f apply.Unavailable) string {
	s, err := m.client.Registration(ctx, f.GroupVersion)
	switch {
	case err == nil && s.Service == "" && f.Unlisted():
		return fmt.Sprintf("API group %s is not known in full to the API server that answers (%v)", f.GroupVersion, f.Err)
	case err != nil || s.Service == "":
		return fmt.Sprintf("API group %s does not answer (%v)", f.GroupVersion, f.Err)
	}
	return fmt.Sprintf("API group %s is unavailable: repair service %s, or delete APIService %s (%s)", f.GroupVersion, s.Service, s.Name,
		cmp.Or(s.Trouble, f.Err.Error()))
}

// surveyTime is how long a survey counts.
const surveyTime = 2 * time.Second

// surveyor has what the cluster serves; the namespaces that go at about the same time share it.
type surveyor struct {
	mu   sync.Mutex
	last apply.Survey
	at   time.Time
}

func (s *surveyor) get(ctx context.Context, m *apply.Mapper) (apply.Survey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && time.Since(s.at) < surveyTime {
		return s.last, nil
	}
	survey, err := m.Everything(ctx)
	if err != nil {
		return apply.Survey{}, err
	}
	s.last, s.at = survey, time.Now()
	return survey, nil
}

// census is all that is in a namespace, and what tells of owners that are not in it.
type census struct {
	all map[types.UID]*found
	// namespaced are the kinds that live in namespaces.
	namespaced map[schema.GroupKind]bool
	// erased reports that we deleted an object.
	erased func(types.UID) bool
}

// isGarbage reports that the object is owned, directly or not, by what is ours or what is gone already, so that the
// cluster's garbage collector takes it. An owner that would be in the namespace and is not there is gone; of one that
// lives elsewhere, or whose kind is not known, that cannot be said.
func (c census) isGarbage(f *found, depth int) bool {
	if len(f.owners) == 0 || depth > 10 {
		return false
	}
	for _, o := range f.owners {
		owner := c.all[o.UID]
		gv, _ := schema.ParseGroupVersion(o.APIVersion)
		switch {
		case o.UID == "", owner == nil && !c.erased(o.UID) && !c.namespaced[schema.GroupKind{Group: gv.Group, Kind: o.Kind}]:
			return false
		case owner != nil && !owner.ours && !owner.leaving && !c.isGarbage(owner, depth+1):
			return false
		}
	}
	return true
}

// erased reports that this worker deleted an object.
func (w *worker) erased(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.erasedUIDs[uid]
}

// ofEveryNamespace finds what the cluster itself puts into a namespace.
func ofEveryNamespace(id fleet.ObjectID, o *metav1.PartialObjectMetadata) bool {
	if plan.OfEveryNamespace(id) {
		return true
	}
	switch id.Group + "/" + id.Kind {
	case "/ConfigMap":
		return o.Name == "istio-ca-root-cert" && o.Labels["istio.io/config"] == "true" // Istio makes it again in each namespace
	case "/Secret":
		return o.Annotations["kubernetes.io/service-account.name"] == "default" && nameOfController(o.Name)
	case "/Event", "events.k8s.io/Event", "/Endpoints", "coordination.k8s.io/Lease":
		return !apply.ProofOf(o.ManagedFields).Applied // what a module made goes as anything else that it has, or stays
	}
	return holdsNothing(id.Group)
}

// nameOfController reports that a Secret of the ServiceAccount default has a name that controllers give: one that somebody
// made, as a token for a pipeline, has another.
func nameOfController(name string) bool {
	return strings.HasPrefix(name, "default-token-") || strings.HasPrefix(name, "default-dockercfg-")
}

// holdsNothing reports that what an API group shows is measured, and not kept: metrics.k8s.io and its like.
func holdsNothing(group string) bool {
	return group == "metrics.k8s.io" || strings.HasSuffix(group, ".metrics.k8s.io")
}

// ofKind sorts the objects of a CRD's kind.
func (e *eraser) ofKind(ctx context.Context, r plan.Record, res apply.Resource) (contents, error) {
	w := e.w
	crd, err := w.m.client.Get(ctx, res, "", r.ID.Name)
	if err != nil {
		return contents{}, err
	}
	target, ok := apply.ResourceOfCRD(crd)
	if !ok {
		return contents{unseen: "it serves no version, so the objects that it would take along cannot be seen"}, nil
	}
	var out contents
	foreign := map[fleet.ObjectID]bool{}
	err = w.m.client.EachMeta(ctx, target, "", "", func(o *metav1.PartialObjectMetadata) bool {
		id := fleet.ObjectID{Group: target.Group, Kind: target.Kind, Namespace: o.Namespace, Name: o.Name}
		ours := w.isRecorded(id, o.UID)
		out.others = out.others || ours && o.DeletionTimestamp == nil && w.isOfAnother(id)
		switch {
		case o.DeletionTimestamp != nil, ours && e.goes(ctx, id, o):
			out.going = append(out.going, id.Path())
		case ours:
			out.kept = append(out.kept, id.Path())
		default:
			foreign[id] = true
			out.foreign = append(out.foreign, id.Path())
		}
		return len(out.foreign) < maxForeign
	})
	for x, by := range w.listedBeside(func(x fleet.ObjectID) bool { return x.Group == target.Group && x.Kind == target.Kind }) {
		if !foreign[x] {
			out.foreign = append(out.foreign, x.Path()+aboutToCome(by))
		}
	}
	if kube.Is(err, kube.Unserved, kube.Gone) && !apply.Established(crd) {
		return out, nil
	}
	return out, err
}

// maxForeign ends the search for objects that keep a CRD: one would do, the others are for people.
const maxForeign = 100
