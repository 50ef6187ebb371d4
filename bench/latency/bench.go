package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

const (
	module = "bench"
	// Two namespaces with names of one length.
	ours   = "bench-ours"
	theirs = "bench-bare"
)

type bench struct {
	fleet        *measure.Fleet
	bare         *measure.Bare
	objects      int
	hubID, owner string
	agents       *follower // the objects that the agent applies
	directs      *follower // those of the bare loop
	ready        chan int64
}

func newBench(ctx context.Context, dir string, objects int) (*bench, error) {
	f, err := measure.StartFleet(ctx, "../..", dir)
	if err != nil {
		return nil, err
	}
	b := &bench{fleet: f, objects: objects, ready: make(chan int64, 1024)}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return b, nil
}

func (b *bench) close() error { return b.fleet.Close() }

func (b *bench) prepare(ctx context.Context) error {
	if err := b.fleet.Namespaces(ctx, ours, theirs); err != nil {
		return err
	}
	var err error
	if b.hubID, b.owner, err = b.fleet.StandIn(ctx, module); err != nil {
		return err
	}
	if b.bare, err = measure.NewBare(b.fleet.Cluster.Config, "bench-bare"); err != nil {
		return err
	}
	if b.agents, err = b.follow(ctx, ours); err != nil {
		return err
	}
	if b.directs, err = b.follow(ctx, theirs); err != nil {
		return err
	}
	stream, err := b.fleet.Client.Modules.WatchModules(ctx, &v1.WatchModulesRequest{Name: module})
	if err != nil {
		return err
	}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				close(b.ready) // the hub has ended
				return
			}
			for _, c := range m.GetModule().GetStatus().GetConditions() {
				if c.GetType() == "Ready" && c.GetStatus() == "True" {
					b.ready <- c.GetObservedGeneration()
				}
			}
		}
	}()
	return nil
}

// direct applies a revision with the bare loop and returns how long it took until all objects were live.
func (b *bench) direct(ctx context.Context, revision int) (time.Duration, error) {
	bodies, err := measure.Bodies(measure.ConfigMap, theirs, b.objects, revision, b.hubID, b.owner)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := b.bare.Apply(ctx, bodies); err != nil {
		return 0, err
	}
	at, err := b.directs.await(ctx, revision, b.objects)
	return at.Sub(begin), err
}

// way is how long a change took from the put to each place that it passes.
type way struct {
	stored  time.Duration // the put is answered
	asked   time.Duration // the API server gets the first apply
	applied time.Duration // it has answered the last
	live    time.Duration // a watch has brought every object
	ready   time.Duration // a watch of the hub says that the module is ready
}

// change puts a revision on the hub.
func (b *bench) change(ctx context.Context, revision int) (w way, err error) {
	text, err := measure.Manifest(measure.ConfigMap, ours, 0, b.objects, revision, "objects")
	if err != nil {
		return w, err
	}
	mark, err := b.fleet.Cluster.Audit.Now()
	if err != nil {
		return w, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	m := &v1.Module{ApiVersion: "towline.dev/v1", Kind: "Module", Metadata: &v1.Metadata{Name: module},
		Spec: &v1.ModuleSpec{Source: measure.Inline(text), Placement: &v1.Placement{Selector: &v1.LabelSelector{}}}}
	begin := time.Now()
	put, err := b.fleet.Client.Modules.PutModule(ctx, &v1.PutModuleRequest{Module: m})
	if err != nil {
		return w, err
	}
	w.stored = time.Since(begin)
	generation := put.GetModule().GetMetadata().GetGeneration()
	for seen := int64(0); seen < generation; {
		select {
		case seen = <-b.ready:
		case <-ctx.Done():
			return w, fmt.Errorf("not ready at generation %d: %w", generation, ctx.Err())
		}
	}
	w.ready = time.Since(begin)
	at, err := b.agents.await(ctx, revision, b.objects)
	if err != nil {
		return w, err
	}
	w.live = at.Sub(begin)
	applies, err := b.fleet.Cluster.Audit.Since(mark, lab.Request.Applies)
	if err != nil {
		return w, err
	}
	if len(applies) != b.objects {
		return w, fmt.Errorf("%d applies for %d objects", len(applies), b.objects)
	}
	w.asked = time.Minute
	for _, r := range applies {
		w.asked, w.applied = min(w.asked, r.Received.Sub(begin)), max(w.applied, r.Answered.Sub(begin))
	}
	return w, nil
}

// follower watches the ConfigMaps of a namespace.
type follower struct{ events chan event }

type event struct {
	name, revision string
	at             time.Time
}

func (b *bench) follow(ctx context.Context, namespace string) (*follower, error) {
	r, err := b.fleet.Cluster.Resource("v1", "ConfigMap", namespace)
	if err != nil {
		return nil, err
	}
	w, err := r.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	f := &follower{events: make(chan event, 4096)}
	go f.receive(w)
	return f, nil
}

func (f *follower) receive(w watch.Interface) {
	defer close(f.events)
	for e := range w.ResultChan() {
		if u, ok := e.Object.(*unstructured.Unstructured); ok {
			text, _, _ := unstructured.NestedString(u.Object, "data", "revision")
			f.events <- event{u.GetName(), text, time.Now()}
		}
	}
}

// await returns when the last of n objects was seen with a revision.
func (f *follower) await(ctx context.Context, revision, n int) (time.Time, error) {
	want := fmt.Sprintf("%08d", revision)
	seen := map[string]bool{}
	for {
		select {
		case e, open := <-f.events:
			if !open {
				return time.Time{}, errors.New("the watch of the API server ended")
			}
			if e.revision == want {
				seen[e.name] = true
			}
			if len(seen) == n {
				return e.at, nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d objects are live: %w", len(seen), n, ctx.Err())
		}
	}
}
