package child

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// Limits of one build. What exceeds one is ended, and the error says which.
type Limits struct {
	Wall   time.Duration // from the first byte of the job to the last of the answer; default 30s
	CPU    time.Duration // default 10s
	Memory int64         // bytes that the process has in memory; default 512 MiB
	Output int           // bytes of the manifests; default 32 MiB
}

func (l Limits) orDefaults() Limits {
	if l.Wall == 0 {
		l.Wall = 30 * time.Second
	}
	if l.CPU == 0 {
		l.CPU = 10 * time.Second
	}
	if l.Memory == 0 {
		l.Memory = 512 << 20
	}
	if l.Output == 0 {
		l.Output = 32 << 20
	}
	return l
}

// Options of a Pool.
type Options struct {
	// Command starts a process that calls Serve. Required.
	Command []string
	// Workers is how many builds run at a time; default: the processors, at least 2.
	Workers int
	// Idle is how long a process waits for its next job before it is ended; default 5m.
	Idle   time.Duration
	Limits Limits
}

// Pool is a render.Engine that builds in processes of its own, and keeps those that have nothing to do for the next job.
type Pool struct {
	o     Options
	slots chan struct{}

	mu     sync.Mutex
	idle   []*process
	closed bool
}

// NewPool starts nothing yet: processes are started when there is something to build.
func NewPool(o Options) (*Pool, error) {
	if len(o.Command) == 0 {
		return nil, fmt.Errorf("render: Command is required")
	}
	if o.Workers == 0 {
		o.Workers = max(2, runtime.GOMAXPROCS(0))
	}
	if o.Idle == 0 {
		o.Idle = 5 * time.Minute
	}
	o.Limits = o.Limits.orDefaults()
	return &Pool{o: o, slots: make(chan struct{}, o.Workers)}, nil
}

// Build implements render.Engine. A process that ends, hangs or takes too much is an error of this job alone.
func (p *Pool) Build(ctx context.Context, job render.Job) (render.Built, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return render.Built{}, ctx.Err()
	}
	defer func() { <-p.slots }()
	c, err := p.take()
	if err != nil {
		return render.Built{}, err
	}
	result, err := c.build(ctx, job)
	if c.lost && c.expiry != nil { // it may have ended while it waited; whether the job ends its process, a new one says
		if c, err = p.begin(); err != nil {
			return render.Built{}, err
		}
		result, err = c.build(ctx, job)
	}
	if result.Spent || c.broken {
		c.end()
		return render.Built{Texts: result.Texts, Reads: result.Reads}, err
	}
	p.give(c)
	return render.Built{Texts: result.Texts, Reads: result.Reads}, err
}

// take is a process that waits, or a new one.
func (p *Pool) take() (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		c.expiry.Stop()
		return c, nil
	}
	return p.start()
}

// begin is a new process.
func (p *Pool) begin() (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.start()
}

// start makes a process, unless the pool is closed.
func (p *Pool) start() (*process, error) {
	if p.closed {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "package: the hub is stopping")
	}
	c, err := start(p.o)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "package: the render worker does not start: %s", err)
	}
	return c, nil
}

// give keeps a process for the next job.
func (p *Pool) give(c *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.end()
		return
	}
	c.expiry = time.AfterFunc(p.o.Idle, func() { p.expire(c) })
	p.idle = append(p.idle, c)
}

// expire ends a process that nobody needed, unless it was taken just now.
func (p *Pool) expire(c *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.idle {
		if other == c {
			p.idle = append(p.idle[:i:i], p.idle[i+1:]...)
			c.end()
			return
		}
	}
}

// Close ends the processes. Builds that are under way fail when their context ends.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		c.expiry.Stop()
		c.end()
	}
	p.idle = nil
}
