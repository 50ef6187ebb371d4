package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/worker"
	"towline.dev/towline/pkg/fleet"
)

// leases is the kind by which agents show that they live.
var leases = apply.Resource{GroupVersionResource: schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	Kind: "Lease", Namespaced: true}

// livesFor is for how long after its last swap of its Lease an agent of another hub counts as one that keeps its objects, by the API
// server's clock: some Lease of a cluster was swapped just now.
const livesFor = time.Hour

// tellOtherHubs says whose objects are in the cluster that nobody keeps: of hubs that this agent never belonged to, and no other agent
// of the cluster does. Kinds that it could not look at may hold more of them.
func (a *Agent) tellOtherHubs(ctx context.Context, found []worker.OtherHub, unseen int) {
	var orphaned []worker.OtherHub
	living, err := map[string]bool{}, error(nil)
	if len(found) > 0 {
		living, err = a.livingHubs(ctx)
	}
	for _, x := range found {
		if !living[x.ID] {
			orphaned = append(orphaned, x)
		}
	}
	a.conditions.Clear(fleet.ConditionOtherHubs) // the words of the search before count no more
	if len(orphaned) == 0 {
		return
	}
	message := otherHubsText(orphaned, unseen, err != nil)
	a.o.Log.Warn("objects of another hub are left as they are", "found", message, "unseen_kinds", unseen, "leases_error", err)
	a.conditions.Set(fleet.Condition{Type: fleet.ConditionOtherHubs, Status: fleet.ConditionTrue, Reason: "ObjectsLeft", Message: message})
}

// otherHubsText fits into the message of a condition: of several hubs it names the first, and what is not known comes before the
// object, which is cut off first.
func otherHubsText(found []worker.OtherHub, unseen int, mayLive bool) string {
	n, x := 0, found[0]
	for _, x := range found {
		n += x.Objects
	}
	count, kept := fmt.Sprintf("%d objects", n), ""
	switch {
	case unseen == 1:
		count += " or more (1 kind was not seen)"
	case unseen > 1:
		count += fmt.Sprintf(" or more (%d kinds were not seen)", unseen)
	}
	of := x.ID
	if more := len(found) - 1; more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	if mayLive {
		kept = "; an agent may keep them: Leases were not seen"
	}
	return fmt.Sprintf("%s are of hub %s, which this agent never had%s; they stay (-l %s=%s), such as %s of module %s",
		count, of, kept, fleet.HubLabel, x.ID, x.Such.Short(), x.Module.Display())
}

// livingHubs are those whose agents have swapped their Lease lately: two agents may share a cluster. An error, as without the right to
// list Leases, means that there may be others.
func (a *Agent) livingHubs(ctx context.Context) (map[string]bool, error) {
	swaps, newest := map[string]time.Time{}, time.Time{}
	client, err := apply.NewClient(a.config)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		err = client.EachMeta(ctx, leases, "", "", func(o *metav1.PartialObjectMetadata) bool {
			at := swapped(o)
			if newest = later(newest, at); o.Namespace != a.o.Namespace {
				swaps[hubOf(o)] = later(swaps[hubOf(o)], at)
			}
			return true
		})
	}
	living := map[string]bool{}
	for hub, at := range swaps {
		living[hub] = newest.Sub(at) < livesFor
	}
	return living, err
}

// servedHubs are livingHubs. Without the right to list Leases there is none: the agent works without it. Until it is known that this is what a
// refusal says, it is an error like any other.
func (a *Agent) servedHubs(ctx context.Context) (map[string]bool, error) {
	living, err := a.livingHubs(ctx)
	lacks, news := a.refusals.Note(err, time.Now())
	switch {
	case lacks && news:
		a.o.Log.Warn("the agent has no right to list Leases: agents of other hubs in this cluster are not seen, and what carries the label of a hub that it belonged to before counts as its own", "error", err)
	case news:
		a.o.Log.Info("the agent may list Leases again: agents of other hubs in this cluster are seen")
	}
	if lacks {
		return nil, nil
	}
	return living, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// hubOf is the hub of the agent whose Lease it is; empty: it is no agent's.
func hubOf(lease *metav1.PartialObjectMetadata) string {
	var mark desired.HighWater
	if json.Unmarshal([]byte(lease.Annotations[highWaterAnnotation]), &mark) != nil {
		return ""
	}
	return mark.HubID
}

// swapped is when a Lease was written last.
func swapped(lease *metav1.PartialObjectMetadata) (at time.Time) {
	for _, f := range lease.ManagedFields {
		if f.Time != nil {
			at = later(at, f.Time.Time)
		}
	}
	return at
}
