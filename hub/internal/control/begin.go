package control

import (
	"context"
	"errors"
	"fmt"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// maxBeginnings is how many rollouts begin at a time: each needs the next generation, so that many would only make each
// other start over.
const maxBeginnings = 2

// errLater asks for a cut without a beginning, because that cannot be written.
var errLater = errors.New("the rollout begins later")

// begin plans a rollout and takes its first step, which spares a small one a commit. What is large, waits for a person or for other
// clusters, or cannot be decided is left to what the run of the key does after every cut. What it returns, if anything, is to be called after
// the commit.
func (c *Controller) begin(ctx context.Context, w store.Writer, o outside, ref fleet.ModuleRef, rec *storev1.RolloutRecord, module *storev1.ModuleRecord) (begun func(), err error) {
	m, err := wire.ModuleFromProto(module.GetModule())
	if err != nil || len(m.DependsOnSets) > 0 {
		return nil, nil
	}
	// A decision rests on a view, as those of the driver do, and on the rollout's own record, which is compared.
	r := store.Untracked(w)
	if len(record.Clusters(r)) > rollout.ChunkSize {
		return nil, nil
	}
	run, err := rollouts.Plan(r, ref, rec, record.Candidates(r, m), m.Overrides)
	if err != nil {
		return nil, nil
	}
	c.presence().View(r, o.now, m).All(r, run)
	in := run.Input(o.now)
	in.Stands = record.Stands(r)
	in.Confirmed = record.ConfirmedDigests(r, ref)
	d := rollout.Decide(in)
	if len(d.Assign) > c.room.inline || len(d.Holds) > 0 || d.Start != nil || len(d.Outcomes) > 0 {
		return nil, nil
	}
	if c.lacking(w, run, d) {
		return nil, nil
	}
	if _, err := c.writeDecision(ctx, w, o, run, d, assignGroups(run, d), run.Chunks(d), true); err != nil {
		return nil, fmt.Errorf("%w: %w", errLater, err)
	}
	return func() {
		c.logMoves(run, d)
		c.traceDecision(run, d, o.now)
	}, nil
}
