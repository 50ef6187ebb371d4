package registry

import (
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// rivalPatience is how long a second agent may ask for a session that another has: a Deployment of two has a new leader
// while the old one's session is not known to be dead.
const rivalPatience = 45 * time.Second

// rivals are the agent instances that were refused because another instance with the same identity is there.
type rivals struct {
	mu   sync.Mutex
	seen map[fleet.ClusterName]rival
}

type rival struct {
	instance    string
	first, last time.Time
}

// refused notes a refusal, and reports that the instance has asked for so long that there must be two agents.
func (r *rivals) refused(c fleet.ClusterName, instance string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.seen[c]
	if x.instance != instance || now.Sub(x.last) > rivalPatience {
		x = rival{instance: instance, first: now}
	}
	x.last = now
	r.seen[c] = x
	return now.Sub(x.first) >= rivalPatience
}

// persists reports that the instance has asked for so long already.
func (r *rivals) persists(c fleet.ClusterName, instance string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.seen[c]
	return x.instance == instance && now.Sub(x.last) <= rivalPatience && now.Sub(x.first) >= rivalPatience
}
