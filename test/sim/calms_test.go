package sim

import (
	"context"
	"strings"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// calms does one thing to a fleet that is as wanted and has no other trouble, of which it is known for that what must follow.
func (w *world) calms() {
	b := w.boxes[pick(w, clusterNames)]
	switch w.rnd.IntN(10) {
	case 0:
		w.stops(b)
	case 1:
		b.kill("for some time")
		w.unseen(b)
		b.again()
	case 2:
		w.note("the API server of %s is down for some time", b.name)
		b.goesDown(true)
		w.unseen(b)
		b.goesDown(false)
	case 3:
		w.stumbles(b)
	case 4:
		w.overtaken(b)
	case 5:
		w.note("the API server of %s hangs for some time", b.name)
		b.hang(true)
		w.renews(b)
		pause(20 * time.Second)
		b.hang(false)
	case 6:
		w.leave(b.name, true)
		w.admits(b.name)
	case 8:
		w.takesBack(b, func() { b.upset(1+w.rnd.IntN(12), kills) })
	case 9:
		w.note("deletions fail in %s for some time", b.name)
		w.takesBack(b, func() { b.deny(true) })
		pause(20 * time.Second)
		b.deny(false)
	case 7:
		w.note("what %s has of connections is stranded", b.name)
		w.net.Strand(b.name, agentsAddress)
		pause(2 * time.Minute)
		w.renews(b)
	}
	b.again() // an agent that its API server failed may have ended
	w.rests()
}

// renews puts a module anew that a cluster has.
func (w *world) renews(b *box) {
	now := w.judge.now()
	for _, name := range moduleNames {
		if m, ok := now.modules[name]; ok && now.selects(m, b.name) {
			m.number = w.number()
			w.judge.wish(func(x *wish) { x.modules[name] = m })
			_ = w.put(name, m, "", false)
			return
		}
	}
}

// takesBack has a module list more objects for some time, in which something happens.
func (w *world) takesBack(b *box, meanwhile func()) {
	now := w.judge.now()
	for _, name := range moduleNames {
		m, ok := now.modules[name]
		free := strings.Join(w.free(name), "")
		if !ok || !now.selects(m, b.name) || len(free) <= len(m.letters) {
			continue
		}
		was := m.letters
		for _, m.letters = range []string{free, was} {
			m.number = w.number()
			w.judge.wish(func(x *wish) { x.modules[name] = m })
			if m.letters == free {
				meanwhile()
			}
			_ = w.put(name, m, "", false)
			pause(w.between(time.Second, 10*time.Second))
		}
		return
	}
}

// stumbles starts an agent while its API server fails now and then.
func (w *world) stumbles(b *box) {
	w.note("every third request in %s fails", b.name)
	b.kill("for a start with trouble")
	b.stumble(true)
	b.again()
	pause(10 * time.Second)
	b.again()
	w.renews(b)
	pause(20 * time.Second)
	b.stumble(false)
}

// overtaken has an order to leave come together with an index that was sent before.
func (w *world) overtaken(b *box) {
	w.note("%s is stuck", b.name)
	w.net.Set(Link{agentsAddress, b.name}, Condition{Delay: 3 * time.Millisecond, Stuck: true})
	w.renews(b)
	pause(time.Second)
	w.leave(b.name, false)
	pause(time.Second)
	w.mends()
	w.admits(b.name)
}

// unseen lets time pass while a cluster cannot be seen: nobody says that anything is ready there.
func (w *world) unseen(b *box) {
	pause(3 * time.Minute)
	var got *towlinev1.ListTrackersResponse
	_ = w.insist("? list trackers", func(ctx context.Context) (err error) {
		got, err = w.Trackers.ListTrackers(ctx, &towlinev1.ListTrackersRequest{})
		return err
	})
	for _, t := range got.GetTrackers() {
		if t.GetCluster() == b.name && t.GetReady() {
			w.judge.finds("I8: %s is ready in %s, which nobody sees", t.GetModule(), b.name)
		}
	}
}

// stops has a module be deleted that is held in a cluster, before or before the agent hears of it: it stays there as long as that lasts.
func (w *world) stops(b *box) {
	name, now := pick(w, moduleNames), w.judge.now()
	if m, ok := now.modules[name]; !ok || !now.selects(m, b.name) {
		return
	}
	hold := func(module string) {
		_ = w.insist("hold "+module+" in "+b.name, func(ctx context.Context) error {
			_, err := w.Modules.PutHold(ctx, &towlinev1.PutHoldRequest{Cluster: b.name, Module: module})
			return err
		})
		pause(20 * time.Second)
	}
	before := w.chance(2)
	if before {
		hold(name)
	} else {
		b.kill("before a deletion")
	}
	w.mu.Lock()
	w.judge.stopped[b.name] = name
	w.mu.Unlock()
	w.judge.wish(func(x *wish) { delete(x.modules, name) })
	_ = w.insist("delete "+name, func(ctx context.Context) error {
		_, err := w.Modules.DeleteModule(ctx, &towlinev1.DeleteModuleRequest{Name: name, Force: true})
		return err
	})
	if !before {
		hold("")
		b.again()
	}
	pause(time.Minute)
	w.mu.Lock()
	delete(w.judge.stopped, b.name)
	delete(w.judge.revs, name)
	w.mu.Unlock()
	w.confirms()
}
