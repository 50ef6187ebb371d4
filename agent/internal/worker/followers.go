package worker

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// With some objects the cluster's controllers delete others that do not name them as their owner, so that nothing can be taken from these
// to have them stay: with a ServiceAccount the Secrets that are its tokens, with a Service the Endpoints of its name.

// tailing is what came of the lists of what may follow.
type tailing struct{ tokens, endpoints apply.Refusals }

// followed reports that one of these would take along what is to stay, so that it stays as well, or says (wait) what it would take along
// that is to go itself, and does not yet.
func (e *eraser) followed(ctx context.Context, r plan.Record) (kept *plan.Kept, wait string, err error) {
	var stay, going []string
	err = e.w.m.eachFollower(ctx, r, func(id fleet.ObjectID, o *metav1.PartialObjectMetadata) {
		switch stays, later := e.outlasts(id, o); {
		case stays:
			stay = append(stay, id.Kind+" "+id.Name)
		case later:
			going = append(going, id.Kind+" "+id.Name)
		}
	})
	switch {
	case err != nil:
		return nil, "", err
	case len(stay) > 0:
		return &plan.Kept{Record: r, Rule: plan.RuleSensitiveKind, Reason: plan.ReasonKept,
			Message: "the cluster would delete with it what is to stay: " + plan.Names(stay)}, "", nil
	case len(going) > 0:
		return nil, "goes when these have gone: " + plan.Names(going), nil
	}
	return nil, "", nil
}

// followers are what the cluster would delete with a live object that is made again, and that would not come back with the new one: what a
// controller makes for the selector of a Service would.
func (w *worker) followers(ctx context.Context, r plan.Record, live map[string]any) (out []string, err error) {
	if selector, _, _ := unstructured.NestedMap(live, "spec", "selector"); len(selector) > 0 {
		return nil, nil
	}
	err = w.m.eachFollower(ctx, r, func(id fleet.ObjectID, o *metav1.PartialObjectMetadata) {
		if o.DeletionTimestamp == nil {
			out = append(out, id.Kind+" "+id.Name)
		}
	})
	return out, err
}

// eachFollower lists what controllers would delete with an object.
func (m *Manager) eachFollower(ctx context.Context, r plan.Record, each func(fleet.ObjectID, *metav1.PartialObjectMetadata)) error {
	kind, lists := fleet.ObjectID{Namespace: r.ID.Namespace}, &m.tailing.tokens
	var follows func(*metav1.PartialObjectMetadata) bool
	switch {
	case r.ID.Group != "":
		return nil
	case r.ID.Kind == "ServiceAccount":
		kind.Kind = "Secret"
		follows = func(o *metav1.PartialObjectMetadata) bool {
			uid := o.Annotations["kubernetes.io/service-account.uid"]
			return o.Annotations["kubernetes.io/service-account.name"] == r.ID.Name && (uid == "" || uid == r.UID)
		}
	case r.ID.Kind == "Service":
		kind.Kind, lists = "Endpoints", &m.tailing.endpoints
		follows = func(o *metav1.PartialObjectMetadata) bool { return o.Name == r.ID.Name }
	default:
		return nil
	}
	res, gone, err := m.mapper.Served(ctx, kind, "v1")
	if gone || err != nil {
		return err
	}
	err = m.client.EachMeta(ctx, res, r.ID.Namespace, "", func(o *metav1.PartialObjectMetadata) bool {
		if id := kind; follows(o) {
			id.Name = o.Name
			each(id, o)
		}
		return true
	})
	if lacks, _ := lists.Note(err, time.Now()); lacks { // who may not see any has none there
		return nil
	}
	return err
}

// outlasts reports that a live object was written by an agent and is to stay: a module keeps it, or has left it. Later: its module goes, but
// not it yet, as under a hold.
func (e *eraser) outlasts(id fleet.ObjectID, live *metav1.PartialObjectMetadata) (stays, later bool) {
	if live.DeletionTimestamp != nil {
		return false, false
	}
	rec, m := e.w.m.inventory.Get(id), e.w.m
	switch {
	case rec == nil, rec.UID != string(live.UID):
		return apply.ProofOf(live.ManagedFields).Applied, false
	case !e.staying(rec), m.goesBy(id, live.Labels):
		return false, false
	case m.isLeft(rec), rec.Module == e.w.ref && e.left[id]:
		return true, false
	}
	goes := m.removing(rec.Module)
	return !goes, goes
}
