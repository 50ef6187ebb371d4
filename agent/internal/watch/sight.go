package watch

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
)

const (
	// BlindAfter is for how long a kind may go without a watch before nothing is said of its objects any more. A watch
	// that ends in order is followed by the next at once.
	BlindAfter = 30 * time.Second
	// blindAgain is when a kind that stays without a watch is looked at again while the whole API server is not reached.
	blindAgain = 5 * time.Second
	// early is how much before its time a watch has to end for something to have cut it short.
	early = 5 * time.Second
	// listAgain is after which time a kind is listed anew when its watch ends.
	listAgain = time.Hour
	// longListAgain is the same of a kind of which a list takes so long that the kind may not be seen meanwhile.
	longListAgain = 24 * time.Hour
	// listableTime bounds the question whether it can be.
	listableTime = 5 * time.Second
)

// retries of a watch that cannot be had: seldom enough for a server that is coming up, and soon enough that people see
// what happened meanwhile.
func retries() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}
}

// sight is whether a kind is being watched.
type sight struct {
	since time.Time // since when no watch of the kind is open; zero: one is
	why   error     // of the last attempt
	timer *time.Timer
	blind bool // for too long
	// opened is when the watch that is open was, and dark for how long none had been; zero: it never was closed.
	opened time.Time
	dark   time.Duration
	// brief is how many watches in a row ended before they could bring what had happened.
	brief int
	// late are objects whose grace was over while no watch was open.
	late []*Fingerprint
}

// catchUp is how long a watch has to bring what happened while none was open.
const catchUp = time.Second

// defers has the grace of an object end later if no watch is open, or one is only since a moment ago. One that was opened after the grace was over
// has had its time, though it has ended since: there may be a server whose watches never last.
func (k *kind) defers(f *Fingerprint) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	left := catchUp - time.Since(k.sight.opened)
	switch {
	case f.grace.late || k.prints[f.Key()] != f:
		return false
	case !k.sight.since.IsZero():
		k.sight.late = append(k.sight.late, f)
	case left > 0:
		time.AfterFunc(left, func() { k.endGrace(f) })
	default:
		return false
	}
	f.grace.late = true
	return true
}

// lag is for how long nobody may have heard what happened to the objects.
func (k *kind) lag() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch s := &k.sight; {
	case !s.since.IsZero():
		return time.Since(s.since)
	case time.Since(s.opened) < catchUp:
		return s.dark + time.Since(s.opened)
	}
	return 0
}

// attempt says that a watch is about to be opened, so that none is.
func (k *kind) attempt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.sight.since.IsZero() || k.ended {
		return
	}
	k.sight.since = time.Now()
	if k.sight.brief++; time.Since(k.sight.opened) >= catchUp {
		k.sight.brief = 0
	}
	k.sight.timer = time.AfterFunc(k.w.o.BlindAfter, k.judge)
}

// failed notes why a watch is not open. It passes the error on. That nothing is known of the kind may have been said before, when no attempt
// had failed yet or one had for another reason: then it is said again.
func (k *kind) failed(err error) error {
	k.mu.Lock()
	was := k.sight
	k.sight.why = apply.Cause(err)
	k.mu.Unlock()
	if was.blind && (was.why == nil || kube.Judge(was.why) != kube.Judge(err)) {
		k.w.o.Synced(k.resource)
	}
	return err
}

// sees says that a watch is open, and that all that was before it is known.
func (k *kind) sees() {
	k.mu.Lock()
	was := k.sight
	k.sight = sight{opened: time.Now(), brief: was.brief}
	if !was.since.IsZero() {
		k.sight.dark = time.Since(was.since)
	}
	k.mu.Unlock()
	for _, f := range was.late {
		time.AfterFunc(catchUp, func() { k.endGrace(f) })
	}
	if was.timer != nil {
		was.timer.Stop()
	}
	if was.blind {
		k.w.o.Log.Info("kind is watched again", "kind", k.resource.String())
		k.w.o.Synced(k.resource)
	}
}

// judge says that nothing is known of the kind any more, unless the whole API server is not reached: that is said of the
// cluster, and what was known of it stays.
func (k *kind) judge() {
	reached := k.w.o.Reachable == nil || k.w.o.Reachable()
	k.mu.Lock()
	if k.sight.since.IsZero() || k.ended {
		k.mu.Unlock()
		return
	}
	if !reached {
		k.sight.timer.Reset(blindAgain)
		k.mu.Unlock()
		return
	}
	k.sight.blind = true
	why := k.sight.why
	k.mu.Unlock()
	if k.w.dropUnused(k) {
		return
	}
	k.w.o.Log.Warn("kind is not watched; nothing is known of its objects", "kind", k.resource.String(), "error", why)
	k.w.o.Synced(k.resource)
}

