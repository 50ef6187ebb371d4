package session

import (
	"sync"

	"towline.dev/towline/pkg/guard"
)

// errand is work that comes now and then. One goroutine at a time does it, and ends when there is no more of it: a session has nothing
// to do most of the time, and there are many, so that none of its goroutines waits that need not.
type errand struct {
	mu      sync.Mutex
	parts   *sync.WaitGroup
	round   func() error
	failed  func(error)
	called  bool // there is something to do that no round has seen
	running bool
	over    bool
}

// begin has rounds done from now on, the first one at once if there is something to do already. failed is told of an error or a panic,
// after which there are no more.
func (e *errand) begin(parts *sync.WaitGroup, round func() error, failed func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.parts, e.round, e.failed = parts, round, failed
	e.start()
}

// call never blocks; a round begins after it. Calls coalesce.
func (e *errand) call() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.called = true
	e.start()
}

// end lets no round begin any more.
func (e *errand) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// start has a goroutine do what there is to do. The caller holds mu.
func (e *errand) start() {
	if e.round == nil || !e.called || e.running || e.over {
		return
	}
	e.running = true
	e.parts.Go(e.run)
}

func (e *errand) run() {
	for e.next() {
		if err := guard.Run(e.round); err != nil {
			e.end()
			e.failed(err)
			return
		}
	}
}

// next reports that there is another round to do.
func (e *errand) next() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = e.called && !e.over
	e.called = false
	return e.running
}

// aside runs a part on a goroutine of its own. What the handler of a stream has on its stack while it waits is all that it should
// need: its stack keeps the size that what went deepest made it grow to.
func aside(parts *sync.WaitGroup, part func() error) error {
	done := make(chan error, 1)
	parts.Go(func() { done <- guard.Run(part) })
	return <-done
}
