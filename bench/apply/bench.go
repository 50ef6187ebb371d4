package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"towline.dev/towline/test/lab"
	"towline.dev/towline/test/lab/measure"
)

// work is a set of objects that every contestant has for itself, in a namespace of its own.
type work struct {
	name, short string
	object      measure.Object
	n           int
	revision    int
}

func (w *work) module() string { return "bench-" + w.short }

type bench struct {
	fleet     *measure.Fleet
	files     *measure.Files
	apiserver int
	agent     *agent
	all       []contestant // the agent, the bare loop, Flux
	// idle is the CPU time that the API server uses in a second when nobody applies anything. It is taken off: turns
	// last longer or shorter.
	idle time.Duration
}

func newBench(ctx context.Context, dir string) (*bench, error) {
	b := &bench{}
	var err error
	if b.fleet, err = measure.StartFleet(ctx, "../..", dir); err != nil {
		return nil, err
	}
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
	if b.apiserver, err = b.fleet.Cluster.PID("apiserver"); err != nil {
		return err
	}
	b.agent = &agent{bench: b}
	bare, err := newBare(ctx, b.fleet)
	if err != nil {
		return err
	}
	flux, err := newFlux(ctx, b.fleet)
	if err != nil {
		return err
	}
	b.all = []contestant{b.agent, bare, flux}
	return nil
}

func (b *bench) close() error {
	if b.files != nil {
		_ = b.files.Close() // nobody fetches any more
	}
	return b.fleet.Close()
}

// create makes the first revision of all sets.
func (b *bench) create(ctx context.Context, w *work) error {
	for _, c := range b.all {
		if err := b.fleet.Namespaces(ctx, c.namespace(w)); err != nil {
			return err
		}
		if _, err := b.turn(ctx, c, w); err != nil {
			return fmt.Errorf("%s: %s: %w", c.name(), w.name, err)
		}
		// A set of Deployments is not at rest before its ReplicaSets are made.
		if w.short == "deploy" {
			if err := b.controlled(ctx, c.namespace(w), w.n); err != nil {
				return err
			}
		}
	}
	w.revision++
	return nil
}

func (b *bench) controlled(ctx context.Context, namespace string, n int) error {
	return lab.PollFor(ctx, 2*time.Minute, func() error {
		got, err := b.fleet.Count(ctx, "apps/v1", "ReplicaSet", namespace)
		if err == nil && got < n {
			err = fmt.Errorf("%d ReplicaSets of %d", got, n)
		}
		return err
	})
}

// result is what one turn of a contestant came to.
type result struct {
	rate     float64 // objects a second
	requests float64
	cpu      float64 // milliseconds of the API server for each object
	own      float64 // milliseconds of the contestant itself
	hub      float64 // milliseconds of the hub, from the put on, where it takes part
}

// calm is how long the API server has after a turn to bring events to watchers, and to write what it still has to.
const calm = 500 * time.Millisecond

// turn has one contestant bring the present revision to the cluster.
func (b *bench) turn(ctx context.Context, c contestant, w *work) (result, error) {
	if err := c.ready(w); err != nil {
		return result{}, err
	}
	mark, err := b.fleet.Cluster.Audit.Now()
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	before, err := measure.CPU(b.apiserver)
	if err != nil {
		return result{}, err
	}
	ownBefore, err := spent(c)
	if err != nil {
		return result{}, err
	}
	if err := c.apply(ctx, w, mark); err != nil {
		return result{}, err
	}
	select {
	case <-time.After(calm):
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
	after, err := measure.CPU(b.apiserver)
	if err != nil {
		return result{}, err
	}
	lasted := time.Since(began)
	ownAfter, err := spent(c)
	if err != nil {
		return result{}, err
	}
	requests, err := b.fleet.Cluster.Audit.Since(mark, c.made)
	if err != nil {
		return result{}, err
	}
	objects := slices.DeleteFunc(slices.Clone(requests), func(r lab.Request) bool { return r.Namespace != c.namespace(w) || r.Name == "" })
	if len(objects) < w.n {
		return result{}, fmt.Errorf("%d requests for %d objects", len(objects), w.n)
	}
	first, last := objects[0].Received, objects[0].Answered
	for _, r := range objects {
		if r.Code >= 400 && w.revision > 0 {
			return result{}, fmt.Errorf("refused: %s", r)
		}
		if r.Received.Before(first) {
			first = r.Received
		}
		if r.Answered.After(last) {
			last = r.Answered
		}
	}
	each := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(w.n) }
	return result{rate: float64(w.n) / last.Sub(first).Seconds(), requests: float64(len(requests)),
		cpu: each(after - before - time.Duration(float64(b.idle)*lasted.Seconds())), own: each(ownAfter[0] - ownBefore[0]), hub: each(ownAfter[1] - ownBefore[1])}, nil
}

