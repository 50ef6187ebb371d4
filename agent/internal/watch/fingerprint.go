package watch

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// Fingerprint is all that is kept of a live object.
type Fingerprint struct {
	Namespace, Name string
	UID             string
	// Version is the resource version as a number.
	Version    uint64
	Generation int64
	// Owner is the owner mark, as far as all objects of a module have it in common.
	Owner string
	// Owners are the objects that it names as its owners, with which it goes; nil for nearly all.
	Owners []Owner
	// Health with a reason and a message where it is not healthy, or healthy for want of anything to judge by.
	Health  fleet.Health
	Reason  string
	Message string
	// JudgedBy are the health rules that were asked, as far as they speak of the kind; nil: none.
	JudgedBy *health.Rules
	// grace is of a verdict that changes without an event; nil for nearly all.
	grace *grace
	// placed: others may have it, so that it is not changed any more. The lock of its kind guards it.
	placed bool
	// Paths are the fields that Values were read at; nil if the inventory had none for this UID.
	Paths  *apply.PathSet
	Values apply.Values
	// Outcome says how an object ended that runs to an end.
	Outcome     plan.Outcome
	Terminating bool
	// Scaled says that an autoscaler holds /spec/replicas.
	Scaled bool
	// Unwatched says that the object lacks our label, so that no watch tells what happens to it.
	Unwatched bool
	// Made says that it is another object than the record has, or that there is none, and that our field manager wrote both marks that it carries.
	Made bool
	// Hold is the one that the object's annotation puts; nil for nearly all.
	Hold *fleet.ObjectHold
	// Old is how many pods of an older template the object has by its own status, or health.NotThrough.
	Old int16
	// Former says that the object is what it was before our last write, which it was never ready as (apply.Record.Before).
	Former bool
	// Returned says that what a policy left to managers is held by none of them any more.
	Returned bool
	// lost says that the object was older than the last write of it that the API server had answered.
	lost bool
	// Change is what somebody changed of ours; nil if nothing is.
	Change *Change
	// whole is of an object that is watched by itself; nil for all others.
	whole *whole
}

// Change is the first field of ours that another manager took. It has no pointer if none is known.
type Change struct {
	apply.Field
	By string
	// Fields is how many were taken.
	Fields int
	// Scaler is the autoscaler that set /spec/replicas; empty: none did.
	Scaler string
	// ScaledAt is the way to another field that an autoscaler set through the scale subresource; nil: none did.
	ScaledAt []string
}

// Owner is what an object says of another one that it goes with.
type Owner struct{ APIVersion, Kind, Name, UID string }

// OwnersOf are those that an object names; nil: none.
func OwnersOf(list []metav1.OwnerReference) (out []Owner) {
	for _, o := range list {
		out = append(out, Owner{APIVersion: apply.Intern(o.APIVersion), Kind: apply.Intern(o.Kind), Name: o.Name, UID: string(o.UID)})
	}
	return out
}

// In is the owner of something in a namespace as an object of ours, if it has a namespace, and the version in which it is named. It is
// not ok where that is no version.
func (o Owner) In(namespace string) (id fleet.ObjectID, version string, ok bool) {
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	return fleet.ObjectID{Group: gv.Group, Kind: o.Kind, Namespace: namespace, Name: o.Name}, gv.Version, err == nil
}

// grace is a span of time for a controller to do its part, and what holds after it.
type grace struct {
	ends  time.Time
	after health.Result
	late  bool // it was over while nobody listened; the lock of the kind guards it
}

// reduce makes the fingerprint of a live object. record is what the inventory has for it, or nil.
func (w *Watcher) reduce(r apply.Resource, obj map[string]any, record *apply.Record) *Fingerprint {
	f := w.judged(r, obj, record)
	if record != nil && record.State == plan.Used {
		obj = apply.SeenAs(w.o.UseManager, obj)
	}
	f.compare(obj, record)
	return f
}

// judged is the fingerprint of a live object by itself: it is not compared to what we wrote.
func (w *Watcher) judged(r apply.Resource, obj map[string]any, record *apply.Record) *Fingerprint {
	u := unstructured.Unstructured{Object: obj}
	f := &Fingerprint{
		Namespace: apply.Intern(u.GetNamespace()), Name: u.GetName(), UID: string(u.GetUID()),
		Version: apply.ParseVersion(u.GetResourceVersion()), Generation: u.GetGeneration(),
		Terminating: u.GetDeletionTimestamp() != nil, Scaled: apply.ScaledBy(obj) != "", Outcome: plan.OutcomeOf(obj),
		Old: int16(health.Old(obj)),
	}
	var rules *health.Rules
	if w.o.Rules != nil {
		rules = w.o.Rules(record).For(r.Group, r.Kind)
	}
	facts := w.Facts(r, obj, w.now())
	facts.Last = record != nil && record.UID == f.UID && record.ResourceVersion != 0 && record.ResourceVersion == f.Version
	f.judge(obj, facts, rules)
	if annotations, _, _ := unstructured.NestedMap(obj, "metadata", "annotations"); annotations != nil {
		mark, _ := annotations[fleet.OwnerAnnotation].(string)
		owner, _, _ := strings.Cut(mark, "#")
		f.Owner = apply.Intern(owner)
		if _, held := annotations[fleet.HoldAnnotation]; held {
			f.Hold = apply.HoldOn(u.GetAnnotations(), u.GetManagedFields())
			w.held.Store(true)
		}
	}
	f.Owners = OwnersOf(u.GetOwnerReferences())
	return f
}

