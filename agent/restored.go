package agent

import (
	"time"

	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/fleet"
)

// restoredFor is how long people are told that the cluster's store was restored: a restore is often made by others, and
// at night.
const restoredFor = 4 * time.Hour

// tellRestored says that the cluster's store was restored from an older copy.
func (a *Agent) tellRestored() {
	a.back.Store(false)
	a.conditions.Clear(fleet.ConditionClusterRestored) // a restore before counts no more
	a.restored.tell(fleet.Condition{Type: fleet.ConditionClusterRestored, Status: fleet.ConditionTrue, Reason: "StoreWentBack",
		Message: "the cluster's store was restored from an older copy; what it lost is put back, and what came back that no module lists stays"})
}

// storeWentBack takes that the API server has forgotten swaps of the Lease. If the Lease is lost by that, it is for the
// next who holds it.
func (a *Agent) storeWentBack() {
	a.back.Store(true)
	if work := a.work.Load(); work != nil {
		work.WentBack()
	}
}

// begin makes what applies to the cluster the agent's.
func (a *Agent) begin(work *worker.Manager) {
	a.work.Store(work)
	a.policy.current(work.Accept)
	if a.back.Load() {
		work.WentBack()
	}
}
