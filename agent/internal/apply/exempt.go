package apply

import (
	"encoding/json"
	"fmt"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Exempt is what a record knows of the fields that a policy leaves as they are. Nil: there are none.
type Exempt struct {
	// Text names the policy.
	Text string
	// Body is the digest of what the module lists without the fields that the policy names.
	Body fleet.Digest
	// Left are fields that the module lists, and that are not ours by the policy: they are ours again without it.
	Left *PathSet
	// Free are those of ours that others may change.
	Free *PathSet
	// Kept is what our last write left at the fields that a revision keeps, as JSON. It is stored encrypted.
	Kept []byte
	// sealed is Kept as it was stored, until that is opened.
	sealed []byte
	// Lent are those of Left that Managers held at our last write. They are ours again when none of them holds them.
	Lent     *PathSet
	Managers []string
}

// Remainder is what is applied to an object that is there, and what of it is left.
type Remainder struct {
	// Desired is without the fields that are left, and with the values of those that a revision keeps.
	Desired *Desired
	// lent are the fields that are left because a manager of the policy holds them, in the form of fieldsV1.
	lent map[string]any
}

// Leaving is what is known of a write to an object that is there.
type Leaving struct {
	Exempt *plan.Exempt
	// Verb leaves what others changed of OnDrift, and puts OnUpdate back to what our last write left, if it repeats a write;
	// else it is a revision's, which has its way with OnDrift and leaves the live values of OnUpdate.
	Verb plan.Verb
	// Record is that of the live object; nil: there is none.
	Record *Record
}

// Leave is what of the desired object is applied to the live one. A field is listed though it is exempt where it comes with
// an item of a list that is not there yet: the API server may not take the item without it.
func (d *Desired) Leave(live map[string]any, l Leaving) (Remainder, error) {
	if l.Exempt == nil {
		return Remainder{Desired: d}, nil
	}
	listed, err := d.Object()
	if err != nil {
		return Remainder{}, err
	}
	noted := map[string]any{}
	for _, m := range Managers(live) {
		noted = both(noted, m.Fields)
	}
	l.Exempt = d.folded(l.Exempt)
	kept, err := l.keep(listed, live, noted)
	if err != nil {
		return Remainder{}, fmt.Errorf("%s: %w", d.id, err)
	}
	out, _ := trim(kept, live, both(noted, l.Record.listed()), l.Exempt.Always, nil)
	r := Remainder{lent: within(heldBy(live, l.Exempt.Managers), out)}
	out, _ = take(out, r.lent, nil)
	if l.Verb.Repeats() {
		out, _ = take(out, l.lost(kept, live, noted), nil)
	}
	own, _ := split(ownFields(live), listed, l.Exempt.Always, nil)
	r.Desired, err = d.with(anchor(out, kept, live, own, l.Exempt.Always))
	return r, err
}

// with is the desired object with other fields.
func (d *Desired) with(fields any) (*Desired, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return &Desired{Content: d.Content, before: d.before, id: d.id, text: text}, nil
}

// keep is what is listed with the values that a revision does not change: the live ones or, where what somebody changed is put back,
// those of our last write.
func (l Leaving) keep(listed, live map[string]any, noted map[string]any) (map[string]any, error) {
	if len(l.Exempt.OnUpdate) == 0 && !l.Exempt.Updates {
		return listed, nil
	}
	source := map[string]any{}
	switch {
	case l.Exempt.Updates && live == nil && l.Record.keptNothing():
		return listed, nil // what it was nobody can tell, and an object without fields is none
	case l.Verb.Repeats() && !l.Exempt.Stays() && !l.Record.keptNothing():
		if err := utiljson.Unmarshal(l.Record.Exempt.Kept, &source); err != nil {
			return nil, fmt.Errorf("what was kept of it: %w", err)
		}
	default:
		source = restrict(live, both(ownFields(live), l.Record.listed()))
	}
	if l.Exempt.Updates {
		return whole(listed, source), nil
	}
	out, _ := overlay(listed, source, noted, l.Exempt.OnUpdate).(map[string]any)
	return out, nil
}

// keptNothing reports that nothing is kept of what the object was, or that it cannot be read any more.
func (r *Record) keptNothing() bool { return r == nil || r.Exempt == nil || len(r.Exempt.Kept) == 0 }

// Restored is what an object is made of again that is gone, because somebody deleted it or because it could not be changed in place:
// with the values that it had. What a revision deleted, or is to make as a whole, is as the module says.
func (d *Desired) Restored(l Leaving) (*Desired, error) {
	if l.Exempt == nil || l.Record == nil || l.Record.Exempt == nil || l.Record.Exempt.Text != l.Exempt.Text {
		return d, nil
	}
	if l.Record.Goes() || l.Exempt.Stays() {
		return d, nil
	}
	l.Verb = plan.Restore
	listed, err := d.Object()
	if err != nil {
		return nil, err
	}
	l.Exempt = d.folded(l.Exempt)
	out, err := l.keep(listed, nil, l.Record.listed())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.id, err)
	}
	return d.with(out)
}