// judge says how the object is, and until when that holds if nothing happens.
func (f *Fingerprint) judge(obj map[string]any, facts health.Facts, rules *health.Rules) {
	verdict := health.Judge(obj, facts, rules)
	f.JudgedBy = rules
	f.setHealth(verdict)
	if !verdict.Until.IsZero() {
		facts.Now = verdict.Until
		f.grace = &grace{ends: verdict.Until, after: health.Judge(obj, facts, rules)}
	}
}

// stillSays ends the wait for a word on our last change where that left the generation as it was, as a new label does: nobody has anything to say of
// it, and the status means what it meant. old is what was seen of the object before.
func (f *Fingerprint) stillSays(old *Fingerprint) {
	if f.grace == nil || f.Reason != health.ReasonOldGeneration || old == nil || old.grace != nil {
		return
	}
	if after := f.grace.after; old.UID == f.UID && old.Generation == f.Generation && f.Generation != 0 && old.Health == after.Health {
		f.grace = nil
		f.setHealth(after)
	}
}

// Facts are what the health of an object is judged by, beside the object.
func (w *Watcher) Facts(r apply.Resource, obj map[string]any, now time.Time) health.Facts {
	return health.Facts{Now: now, Changed: apply.ChangedAt(obj), HasStatus: w.o.HasStatus != nil && w.o.HasStatus(r)}
}

func (f *Fingerprint) setHealth(r health.Result) {
	f.Health, f.Reason, f.Message = r.Health, apply.Intern(r.Reason), apply.Intern(r.Message)
}

// compare takes the values at our paths, and finds who changed them.
func (f *Fingerprint) compare(obj map[string]any, record *apply.Record) {
	if record == nil || record.UID != "" && record.UID != f.UID {
		f.Made = apply.ProofOf((&unstructured.Unstructured{Object: obj}).GetManagedFields()).Marked
	}
	if record == nil || record.Paths == nil || record.UID != f.UID {
		return
	}
	f.UID, f.Name = record.UID, record.ID.Name // the same text, kept once
	f.lost = f.Version < record.ResourceVersion
	f.Paths = record.Paths
	f.Former = record.Before != nil && record.Before.Is(obj)
	f.Values, f.Returned = record.Excuse(record.Paths.Of(obj), obj)
	match := record.Match(f.Values, false)
	if match == plan.MatchUnsettled && record.Paths.Undermined(obj) {
		f.Values, match = f.Values.Less(), plan.MatchNo
	}
	switch match {
	case plan.MatchNo:
		f.explain(obj, record)
	case plan.MatchUnsettled:
		// A value that is another one at a path which is still ours was written by us, or admission made it another one
		// when somebody else wrote.
		if by := apply.WroteAfterUs(obj); by != "" {
			f.Change = &Change{By: apply.Intern(by)}
		}
	case plan.MatchTaken: // to be written whole
		if at := apply.ScaledAt(obj); at != nil {
			f.Change = &Change{Scaler: apply.Intern(apply.ScaledBy(obj)), ScaledAt: at}
		}
	}
}

// explain finds who changed what.
func (f *Fingerprint) explain(obj map[string]any, record *apply.Record) {
	c := &Change{Scaler: apply.Intern(apply.ScaledBy(obj)), ScaledAt: apply.ScaledAt(obj)}
	f.Change = c
	if c.Scaler != "" && f.Values.Hash == record.Base.Hash {
		c.Field, c.By, c.Fields = apply.ReplicasField(obj), c.Scaler, 1
		return
	}
	lost, by := apply.WhoTook(obj, record.Paths, record.Excused(obj))
	if c.Scaler != "" {
		lost = slices.DeleteFunc(lost, func(l apply.Field) bool { return l.Pointer == apply.ReplicasPointer })
	}
	c.By, c.Fields = apply.Intern(by), len(lost)
	if len(lost) > 0 {
		c.Field = lost[0]
	}
}

// Match says how what is live compares to our last write. replicasFree says that an autoscaler has taken /spec/replicas.
// Versions do not tell: a restored store gives their numbers again.
func (f *Fingerprint) Match(r *apply.Record, replicasFree bool) plan.Match {
	if r.Paths == nil || f.Paths != r.Paths || r.Algorithm != apply.Algorithm {
		return plan.MatchUnknown
	}
	m := r.Match(f.Values, replicasFree)
	if m == plan.MatchYes && f.Returned {
		return plan.MatchContested
	}
	if m == plan.MatchYes && r.Unmet != nil && f.Version != r.ResourceVersion {
		return plan.MatchContested
	}
	return m
}

// Key is namespace and name.
type Key struct{ Namespace, Name string }

// Key is where the object is.
func (f *Fingerprint) Key() Key { return Key{f.Namespace, f.Name} }

// item is what the reflector handles instead of whole objects.
type item struct {
	metav1.TypeMeta
	version     string
	annotations map[string]string // of bookmarks
	print       *Fingerprint
}

// GetObjectMeta makes an item readable for the reflector.
func (i *item) GetObjectMeta() metav1.Object {
	out := &metav1.ObjectMeta{ResourceVersion: i.version, Annotations: i.annotations}
	if i.print != nil {
		out.Namespace, out.Name = i.print.Namespace, i.print.Name
	}
	return out
}
