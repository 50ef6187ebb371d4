package rollout_test

import (
	"slices"
	"time"

	"towline.dev/towline/pkg/rollout"
)

// naive is a second, slow and simple model of stages, budgets, soaks, deadlines, offline policies, pauses and rollbacks.
// It shares no code with Decide and agrees with it on who is assigned what, and when.
type naive struct {
	s        rollout.Strategy
	clusters []*naiveCluster // in the order of the plan
	mode     string          // run, paused, back, backpaused, done
	stage    int
	started  []bool
	ended    []bool
	quiet    []time.Time
	soaked   []time.Time // the quiet time whose soak is over, and somebody saw it
	moves    int
	paused   bool // by a person
	goneBack bool
	aborted  bool
}

type naiveCluster struct {
	name       string
	stage      int
	st         string // wait, moving, soak, ok, failed, deferred, skipped, back
	rev        int64  // assigned by the rollout; 0: nothing
	late, away bool
	again      bool // a person had it begin anew, and it has not yet
	unseen     bool // failed by being away
	accepted   bool // failed, and a person went on in spite of that
	goBack     bool
	start      time.Time
	readySince time.Time
	recovering time.Time // ready again since, after it failed
	move       int
}

func (m *naive) active() bool { return m.mode != "done" }
func (m *naive) isBack() bool { return m.mode == "back" || m.mode == "backpaused" }

func (m *naive) update(c *naiveCluster, o rollout.Observed, now time.Time) {
	if c.st != "failed" {
		c.recovering = time.Time{}
		c.accepted = c.accepted && c.again
	}
	if c.goBack && c.rev == 2 {
		return
	}
	switch c.st {
	case "wait":
		if !m.started[c.stage] || !m.active() || m.isBack() {
			return
		}
		switch {
		case m.stillFailed(c, o, now):
		case o.Cordoned || o.Held:
			c.st = "deferred"
		case !o.Connected && m.s.Offline == "Defer":
			c.st = "deferred"
		case !o.Connected && m.s.Offline == "Fail":
			c.st, c.unseen = "failed", true
		}
	case "deferred":
		if m.stillFailed(c, o, now) {
			return
		}
		if c.rev == 0 || c.again {
			if o.Connected && !o.Cordoned && !o.Held {
				c.st, c.late = "wait", c.late || !m.aborted
			}
			return
		}
		if o.Connected && !stands(o) {
			c.st, c.late, c.start, c.readySince = "moving", true, now, time.Time{}
			m.flying(c, o, now)
		}
	case "moving", "soak":
		m.flying(c, o, now)
	case "ok":
		if !m.active() || !o.Connected || o.Held || o.Ready {
			return
		}
		if o.Failed {
			c.st, c.unseen, c.readySince = "failed", false, time.Time{}
		} else if !m.ended[c.stage] {
			c.st, c.start, c.readySince = "moving", now, time.Time{}
		}
	case "failed":
		switch {
		case !o.Connected || !o.Ready || c.rev == 0:
			c.recovering = time.Time{}
		case c.recovering.IsZero():
			c.recovering = now
		}
		if !c.recovering.IsZero() && !now.Before(c.recovering.Add(m.s.MinReadyTime)) {
			c.readySince, c.recovering = c.recovering, time.Time{}
			m.good(c, now)
		}
	}
}

// stillFailed has the failure of one that was to begin anew, and cannot, count again.
func (m *naive) stillFailed(c *naiveCluster, o rollout.Observed, now time.Time) bool {
	if !c.again || !o.Cordoned && (o.Held || o.Connected) {
		return false
	}
	c.st, c.unseen, c.again, c.readySince = "failed", !o.Cordoned, false, time.Time{}
	m.update(c, o, now)
	return true
}

// stands says of a cluster with its revision that it is held, and not ready: nothing comes of it before that ends.
func stands(o rollout.Observed) bool { return o.Held && !(o.Ready && o.Connected) }

func (m *naive) flying(c *naiveCluster, o rollout.Observed, now time.Time) {
	if stands(o) {
		c.st = "deferred"
		return
	}
	if !o.Connected {
		switch {
		case m.s.Offline == "Wait" && !c.goBack && m.active():
			if !c.away {
				c.away, c.readySince, c.st = true, time.Time{}, "moving"
			}
		case m.s.Offline == "Fail" && !c.goBack && m.active():
			c.st, c.unseen = "failed", true
		default:
			c.st = "deferred"
		}
		return
	}
	if c.away {
		c.away, c.start = false, now
	}
	switch {
	case o.Ready:
		m.good(c, now)
	case o.Failed:
		c.st, c.unseen, c.readySince = "failed", false, time.Time{}
	default:
		c.readySince, c.st = time.Time{}, "moving"
		if !now.Before(c.start.Add(m.s.ProgressDeadline)) {
			c.st, c.unseen = "failed", false
		}
	}
}

