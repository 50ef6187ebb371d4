package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/plan"
)

// Limits of Events: they are a courtesy, never a load.
const (
	eventQueue = 64
	eventRate  = 5 // a second
	eventBurst = 25
)

var eventResource = apply.Resource{Kind: "Event", Namespaced: true,
	GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "events"}}

// recorder writes Kubernetes Events, as far as it may and can.
type recorder struct {
	client *apply.Client
	log    *slog.Logger
	queue  chan *corev1.Event
	limit  *rate.Limiter
	// forbidden says why nothing may be written; empty: it may.
	forbidden func() string
}

func newRecorder(c *apply.Client, forbidden func() string, log *slog.Logger) *recorder {
	return &recorder{client: c, forbidden: forbidden, log: log, queue: make(chan *corev1.Event, eventQueue), limit: rate.NewLimiter(eventRate, eventBurst)}
}

// add queues an Event; one too many is dropped.
func (r *recorder) add(e *corev1.Event) {
	if !r.limit.Allow() {
		return
	}
	select {
	case r.queue <- e:
	default:
	}
}

func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			if r.forbidden() != "" {
				continue
			}
			err := guarded(r.log, func() error {
				body, err := json.Marshal(e)
				if err != nil {
					return err
				}
				return r.client.Create(ctx, eventResource, e.Namespace, body)
			})
			if err != nil && ctx.Err() == nil {
				r.log.Debug("event was not written", "object", e.InvolvedObject.Name, "error", err)
			}
		}
	}
}

// tell leaves an Event on an object that was corrected: what, from whom, and how to keep it.
func (a *writer) tell(live map[string]any) {
	u := &unstructured.Unstructured{Object: live}
	message := "was deleted; created again as module " + a.w.ref.Display() + " says"
	if a.verb == plan.Correct {
		message = "changed back to what module " + a.w.ref.Display() + " says"
		if c := a.print; c != nil && c.Change != nil {
			what := cmp.Or(a.field(c.Change.Pointer), "a field")
			if c.Change.Fields > 1 {
				what = fmt.Sprintf("%s and %d more fields", what, c.Change.Fields-1)
			}
			how := "changed"
			if c.Change.Pointer != "" && c.Change.Live == "" {
				how = "removed"
			}
			message = fmt.Sprintf("%s %s by %s: %s", what, how, cmp.Or(c.Change.By, "somebody"), message)
		}
	}
	message += "; to keep a change, make it in the module, or set the policy drift: Report or Ignore"
	a.w.m.events.about(corev1.ObjectReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(),
		Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}, "DriftCorrected", message)
}

// tellLeft leaves an Event on an object that somebody has taken over, and that is let go for it.
func (e *eraser) tellLeft(r plan.Record, res apply.Resource, seen plan.Seen) {
	by := seen.TakenBy(r)
	if by == "" {
		return
	}
	e.w.m.events.about(corev1.ObjectReference{APIVersion: res.GroupVersion().String(), Kind: r.ID.Kind, Namespace: namespaceOf(res, r.ID),
		Name: r.ID.Name, UID: types.UID(seen.UID)}, "Released",
		"module "+e.w.ref.Display()+" has let it go, and did not delete it: it is left to "+by)
}

// tellNotOurs leaves an Event on an object that its module let go of and that stays, for it is not the module's any more: it is listed nowhere from
// then on, and nobody else may know of it.
func (e *eraser) tellNotOurs(r plan.Record, res apply.Resource, why string) {
	e.w.m.events.about(corev1.ObjectReference{APIVersion: res.GroupVersion().String(), Kind: r.ID.Kind, Namespace: namespaceOf(res, r.ID),
		Name: r.ID.Name, UID: types.UID(r.UID)}, "LeftAsItIs",
		"module "+e.w.ref.Display()+" does not have it any more, and did not delete it: "+why)
}

// about queues an Event about an object.
func (r *recorder) about(o corev1.ObjectReference, reason, message string) {
	now := metav1.Now()
	r.add(&corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(o.Namespace, "default"), Name: fmt.Sprintf("%.200s.%x", o.Name, time.Now().UnixNano())},
		InvolvedObject: o,
		Reason:         reason, Message: message, Type: corev1.EventTypeNormal, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "towline-agent"},
		ReportingController: "towline.dev/agent", ReportingInstance: "towline-agent",
	})
}