// Held is what of the desired object is still the module's in the live one, by a record of the same content; lost says that others took, or took away,
// some of it.
func (d *Desired) Held(live map[string]any, r *Record) (held *Desired, lost bool, err error) {
	listed, err := d.Object()
	if err != nil {
		return nil, false, err
	}
	gone, _ := without(r.Paths.fields(), ownFields(live), false)
	out, _ := take(listed, gone, nil)
	held, err = d.with(out)
	return held, len(gone) > 0, err
}

// lost are fields of OnDrift that are not ours any more, in the form of fieldsV1.
func (l Leaving) lost(listed any, live, noted map[string]any) map[string]any {
	_, all := split(noted, listed, l.Exempt.OnDrift, nil)
	if l.Record != nil && l.Record.Exempt != nil && l.Record.Exempt.Free != nil {
		all = both(all, l.Record.Exempt.Free.fields())
	}
	out, _ := without(all, ownFields(live), false)
	return out
}

// listed are the fields that a record knows as the module's, in the form of fieldsV1.
func (r *Record) listed() map[string]any {
	if r == nil || r.Paths == nil {
		return nil
	}
	out := r.Paths.fields()
	if r.Exempt != nil && r.Exempt.Left != nil {
		out = both(out, r.Exempt.Left.fields())
	}
	return out
}

// folded is what is exempt of the object as it is applied: the text of a Secret is in its data.
func (d *Desired) folded(x *plan.Exempt) *plan.Exempt {
	if x == nil || !isCoreSecret(d.id) {
		return x
	}
	out := *x
	for _, list := range []*[]fleet.FieldPath{&out.Always, &out.OnDrift, &out.OnUpdate} {
		*list = slices.Clone(*list)
		for i, p := range *list {
			if p[0] == "stringData" {
				(*list)[i] = append(fleet.FieldPath{"data"}, p[1:]...)
			}
		}
	}
	return &out
}

// Released is a live object of which exempt fields are to be nobody's.
type Released struct {
	// Patch is the JSON patch that does it. It changes no value. Nil: none of them is noted for us.
	Patch []byte
	// Object is the object after it.
	Object map[string]any
	// fields are those fields, in the form of fieldsV1.
	fields map[string]any
}

// Release has the API server note the fields of exempt paths for nobody, where it notes them for us: a field that our manager stops
// listing goes otherwise. manager is who applies for us.
func (d *Desired) Release(live map[string]any, x *plan.Exempt, manager string) (Released, error) {
	if x == nil || len(x.Always) == 0 {
		return Released{Object: live}, nil
	}
	desired, err := d.Object()
	if err != nil {
		return Released{}, err
	}
	kept, released := split(ownFields(SeenAs(manager, live)), desired, d.folded(x).Always, nil)
	if len(released) == 0 {
		return Released{Object: live}, nil
	}
	entries := slices.Clone(entriesOf(live))
	for i, x := range entries {
		if entry, _ := x.(map[string]any); managerOf(entry).applies(manager) {
			entry = shallow(entry)
			entry["fieldsV1"] = kept
			entries[i] = entry
		}
	}
	out := Released{Object: shallow(live), fields: released}
	meta, _ := live["metadata"].(map[string]any)
	meta = shallow(meta)
	meta["managedFields"] = entries
	out.Object["metadata"] = meta
	out.Patch, err = json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	})
	return out, err
}

