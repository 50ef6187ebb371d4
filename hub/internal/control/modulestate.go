package control

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracing"
)

// maxDirty is how many clusters a module remembers one by one before it looks at all of them.
const maxDirty = 4096

// moduleState is what the controller keeps of a module between runs: which clusters changed, and the run it drives with
// what it observed. Losing it costs a reading of the store, never correctness.
type moduleState struct {
	mu    sync.Mutex
	dirty map[fleet.ClusterName]struct{}
	heard map[fleet.ClusterName]struct{} // of dirty those that reported
	all   bool
	// contested are clusters where what the module owns may have changed; true: by its own assignment.
	contested map[fleet.ClusterName]bool
	// resolved is what the source of the newest put came to, from the resolver until a run of the module's key has cut it.
	resolved *resolved
	// asked is the rollout whose source was asked for last; 0: it is to be asked for at once.
	asked int64
	// away is since when the server of a rollout's source does not answer.
	away struct {
		number int64
		since  time.Time
	}
	// stopped counts the tries of what was stopped in the middle each time so far.
	stopped map[string]int
	// variants are those that are to be rendered of revisions, by their number.
	variants map[int64][]fleet.Variant
	// spans are those of clusters that were sent of a rollout.
	spans struct {
		number int64
		sent   map[tracing.ID]bool
	}

	took    atomic.Int64 // nanoseconds of the last run
	awaited atomic.Int64 // clusters that may report soon

	// Only the one run of the module's key at a time touches these.
	run *rollouts.Run
	// said is the last verb for which a cut waits, or has waited.
	said awaitedVerb
	// shared is what is found out of the bundles that the run assigns, until that has ended.
	shared *record.Shared
	// refused are the clusters that the last run would have taken the module from, had the placement not had it there.
	refused []fleet.ClusterName
	// graced says that the last run was in the grace after the hub's start: all clusters are looked at once when that ends.
	graced bool
	// noted are the removals of which the audit has what agents left, until the hub has forgotten the module.
	noted map[gone]bool
}

// spanned reports that a span of the rollout was sent before, and notes that it is.
func (s *moduleState) spanned(number int64, id tracing.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans.number != number || s.spans.sent == nil {
		s.spans.number, s.spans.sent = number, map[tracing.ID]bool{}
	}
	before := s.spans.sent[id]
	s.spans.sent[id] = true
	return before
}

// forgetSpans drops what was noted of the spans of a rollout that has ended.
func (s *moduleState) forgetSpans(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans.number == number {
		s.spans.sent = nil
	}
}

// How long reports are gathered before a run.
const (
	minGather = 5 * time.Millisecond
	maxGather = 20 * time.Millisecond
)

// rest is how long to gather before the next run: about as long as the last one took, so that a burst of changes makes
// few runs.
func (s *moduleState) rest() time.Duration {
	return min(max(time.Duration(s.took.Load()), minGather), maxGather)
}

// hear marks a cluster that reported. When every cluster that is awaited has, there is nothing to gather for, so that a
// last or only report is not delayed.
func (s *moduleState) hear(c fleet.ClusterName) time.Duration {
	s.mark(c)
	s.mu.Lock()
	if s.heard == nil {
		s.heard = map[fleet.ClusterName]struct{}{}
	}
	s.heard[c] = struct{}{}
	all := int64(len(s.heard)) >= s.awaited.Load()
	s.mu.Unlock()
	if all {
		return 0
	}
	return s.rest()
}

// mark reports true, so that callers can mark and queue in one expression.
func (s *moduleState) mark(c fleet.ClusterName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all {
		return true
	}
	if s.dirty == nil {
		s.dirty = map[fleet.ClusterName]struct{}{}
	}
	s.dirty[c] = struct{}{}
	if len(s.dirty) > maxDirty {
		s.dirty, s.heard, s.all = nil, nil, true
	}
	return true
}

// contest has the module look again at what it owns in the cluster. own says that its own assignment changed, so that
// others may have to look, too.
func (s *moduleState) contest(c fleet.ClusterName, own bool) {
	s.mark(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.contested == nil {
		s.contested = map[fleet.ClusterName]bool{}
	}
	s.contested[c] = s.contested[c] || own
}

// takeContested returns where the module has to look again at what it owns.
func (s *moduleState) takeContested() map[fleet.ClusterName]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.contested
	s.contested = nil
	return out
}

// handOver has the next run of the module's key cut what its source came to.
func (s *moduleState) handOver(r *resolved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolved = r
}

// handedOver is what is to be cut; nil: nothing is.
func (s *moduleState) handedOver() *resolved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resolved
}

// settle ends that r is to be cut, unless the source has come to something else since.
func (s *moduleState) settle(r *resolved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resolved == r {
		s.resolved = nil
	}
}

// asks notes that the source of a rollout is asked for, and reports whether that is new.
func (s *moduleState) asks(number int64) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = s.asked != number
	s.asked = number
	return news
}

// asksAgain has the source be asked for at once, though it was asked for already.
func (s *moduleState) asksAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = 0
}

// want has a variant of a revision rendered.
func (s *moduleState) want(revision int64, v fleet.Variant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.variants == nil {
		s.variants = map[int64][]fleet.Variant{}
	}
	if !slices.ContainsFunc(s.variants[revision], v.Equal) {
		s.variants[revision] = append(s.variants[revision], v)
	}
}

// wanted are the variants that are to be rendered, once.
func (s *moduleState) wanted() map[int64][]fleet.Variant {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.variants
	s.variants = nil
	return out
}

func (s *moduleState) markAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty, s.heard, s.all = nil, nil, true
}

// reset forgets everything but that everything must be looked at.
func (s *moduleState) reset() {
	s.markAll()
	s.run, s.shared = nil, nil
}

// rests forgets what only a run that moves clusters is faster with: most modules have none.
func (s *moduleState) rests() {
	if s.run == nil || s.run.State.State.Ended() {
		s.shared = nil
	}
}

// common is what has been found out of the bundles of the run, for others to add to.
func (s *moduleState) common() *record.Shared {
	if s.shared == nil {
		s.shared = record.NewShared()
	}
	return s.shared
}

// take returns what is dirty and cleans it.
func (s *moduleState) take() (dirty map[fleet.ClusterName]struct{}, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty, all = s.dirty, s.all
	s.dirty, s.heard, s.all = nil, nil, false
	return dirty, all
}

// saidPatience is for how long a cut waits for one verb to be taken in: what keeps a rollout from that may last.
const saidPatience = time.Minute

// awaitedVerb is one for which a cut waits.
type awaitedVerb struct {
	key   string
	since time.Time
	run   bool // the rollout was decided on and committed since: what it has not taken in by then it cannot take in
}

// awaitSaid has the next cut wait for a verb. It returns when to look again.
func (s *moduleState) awaitSaid(key string, now time.Time) time.Time {
	if s.said.key == key {
		return now.Add(time.Second)
	}
	s.said = awaitedVerb{key: key, since: now}
	return now
}

// awaitsSaid reports that a cut waits for a verb: until a run that could take it in is through, and not for ever.
func (s *moduleState) awaitsSaid(key string, now time.Time) bool {
	return s.said.key != key || !s.said.run && now.Sub(s.said.since) < saidPatience
}
