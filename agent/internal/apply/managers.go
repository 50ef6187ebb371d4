package apply

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Manager is one entry of an object's managedFields.
type Manager struct {
	Manager, Operation, Subresource, Time string
	Fields                                map[string]any
}

// Managers reads managedFields.
func Managers(obj map[string]any) []Manager {
	list := entriesOf(obj)
	out := make([]Manager, 0, len(list))
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, managerOf(m))
		}
	}
	return out
}

// entriesOf are the entries of managedFields as they stand in an object.
func entriesOf(obj map[string]any) []any {
	meta, _ := obj["metadata"].(map[string]any)
	list, _ := meta["managedFields"].([]any)
	return list
}

func managerOf(entry map[string]any) Manager {
	text := func(k string) string { s, _ := entry[k].(string); return s }
	fields, _ := entry["fieldsV1"].(map[string]any)
	return Manager{text("manager"), text("operation"), text("subresource"), text("time"), fields}
}

// Ours reports whether the entry is that of our applies.
func (m Manager) Ours() bool { return m.applies(fleet.FieldManager) }

func (m Manager) applies(manager string) bool {
	return m.Manager == manager && m.Operation == "Apply" && m.Subresource == ""
}

// SeenAs is a live object for who applies as another field manager than ours: what is noted for that one is noted for ours in
// it, and what is noted for ours is somebody else's. The object itself is not changed.
func SeenAs(manager string, obj map[string]any) map[string]any {
	if manager == fleet.FieldManager {
		return obj
	}
	entries := slices.Clone(entriesOf(obj))
	for i, x := range entries {
		entry, _ := x.(map[string]any)
		switch m := managerOf(entry); {
		case m.Ours():
			entries[i] = renamed(entry, anotherAgent)
		case m.applies(manager):
			entries[i] = renamed(entry, fleet.FieldManager)
		}
	}
	out := shallow(obj)
	meta, _ := obj["metadata"].(map[string]any)
	meta = shallow(meta)
	meta["managedFields"] = entries
	out["metadata"] = meta
	return out
}

// anotherAgent is who applies as our field manager, for an agent that applies as another one.
const anotherAgent = "another agent of Towline"

func renamed(entry map[string]any, manager string) map[string]any {
	out := shallow(entry)
	out["manager"] = manager
	return out
}

// Rename is the JSON patch that notes for another manager what is noted for ours in a live object; nil where that is not exactly
// the fields, so that somebody else applied as ours after them, or where the other one has something noted already.
func (in *Interner) Rename(live map[string]any, manager string, fields *PathSet) ([]byte, error) {
	entries, at := slices.Clone(entriesOf(live)), -1
	for i, x := range entries {
		entry, _ := x.(map[string]any)
		switch m := managerOf(entry); {
		case m.Manager == manager && m.Operation == "Apply" && m.Subresource == "":
			return nil, nil
		case m.Ours():
			at = i
		}
	}
	if at < 0 || fields == nil {
		return nil, nil
	}
	if ours, err := in.Ours(live); ours != fields || err != nil {
		return nil, err
	}
	entry, _ := entries[at].(map[string]any)
	entries[at] = renamed(entry, manager)
	meta, _ := live["metadata"].(map[string]any)
	return json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	})
}

// own is the entry of our applies in a live object; the zero Manager if there is none.
func own(obj map[string]any) Manager {
	for _, x := range entriesOf(obj) {
		entry, _ := x.(map[string]any)
		if m := managerOf(entry); m.Ours() {
			return m
		}
	}
	return Manager{}
}

// ChangedAt is when an apply of ours last changed the object; zero if none did. It has the precision of a second.
func ChangedAt(obj map[string]any) time.Time {
	at, err := time.Parse(time.RFC3339, own(obj).Time)
	if err != nil {
		return time.Time{}
	}
	return at
}

// ownFields are the fields that are noted for our applies in a live object; nil if there are none.
func ownFields(obj map[string]any) map[string]any {
	if fields := own(obj).Fields; len(fields) > 0 {
		return fields
	}
	return nil
}

// ScaledBy is the autoscaler that owns /spec/replicas through the scale subresource; empty: none does.
func ScaledBy(obj map[string]any) string {
	if ReplicasOf(obj) < 0 {
		return ""
	}
	for _, m := range Managers(obj) {
		spec, _ := m.Fields["f:spec"].(map[string]any)
		_, replicas := spec["f:replicas"]
		switch {
		case !replicas || !IsAutoscaler(m.Manager, m.Subresource):
		case m.Manager == "": // the server takes writes of nobody, too
			return "somebody"
		default:
			return m.Manager
		}
	}
	return ""
}