// Same reports that nothing but exempt fields changed of what a module lists since the record was made under the same policy.
func (e *Exempt) Same(d *Desired, x *plan.Exempt) bool {
	if e == nil || e.Text != x.Name() {
		return e == nil && x == nil
	}
	body, err := d.bodyDigest(x)
	return err == nil && body == e.Body
}

// bodyDigest names the desired object without what a revision does not write.
func (d *Desired) bodyDigest(x *plan.Exempt) (fleet.Digest, error) {
	obj, err := d.Object()
	if err != nil {
		return fleet.Digest{}, err
	}
	x = d.folded(x)
	text, err := json.Marshal(blank(obj, slices.Concat(x.Always, x.OnUpdate)))
	return fleet.DigestOf(text), err
}

// Exempt is what the answer to a write proves of the fields that are left. released are those that were just released, old is
// the record of before.
func (in *Interner) Exempt(answer map[string]any, d *Desired, r Remainder, x *plan.Exempt, released Released, old *Record) (*Exempt, error) {
	if x == nil {
		return nil, nil
	}
	desired, err := d.Object()
	if err != nil {
		return nil, err
	}
	x = d.folded(x)
	own := ownFields(answer)
	rest, _ := without(within(both(both(released.fields, r.lent), old.listed()), desired), own, false)
	out := &Exempt{Text: Intern(x.Text), Managers: x.Managers}
	if out.Body, err = d.bodyDigest(x); err != nil {
		return nil, err
	}
	if out.Left, err = in.intern(rest, nil); err != nil {
		return nil, err
	}
	if len(r.lent) > 0 {
		if out.Lent, err = in.intern(r.lent, nil); err != nil {
			return nil, err
		}
	}
	if _, free := split(own, desired, x.OnDrift, nil); len(free) > 0 {
		if out.Free, err = in.intern(free, nil); err != nil {
			return nil, err
		}
	}
	kept := own
	if !x.Updates {
		_, kept = split(own, desired, x.OnUpdate, nil)
	}
	if len(kept) > 0 {
		out.Kept, err = json.Marshal(restrict(answer, kept))
	}
	return out, err
}

// Excuse takes from what differs in a live object what others may change of it: that is no drift. Where nobody has taken anything that he
// may change, a value that is another one is as it is without a policy: a write of ours made it so of which we know nothing. returned says
// that no manager of the policy holds any more what was lent to them.
func (r *Record) Excuse(v Values, live map[string]any) (out Values, returned bool) {
	excused := r.Excused(live)
	if excused == nil || v.Holding&holdsNone != 0 {
		return v, false
	}
	mine, err := NewInterner().build(ownFields(live), nil)
	if err != nil {
		return v, false
	}
	if r.Exempt.Lent != nil {
		returned = slices.ContainsFunc(r.Exempt.Lent.Missing(mine, live), func(f Field) bool { return !excused(f) })
	}
	all, any := true, false
	for _, f := range r.Paths.Missing(mine, live) {
		switch free := excused(f); {
		case f.Pointer == ReplicasPointer && free:
			v.Replicas, v.Holding = r.Base.Replicas, v.Holding&^holdsLessReplicas
		case f.Pointer != ReplicasPointer:
			all, any = all && free, true
		}
	}
	if all && any {
		v.Hash, v.Holding = r.Base.Hash, v.Holding&^holdsLess
	}
	return v, returned
}

// Excused reports of a field that is not ours any more that a policy leaves it to who changed it; nil: it leaves nothing so.
func (r *Record) Excused(live map[string]any) func(Field) bool {
	if r.Exempt == nil || len(r.Exempt.Managers) == 0 && r.Exempt.Free == nil {
		return nil
	}
	theirs, err := NewInterner().build(heldBy(live, r.Exempt.Managers), nil)
	return func(f Field) bool { return err == nil && theirs.holds(f.path) || r.Exempt.Free.holds(f.path) }
}

// heldBy are the fields that some managers hold in a live object, but of its status.
func heldBy(live map[string]any, managers []string) map[string]any {
	out := map[string]any{}
	if len(managers) == 0 {
		return out
	}
	for _, m := range Managers(live) {
		if m.Subresource != "status" && slices.Contains(managers, m.Manager) {
			out = both(out, m.Fields)
		}
	}
	return out
}