// end stops what waits for the kind.
func (k *kind) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	if k.sight.timer != nil {
		k.sight.timer.Stop()
	}
}

// Blind says why nothing is known of the objects of a kind now; nil: it is watched, or was a moment ago.
func (w *Watcher) Blind(r apply.Resource) error { return w.kind(r).blindness() }

func (k *kind) blindness() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.sight.blind {
		return nil
	}
	if k.sight.why == nil {
		return context.DeadlineExceeded
	}
	return k.sight.why
}

// See is Look while the kind is watched; of one that is not, nothing is known.
func (w *Watcher) See(r apply.Resource, namespace, name string) (f *Fingerprint, known bool) {
	return w.kind(r).see(Key{namespace, name})
}

func (k *kind) see(at Key) (f *Fingerprint, known bool) {
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sight.blind {
		return nil, false
	}
	return k.prints[at], k.synced
}

// Behind reports that a kind in use is not watched at this moment.
func (w *Watcher) Behind() bool {
	return slices.ContainsFunc(w.inUse(), (*kind).dark)
}

// everBrief is after how many watches in a row that were brief there may be a server whose watches never last.
const everBrief = 3

// settling reports that the kind is not known as it is now, and that it may soon be: it is being listed, or no watch of it is open, or one has not
// been for as long as none had, so that it may not have brought yet what happened meanwhile. A kind that is not served, as after its definition was
// deleted, has nothing to tell.
func (k *kind) settling() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.sight
	switch {
	case k.only != nil || s.blind:
		return false
	case !k.synced:
		return true
	case !s.since.IsZero():
		return s.brief < everBrief && !kube.Is(s.why, kube.Unserved)
	}
	return s.brief < everBrief && time.Since(s.opened) < min(s.dark, catchUp)
}

// dark reports that no watch of the kind is open at this moment.
func (k *kind) dark() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.sight.since.IsZero()
}

// opened says that a watch is open, and for how long it was asked for.
func (k *kind) opened(o metav1.ListOptions) {
	if o.TimeoutSeconds == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due = time.Now().Add(time.Duration(*o.TimeoutSeconds) * time.Second)
}

// redefined reports that what the API server shows of the objects may be another thing now though no event says so: it
// ends the watches of a kind whose definition changes. Such kinds are in groups that have a dot in their name.
func (k *kind) redefined() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Contains(k.resource.Group, ".") && time.Until(k.due) > early
}

// outdated reports that what is known of the objects rests on events alone since long ago. One that an API server has not told of, or has taken
// for told, as one whose cache stands still and sends its bookmarks, is seen by a list alone. Where that takes long nothing is known of any meanwhile.
func (k *kind) outdated() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	again := listAgain
	if k.took > k.w.o.BlindAfter/2 {
		again = longListAgain
	}
	return !k.listed.IsZero() && time.Since(k.listed) > again
}

// listable reports that a list is answered now: a watch that works is not given up for one that is refused.
func listable(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, listableTime)
	defer cancel()
	_, err := list(ctx, metav1.ListOptions{Limit: 1})
	return err == nil
}

// observed is the source with an eye on whether it works.
func (k *kind) observed(lw *cache.ListWatch) *cache.ListWatch {
	list, open := k.guardedList(lw.ListWithContextFunc), k.guardedOpen(lw.WatchFuncWithContext)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			k.attempt()
			if o.Continue == "" {
				k.begin()
			}
			page, err := list(ctx, o)
			if err != nil {
				return nil, k.failed(err)
			}
			return page, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			k.attempt()
			initial := o.SendInitialEvents != nil && *o.SendInitialEvents // then Replace says when all is known
			if initial {
				k.begin()
			}
			if k.redefined() {
				return nil, k.failed(apierrors.NewResourceExpired("the definition of " + k.resource.String() + " may have changed"))
			}
			if !initial && k.outdated() && listable(ctx, list) {
				return nil, k.failed(apierrors.NewResourceExpired(k.resource.String() + " was listed long ago"))
			}
			stream, err := open(ctx, o)
			if err != nil {
				return nil, k.failed(err)
			}
			k.opened(o)
			if !initial {
				k.sees()
			}
			return stream, nil
		},
	}
}
