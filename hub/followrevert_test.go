package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// letsGo is one as of a push that moves m to two, which cannot take it up.
func letsGo(t *testing.T) *folders {
	f := newFolders(t, true)
	f.push("a", "b m broken")
	f.oneBeginsWithoutTwo()
	f.awaitHeir("c", "one", "m", "two")
	return f
}

// TestRevertThatTheOtherSeesFirst: the push is reverted, and that is seen for the other module, of which it changes nothing: what the one
// lets go stays until somebody has looked for it, too, which is soon, and then is its own again.
func TestRevertThatTheOtherSeesFirst(t *testing.T) {
	f := letsGo(t)
	f.pushAll(map[string]string{"one": "a m", "two": "b", "zoo": "z"})
	_, err := f.resync("two")
	must(t, err)
	f.at("one", 3)
	f.lostNothing()
}

// TestPushOfOthersThatTheOtherSeesFirst: what comes instead lists it nowhere, and somebody looks for the one: it goes.
func TestPushOfOthersThatTheOtherSeesFirst(t *testing.T) {
	f := letsGo(t)
	f.pushAll(map[string]string{"one": "a", "two": "b", "zoo": "z"})
	_, err := f.resync("two")
	must(t, err)
	f.awaitHeir("c", "one", "m", "")
}

// TestDeleteOfOneWhosePushIsNotSeen: a push moves a file from the folder of one module to that of another, and the one is deleted before
// anybody looks: the file stays until somebody has looked for the other, which is soon.
func TestDeleteOfOneWhosePushIsNotSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		two  string
		goes int64
	}{
		"it takes the file":  {"b m", 2},
		"it changes nothing": {"b", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolders(t, true)
			f.push("", tc.two)
			_, err := f.Modules.DeleteModule(f.ctx, &towlinev1.DeleteModuleRequest{Name: "one", Force: true})
			must(t, err)
			f.gone("one")
			f.at("two", tc.goes)
			if tc.goes == 2 {
				f.lostNothing()
			}
		})
	}
}

// TestQueuedPutOfOneThatFollowsNothing: the put of another module of the branch, which follows nothing, is queued, and was fetched before a push
// that moves a file there: at its turn it takes what is there then, so that the file stays until that has been fetched, which is soon.
func TestQueuedPutOfOneThatFollowsNothing(t *testing.T) {
	for name, tc := range map[string]struct{ two, heir string }{
		"it takes the file":  {"b m", "two"},
		"it changes nothing": {"b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolders(t, true)
			two := func(b2 string) *towlinev1.Module {
				m := following("two", f.url)
				m.Spec.Source.Git.Path, m.Spec.Source.Follow = "two", nil
				m.Spec.Bindings = []*towlinev1.Binding{{Name: "B", Value: &b2}}
				return queueing(m)
			}
			f.put(two("1"))
			f.until("two", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			f.queued(two("2"))
			f.push("a", tc.two)
			one := following("one", f.url)
			one.Spec.Source.Git.Path, one.Spec.Source.Follow.Interval = "one", "1h"
			f.put(one)
			f.at("one", 2)
			f.awaitHeir("c", "one", "m", tc.heir)
		})
	}
}

// TestRollbackOfOneWhosePushIsNotSeen: a push moves to another module what only the newest revision of the one has, and before anybody has
// looked the one is rolled back: that stays until somebody has looked for the other, which is soon.
func TestRollbackOfOneWhosePushIsNotSeen(t *testing.T) {
	f := newFolders(t, true)
	f.push("a m k", "b")
	m := following("one", f.url)
	m.Spec.Source.Git.Path, m.Spec.Source.Follow.Interval = "one", "1h"
	f.await("one", f.put(m).GetRevision())
	f.at("one", 2)
	f.push("a m", "b k")
	f.back.Store(true)
	f.act(client.Word{Module: "one", Verb: "rollback"})
	f.at("two", 2)
	f.lostNothing()
}

// TestRevertOfWhatWasAborted: a person aborts what a push of the other module was to begin, which waited its turn, and the push is reverted: the other
// has all that is there, so that what the one lets go by that goes, also where it was looked at before.
func TestRevertOfWhatWasAborted(t *testing.T) {
	f := newFolders(t, true)
	two := queueing(following("two", f.url))
	two.Spec.Source.Git.Path = "two"
	f.push("a m", "b b2")
	f.put(two)
	f.until("two", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	f.push("a m", "b b2 b3")
	came, err := f.resync("two")
	must(t, err)
	if came.GetRollout() != "two/3" {
		t.Fatalf("%v", came)
	}
	_, err = f.Rollouts.AbortRollout(f.ctx, &towlinev1.AbortRolloutRequest{Module: "two", Number: 3, Reason: "broken"})
	must(t, err)
	f.push("a", "b b2")
	came, err = f.resync("one")
	must(t, err)
	f.await("one", came.GetRevision())
	f.at("one", 2)
	f.awaitHeir("c", "one", "m", "")
	if got := f.until("two", 0, func(*towlinev1.Rollout) bool { return true }); got.GetNumber() != 3 {
		t.Errorf("%v has begun", got)
	}
}
