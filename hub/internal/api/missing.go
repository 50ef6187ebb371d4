package api

import (
	"fmt"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// What is not there is said in one way for each kind, with the object for programs.

func clusterObject(c fleet.ClusterName) fleet.Object {
	return fleet.Object{Kind: "Cluster", Name: string(c)}
}

func projectObject(name string) fleet.Object { return fleet.Object{Kind: "Project", Name: name} }

func rolloutObject(id fleet.RolloutID) fleet.Object {
	return fleet.Object{Kind: "Rollout", Name: fmt.Sprintf("%s/%d", id.Module, id.Number)}
}

func holdObject(id string) fleet.Object { return fleet.Object{Kind: "Hold", Name: id} }

func noModule(ref fleet.ModuleRef) error {
	return fleet.NotFound(ref.Object(), "module %s not found", ref.Display())
}

func noCluster(c fleet.ClusterName) error {
	return fleet.NotFound(clusterObject(c), "cluster %s not found", c)
}

// noRevision says that a module has no revision of a number; 0: none at all.
func noRevision(ref fleet.ModuleRef, number int64) error {
	about := fleet.Object{Kind: "Revision", Name: fmt.Sprintf("%s/%d", ref, number)}
	if number == 0 {
		return fleet.NotFound(about, "module %s has no revision yet", ref.Display())
	}
	return fleet.NotFound(about, "module %s has no revision r%d", ref.Display(), number)
}

// soon is when a request is worth another try that meets what the hub is about to do by itself.
const soon = time.Second

// later is an error of what the hub is about to do by itself.
func later(err error) error { return fleet.With(err, fleet.Hint{RetryAfter: soon}) }
