package hub

import (
	"context"
	"fmt"
	"hash/crc32"
	"sync"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// SimulatedStore is a store in memory that outlives the hubs which stand on it, as an etcd does: for simulation.
type SimulatedStore struct{ kept backend.Backend }

// NewSimulatedStore is an empty one.
func NewSimulatedStore() *SimulatedStore { return &SimulatedStore{memory.New()} }

// CommitFault is what becomes of a commit.
type CommitFault int

// What becomes of commits.
const (
	// CommitDone has it happen, and be answered.
	CommitDone CommitFault = iota
	// CommitNotSent has it not happen.
	CommitNotSent
	// CommitNotAnswered has it happen, and nobody hears of it.
	CommitNotAnswered
)

// Process is what one process of a hub has of the store. fault says what becomes of each of its commits, and committed is told of those that
// happened; they must not block.
func (s *SimulatedStore) Process(fault func() CommitFault, committed func(revision int64, what string)) *SimulatedProcess {
	return &SimulatedProcess{Backend: s.kept, seats: backend.NewSeats(), fault: fault, committed: committed, dead: make(chan struct{})}
}

// SimulatedProcess is a process of a hub that can be killed.
type SimulatedProcess struct {
	backend.Backend
	seats     *backend.Seats
	fault     func() CommitFault
	committed func(revision int64, what string)
	once      sync.Once
	dead      chan struct{}
}

// Kill ends all that the process can do to the store. What it has committed stays.
func (p *SimulatedProcess) Kill() { p.once.Do(func() { close(p.dead) }) }

func (p *SimulatedProcess) alive() error {
	select {
	case <-p.dead:
		return fleet.Errorf(fleet.ErrUnavailable, "simulated store: the process was killed")
	default:
		return nil
	}
}

// Commit does what fault says.
func (p *SimulatedProcess) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if err := p.alive(); err != nil {
		return 0, nil, err
	}
	becomes := p.fault()
	if err := p.alive(); err != nil && becomes == CommitDone { // it kills
		return 0, nil, err
	}
	if becomes == CommitNotSent {
		return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "simulated store: not reached")
	}
	rev, happened, err := p.Backend.Commit(ctx, parts)
	if err == nil {
		p.committed(rev, described(parts, happened))
	}
	if becomes == CommitNotAnswered {
		return 0, nil, fleet.Errorf(fleet.ErrUnavailable, "simulated store: no answer")
	}
	return rev, happened, err
}

// described names what a commit changed, with a digest of all its values.
func described(parts []backend.Part, happened []bool) string {
	var keys []string
	sum := crc32.NewIEEE()
	for i, part := range parts {
		for _, o := range part.Then {
			if happened[i] {
				keys = append(keys, o.Key)
				_, _ = sum.Write(o.Value)
			}
		}
	}
	return fmt.Sprintf("%q %08x", keys, sum.Sum32())
}

// Get fails once the process is dead, as all that follows.
func (p *SimulatedProcess) Get(ctx context.Context, revision int64, keys ...string) (map[string]backend.KV, int64, error) {
	if err := p.alive(); err != nil {
		return nil, 0, err
	}
	return p.Backend.Get(ctx, revision, keys...)
}

// Range reads a page.
func (p *SimulatedProcess) Range(ctx context.Context, q backend.RangeQuery) (backend.Page, error) {
	if err := p.alive(); err != nil {
		return backend.Page{}, err
	}
	return p.Backend.Range(ctx, q)
}

// Revision is the present one.
func (p *SimulatedProcess) Revision(ctx context.Context) (int64, error) {
	if err := p.alive(); err != nil {
		return 0, err
	}
	return p.Backend.Revision(ctx)
}

// Watch ends with the process.
func (p *SimulatedProcess) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	return p.Backend.Watch(ctx, prefix, from, fn)
}

// Announce is of the process alone.
func (p *SimulatedProcess) Announce(ctx context.Context, key string, value []byte) (backend.Announcement, error) {
	return backend.AnnounceAlone(ctx, p, key, value)
}

// Elect takes the seat of a process that was killed.
func (p *SimulatedProcess) Elect(ctx context.Context, prefix string, value []byte) (backend.Leadership, error) {
	return p.seats.Elect(ctx, p, prefix, value)
}

// Close leaves the store to others.
func (p *SimulatedProcess) Close() error { return nil }
