// Package fence owns the right to write to the cluster: one Lease there, which every batch of writes must swap first.
// It must not know what is written.
package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/version"
)

// Annotations of the Lease.
const (
	EpochAnnotation = "towline.dev/epoch"
	BatchAnnotation = "towline.dev/batch"
)

// Options are what a Fence needs; Config and Identity are required.
type Options struct {
	// Config reaches the cluster. The fence uses a client of its own, so that writes cannot starve it.
	Config *rest.Config
	// Identity names this process; after a restart the same identity takes its Lease again at once. Two processes that
	// run at the same time must not share one.
	Identity string
	// Namespace of the Lease; towline-system by default. It is created if it is missing.
	Namespace string
	// Name of the Lease; towline-agent by default.
	Name string
	// Duration is how long a Lease without a sign of life is respected; 15 s by default.
	Duration time.Duration
	// Period is how often the holder shows life and others look; 4 s by default.
	Period time.Duration
	// BatchWrites and BatchTime bound a batch; 100 and 500 ms by default.
	BatchWrites int
	BatchTime   time.Duration
	// Admit is asked each time before the Lease is taken. It says above which epoch the new one must be, should the Lease
	// have been lost. An error that is fleet.ErrPrecondition ends Run; others are tried again.
	Admit func(ctx context.Context) (epoch uint64, err error)
	// Clock defaults to the machine's.
	Clock func() Moment
	// Heard, if set, is told how each swap of the Lease went while it is held: nil if the API server took it, else why not.
	// It must return at once.
	Heard func(error)
	// WentBack, if set, is told when the API server shows the Lease as it was before swaps that it had taken: its store was
	// restored. It must return at once.
	WentBack func()
	// Twin, if set, is told when the Lease was taken from a process with the same identity that is alive: this agent's state was
	// copied. It must return at once.
	Twin func()
	// MinTenure is how long a process keeps the Lease at least from another one with its identity; a minute by default.
	MinTenure time.Duration
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
}

// Fence holds the Lease, or waits for it.
type Fence struct {
	o          Options
	leases     *kube.Leases
	namespaces *kube.Namespaces

	swap  chan struct{}  // one slot: who has it talks to the server
	ahead sync.WaitGroup // swaps that nobody waits for yet

	mu     sync.Mutex
	held   *coordinationv1.Lease // nil: not the holder
	epoch  uint64
	batch  uint64
	opened Moment // before the swap was sent that opened the batch; what it covers ends by this
	began  Moment // when that was answered; the batch ends by this, so that a slow swap leaves room in it
	writes int
	lost   func(error)
	notes  map[string]string // by annotation, to be put on the Lease with the next swap; of others what is there stays
	found  Inherited         // when the Lease was taken

	valid  context.Context // of the writes that the Lease covers
	lapse  context.CancelCauseFunc
	expiry *time.Timer // looks whether valid has to end
}