// rest measures what the API server does when nobody asks.
func (b *bench) rest(ctx context.Context) error {
	const settle, look = 2 * time.Second, 5 * time.Second
	for _, d := range []time.Duration{settle, look} {
		before, err := measure.CPU(b.apiserver)
		if err != nil {
			return err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := measure.CPU(b.apiserver)
		if err != nil {
			return err
		}
		b.idle = time.Duration(float64(after-before) / d.Seconds())
	}
	fmt.Printf("an idle API server uses %.1f %% of a core\n", b.idle.Seconds()*100)
	return nil
}

// spent is the CPU time of a contestant's processes: of itself, and of the hub where it takes part.
func spent(c contestant) (times [2]time.Duration, err error) {
	for i, pid := range c.pids() {
		if times[i], err = measure.CPU(pid); err != nil {
			return times, err
		}
	}
	return times, nil
}

// compare lets the contestants take turns; who begins changes.
func (b *bench) compare(ctx context.Context, w *work, pairs int) ([]measure.Goal, error) {
	results := make([][]result, len(b.all))
	for round := range pairs + 1 {
		for i := range b.all {
			at := (round + i) % len(b.all)
			r, err := b.turn(ctx, b.all[at], w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.all[at].name(), err)
			}
			if round > 0 || pairs == 1 { // the first is for warming up
				results[at] = append(results[at], r)
			}
		}
		w.revision++
	}
	return b.show(w, results), nil
}

func column(results []result, f func(result) float64) []float64 {
	out := make([]float64, 0, len(results))
	for _, r := range results {
		out = append(out, f(r))
	}
	return out
}

func (b *bench) show(w *work, results [][]result) []measure.Goal {
	rate := func(r result) float64 { return r.rate }
	requests := func(r result) float64 { return r.requests }
	cpu := func(r result) float64 { return r.cpu }
	var rows []string
	for i, c := range b.all {
		r := results[i]
		against := func(f func(result) float64) float64 {
			return measure.Median(measure.Ratios(column(r, f), column(results[1], f)))
		}
		rates := column(r, rate)
		rows = append(rows, fmt.Sprintf("%s\t%.0f\t%.0f–%.0f\t%.2f\t%.0f\t%.3f\t%.2f\t%.2f\t%.2f\t%.2f", c.name(), measure.Median(rates), slices.Min(rates), slices.Max(rates),
			against(rate), measure.Median(column(r, requests)), against(requests), measure.Median(column(r, cpu)), against(cpu),
			measure.Median(column(r, func(r result) float64 { return r.own })), measure.Median(column(r, func(r result) float64 { return r.hub }))))
	}
	fmt.Printf("\n%d changed %s, %d rounds, load average %s\n", w.n, w.name, len(results[0]), measure.Load())
	measure.Table(os.Stdout, "\tobjects/s\tmin–max\t× bare\trequests\t× bare\tAPI server ms/object\t× bare\town ms/object\thub ms/object", rows...)
	to := func(reference int, f func(result) float64) float64 {
		return measure.Median(measure.Ratios(column(results[0], f), column(results[reference], f)))
	}
	return []measure.Goal{
		{What: w.name + ": agent's rate over the bare loop's", Got: to(1, rate), Limit: 0.9, AtLeast: true},
		{What: w.name + ": agent's rate over Flux's", Got: to(2, rate), Limit: 2.2, AtLeast: true},
		{What: w.name + ": agent's requests over the bare loop's", Got: to(1, requests), Limit: 1.03},
		{What: w.name + ": API server's CPU over that of the bare loop", Got: to(1, cpu), Limit: 1.10},
	}
}