// ReplicasOfOthers are the live replicas that our manager is not noted for, and who is; -1: it is, or there are none.
func ReplicasOfOthers(obj map[string]any) (replicas int64, by string) {
	by = "somebody"
	for _, m := range Managers(obj) {
		spec, _ := m.Fields["f:spec"].(map[string]any)
		switch _, has := spec["f:replicas"]; {
		case has && m.Ours():
			return -1, ""
		case has && m.Manager != "":
			by = m.Manager
		}
	}
	return ReplicasOf(obj), by
}

// ScaledAt is the way to the field that an autoscaler has set through the scale subresource, where that is another one than
// /spec/replicas: the definition of a custom kind says which; nil: none has.
func ScaledAt(obj map[string]any) []string {
	for _, m := range Managers(obj) {
		if !IsAutoscaler(m.Manager, m.Subresource) {
			continue
		}
		if path := onlyField(m.Fields); len(path) > 0 && !slices.Equal(path, replicasPath) {
			return path
		}
	}
	return nil
}

var replicasPath = []string{"spec", "replicas"}

// onlyField is the way to the one field that a set in the form of fieldsV1 holds; nil: it holds others.
func onlyField(fields map[string]any) (path []string) {
	for len(fields) == 1 {
		for element, x := range fields {
			name, isField := strings.CutPrefix(element, "f:")
			if !isField {
				return nil
			}
			path = append(path, name)
			fields, _ = x.(map[string]any)
		}
	}
	if len(fields) > 0 {
		return nil
	}
	return path
}

// ProofOf says what managedFields prove of our manager.
func ProofOf(entries []metav1.ManagedFieldsEntry) plan.Proof {
	for _, e := range entries {
		if !ours(e) {
			continue
		}
		fields := metadataOf(e)
		_, hub := fields.Labels["f:"+fleet.HubLabel]
		_, owner := fields.Annotations["f:"+fleet.OwnerAnnotation]
		return plan.Proof{Applied: true, Marked: hub && owner}
	}
	return plan.Proof{}
}

// HoldOn is the hold that a live object's annotation puts, and who set that; nil: there is none.
func HoldOn(annotations map[string]string, entries []metav1.ManagedFieldsEntry) *fleet.ObjectHold {
	h := plan.HoldOf(annotations)
	if h == nil {
		return nil
	}
	for _, e := range entries {
		_, set := metadataOfAny(e).Annotations["f:"+fleet.HoldAnnotation]
		switch {
		case !set:
		case e.Time == nil:
			h.By = cmp.Or(h.By, Intern(e.Manager))
		case !e.Time.Time.Before(h.Since):
			h.By, h.Since = Intern(e.Manager), e.Time.UTC()
		}
	}
	return h
}

// metadataFields are the labels and annotations of an entry, as fieldsV1 has them.
type metadataFields struct {
	Labels      map[string]any `json:"f:labels"`
	Annotations map[string]any `json:"f:annotations"`
}

// metadataOf are those of an entry of our manager; what cannot be read has none.
func metadataOf(e metav1.ManagedFieldsEntry) metadataFields {
	if !ours(e) {
		return metadataFields{}
	}
	return metadataOfAny(e)
}

// metadataOfAny are those of an entry of whichever manager.
func metadataOfAny(e metav1.ManagedFieldsEntry) metadataFields {
	var fields struct {
		Metadata metadataFields `json:"f:metadata"`
	}
	if e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) != nil {
		return metadataFields{}
	}
	return fields.Metadata
}

// Ours parses the fields that our manager has in a live object.
func (in *Interner) Ours(live map[string]any) (*PathSet, error) {
	return in.intern(ownFields(live), nil)
}

// Written is what an answer to an apply proves: the fields that are ours now, and their values. An answer without
// managedFields, as some aggregated servers give, counts every field of desired as ours.
//
// withoutReplicas says that /spec/replicas was left to an autoscaler: what is wanted there is among the values nevertheless,
// for the day when none holds it any more.
func (in *Interner) Written(answer map[string]any, d *Desired, withoutReplicas bool) (*PathSet, Values, error) {
	desired, err := d.empties()
	if err != nil {
		return nil, Values{}, err
	}
	fields := ownFields(answer)
	if fields == nil {
		if desired, err = d.Object(); err != nil {
			return nil, Values{}, err
		}
		fields = fieldsOf(desired)
	}
	p, err := in.intern(fields, desired)
	if err != nil {
		return nil, Values{}, err
	}
	values := p.Of(answer)
	switch {
	case values.Holding&holdsReplicas != 0:
	case withoutReplicas, values.Holding&holdsNone != 0:
		if desired, err = d.Object(); err != nil {
			return nil, Values{}, err
		}
		values.Replicas = ReplicasOf(desired)
	default:
		values.Replicas = -1
	}
	values.Holding &= holdsNone
	return p, values, nil
}

func (in *Interner) intern(fields, desired map[string]any) (*PathSet, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.build(fields, desired)
}

