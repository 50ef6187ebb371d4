package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

// A contestant brings revisions of sets of objects to the cluster.
type contestant interface {
	name() string
	namespace(w *work) string
	// ready prepares the work's revision; it is not measured.
	ready(w *work) error
	// apply returns when every object is applied. The mark is from before it.
	apply(ctx context.Context, w *work, mark lab.Mark) error
	// made reports its requests: all but reads of its own.
	made(r lab.Request) bool
	// pids are its processes.
	pids() []int
}

// agent gets a module from the hub.
type agent struct {
	*bench
	url string
}

func (a *agent) name() string             { return "agent" }
func (a *agent) namespace(w *work) string { return "agent-" + w.short }
func (a *agent) made(r lab.Request) bool  { return r.ByAgent() && r.Verb != "watch" }

func (a *agent) pids() []int { return []int{a.fleet.Agent.PID(), a.fleet.Hub.PID()} }

func (a *agent) ready(w *work) error {
	text, err := measure.Manifest(w.object, a.namespace(w), 0, w.n, w.revision, "objects")
	if err != nil {
		return err
	}
	a.url = a.files.Put(fmt.Sprintf("%s-%d.yaml", w.short, w.revision), text)
	return nil
}

func (a *agent) apply(ctx context.Context, w *work, mark lab.Mark) error {
	if _, err := a.fleet.Put(ctx, w.module(), measure.HTTP(a.url)); err != nil {
		return err
	}
	seen := 0
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for seen < w.n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d objects applied: %w\n%s", seen, w.n, ctx.Err(), a.fleet.Agent.Tail())
		case <-time.After(100 * time.Millisecond):
		}
		fresh, next, err := a.fleet.Cluster.Audit.Follow(mark, func(r lab.Request) bool {
			return r.ByAgent() && r.Verb == "patch" && r.Namespace == a.namespace(w) && r.Code < 300
		})
		if err != nil {
			return err
		}
		seen += len(fresh)
		mark = next
	}
	return nil
}

// bare sends one PATCH for each object, 16 in flight.
type bare struct {
	loop         *measure.Bare
	hubID, owner string
	bodies       []measure.Body
}

const bareAgent = "bench-bare"

func newBare(ctx context.Context, f *measure.Fleet) (*bare, error) {
	b := &bare{}
	var err error
	if b.hubID, b.owner, err = f.StandIn(ctx, "bench-cm"); err != nil {
		return nil, err
	}
	b.loop, err = measure.NewBare(f.Cluster.Config, bareAgent)
	return b, err
}

func (b *bare) name() string             { return "bare 16-way SSA" }
func (b *bare) namespace(w *work) string { return "bares-" + w.short }
func (b *bare) made(r lab.Request) bool  { return strings.HasPrefix(r.UserAgent, bareAgent) }

func (b *bare) pids() []int { return []int{os.Getpid()} }

func (b *bare) ready(w *work) error {
	var err error
	b.bodies, err = measure.Bodies(w.object, b.namespace(w), w.n, w.revision, b.hubID, b.owner)
	return err
}

func (b *bare) apply(ctx context.Context, _ *work, _ lab.Mark) error {
	return b.loop.Apply(ctx, b.bodies)
}

// flux is the library as kustomize-controller uses it.
type flux struct {
	manager      *ssa.ResourceManager
	hubID, owner string
	objects      []*unstructured.Unstructured
}

const (
	fluxAgent       = "bench-flux"
	fluxConcurrency = 4 // kustomize-controller's default
)

func newFlux(ctx context.Context, f *measure.Fleet) (*flux, error) {
	x := &flux{}
	var err error
	if x.hubID, x.owner, err = f.StandIn(ctx, "bench-cm"); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(f.Cluster.Config)
	config.UserAgent, config.WarningHandlerWithContext = fluxAgent, rest.NoWarnings{}
	c, err := client.New(config, client.Options{Scheme: runtime.NewScheme()})
	if err != nil {
		return nil, err
	}
	x.manager = ssa.NewResourceManager(c, nil, ssa.Owner{Field: "bench", Group: "bench.towline.dev"})
	x.manager.SetConcurrency(fluxConcurrency)
	return x, nil
}

func (x *flux) name() string             { return "fluxcd/pkg/ssa" }
func (x *flux) namespace(w *work) string { return "fluxs-" + w.short }
func (x *flux) made(r lab.Request) bool  { return strings.HasPrefix(r.UserAgent, fluxAgent) }

func (x *flux) pids() []int { return []int{os.Getpid()} }

func (x *flux) ready(w *work) error {
	bodies, err := measure.Bodies(w.object, x.namespace(w), w.n, w.revision, x.hubID, x.owner)
	if err != nil {
		return err
	}
	x.objects = nil
	for _, b := range bodies {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(b.JSON); err != nil {
			return err
		}
		x.objects = append(x.objects, u)
	}
	return nil
}

func (x *flux) apply(ctx context.Context, _ *work, _ lab.Mark) error {
	_, err := x.manager.ApplyAll(ctx, x.objects, ssa.DefaultApplyOptions())
	return err
}
