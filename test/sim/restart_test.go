package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// restarts are how often all agents start anew.
const restarts = 12

// TestRestartedAgentIsHeard: agents start anew in a fleet in which nothing else happens, some of their first sessions end within
// milliseconds, at different points of what is said in them, and now and then the hub starts anew, too. Soon all of them are heard and all
// is healthy again, without any change in a cluster that would have anything said anew.
func TestRestartedAgentIsHeard(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dir, nil)
		w.judge.wish(func(x *wish) { x.modules["one"] = want{number: 1, letters: "ab"} })
		_ = w.put("one", want{number: 1, letters: "ab"}, "", false)
		w.rests()
		for round := range restarts {
			for _, name := range clusterNames {
				w.boxes[name].kill("to start anew")
			}
			if round%4 == 3 {
				w.hub.kill("to start anew")
				w.revive()
			}
			for _, name := range clusterNames {
				w.boxes[name].again()
			}
			for sessions := range 1 + round%3 {
				w.cutsFirst(time.Duration(round*5+sessions*35) * time.Millisecond)
			}
			if wrong := w.healthyWithin(2 * time.Minute); wrong != "" {
				w.judge.finds("round %d: %s", round, wrong)
			}
		}
		for _, f := range w.judge.found {
			t.Error(f)
		}
	})
}

// cutsFirst waits until each agent has connected, and cuts each connection a while after it was made, of each cluster a little later.
func (w *world) cutsFirst(after time.Duration) {
	due, late := map[string]time.Time{}, time.Now().Add(2*time.Minute)
	for waits := slices.Clone(clusterNames); len(waits) > 0; pause(time.Millisecond) {
		if time.Now().After(late) {
			w.judge.finds("%v do not connect", waits)
			return
		}
		connected := w.net.from()
		waits = slices.DeleteFunc(waits, func(name string) bool {
			switch {
			case !connected[name]:
				return false
			case due[name].IsZero():
				due[name] = time.Now().Add(after + time.Duration(len(due))*7*time.Millisecond)
			}
			if time.Now().Before(due[name]) {
				return false
			}
			w.note("cut %s, %v after it has connected", name, after)
			w.net.Cut(name, "")
			return true
		})
	}
}

// from are those that have a connection.
func (n *Network) from() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]bool{}
	for _, p := range n.open {
		out[p.from] = true
	}
	return out
}

// healthyWithin says what is not as it should be when that time is over.
func (w *world) healthyWithin(most time.Duration) (wrong string) {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); {
		pause(time.Second)
		if wrong = w.differs(); wrong == "" {
			return ""
		}
	}
	return wrong
}
