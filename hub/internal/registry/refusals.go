package registry

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"towline.dev/towline/pkg/fleet"
)

const (
	// refusalEvery is how often it is recorded that a cluster is refused the same: its agent asks for days, and whoever has its key as often
	// as they like.
	refusalEvery = time.Hour
	// maxRefusals bounds what is remembered; each cluster has had a certificate of this hub's CA, so that they are few.
	maxRefusals = 10_000
)

type refusal struct {
	cluster fleet.ClusterName
	code    codes.Code
}

// refusals are those that were recorded lately.
type refusals struct {
	mu   sync.Mutex
	seen map[refusal]time.Time
}

// tell reports that a refusal is to be recorded.
func (x *refusals) tell(c fleet.ClusterName, code codes.Code, now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := refusal{c, code}
	if at, told := x.seen[key]; told && now.Sub(at) < refusalEvery {
		return false
	}
	if len(x.seen) >= maxRefusals {
		maps.DeleteFunc(x.seen, func(_ refusal, at time.Time) bool { return now.Sub(at) >= refusalEvery })
	}
	if x.seen == nil || len(x.seen) >= maxRefusals {
		x.seen = map[refusal]time.Time{}
	}
	x.seen[key] = now
	return true
}
