package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/testkit/simagent"
)

// world is a hub with its store on disk, and agents over mTLS on loopback.
type world struct {
	dir    string
	ctx    context.Context // ends with the hub, with its error as the cause
	cancel context.CancelCauseFunc
	done   chan error
	client *client.Client
}

func newWorld(ctx context.Context, agents int) (*world, error) {
	dir, err := os.MkdirTemp("", "towline-bench-")
	if err != nil {
		return nil, err
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &world{dir: dir, ctx: ctx, cancel: cancel, done: make(chan error, 1)}
	h, err := hub.New(ctx, hub.Options{DataDir: dir, Listen: listen, API: api, Grace: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		cancel(err)
		return nil, err
	}
	go func() {
		err := h.Run(ctx)
		cancel(fmt.Errorf("the hub has ended: %w", err))
		w.done <- err
	}()
	if w.client, err = client.Dial(ctx, client.Options{Config: filepath.Join(dir, hub.AdminFile)}); err == nil {
		err = w.join(ctx, listen.Addr().String(), agents)
	}
	if err != nil {
		w.close()
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return w, nil
}

// join registers the clusters and hands their tokens to a child process that runs the agents: hub and agents together
// would need more files than one process may open.
func (w *world) join(ctx context.Context, addr string, agents int) error {
	start := time.Now()
	tokens, err := w.startAgents(addr)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(32)
	var mu sync.Mutex
	for i := range agents {
		g.Go(func() error {
			name := fmt.Sprintf("c-%05d", i)
			got, err := w.client.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: name, Labels: map[string]string{"share": share(i, agents)}})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			_, err = fmt.Fprintln(tokens, got.GetToken())
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := w.awaitReady(ctx, agents); err != nil {
		return err
	}
	fmt.Printf("%d agents joined and connected in %v\n", agents, time.Since(start).Round(time.Millisecond))
	return nil
}

func (w *world) awaitReady(ctx context.Context, agents int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	st, err := w.client.Clusters.WatchClusters(ctx, &towlinev1.WatchClustersRequest{})
	if err != nil {
		return err
	}
	ready := map[string]bool{}
	for len(ready) < agents {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if m.GetCluster().GetStatus().GetState() == "Ready" {
			ready[m.GetCluster().GetMetadata().GetName()] = true
		}
	}
	return nil
}

// startAgents starts the child; it ends when its standard input does.
func (w *world) startAgents(addr string) (io.Writer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(w.ctx, self, "-agents-of", addr)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	return in, child.Start()
}

// runAgents is the child: an agent for each token on standard input.
func runAgents(ctx context.Context, addr string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slots := make(chan struct{}, 32)
	lines := bufio.NewScanner(os.Stdin)
	for i := 0; lines.Scan(); i++ {
		token := lines.Text()
		slots <- struct{}{}
		go func() {
			id, err := simagent.Join(ctx, addr, token, fmt.Sprintf("uid-%d", i))
			<-slots
			if err != nil {
				fmt.Fprintln(os.Stderr, "agent:", err)
				return
			}
			_ = simagent.New(simagent.Options{Hub: addr, Identity: id}).Run(ctx)
		}()
	}
	return lines.Err()
}

// share puts clusters into stages of 20, 30 and 50 %.
func share(i, n int) string {
	switch {
	case i*100 < 20*n:
		return "first"
	case i*100 < 50*n:
		return "second"
	}
	return "third"
}

func stage(name string) *towlinev1.Stage {
	return &towlinev1.Stage{Name: name, MaxConcurrency: "50%", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"share": name}}}
}

// rollouts puts n modules at once and waits until all of their rollouts have succeeded.
func (w *world) rollouts(ctx context.Context, prefix string, n int) (time.Duration, error) {
	start := time.Now()
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return w.roll(ctx, fmt.Sprintf("%s-%d", prefix, i), "b") })
	}
	err := g.Wait()
	return time.Since(start).Round(10 * time.Microsecond), err
}

// roll puts a module of one ConfigMap and waits until its rollout has succeeded.
func (w *world) roll(ctx context.Context, name, content string) error {
	put, err := w.client.Modules.PutModule(ctx, &towlinev1.PutModuleRequest{Module: &towlinev1.Module{
		Metadata: &towlinev1.Metadata{Name: name},
		Spec: &towlinev1.ModuleSpec{
			Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{
				"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\ndata: {a: " + content + "}\n"}}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}},
			Rollout:   &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{stage("first"), stage("second"), stage("third")}},
		}}})
	if err != nil {
		return err
	}
	return w.wait(ctx, name, put.GetRevision())
}

func (w *world) wait(ctx context.Context, name string, revision int64) error {
	r, err := w.client.WaitRollout(ctx, &towlinev1.WatchRolloutRequest{Module: name, MinRevision: revision}, nil)
	if err != nil {
		return err
	}
	if s := r.GetStatus(); s.GetState() != "Succeeded" {
		return fmt.Errorf("rollout %s: %s: %s", r.GetId(), s.GetState(), s.GetFacts())
	}
	return nil
}

func (w *world) revision(ctx context.Context) (int64, error) {
	got, err := w.client.Identity.GetServerInfo(ctx, &towlinev1.GetServerInfoRequest{})
	return got.GetRevision(), err
}

func (w *world) close() {
	w.cancel(nil)
	if err := <-w.done; err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "hub:", err)
	}
	_ = os.RemoveAll(w.dir)
}

func largeRollout(ctx context.Context, clusters int) (time.Duration, error) {
	w, err := newWorld(ctx, clusters)
	if err != nil {
		return 0, err
	}
	defer w.close()
	return w.rollouts(ctx, "large", 1)
}
