package worker

import (
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestFailureIsOfTheObjectThatWas: what was refused at an object rests for minutes, and ends with the object: the one that is to be made in its place
// has not failed. Whatever fails again rests as before.
func TestFailureIsOfTheObjectThatWas(t *testing.T) {
	for _, c := range []struct {
		was, next  plan.Verb
		seen, ends bool
	}{
		{plan.Apply, plan.Create, false, true},
		{plan.Apply, plan.Restore, false, true},
		{plan.Apply, plan.Create, true, true}, // another one is in its place
		{plan.Apply, plan.Apply, true, false},
		{plan.Apply, plan.Look, true, false},
		{plan.Correct, plan.Look, false, true},
		{plan.Correct, plan.Restore, false, true},
		{plan.Correct, plan.Correct, true, false},
		{plan.Repeat, plan.Create, false, true},
		{plan.Create, plan.Create, false, false},
		{plan.Create, plan.Look, false, false},
		{plan.Restore, plan.Create, false, false},
		{plan.Look, plan.Look, false, false},
	} {
		it := &item{action: plan.Action{Verb: c.was}, fail: &apply.Failure{Reason: "Immutable"}, tries: 5, next: time.Now().Add(time.Hour)}
		it.decided(plan.Action{Verb: c.next}, c.seen)
		if it.action.Verb != c.next || (it.fail == nil) != c.ends || it.next.IsZero() != c.ends {
			t.Errorf("%s after a failed %s, seen %t: failure %v, again at %s", c.next, c.was, c.seen, it.fail, it.next)
		}
	}
}

// TestImmutableObjectIsDeletedByHand: a field cannot be changed in place, by a revision or as a correction; the person does what the status says and
// deletes the object, and it is made as the module has it.
func TestImmutableObjectIsDeletedByHand(t *testing.T) {
	r := newRig(t)
	one := r.bundle("shop", nil, configMap("a", "k: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uid("a")
	deleted := func(s fleet.Sync, value string) {
		t.Helper()
		r.delete("v1", "configmaps", "a")
		r.eventually("it is made again", func() bool { return r.dataOf("a") == value })
		if s = r.again(s); r.uid("a") == uid {
			t.Error("it is the old one")
		}
		r.set([]fleet.Sync{s})
		if x := r.ready(s); len(x.Exceptions) > 0 {
			t.Errorf("it is said still: %+v", x.Exceptions)
		}
		uid = r.uid("a")
	}
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"},"immutable":true}`)
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Immutable" })
	deleted(one, "one")
	fixed := r.bundle("shop", nil, immutable("a", "k: one"))
	r.set([]fleet.Sync{fixed})
	r.ready(fixed)
	two := r.bundle("shop", nil, immutable("a", "k: two"))
	r.set([]fleet.Sync{two})
	r.failed(two)
	deleted(two, "two")
}
