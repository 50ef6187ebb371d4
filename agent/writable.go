package agent

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

const (
	// probeEvery is how often a state that takes no writes is tried again.
	probeEvery = 5 * time.Second
	probeName  = "probe"
	// secretsPatience is longer than it takes to find out that the API server is not reached.
	secretsPatience = 30 * time.Second
)

// guarded is the agent's state, with an eye on whether it takes writes. That it does not is a condition of the cluster.
type guarded struct {
	state.Store
	conditions interface {
		Set(fleet.Condition)
		Clear(fleet.ConditionType)
	}
	// excused reports that a failure has a cause which is told already.
	excused func() bool
	// patience is for how long writes may fail before that is said.
	patience time.Duration

	signs   chan struct{}
	mu      sync.Mutex
	failing time.Time // since when writes fail; zero: they do not
}

// guard watches over a state. One in the cluster takes no writes when the API server does nothing at all, which is said by
// itself, and may last for a moment.
func (a *Agent) guard(s state.Store) *guarded {
	g := &guarded{Store: s, conditions: a.conditions, signs: make(chan struct{}, 1), excused: func() bool { return false }}
	if a.o.StateDir == "" {
		g.patience, g.excused = secretsPatience, func() bool { return !a.reach.Reachable() }
	}
	return g
}

// Write implements state.Store.
func (g *guarded) Write(ctx context.Context, name string, data []byte) error {
	return g.heard(ctx, g.Store.Write(ctx, name, data))
}

// WriteAll implements state.Store.
func (g *guarded) WriteAll(ctx context.Context, items ...state.Item) error {
	return g.heard(ctx, g.Store.WriteAll(ctx, items...))
}

// Remove implements state.Store.
func (g *guarded) Remove(ctx context.Context, name string) error {
	err := g.Store.Remove(ctx, name)
	if err != nil { // a full disk takes removals
		_ = g.heard(ctx, err)
	}
	return err
}

// heard takes note of how a write went. One that is not allowed, or that nobody waits for any more, says nothing.
func (g *guarded) heard(ctx context.Context, err error) error {
	if err != nil && (ctx.Err() != nil || errors.Is(err, fleet.ErrStale) || errors.Is(err, fleet.ErrPrecondition) || errors.Is(err, fleet.ErrInvalid)) {
		return err
	}
	g.mu.Lock()
	was := g.failing
	switch {
	case err == nil:
		g.failing = time.Time{}
	case was.IsZero():
		g.failing = time.Now()
	}
	since := g.failing
	g.mu.Unlock()
	switch {
	case err == nil && was.IsZero():
		return nil
	case err == nil, g.excused():
		g.conditions.Clear(fleet.ConditionStateWritable)
	case time.Since(since) >= g.patience:
		g.conditions.Set(fleet.Condition{Type: fleet.ConditionStateWritable, Status: fleet.ConditionFalse, Reason: whyNot(err), Since: since,
			Message: "the agent cannot write its state, so nothing new is taken: " + err.Error()})
	}
	dirty.Poke(g.signs)
	return err
}

// run tries a state that takes no writes until it does: nothing else may need to write for long.
func (g *guarded) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.signs:
		}
		if backoff.Wait(ctx, probeEvery) != nil {
			return nil
		}
		if g.fails() {
			_ = g.Write(ctx, probeName, []byte(time.Now().UTC().Format(time.RFC3339))) // heard takes note
		}
	}
}

// fails reports that the last write failed.
func (g *guarded) fails() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.failing.IsZero()
}

func whyNot(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "NoSpace"
	case errors.Is(err, syscall.EROFS):
		return "ReadOnly"
	case errors.Is(err, fs.ErrPermission):
		return "NotPermitted"
	default:
		return "WriteFails"
	}
}
