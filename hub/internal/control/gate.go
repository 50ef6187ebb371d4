package control

import (
	"context"

	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// Gates evaluates the checks that a decision asks for: webhooks, metrics, expressions. It works in its own time and
// calls done when there is an answer.
type Gates interface {
	// Run starts every check that is due and not under way. It must not block.
	Run(ctx context.Context, run *rollouts.Run, checks []rollout.Check, done func())
	// Results are the answers for a rollout so far.
	Results(run *rollouts.Run) []rollout.GateResult
}

func (c *Controller) runGates(ctx context.Context, ref fleet.ModuleRef, run *rollouts.Run, checks []rollout.Check) {
	if c.o.Gates == nil {
		return
	}
	modules := c.modules // an answer may come when another time of leading has begun
	c.o.Gates.Run(ctx, run, checks, func() { modules.add(store.ModuleKey(ref)) })
}

func (c *Controller) gateResults(run *rollouts.Run) []rollout.GateResult {
	if c.o.Gates == nil {
		return nil
	}
	return c.o.Gates.Results(run)
}