func (m *naive) good(c *naiveCluster, now time.Time) {
	if c.readySince.IsZero() {
		c.readySince = now
	}
	c.st, c.again = "soak", false
	if !now.Before(c.readySince.Add(m.s.MinReadyTime)) {
		c.st, c.late = "ok", false // it has caught up
		if c.goBack {
			c.st, c.goBack = "back", false
		}
	}
}

func (m *naive) countOf(stage int, states ...string) int {
	n := 0
	for _, c := range m.clusters {
		if (stage < 0 || c.stage == stage) && slices.Contains(states, c.st) {
			n++
		}
	}
	return n
}

// unseen are those that failed by being away, of whom nobody knows what the revision does there.
func (m *naive) unseen(stage int) int {
	n := 0
	for _, c := range m.clusters {
		if (stage < 0 || c.stage == stage) && c.st == "failed" && c.unseen {
			n++
		}
	}
	return n
}

func (m *naive) shown(stage int) int { return m.countOf(stage, "ok", "failed") - m.unseen(stage) }

func resolve(a rollout.Amount, total int) int {
	if a.Percent {
		return total * a.N / 100
	}
	return a.N
}

func (m *naive) limit(a rollout.Amount, total int) int {
	if !a.Set {
		return total
	}
	return max(resolve(a, total), 1)
}

func (m *naive) total(stage int) int {
	n := 0
	for _, c := range m.clusters {
		if c.stage == stage {
			n++
		}
	}
	return n
}

func (m *naive) tick(now time.Time, obs map[string]rollout.Observed, verb string, arg string) []string {
	var failedBefore []*naiveCluster
	for _, c := range m.clusters {
		if c.st == "failed" {
			failedBefore = append(failedBefore, c)
		}
	}
	for _, c := range m.clusters {
		m.update(c, obs[c.name], now)
	}
	m.verb(verb, arg, failedBefore)
	if verb == "retry" && m.mode != "done" {
		m.retry(obs)
	}
	if verb != "" {
		for _, c := range m.clusters {
			m.update(c, obs[c.name], now)
		}
	}
	if m.mode == "paused" && !m.paused && !m.breached() {
		m.mode = "run"
	}
	if m.mode == "backpaused" && !m.paused && !m.backBreached() {
		m.mode = "back"
	}
	if m.mode == "run" && !m.paused && m.breached() {
		m.fail()
		for _, c := range m.clusters {
			m.update(c, obs[c.name], now)
		}
	}
	var out []string
	switch {
	case m.paused:
	case m.mode == "run":
		out = m.forward(now, obs)
	case m.mode == "back":
		out = m.backward(now, obs)
	}
	if m.mode == "back" && len(out) == 0 && !m.paused { // it failed while a stage began
		out = m.backward(now, obs)
	}
	if m.mode == "done" {
		for _, c := range m.clusters {
			m.update(c, obs[c.name], now)
		}
		out = append(out, m.settle(now, obs)...)
	}
	return out
}

func (m *naive) verb(verb, arg string, failedBefore []*naiveCluster) {
	switch {
	case m.mode == "done" || verb == "":
	case verb == "pause":
		m.paused = true
		if m.mode == "paused" {
			m.mode = "run"
		}
		if m.mode == "backpaused" {
			m.mode = "back"
		}
	case verb == "resume" && m.paused:
		m.paused = false
	case verb == "resume" && m.mode == "paused":
		m.mode = "run"
		for _, c := range failedBefore {
			c.accepted = c.st == "failed"
		}
	case verb == "resume" && m.mode == "backpaused":
		m.mode = "back"
		for _, c := range failedBefore {
			c.accepted = c.accepted || c.st == "failed" && c.goBack && c.rev == 1
		}
	case verb == "skip":
		c := m.clusters[slices.IndexFunc(m.clusters, func(c *naiveCluster) bool { return c.name == arg })]
		if c.st == "ok" || c.st == "skipped" || c.st == "back" {
			return
		}
		c.st, c.goBack, c.late, c.again = "skipped", false, false, false
		if m.mode == "paused" && !m.breached() {
			m.mode = "run"
		}
		if m.mode == "backpaused" {
			m.mode = "back"
		}
	}
}

