package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"towline.dev/towline/test/lab/measure"
)

const (
	managed = "kept" // the namespace of the module's objects
	bare    = "bare" // that of the reference
	// perModule is how many objects one module has.
	perModule = 1000
	// patience with one correction.
	patience = 30 * time.Second
	// pause between edits, so that each finds the agent at rest.
	pause = 20 * time.Millisecond
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

type bench struct {
	fleet  *measure.Fleet
	files  *measure.Files
	client dynamic.Interface
	loop   *measure.Bare
	owner  [2]string // hub and owner mark of the reference's objects
	have   int       // objects that the agent keeps
	edited int
}

func newBench(ctx context.Context, dir string) (*bench, error) {
	f, err := measure.StartFleet(ctx, "../..", dir)
	if err != nil {
		return nil, err
	}
	b := &bench{fleet: f}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) prepare(ctx context.Context) error {
	var err error
	if b.files, err = measure.ServeFiles(); err != nil {
		return err
	}
	if err := b.fleet.Namespaces(ctx, managed, bare); err != nil {
		return err
	}
	config := rest.CopyConfig(b.fleet.Cluster.Config)
	config.UserAgent, config.QPS = "bench-editor", -1
	if b.client, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	if b.loop, err = measure.NewBare(b.fleet.Cluster.Config, "bench-bare"); err != nil {
		return err
	}
	b.owner[0], b.owner[1], err = b.fleet.StandIn(ctx, "bench-0")
	return err
}

func (b *bench) close() error {
	if b.files != nil {
		_ = b.files.Close() // nobody fetches any more
	}
	return b.fleet.Close()
}

// grow has the agent keep so many objects.
func (b *bench) grow(ctx context.Context, n int) error {
	began := time.Now()
	for ; b.have < n; b.have = min(b.have+perModule, n) {
		name := fmt.Sprintf("bench-%d", b.have)
		text, err := measure.Manifest(measure.ConfigMap, managed, b.have, min(b.have+perModule, n), 0, "objects")
		if err != nil {
			return err
		}
		number, err := b.fleet.Put(ctx, name, measure.HTTP(b.files.Put(name+".yaml", text)))
		if err == nil {
			err = b.fleet.Await(ctx, name, number)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, b.fleet.Agent.Tail())
		}
	}
	fmt.Printf("the agent keeps %d ConfigMaps after %v\n", n, time.Since(began).Round(time.Millisecond))
	return nil
}

// rounds edits an object and applies another one, in turns, and returns the milliseconds that each took.
func (b *bench) rounds(ctx context.Context, edits int) (corrected, applied []float64, err error) {
	now, err := b.client.Resource(configMaps).Namespace(managed).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, nil, err
	}
	w, err := b.client.Resource(configMaps).Namespace(managed).Watch(ctx, metav1.ListOptions{ResourceVersion: now.GetResourceVersion()})
	if err != nil {
		return nil, nil, err
	}
	defer w.Stop()
	for i := range edits {
		took, err := b.correct(ctx, w, b.edited%b.have)
		if err != nil {
			return nil, nil, err
		}
		b.edited += max(1, b.have/edits)
		corrected = append(corrected, took)
		if took, err = b.apply(ctx, i); err != nil {
			return nil, nil, err
		}
		applied = append(applied, took)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return corrected, applied, nil
}

// correct changes an object of the module, and waits until it is as the module says.
func (b *bench) correct(ctx context.Context, w watch.Interface, i int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	object := measure.ConfigMap(managed, i, 0)
	name := object["metadata"].(map[string]any)["name"].(string)
	want := object["data"].(map[string]any)["revision"].(string)
	edited, err := b.client.Resource(configMaps).Namespace(managed).Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"revision":"edited"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	if err != nil {
		return 0, err
	}
	began, seen := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("ConfigMap %s is not as before: %w", name, ctx.Err())
		case e, open := <-w.ResultChan():
			u, isObject := e.Object.(*unstructured.Unstructured)
			if !open || !isObject {
				return 0, fmt.Errorf("the watch has ended: %v", e.Object)
			}
			seen = seen || u.GetName() == name && u.GetResourceVersion() == edited.GetResourceVersion()
			if value, _, _ := unstructured.NestedString(u.Object, "data", "revision"); seen && u.GetName() == name && value == want {
				return time.Since(began).Seconds() * 1000, nil
			}
		}
	}
}

// apply changes an object of the same kind by one bare apply.
func (b *bench) apply(ctx context.Context, i int) (float64, error) {
	object := measure.ConfigMap(bare, i%perModule, 0)
	for revision := range 2 { // the first makes it, or takes the last change back
		object["data"].(map[string]any)["revision"] = fmt.Sprintf("%08d", revision)
		text, err := measure.Marked(object, b.owner[0], b.owner[1])
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if err := b.loop.Apply(ctx, []measure.Body{{Path: measure.PathOf(object), JSON: text}}); err != nil {
			return 0, err
		}
		if revision == 1 {
			return time.Since(began).Seconds() * 1000, nil
		}
	}
	return 0, nil
}
