package apply

import (
	"sync"
	"time"

	"towline.dev/towline/agent/internal/kube"
)

// RefusedFor is for how long nothing but refusals has to come until they say that the agent lacks a right. An API server that starts refuses
// everybody until it has read its roles, which takes a tenth of a second, and longer where its store is slow.
const RefusedFor = 10 * time.Second

// RefusedLapse is how far apart two refusals in a row may be, for nobody knows what was so in between. Who waits for an answer asks again within
// a minute.
const RefusedLapse = 5 * time.Minute

// Refusals are what came of looks for which the agent may lack a right.
type Refusals struct {
	mu          sync.Mutex
	since, last time.Time // the first and the last of the refusals in a row; zero: the last look was not refused
	told        bool      // that the right is missing, and none has succeeded since
}

// Note takes the error of a look, or that there was none. lacks says that the right is missing; news that this was not so before, or that a look
// succeeds after it was. Whatever else fails begins the row anew, so that no API server which starts again and again counts as one that refuses.
func (r *Refusals) Note(err error, now time.Time) (lacks, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !kube.Is(err, kube.Forbidden) {
		news = err == nil && r.told
		r.since, r.last, r.told = time.Time{}, time.Time{}, r.told && !news
		return false, news
	}
	if r.last.IsZero() || now.Sub(r.last) > RefusedLapse {
		r.since = now
	}
	r.last = now
	lacks = now.Sub(r.since) >= RefusedFor
	news = lacks && !r.told
	r.told = r.told || lacks
	return lacks, news
}

// RefusalsBy are those of looks at each of several things, by its name: a right may be to some of them.
type RefusalsBy struct {
	mu sync.Mutex
	of map[string]*Refusals
}

// Note is Refusals.Note of one of them.
func (r *RefusalsBy) Note(name string, err error, now time.Time) (lacks, news bool) {
	r.mu.Lock()
	one := r.of[name]
	if one == nil && kube.Is(err, kube.Forbidden) {
		if one = new(Refusals); r.of == nil {
			r.of = map[string]*Refusals{}
		}
		r.of[name] = one
	}
	r.mu.Unlock()
	if one == nil {
		return false, false
	}
	return one.Note(err, now)
}
