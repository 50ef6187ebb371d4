// Package rollout decides how a change moves through clusters: which clusters move now, what holds the rest back, when
// to look again. Decide is a pure function of values; the plan, the explanation and the simulation stand on it. It owns
// the rules of stages, budgets, gates, membership, rollback and verbs; it must not know how anything is stored, sent,
// measured or rendered, nor what time it is unless it is told.
//
// A rollout:
//
//	Pending → Progressing ⇄ Waiting → Succeeded
//	             │   ⇅
//	             │  Paused ─────────→ Aborted
//	             ├──────────────────→ Aborted, Failed, Superseded
//	             └→ RollingBack ⇄ Paused → RolledBack
//
// A cluster in it:
//
//	ToApply → Progressing → Soaking → Succeeded     ready for the assigned generation, for minReadyTime
//	             ├→ Failed, TimedOut                recovers by itself when it becomes ready, or by retry
//	             ├→ Deferred → ToApply              away, cordoned or held; returns through the same checks
//	             └→ RolledBack, Removed, Skipped
package rollout