// retry has everything that failed begin anew, but those that are away or cordoned: they stay failed.
func (m *naive) retry(obs map[string]rollout.Observed) {
	for _, c := range m.clusters {
		if o := obs[c.name]; c.st != "failed" || o.Cordoned || !o.Connected && !o.Held {
			continue
		}
		c.st, c.again = "wait", true
		if m.mode == "backpaused" {
			m.mode = "back"
		}
	}
}

func (m *naive) breached() bool {
	n := m.countOf(-1, "failed")
	over := n > resolve(m.s.MaxFailures, len(m.clusters))
	for i, st := range m.s.Stages {
		failed := m.countOf(i, "failed")
		over = over || st.MaxFailures.Set && failed > resolve(st.MaxFailures, m.total(i)) && failed > m.acceptedIn(i)
	}
	return n > m.acceptedIn(-1) && over
}

// acceptedIn counts the failures of a stage, or of all, in spite of which a person went on.
func (m *naive) acceptedIn(stage int) int {
	n := 0
	for _, c := range m.clusters {
		if (stage < 0 || c.stage == stage) && c.st == "failed" && c.accepted {
			n++
		}
	}
	return n
}

func (m *naive) fail() {
	switch m.s.OnFailure {
	case "Pause":
		m.mode = "paused"
	case "Abort":
		m.mode, m.aborted = "done", true
		for _, c := range m.clusters { // who came back, and was not moved yet, stays as it is
			c.late = c.late && (c.rev != 0 || c.st != "wait" && c.st != "deferred")
		}
	case "Rollback":
		m.mode, m.goneBack = "back", true
		for _, c := range m.clusters {
			if c.rev == 2 {
				c.goBack, c.late, c.again = true, false, false
			}
		}
	}
}

func (m *naive) begin(n int, now time.Time, obs map[string]rollout.Observed) {
	m.started[n] = true
	for _, c := range m.clusters {
		if c.stage == n && c.st == "wait" {
			m.update(c, obs[c.name], now)
		}
	}
}

func (m *naive) forward(now time.Time, obs map[string]rollout.Observed) []string {
	for m.stage < len(m.s.Stages) {
		n := m.stage
		if !m.started[n] {
			if m.lookedAtBefore(n, obs) {
				break
			}
			m.begin(n, now, obs)
			if m.breached() {
				m.fail()
				return nil
			}
		}
		busy := 0
		last, nothing := true, m.total(n) > 0 && m.shown(-1) == 0 && m.countOf(-1, "deferred")+m.unseen(-1) > 0
		for later := n + 1; later < len(m.s.Stages); later++ {
			last = last && m.total(later) == 0
		}
		proven := last && !nothing || m.shown(n) > 0
		for _, c := range m.clusters {
			if c.stage == n && (c.st == "wait" || c.st == "moving" || c.st == "soak") && !(c.late && proven && !m.quiet[n].IsZero()) {
				busy++
			}
		}
		if busy > 0 {
			m.quiet[n] = time.Time{}
			break
		}
		if m.shown(n) == 0 && m.countOf(n, "moving", "soak") == 0 {
			if last && nothing || !last && m.countOf(n, "deferred")+m.unseen(n) > 0 {
				break
			}
		}
		if !last && m.lookedAt(n, "deferred", obs) {
			m.quiet[n] = time.Time{}
			break
		}
		if m.quiet[n].IsZero() {
			m.quiet[n] = now
		}
		if !m.soaked[n].Equal(m.quiet[n]) {
			if m.total(n) > 0 && now.Before(m.quiet[n].Add(m.s.Stages[n].Soak)) {
				break
			}
			if m.s.Stages[n].Soak > 0 && n < len(m.s.Stages)-1 && m.countOf(n, "ok") > 0 && !m.sees(n, obs) {
				break
			}
			m.soaked[n] = m.quiet[n]
		}
		if !last && m.lookedAt(n, "ok", obs) {
			break
		}
		m.ended[n] = true
		m.stage++
	}
	out := m.assign(now, obs, false)
	if m.stage == len(m.s.Stages) && m.countOf(-1, "wait", "moving", "soak") == 0 {
		m.mode = "done"
	}
	return out
}

// sees reports that a cluster of the stage which succeeded is connected, and tells how it does.
func (m *naive) sees(n int, obs map[string]rollout.Observed) bool {
	return slices.ContainsFunc(m.clusters, func(c *naiveCluster) bool {
		return c.stage == n && c.st == "ok" && obs[c.name].Connected && !stands(obs[c.name])
	})
}

