package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
)

// ofFolder is a module that has a folder of the branch, and looks at it once an hour.
func (f *folders) ofFolder(name string) *towlinev1.Module {
	m := following(name, f.url)
	m.Spec.Source.Git.Path, m.Spec.Source.Follow.Interval = name, "1h"
	return m
}

// TestLabelsChangeWithAPush: a push moves a file from the folder of one module to that of another, and before anybody looks the labels of the
// cluster take the one from there, by what was put long ago: the file stays until somebody has looked for the other, which is soon.
func TestLabelsChangeWithAPush(t *testing.T) {
	f := newFolders(t, true)
	one := f.ofFolder("one")
	one.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}}
	f.labelled("c", map[string]string{"zone": "a"})
	f.await("one", f.put(one).GetRevision())
	f.push("", "b m")
	f.labelled("c", nil)
	f.at("two", 2)
	f.awaitTracker("one", "c", "gone", func(tr *towlinev1.Tracker) bool { return tr == nil })
	f.lostNothing()
}

// TestRemovalIsLetLooseAfterAPush: a removal stood still under a hold, and a push moved a file to the folder of another module meanwhile, which
// nobody has looked at since: what goes on then is held against that push, and not against what was there when the removal came.
func TestRemovalIsLetLooseAfterAPush(t *testing.T) {
	f := newFolders(t, true)
	one := f.ofFolder("one")
	one.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}}
	f.labelled("c", map[string]string{"zone": "a"})
	f.await("one", f.put(one).GetRevision())
	f.await("two", f.put(f.ofFolder("two")).GetRevision())
	f.slow.Store(true)
	f.labelled("c", nil)
	dead := func(hold bool) func() bool {
		return func() bool {
			got := f.agents["c"].Held().Tombstones
			return len(got) == 1 && got[0].Hold == hold && !assemble.WaitsForUnknown(got[0].Heirs)
		}
	}
	f.eventually(dead(false))
	hold, err := f.Modules.PutHold(f.ctx, &towlinev1.PutHoldRequest{Module: "one", Cluster: "c"})
	must(t, err)
	f.eventually(dead(true))
	f.slow.Store(false)
	f.push("", "b m")
	f.down.Store(true)
	f.confirm(hold.GetHold())
	f.awaitHeir("c", "one", "m", "two") // which may be its heir, until it was looked at
	f.down.Store(false)
	_, err = f.resync("two")
	must(t, err)
	f.at("two", 3)
	f.awaitTracker("one", "c", "gone", func(tr *towlinev1.Tracker) bool { return tr == nil })
}

// TestQueuedPutOfTheOneThatARevertOvertakes: what one lets go stays for another, which cannot take the push up; a put of the one waits behind
// its own rollout, and was fetched as of that push, which is reverted then. That is seen for the other alone, of which it changes nothing: what
// the one lets go is its own again at the turn of that put.
func TestQueuedPutOfTheOneThatARevertOvertakes(t *testing.T) {
	f := newFolders(t, true)
	f.push("a", "b m broken")
	if _, err := f.resync("two"); err == nil {
		t.Fatal("what cannot be rendered is taken")
	}
	one := func(value string) *towlinev1.Module {
		m := queueing(f.ofFolder("one"))
		m.Spec.Bindings = []*towlinev1.Binding{{Name: "B", Value: &value}}
		return m
	}
	f.put(one("1"))
	f.until("one", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
	f.awaitHeir("c", "one", "m", "two")
	f.queued(one("2"))
	f.push("a m", "b")
	_, err := f.resync("two")
	must(t, err)
	f.awaitHeir("c", "one", "m", "one")
	f.lostNothing()
}
