package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

const (
	namespace = "bench"
	// settle is how long a process rests before its memory afterwards is read.
	settle = 5 * time.Second
	// patience with one step on a loaded machine.
	patience = 10 * time.Minute
)

type bench struct {
	fleet   *measure.Fleet
	files   *measure.Files
	modules []string
}

func newBench(ctx context.Context, dir string) (*bench, error) {
	f, err := measure.StartFleet(ctx, "../..", dir)
	if err != nil {
		return nil, err
	}
	b := &bench{fleet: f}
	if b.files, err = measure.ServeFiles(); err == nil {
		err = f.Namespaces(ctx, namespace)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) close() error {
	if b.files != nil {
		_ = b.files.Close() // nobody fetches any more
	}
	return b.fleet.Close()
}

// create has the agent that runs create all objects.
func (b *bench) create(ctx context.Context, objects, modules int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	each := (objects + modules - 1) / modules
	var g errgroup.Group
	for i := range modules {
		name := fmt.Sprintf("bench-%d", i)
		b.modules = append(b.modules, name)
		text, err := measure.Manifest(measure.Deployment, namespace, i*each, min((i+1)*each, objects), 1, "objects")
		if err != nil {
			return sample{}, err
		}
		number, err := b.fleet.Put(ctx, name, measure.HTTP(b.files.Put(name+".yaml", text)))
		if err != nil {
			return sample{}, err
		}
		g.Go(func() error { return b.fleet.Await(ctx, name, number) })
	}
	if err := g.Wait(); err != nil {
		return sample{}, fmt.Errorf("%w\n%s", err, b.fleet.Agent.Tail())
	}
	fmt.Printf("the agent created %d Deployments in %v\n", objects, time.Since(begin).Round(time.Millisecond))
	return b.rest(ctx, b.fleet.Agent.PID())
}

// rest reads the memory of a process after a while.
func (b *bench) rest(ctx context.Context, pid int) (sample, error) {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return sample{}, ctx.Err()
	}
	m, err := measure.MemoryOf(pid)
	return sample{peak: megabytes(m.Peak), now: megabytes(m.Now)}, err
}

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }

// restartAgent starts the agent anew and reads its memory when it is ready and has no more to do.
func (b *bench) restartAgent(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b.fleet.Agent.Stop()
	if err := b.fleet.WaitState(ctx, b.fleet.Cluster.Name, "Disconnected"); err != nil {
		return sample{}, err
	}
	if err := b.fleet.Agent.Start(); err != nil {
		return sample{}, err
	}
	if err := lab.Poll(ctx, func() error { return b.ready(ctx) }); err != nil {
		return sample{}, err
	}
	if err := quiet(ctx, b.fleet.Agent.PID()); err != nil {
		return sample{}, err
	}
	return b.rest(ctx, b.fleet.Agent.PID())
}

// quiet returns when a process has used next to no CPU for three seconds: nothing tells from outside that its watches
// have brought everything.
func quiet(ctx context.Context, pid int) error {
	const enough, little = 3, 30 * time.Millisecond
	last, err := measure.CPU(pid)
	for calm := 0; err == nil && calm < enough; {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		var now time.Duration
		if now, err = measure.CPU(pid); now-last > little {
			calm = 0
		} else {
			calm++
		}
		last = now
	}
	return err
}

func (b *bench) ready(ctx context.Context) error {
	c, err := b.fleet.Client.Clusters.GetCluster(ctx, &v1.GetClusterRequest{Name: b.fleet.Cluster.Name})
	if err != nil {
		return err
	}
	if state := c.GetCluster().GetStatus().GetState(); state != "Ready" {
		return fmt.Errorf("the cluster is %s", state)
	}
	for _, name := range b.modules {
		m, err := b.fleet.Client.Modules.GetModule(ctx, &v1.GetModuleRequest{Name: name})
		if err != nil {
			return err
		}
		if m.GetModule().GetStatus().GetHealthy() != 1 {
			return fmt.Errorf("module %s is not ready", name)
		}
	}
	return nil
}
