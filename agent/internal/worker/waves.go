package worker

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// waveRun is how far the waves of a sync are that wait for each other.
type waveRun struct {
	waits   bool // they do, and there are several
	now     plan.Waves
	blocked int       // jobs that wait for their wave
	next    plan.Turn // the first wave of those
}

// awaitWaves has the waves of a sync wait for each other, if the policies say so. It goes on with what is begun of it.
func (w *worker) awaitWaves(mode string) {
	w.waves = waveRun{now: plan.Waves{Begun: plan.NoTurn, Waits: plan.EveryTurn}}
	for _, it := range w.items {
		w.waves.waits = w.waves.waits || it.turn() != w.items[0].turn()
	}
	w.waves.waits = w.waves.waits && mode == fleet.WavesWaitHealthy
	of, turn, found := strings.Cut(w.m.waves.what(w.ref), " ")
	if n, err := strconv.ParseInt(turn, 10, 64); found && err == nil && of == w.waveKey() {
		w.waves.now.Begun = plan.Turn(n)
	}
}

// waveKey names what the waves are of. A revision that lists the same goes on with them; any other begins with the first.
func (w *worker) waveKey() string {
	s := w.cur.sync
	return fleet.DigestOf(fmt.Appendf(nil, "%s %s %s", s.Bundle, s.Policies, valuesDigest(s.Values))).String()
}

func (it *item) turn() plan.Turn { return plan.TurnOf(it.entry.ID, it.entry.Wave) }

// inWave is what may be done now of the jobs: what is written already as wanted is kept so, and the rest waits for its wave.
func (w *worker) inWave(ctx context.Context, jobs []*item, now time.Time) []*item {
	run := &w.waves
	run.blocked, run.next = 0, plan.EveryTurn
	if !run.waits || !w.started || run.now.Begun == plan.EveryTurn {
		return jobs
	}
	w.advance(ctx, now)
	out := jobs[:0]
	for _, it := range jobs {
		if it.turn() <= run.now.Begun || !(it.action.Verb.Writes() || it.action.Verb == plan.Use) || w.wroteAlready(it) || w.neededFirst(it) {
			out = append(out, it)
			continue
		}
		it.look = true
		run.blocked, run.next = run.blocked+1, min(run.next, it.turn())
	}
	return out
}

// advance looks how far the waves are, and notes it before anything of a wave that is new is written.
func (w *worker) advance(ctx context.Context, now time.Time) {
	was := w.waves.now.Begun
	w.waves.now = plan.Advance(was, w.unsettled(now))
	begun := w.waves.now.Begun
	if begun == was {
		return
	}
	w.log.Info("wave begun", "wave", begun.String(), "revision", w.cur.sync.Revision)
	err := w.m.waves.note(ctx, w.m.o.State, w.ref, w.waveKey()+" "+strconv.FormatInt(int64(begun), 10))
	if err != nil && ctx.Err() == nil {
		w.log.Warn("that a wave is begun cannot be noted; after a restart it would wait again", "revision", w.cur.sync.Revision, "error", err)
	}
}

// unsettled are the objects of the first turn in which some are not as wanted yet, or not healthy. Those of later ones, which are most, have
// no say.
func (w *worker) unsettled(now time.Time) (out []plan.UnsettledObject) {
	w.refresh(now)
	first := plan.EveryTurn
	for _, it := range w.items {
		turn := it.turn()
		if turn > first {
			continue
		}
		action := w.verdict(it)
		written := w.asWanted(it, action)
		if written && !it.unready(action) {
			continue
		}
		if turn < first {
			first, out = turn, out[:0]
		}
		out = append(out, plan.UnsettledObject{ID: it.entry.ID, Turn: turn, Why: it.unsettledText(written)})
	}
	return out
}

// unsettledText says why an object is not settled.
func (it *item) unsettledText(written bool) string {
	switch {
	case it.fail != nil:
		return it.fail.Message
	case !written && cmp.Or(it.said().message, it.said().reason) == "":
		return "is not applied yet"
	}
	return healthText(it)
}

// followWaves goes on at once where what was just written lets the next wave begin: no event may tell of that.
func (w *worker) followWaves(now time.Time) {
	if w.waves.blocked > 0 && plan.Advance(w.waves.now.Begun, w.unsettled(now)).Begun > w.waves.now.Begun {
		dirty.Poke(w.signal)
	}
}

// wavesText says which wave waits for which objects; empty: none does.
func (w *worker) wavesText() string {
	if w.waves.blocked == 0 {
		return ""
	}
	return w.waves.now.Text(w.waves.next)
}
