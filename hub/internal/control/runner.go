package control

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"towline.dev/towline/pkg/dirty"
)

// runner runs a function for keys: never twice at once for one key, once more if the key was asked for while it ran,
// at most workers keys at once, and of several times asked for the earliest. A key that waits holds no other back.
type runner struct {
	workers int
	run     func(ctx context.Context, key string) (again time.Duration)

	mu      sync.Mutex
	wake    chan struct{}
	due     dueHeap
	entries map[string]*due
	running map[string]bool // true: another was asked for, see ask
	active  int
}

type due struct {
	key   string
	at    time.Time
	index int
}

func newRunner(workers int, run func(context.Context, string) time.Duration) *runner {
	return &runner{workers: workers, run: run, wake: make(chan struct{}, 1), entries: map[string]*due{}, running: map[string]bool{}}
}

// add asks for a run now.
func (r *runner) add(key string) { r.addAt(key, time.Now()) }

// addAll has keys run that were woken.
func (r *runner) addAll(keys []string) {
	for _, key := range keys {
		r.add(key)
	}
}

// addAt asks for a run at a time; an earlier one already asked for stays. It comes as long from now as there is until then, by the clock that
// nobody sets: times that were stored are by another one, which is put right now and then.
func (r *runner) addAt(key string, at time.Time) {
	now := time.Now()
	at = now.Add(at.Sub(now))
	r.mu.Lock()
	e := r.entries[key]
	switch {
	case e == nil:
		e = &due{key: key, at: at}
		r.entries[key] = e
		heap.Push(&r.due, e)
	case at.Before(e.at):
		e.at = at
		heap.Fix(&r.due, e.index)
	}
	r.mu.Unlock()
	r.signal()
}

// ask asks for a run unless one was asked for already, whenever that is due. One that is under way says itself when it is to be tried
// again; if it does not, another follows it.
func (r *runner) ask(key string) {
	r.mu.Lock()
	_, runs := r.running[key]
	if runs {
		r.running[key] = true
	}
	known := runs || r.entries[key] != nil
	r.mu.Unlock()
	if !known {
		r.add(key)
	}
}

func (r *runner) signal() {
	dirty.Poke(r.wake)
}

// loop runs until ctx ends and then waits for the runs under way.
func (r *runner) loop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := r.start(ctx, &wg)
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// start starts what is due and returns how long nothing will be.
func (r *runner) start(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var held []*due
	wait := time.Hour
	for len(r.due) > 0 && r.active < r.workers {
		e := r.due[0]
		if d := e.at.Sub(now); d > 0 {
			wait = d
			break
		}
		heap.Pop(&r.due)
		if _, runs := r.running[e.key]; runs {
			held = append(held, e)
			continue
		}
		delete(r.entries, e.key)
		r.running[e.key] = false
		r.active++
		wg.Go(func() { r.one(ctx, e.key) })
	}
	for _, e := range held {
		heap.Push(&r.due, e)
	}
	return wait
}

func (r *runner) one(ctx context.Context, key string) {
	again := r.run(ctx, key)
	r.mu.Lock()
	asked := r.running[key]
	delete(r.running, key)
	r.active--
	r.mu.Unlock()
	if asked || again > 0 {
		r.addAt(key, time.Now().Add(again))
		return
	}
	r.signal()
}

type dueHeap []*due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for container/heap.
func (h *dueHeap) Push(x any) {
	e := x.(*due)
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}
