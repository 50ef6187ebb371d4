package api

import (
	"fmt"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// What is not there is said in one way for each kind, with the object for programs.

func projectObject(name string) fleet.Object { return fleet.Object{Kind: "Project", Name: name} }

func rolloutObject(id fleet.RolloutID) fleet.Object {
	return fleet.Object{Kind: "Rollout", Name: fmt.Sprintf("%s/%d", id.Module, id.Number)}
}

func holdObject(id string) fleet.Object { return fleet.Object{Kind: "Hold", Name: id} }

func noModule(ref fleet.ModuleRef) error {
	return fleet.NotFound(ref.Object(), "module %s not found", ref.Display())
}

func noCluster(c fleet.ClusterName) error {
	return fleet.NotFound(c.Object(), "cluster %s not found", c)
}

// soon is when a request is worth another try that meets what the hub is about to do by itself.
const soon = time.Second

// later is an error of what the hub is about to do by itself.
func later(err error) error { return fleet.With(err, fleet.Hint{RetryAfter: soon}) }
