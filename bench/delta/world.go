package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// The agents, by what they can take.
const (
	byDictionary = "dictionary"
	byObject     = "object"
	byIndex      = "index"
)

// world is a hub with its store on disk, and agents over mTLS on loopback.
type world struct {
	dir    string
	cancel context.CancelFunc
	done   chan error
	client *client.Client
	agents []*agent
}

// agent is one behind a proxy that counts.
type agent struct {
	name     string
	down, up atomic.Int64
	took     chan taken
}

// taken is an assemblage that the agent has, and what it had read by then.
type taken struct {
	revision int64
	down     int64
}

func newWorld(ctx context.Context) (_ *world, err error) {
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
	ctx, cancel := context.WithCancel(ctx)
	w := &world{dir: dir, cancel: cancel, done: make(chan error, 1)}
	h, err := hub.New(ctx, hub.Options{DataDir: dir, Listen: listen, API: api, Grace: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() { w.done <- h.Run(ctx) }()
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.client, err = client.Dial(ctx, client.Options{Config: filepath.Join(dir, hub.AdminFile)}); err != nil {
		return nil, err
	}
	for name, features := range map[string][]string{
		byDictionary: wire.Features(),
		byObject:     wire.Missing(wire.Features(), []string{wire.FeatureDictionaries}),
		byIndex:      wire.Missing(wire.Features(), []string{wire.FeatureMoves, wire.FeatureDictionaries}),
	} {
		a := &agent{name: name, took: make(chan taken, 100)}
		w.agents = append(w.agents, a)
		if err := w.start(ctx, a, listen.Addr().String(), features); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// start joins a cluster and runs its agent.
func (w *world) start(ctx context.Context, a *agent, hub string, features []string) error {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = proxy.Close() })
	go a.serve(proxy, hub)
	got, err := w.client.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: a.name})
	if err != nil {
		return err
	}
	id, err := simagent.Join(ctx, proxy.Addr().String(), got.GetToken(), "uid-"+a.name)
	if err != nil {
		return err
	}
	go func() {
		_ = simagent.New(simagent.Options{Hub: proxy.Addr().String(), Identity: id, Keep: true, Features: features, Took: a.note}).Run(ctx)
	}()
	st, err := w.client.Clusters.WatchClusters(ctx, &towlinev1.WatchClustersRequest{Name: a.name})
	for err == nil {
		var m *towlinev1.WatchClustersResponse
		if m, err = st.Recv(); m.GetCluster().GetStatus().GetState() == "Ready" {
			return nil
		}
	}
	return err
}

func (a *agent) note(held fleet.Assemblage) {
	for _, s := range held.Syncs {
		a.took <- taken{s.Revision, a.down.Load()}
	}
}

func (a *agent) serve(proxy net.Listener, hub string) {
	for {
		conn, err := proxy.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", hub)
		if err != nil {
			_ = conn.Close()
			continue
		}
		for from, into := range map[net.Conn]counted{to: {conn, &a.down}, conn: {to, &a.up}} {
			go func() {
				_, _ = io.Copy(into, from)
				_ = into.Conn.Close()
			}()
		}
	}
}

// counted adds up what is written, before whoever reads it can.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// put puts a version of the module, and waits until every agent has it and its rollout has succeeded.
func (w *world) put(ctx context.Context, version int) error {
	got, err := w.client.Modules.PutModule(ctx, &towlinev1.PutModuleRequest{Module: &towlinev1.Module{
		Metadata: &towlinev1.Metadata{Name: "shop"},
		Spec: &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: files(version)}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}})
	if err != nil || got.GetRevision() == 0 {
		return err
	}
	r, err := w.client.WaitRollout(ctx, &towlinev1.WatchRolloutRequest{Module: "shop", MinRevision: got.GetRevision()}, nil)
	if err != nil {
		return err
	}
	if s := r.GetStatus(); s.GetState() != "Succeeded" {
		return fmt.Errorf("rollout %s: %s: %s", r.GetId(), s.GetState(), s.GetFacts())
	}
	return nil
}

// quiet waits until nothing goes to the agents.
func (w *world) quiet(ctx context.Context) error {
	for last := int64(-1); ctx.Err() == nil; {
		now := w.down()
		if now == last {
			return nil
		}
		last = now
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return ctx.Err()
}

func (w *world) down() (n int64) {
	for _, a := range w.agents {
		n += a.down.Load()
	}
	return n
}

// change puts the next version and counts what each agent is sent and sends.
func (w *world) change(ctx context.Context, version int, got map[string]*counts) error {
	if err := w.quiet(ctx); err != nil {
		return err
	}
	type count struct{ down, up int64 }
	before := map[string]count{}
	for _, a := range w.agents {
		a.drain()
		before[a.name] = count{a.down.Load(), a.up.Load()}
	}
	if err := w.put(ctx, version); err != nil {
		return err
	}
	if err := w.quiet(ctx); err != nil {
		return err
	}
	for _, a := range w.agents {
		if got[a.name] == nil {
			got[a.name] = &counts{}
		}
		was, c := before[a.name], got[a.name]
		c.took = append(c.took, (<-a.took).down-was.down)
		c.whole = append(c.whole, a.down.Load()-was.down)
		c.up = append(c.up, a.up.Load()-was.up)
	}
	return nil
}

func (a *agent) drain() {
	for len(a.took) > 0 {
		<-a.took
	}
}

// unchanged puts the last version again, a few times, and returns the least that goes to the agents. Heartbeats may.
func (w *world) unchanged(ctx context.Context, version int) (least int64, err error) {
	for i := range 5 {
		if err := w.quiet(ctx); err != nil {
			return 0, err
		}
		before := w.down()
		if err := w.put(ctx, version); err != nil {
			return 0, err
		}
		if err := w.quiet(ctx); err != nil {
			return 0, err
		}
		if n := w.down() - before; i == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

var closing sync.Once

func (w *world) close() {
	closing.Do(func() {
		w.cancel()
		if err := <-w.done; err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "hub:", err)
		}
		_ = os.RemoveAll(w.dir)
	})
}