// lookedAt reports that somebody holds a cluster of the stage that has the new revision and does not do well with it.
func (m *naive) lookedAt(n int, st string, obs map[string]rollout.Observed) bool {
	return slices.ContainsFunc(m.clusters, func(c *naiveCluster) bool {
		o := obs[c.name]
		return c.stage == n && c.st == st && c.rev == 2 && stands(o) && !(st == "ok" && o.Well)
	})
}

// lookedAtBefore reports the same of the stages before one, which are over, if the revision goes on from them.
func (m *naive) lookedAtBefore(n int, obs map[string]rollout.Observed) bool {
	after, held := 0, false
	for stage := range m.s.Stages {
		if stage >= n {
			after += m.total(stage)
		} else {
			held = held || m.lookedAt(stage, "deferred", obs)
		}
	}
	return held && after > 0
}

func (m *naive) assign(now time.Time, obs map[string]rollout.Observed, lateOnly bool) []string {
	var out []string
	for n := range m.s.Stages {
		for _, c := range m.clusters {
			o := obs[c.name]
			if c.stage != n || !m.started[n] || c.st != "wait" || !o.Connected || o.Cordoned || o.Held || lateOnly && !c.late {
				continue
			}
			if m.countOf(n, "moving", "soak") >= m.limit(m.s.Stages[n].MaxConcurrency, m.total(n)) {
				break
			}
			m.moves++
			c.st, c.rev, c.start, c.readySince, c.move, c.again = "moving", 2, now, time.Time{}, m.moves, false
			out = append(out, c.name+"→2")
		}
	}
	return out
}

func (m *naive) backFailed() int {
	n := 0
	for _, c := range m.clusters {
		if c.goBack && c.rev == 1 && c.st == "failed" {
			n++
		}
	}
	return n
}

func (m *naive) backBreached() bool {
	accepted := 0
	for _, c := range m.clusters {
		if c.goBack && c.rev == 1 && c.st == "failed" && c.accepted {
			accepted++
		}
	}
	return m.backFailed() > max(resolve(m.s.MaxFailures, len(m.clusters)), accepted)
}

func (m *naive) backward(now time.Time, obs map[string]rollout.Observed) []string {
	if m.backBreached() {
		m.mode = "backpaused"
		return nil
	}
	var pending []*naiveCluster
	all, flying := 0, 0
	for _, c := range m.clusters {
		if c.rev != 0 {
			all++
		}
		if c.goBack && (c.rev == 2 || c.again) {
			pending = append(pending, c)
		}
		if c.goBack && c.rev == 1 && (c.st == "moving" || c.st == "soak") {
			flying++
		}
	}
	slices.SortFunc(pending, func(a, b *naiveCluster) int { return b.move - a.move })
	base := m.moves // who moves back and has to once more is the newest, and of those that moved together the last comes first
	m.moves += len(m.clusters)
	var out []string
	for _, c := range pending {
		if flying >= m.limit(m.s.Rollback.MaxConcurrency, all) {
			break
		}
		o := obs[c.name]
		if o.Cordoned {
			c.st = "deferred"
			continue
		}
		c.rev, c.st, c.start, c.readySince, c.away, c.again, c.move = 1, "moving", now, time.Time{}, false, false, base+1+slices.Index(m.clusters, c)
		out = append(out, c.name+"→1")
		if !o.Connected || o.Held {
			c.st = "deferred"
			continue
		}
		flying++
	}
	if m.countOf(-1, "moving", "soak") == 0 {
		m.mode = "done"
	}
	return out
}

// settle: after the end those that were deferred get what the last plan says.
func (m *naive) settle(now time.Time, obs map[string]rollout.Observed) []string {
	if !m.goneBack {
		return m.assign(now, obs, true)
	}
	var out []string
	for n := range m.s.Stages {
		for _, c := range m.clusters {
			o := obs[c.name]
			if c.stage != n || c.st != "deferred" || !c.goBack || c.rev != 2 || !o.Connected || o.Cordoned || o.Held ||
				m.countOf(n, "moving", "soak") >= m.limit(m.s.Stages[n].MaxConcurrency, m.total(n)) {
				continue
			}
			c.rev, c.st, c.start, c.readySince, c.late = 1, "moving", now, time.Time{}, true
			out = append(out, c.name+"→1")
		}
	}
	return out
}
