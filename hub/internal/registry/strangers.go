package registry

import (
	"maps"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
)

const (
	// StrangerLife is how long after its last try an agent that this hub does not know is shown: they try every minute.
	StrangerLife = 5 * time.Minute
	// maxStrangers bounds them; each has a certificate of this hub's CA, so that they are few.
	maxStrangers = 1000
)

// Stranger is an agent with a certificate of this hub's CA whose cluster the hub does not have: the store was made anew,
// or the cluster was removed and its agent still runs.
type Stranger struct {
	Cluster fleet.ClusterName
	Seen    time.Time
}

// strangers are those that tried lately. They are not stored: they come again.
type strangers struct {
	mu   sync.Mutex
	seen map[fleet.ClusterName]time.Time
}

// add notes one that tries, and reports whether it is another one than those that are shown.
func (s *strangers) add(c fleet.ClusterName, now time.Time) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.seen, func(_ fleet.ClusterName, t time.Time) bool { return now.Sub(t) >= StrangerLife })
	_, known := s.seen[c]
	if !known && len(s.seen) >= maxStrangers {
		return false
	}
	s.seen[c] = now
	return !known
}

// OnStranger has f called when an agent tries to connect whose cluster the hub does not have, and that was not shown. It is to be said before
// agents are served, and f must return at once.
func (r *Registry) OnStranger(f func()) { r.onStranger = f }

// Strangers are the agents that tried to connect in the last minutes and whose clusters the hub does not have, by name.
func (r *Registry) Strangers() []Stranger {
	r.strangers.mu.Lock()
	defer r.strangers.mu.Unlock()
	var out []Stranger
	for _, c := range slices.Sorted(maps.Keys(r.strangers.seen)) {
		if t := r.strangers.seen[c]; r.now().Sub(t) < StrangerLife {
			out = append(out, Stranger{c, t})
		}
	}
	return out
}
