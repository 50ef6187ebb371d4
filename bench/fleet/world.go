package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/test/lab"
)

// world are the processes of one measurement: the hub, its agents in two processes, of which the second is stopped at times, and the
// bare server with who dials it.
type world struct {
	dir                          string
	agentsAt, peopleAt           string
	bareAt, rawAt                string
	hub, many, few, bare, dialer *process
	client                       *client.Client
	shop                         int // the revisions of the module that all agents have
}

func newWorld(ctx context.Context) (*world, error) {
	dir, err := os.MkdirTemp("", "towline-bench-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) start(ctx context.Context) error {
	for _, at := range []*string{&w.agentsAt, &w.peopleAt, &w.bareAt, &w.rawAt} {
		address, err := lab.FreeAddress()
		if err != nil {
			return err
		}
		*at = address
	}
	ca := filepath.Join(w.dir, "bare.pem")
	if err := makeAuthority(ca); err != nil {
		return err
	}
	if err := w.startHub(ctx); err != nil {
		return err
	}
	var err error
	for _, c := range []struct {
		as   **process
		name string
		args []string
	}{{&w.many, "agents", nil}, {&w.few, "agents", nil}, {&w.dialer, "dialer", []string{ca}},
		{&w.bare, "bare", []string{filepath.Join(w.dir, "bare"), ca, w.bareAt, w.rawAt}}} {
		if *c.as, err = start(ctx, c.name, c.args...); err != nil {
			return err
		}
	}
	_, err = w.bare.cpu() // it answers when it serves
	return err
}

// startHub starts the hub, on what is in its directory, and returns when it answers.
func (w *world) startHub(ctx context.Context) error {
	var err error
	if w.hub, err = start(ctx, "hub", filepath.Join(w.dir, "hub"), w.agentsAt, w.peopleAt); err != nil {
		return err
	}
	if _, err = w.hub.cpu(); err != nil { // it answers when it is open
		return err
	}
	if w.client == nil {
		if w.client, err = client.Dial(ctx, client.Options{Config: filepath.Join(w.dir, "hub", hub.AdminFile)}); err != nil {
			return err
		}
	}
	return lab.PollFor(ctx, patience, func() error {
		_, err := w.revision(ctx)
		return err
	})
}

func (w *world) revision(ctx context.Context) (int64, error) {
	got, err := w.client.Identity.GetServerInfo(ctx, &towlinev1.GetServerInfoRequest{})
	return got.GetRevision(), err
}

func (w *world) close() error {
	for _, p := range []*process{w.hub, w.many, w.few, w.bare, w.dialer} {
		if p != nil {
			p.kill()
		}
	}
	return os.RemoveAll(w.dir)
}

// join has clusters join with numbers from and to, and gives nine in ten of them to the first process.
func (w *world) join(ctx context.Context, from, to int) error {
	var many, few []string
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(16)
	for i := from; i < to; i++ {
		g.Go(func() error {
			name := fmt.Sprintf("c-%05d", i)
			got, err := w.client.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: name})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if i%10 == 9 {
				few = append(few, name+"="+got.GetToken())
			} else {
				many = append(many, name+"="+got.GetToken())
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, side := range []struct {
		p      *process
		tokens []string
	}{{w.many, many}, {w.few, few}} {
		file := filepath.Join(w.dir, "tokens")
		if err := os.WriteFile(file, []byte(strings.Join(side.tokens, "\n")), 0o600); err != nil {
			return err
		}
		if _, err := side.p.ask("join %s %s", w.agentsAt, file); err != nil {
			return err
		}
	}
	return w.settled(ctx)
}

// all asks the agents of both processes at a time.
func (w *world) all(format string, args ...any) error {
	var g errgroup.Group
	for _, p := range []*process{w.many, w.few} {
		g.Go(func() error {
			_, err := p.ask(format, args...)
			return err
		})
	}
	return g.Wait()
}

// sent is what all agents have been sent.
func (w *world) sent() (int64, error) {
	var all int64
	for _, p := range []*process{w.many, w.few} {
		text, err := p.ask("sent")
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, nil
}

// settled returns when the store has not been written for a second: a hub has no other word for having no more to do.
func (w *world) settled(ctx context.Context) error {
	last, err := w.revision(ctx)
	for err == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		var now int64
		if now, err = w.revision(ctx); now == last {
			return err
		}
		last = now
	}
	return err
}

// change puts another revision of the module that all agents have; it returns the store's revision of that.
func (w *world) change(ctx context.Context) (int64, error) {
	w.shop++
	return w.put(ctx, "shop", text(), true)
}

// put puts a module of one ConfigMap with the text, for every cluster or for none.
func (w *world) put(ctx context.Context, name, text string, everywhere bool) (int64, error) {
	placement := &towlinev1.LabelSelector{}
	if !everywhere {
		placement.MatchLabels = map[string]string{"no": "where"}
	}
	got, err := w.client.Modules.PutModule(ctx, &towlinev1.PutModuleRequest{Module: &towlinev1.Module{
		Metadata: &towlinev1.Metadata{Name: name},
		Spec: &towlinev1.ModuleSpec{
			Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{
				"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\ndata: {a: " + text + "}\n"}}},
			Placement: &towlinev1.Placement{Selector: placement},
		}}})
	return got.GetRevision(), err
}

// succeeded waits for the rollout of a revision.
func (w *world) succeeded(ctx context.Context, name string, revision int64) error {
	r, err := w.client.WaitRollout(ctx, &towlinev1.WatchRolloutRequest{Module: name, MinRevision: revision}, nil)
	if err != nil {
		return err
	}
	if s := r.GetStatus(); s.GetState() != "Succeeded" {
		return fmt.Errorf("rollout %s: %s: %s", r.GetId(), s.GetState(), s.GetFacts())
	}
	return nil
}