// New makes a Fence; Run takes the Lease.
func New(o Options) (*Fence, error) {
	if o.Config == nil || o.Identity == "" {
		return nil, fleet.Errorf(fleet.ErrInvalid, "fence: needs the cluster's configuration and an identity")
	}
	setDefault(&o.Namespace, "towline-system")
	setDefault(&o.Name, "towline-agent")
	setDefault(&o.Duration, 15*time.Second)
	setDefault(&o.Period, 4*time.Second)
	setDefault(&o.MinTenure, time.Minute)
	setDefault(&o.BatchWrites, 100)
	setDefault(&o.BatchTime, 500*time.Millisecond)
	if o.Admit == nil {
		o.Admit = func(context.Context) (uint64, error) { return 0, nil }
	}
	if o.Clock == nil {
		o.Clock = now
	}
	if o.Heard == nil {
		o.Heard = func(error) {}
	}
	if o.WentBack == nil {
		o.WentBack = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	config := rest.CopyConfig(o.Config)
	config.QPS, config.Burst, config.RateLimiter = -1, -1, nil
	if config.UserAgent == "" {
		config.UserAgent = "towline-agent/" + version.Version
	}
	config.Timeout = o.Duration / 2
	client, err := kube.New(config)
	if err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	f := &Fence{o: o, leases: client.Leases(o.Namespace), namespaces: client.Namespaces(), swap: make(chan struct{}, 1)}
	f.valid, f.lapse = context.WithCancelCause(context.Background())
	f.lapse(f.notHeld())
	return f, nil
}

func setDefault[T comparable](dst *T, v T) {
	var zero T
	if *dst == zero {
		*dst = v
	}
}

// Run waits for the Lease and runs lead while it is held; lead's context ends when another process takes it. Then Run
// waits again. It returns when ctx ends or lead returns by itself, and gives the Lease back.
func (f *Fence) Run(ctx context.Context, lead func(context.Context) error) error {
	for {
		if err := f.acquire(ctx); err != nil {
			return err
		}
		leading, cancel := context.WithCancelCause(ctx)
		f.mu.Lock()
		f.lost = cancel
		epoch := f.epoch
		f.mu.Unlock()
		f.o.Log.Info("lease taken", "lease", f.name(), "identity", f.o.Identity, "epoch", epoch)
		var renewing sync.WaitGroup
		renewing.Go(func() { f.renew(leading) })
		err := lead(leading)
		cause := context.Cause(leading)
		stillOurs := leading.Err() == nil || ctx.Err() != nil
		cancel(nil)
		renewing.Wait()
		f.ahead.Wait()
		if stillOurs {
			f.release(ctx)
			return err
		}
		f.o.Log.Warn("lease lost: all writes have stopped", "lease", f.name(), "error", cause)
		if f.sameIdentity(ctx) {
			return fleet.Errorf(fleet.ErrConflict, "lease %s: another process with identity %s took it; two agents must not share one", f.name(), f.o.Identity)
		}
	}
}

func (f *Fence) name() string { return f.o.Namespace + "/" + f.o.Name }

// Epoch counts the holders of the Lease; it is 0 while this process is not the holder.
func (f *Fence) Epoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		return 0
	}
	return f.epoch
}

// Open begins a write. It swaps {holder, epoch, batch} on the Lease unless the batch under way has room; an error means
// that nothing may be written.
func (f *Fence) Open(ctx context.Context) error {
	for {
		f.mu.Lock()
		if f.held == nil {
			f.mu.Unlock()
			return f.notHeld()
		}
		if f.room() {
			f.writes++
			early := f.writes == f.o.BatchWrites*3/4
			f.mu.Unlock()
			if early {
				f.beatAhead(ctx)
			}
			return nil
		}
		f.mu.Unlock()
		select {
		case f.swap <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.hasRoom() {
			<-f.swap
			continue
		}
		err := f.beat(ctx)
		<-f.swap
		if err != nil {
			return err
		}
	}
}

// Ahead opens a batch for writes that are about to come, unless the one under way has room. It does not wait, and what
// goes wrong is found by the Open that needs the batch.
func (f *Fence) Ahead(ctx context.Context) {
	if f.Epoch() != 0 && !f.hasRoom() {
		f.beatAhead(ctx)
	}
}

// Prove swaps the Lease once more. Nil: what was read before the call was read from the cluster that the Lease is in, and
// not from another one whose API server answers at the same address now.
func (f *Fence) Prove(ctx context.Context) error {
	asked := f.o.Clock()
	select {
	case f.swap <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-f.swap }()
	if f.swappedSince(asked) {
		return nil // for somebody else, while this call waited
	}
	return f.beat(ctx)
}

// swappedSince reports that a swap which began later has succeeded.
func (f *Fence) swappedSince(asked Moment) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held != nil && f.opened.Boot > asked.Boot && f.opened.Wall.After(asked.Wall)
}

// beatAhead opens the next batch while the last writes of this one are under way, so that writes in a row do not stop
// for it. What goes wrong is found by the Open that needs the batch.
func (f *Fence) beatAhead(ctx context.Context) {
	select {
	case f.swap <- struct{}{}:
	default:
		return
	}
	f.ahead.Go(func() {
		defer func() { <-f.swap }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		_ = f.beat(ctx)
	})
}