// fieldsOf lists the fields of an object, lists as a whole, without what identifies it.
func fieldsOf(desired map[string]any) map[string]any {
	out := fieldsIn(desired)
	for _, name := range []string{"f:apiVersion", "f:kind", "f:metadata"} {
		delete(out, name)
	}
	meta, _ := desired["metadata"].(map[string]any)
	sub := map[string]any{}
	for _, f := range []string{"labels", "annotations"} {
		if m, ok := meta[f].(map[string]any); ok && len(m) > 0 {
			sub["f:"+f] = fieldsIn(m)
		}
	}
	if len(sub) > 0 {
		out["f:metadata"] = sub
	}
	return out
}

// fieldsIn lists the fields of a map, and of those in it.
func fieldsIn(m map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		sub := map[string]any{}
		if below, ok := v.(map[string]any); ok {
			sub = fieldsIn(below)
		}
		out["f:"+k] = sub
	}
	return out
}

// WhoTook lists the fields of ours that are not ours any more in the live object, and the manager that has the first of
// them now. Where nobody has, the newest writer is named. Those that are excused are left out.
func WhoTook(live map[string]any, ours *PathSet, excused func(Field) bool) ([]Field, string) {
	scratch := NewInterner()
	var now *PathSet
	managers := Managers(live)
	sets := make([]*PathSet, len(managers))
	newest, at := "", ""
	for i, m := range managers {
		p, err := scratch.build(m.Fields, nil)
		if err != nil {
			continue
		}
		if sets[i] = p; m.Ours() {
			now, sets[i] = p, nil
			continue
		}
		if m.Time >= at && m.Subresource != "status" {
			newest, at = m.Manager, m.Time
		}
	}
	lost := ours.Missing(now, live)
	if excused != nil {
		lost = slices.DeleteFunc(lost, excused)
	}
	for _, l := range lost {
		for i, p := range sets {
			if p != nil && p.holds(l.path) {
				return lost, managers[i].Manager
			}
		}
	}
	return lost, newest
}

// WroteAfterUs is the manager that wrote the object last, if that was no apply of ours and nothing but its status; empty: none
// is known. Times have the precision of a second.
func WroteAfterUs(live map[string]any) string {
	by, at := "", own(live).Time
	for _, m := range Managers(live) {
		if !m.Ours() && m.Subresource != "status" && m.Time >= at {
			by, at = m.Manager, m.Time
		}
	}
	return by
}

// Renews reports that an apply whose answer is given would do more to the live object than to take from other managers what
// they have otherwise: a field of ours changes or goes, or one comes that nobody has. Then what we applied last was
// something else. withoutReplicas says that /spec/replicas is left to an autoscaler.
func Renews(live, answer map[string]any, withoutReplicas bool) (bool, error) {
	scratch := NewInterner()
	ours, err := scratch.build(ownFields(live), nil)
	if err != nil {
		return false, err
	}
	next, err := scratch.build(ownFields(answer), nil)
	if err != nil {
		return false, err
	}
	before, after := ours.Of(live), ours.Of(answer)
	switch replicas := before.Holding&holdsReplicas != 0 && !withoutReplicas; {
	case before.Hash != after.Hash, after.Holding&holdsLess != 0:
		return true, nil
	case replicas && (before.Replicas != after.Replicas || after.Holding&holdsLessReplicas != 0):
		return true, nil
	}
	var others []*PathSet
	for _, m := range Managers(live) {
		if p, err := scratch.build(m.Fields, nil); err == nil && !m.Ours() {
			others = append(others, p)
		}
	}
	return slices.ContainsFunc(next.Missing(ours, live), func(f Field) bool {
		return !slices.ContainsFunc(others, func(p *PathSet) bool { return p.holds(f.path) })
	}), nil
}

// HeldBeforeUs reports that the manager of a conflict has had the field since before our last apply changed the live object, so
// that the field was not ours then. Times have the precision of a second: of the same second nothing can be said.
func HeldBeforeUs(live map[string]any, c FieldConflict) bool {
	last := own(live).Time
	for _, m := range Managers(live) {
		if m.Ours() || m.Manager != c.Manager || m.Time == "" || m.Time >= last {
			continue
		}
		if p, err := NewInterner().build(m.Fields, nil); err == nil && p.Paths()[c.Field] {
			return true
		}
	}
	return false
}

// FieldNamed is the field of a live object that a conflict message names, as .spec.containers[name="web"].image, and
// that the manager has; false if it has none of the name.
func FieldNamed(live map[string]any, manager, name string) (Field, bool) {
	for _, m := range Managers(live) {
		if m.Manager != manager {
			continue
		}
		p, err := NewInterner().build(m.Fields, nil)
		if err != nil {
			continue
		}
		for _, f := range p.Missing(nil, live) {
			if notation(f.path) == name {
				return f, true
			}
		}
	}
	return Field{}, false
}

func notation(path []*element) string {
	var out strings.Builder
	for _, e := range path {
		out.WriteString(e.String())
	}
	return out.String()
}
