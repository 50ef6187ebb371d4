package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/manifest"
)

// maxLive is how many agents' answers one command asks for: each is a request to an API server.
const maxLive = 100

// liveObject is a row with the object as it is now.
type liveObject struct {
	Cluster string          `json:"cluster"`
	Module  string          `json:"module"`
	Object  json.RawMessage `json:"object"`
}

// printLive asks the agents for each row's object and prints the objects: as YAML documents, or as a JSON list. Rows of
// which an agent says nothing are errors; the others are printed.
func (a *app) printLive(ctx context.Context, c *client.Client, o *getOptions, items []*v1.Object) error {
	if o.format == "name" || o.format == "wide" || o.path != nil {
		return usagef("--live prints YAML, or JSON with -o json")
	}
	if len(items) > maxLive {
		return usagef("--live would ask for %d objects, at most %d: narrow it with --module, --cluster, --kind and --name", len(items), maxLive)
	}
	var list []liveObject
	var errs []error
	for _, item := range items {
		got, err := c.Trackers.GetLiveObject(ctx, &v1.GetLiveObjectRequest{Cluster: item.GetCluster(), Project: item.GetProject(),
			Module: item.GetModule(), Object: item.GetObject()})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s in %s: %w", item.GetObject().GetKind(), item.GetObject().GetName(), item.GetCluster(), err))
			continue
		}
		list = append(list, liveObject{item.GetCluster(), item.GetModule(), json.RawMessage(got.GetJson())})
	}
	return errors.Join(append(errs, a.writeLive(o, list))...)
}

func (a *app) writeLive(o *getOptions, list []liveObject) error {
	if o.format == "json" {
		text, err := json.MarshalIndent(map[string]any{"items": list}, "", "  ")
		if err == nil {
			a.printf("%s\n", text)
		}
		return err
	}
	for _, x := range list {
		text, err := yaml.JSONToYAML(manifest.AsYAML(x.Object))
		if err != nil {
			return fmt.Errorf("object of %s: %w", x.Cluster, err)
		}
		a.printf("---\n# cluster %s, module %s\n%s", x.Cluster, x.Module, text)
	}
	return nil
}