func (f *Fence) hasRoom() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.room()
}

// room says that the batch under way takes one more write. The caller holds mu.
func (f *Fence) room() bool {
	return f.writes < f.o.BatchWrites && f.o.Clock().Since(f.began) < f.o.BatchTime && f.age() < f.covered()
}

// age is how long ago the Lease was renewed. The caller holds mu.
func (f *Fence) age() time.Duration { return f.o.Clock().Since(f.opened) }

func (f *Fence) notHeld() error {
	return fleet.Errorf(fleet.ErrStale, "lease %s is not held by %s: nothing is written", f.name(), f.o.Identity)
}

// beat opens a batch: a compare-and-swap of the Lease. The caller has the swap slot.
func (f *Fence) beat(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		f.mu.Lock()
		if f.held == nil {
			f.mu.Unlock()
			return f.notHeld()
		}
		next := f.stamp(f.held, f.epoch, f.batch+1)
		f.mu.Unlock()
		began := f.o.Clock()
		got, err := f.leases.Update(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			f.o.Heard(nil)
			return f.swapped(next, got, began)
		}
		if !kube.Is(err, kube.Conflict, kube.Gone) {
			f.heard(ctx, err)
			return fleet.Errorf(fleet.ErrUnavailable, "lease %s: %v", f.name(), err)
		}
		if err := f.check(ctx, attempt); err != nil {
			return err
		}
	}
}

// check looks who holds the Lease after a swap failed. It returns nil if that is still this process, whose swap may be
// tried again.
func (f *Fence) check(ctx context.Context, attempt int) error {
	now, err := f.leases.Get(ctx, f.o.Name, metav1.GetOptions{})
	f.heard(ctx, err)
	back := false
	defer func() {
		if back {
			f.o.WentBack()
		}
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	back = err == nil && f.isAhead(now)
	switch {
	case err != nil && !kube.IsGone(err):
		return fleet.Errorf(fleet.ErrUnavailable, "lease %s: %v", f.name(), err)
	case err == nil && holder(now) == f.o.Identity && number(now, EpochAnnotation) == f.epoch && attempt < 3:
		f.held = now
		return nil
	case err != nil:
		f.drop(fleet.Errorf(fleet.ErrStale, "lease %s is gone", f.name()))
	default:
		f.drop(fleet.Errorf(fleet.ErrStale, "lease %s is held by %q in epoch %d", f.name(), holder(now), number(now, EpochAnnotation)))
	}
	return f.notHeld()
}

// heard passes on how a request went, unless it ended because nobody waits for it any more.
func (f *Fence) heard(ctx context.Context, err error) {
	switch {
	case kube.IsGone(err):
		f.o.Heard(nil)
	case !errors.Is(ctx.Err(), context.Canceled):
		f.o.Heard(err)
	}
}

// isAhead reports that the Lease is as it was before a swap that the API server had answered. The caller holds mu.
func (f *Fence) isAhead(now *coordinationv1.Lease) bool {
	epoch := number(now, EpochAnnotation)
	return epoch < f.epoch || epoch == f.epoch && number(now, BatchAnnotation) < f.batch
}

// drop stops all writes. The caller holds mu.
func (f *Fence) drop(why error) {
	f.held = nil
	f.lapse(why)
	if f.lost != nil {
		f.lost(why)
	}
}

// renew shows life while nothing is written.
func (f *Fence) renew(ctx context.Context) {
	t := time.NewTicker(f.o.Period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		f.mu.Lock()
		fresh := f.age() < f.o.Period/2 && f.noted()
		f.mu.Unlock()
		if fresh {
			continue
		}
		select {
		case f.swap <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := f.beat(ctx)
		<-f.swap
		if err != nil && ctx.Err() == nil {
			f.o.Log.Warn("lease cannot be renewed; no writes until it is", "lease", f.name(), "error", err)
		}
	}
}
