package main

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

// resync has the hub send what changes no object, and the session begin anew: the agent makes no request for either.
func (b *bench) resync(ctx context.Context, w *work) ([]measure.Goal, error) {
	text := func(comment string) (string, error) {
		return measure.Manifest(w.object, b.agent.namespace(w), 0, w.n, w.revision-1, comment)
	}
	put := func(comment string, policies ...*v1.Policy) error {
		content, err := text(comment)
		if err != nil {
			return err
		}
		number, err := b.fleet.Put(ctx, w.module(), measure.HTTP(b.files.Put(w.short+"-again.yaml", content)), policies...)
		if err == nil && number == 0 {
			err = fmt.Errorf("the put of %q changed nothing", comment)
		}
		if err != nil {
			return err
		}
		return b.fleet.Await(ctx, w.module(), number)
	}
	steps := []struct {
		what string
		do   func() error
		// counts are the requests that may not be.
		counts func(lab.Request) bool
	}{
		{"put of a new revision with an equal bundle", func() error { return put("another comment") }, anyRequest},
		{"put of other policies for equal objects", func() error { return put("another comment", &v1.Policy{Prune: "OnModuleDelete"}) }, anyRequest},
		{"reconnect of the session to a hub that restarted", func() error { return b.restartHub(ctx) }, anyRequest},
		{"restart of the agent (writes)", func() error { return b.restartAgent(ctx) }, func(r lab.Request) bool { return anyRequest(r) && r.IsWrite() }},
	}
	var rows []string
	var goals []measure.Goal
	for _, s := range steps {
		mark, err := b.fleet.Cluster.Audit.Now()
		if err != nil {
			return nil, err
		}
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.what, err)
		}
		time.Sleep(2 * calm)
		requests, err := b.fleet.Cluster.Audit.Since(mark, s.counts)
		if err != nil {
			return nil, err
		}
		rows = append(rows, fmt.Sprintf("%s\t%d", s.what, len(requests)))
		for _, r := range requests[:min(len(requests), 5)] {
			rows = append(rows, r.String()+"\t")
		}
		goals = append(goals, measure.Goal{What: "requests after the " + s.what, Got: float64(len(requests))})
	}
	fmt.Printf("\n%d unchanged %s\n", w.n, w.name)
	measure.Table(os.Stdout, "\trequests of the agent", rows...)
	return goals, nil
}

// anyRequest is any of the agent's, but for its sign of life.
func anyRequest(r lab.Request) bool {
	return r.ByAgent() && !(r.Resource == "leases" && r.Namespace == "towline-system")
}

func (b *bench) restartHub(ctx context.Context) error {
	b.fleet.Hub.Kill()
	if err := b.fleet.Hub.Start(ctx); err != nil {
		return err
	}
	return b.fleet.WaitState(ctx, b.fleet.Cluster.Name, "Ready")
}

func (b *bench) restartAgent(ctx context.Context) error {
	b.fleet.Agent.Stop()
	if err := b.fleet.WaitState(ctx, b.fleet.Cluster.Name, "Disconnected"); err != nil {
		return err
	}
	if err := b.fleet.Agent.Start(); err != nil {
		return err
	}
	return b.fleet.WaitState(ctx, b.fleet.Cluster.Name, "Ready")
}
