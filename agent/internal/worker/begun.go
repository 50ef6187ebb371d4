package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// Names of what is kept over restarts: which revisions are begun of modules that depend on others, and which of their waves are.
const (
	begunName = "begun"
	wavesName = "waves"
)

// begunRetry is when it is tried again to keep what the state did not take.
const begunRetry = time.Second

// begun keeps over restarts what of a module was begun: it goes on then, whatever became of what comes first.
type begun struct {
	name   string
	wake   chan struct{}
	saving chan struct{} // has a value while one writes the state

	mu      sync.Mutex
	of      map[string]string // by module
	changes uint64
	durable uint64 // of these are kept
}

func newBegun(name string) *begun {
	return &begun{name: name, wake: make(chan struct{}, 1), saving: make(chan struct{}, 1)}
}

// load reads what was begun. What is damaged is asked for again, where something is still to be applied; an error is of a state that may have it, and
// be read the next time.
func (b *begun) load(ctx context.Context, in State, log *slog.Logger) error {
	data, err := in.Read(ctx, b.name)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil
	case mayHave(err):
		return fmt.Errorf("what is begun: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		err = json.Unmarshal(data, &b.of)
	}
	if err != nil {
		log.Warn("what is begun cannot be read; what is not applied yet waits again for what comes first", "record", b.name, "error", err)
		b.of = nil
	}
	return nil
}

func begunOf(s fleet.Sync) string { return fmt.Sprintf("%d %s", s.Revision, s.Bundle) }

// is reports that just this is begun of a module.
func (b *begun) is(ref fleet.ModuleRef, what string) bool { return b.what(ref) == what }

// what is begun of a module; empty: nothing.
func (b *begun) what(ref fleet.ModuleRef) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[ref.String()]
}

// note keeps what is begun of a module, before anything of it is written. What the state does not take now it is given again later.
func (b *begun) note(ctx context.Context, state State, ref fleet.ModuleRef, what string) error {
	b.mu.Lock()
	name := ref.String()
	known := b.of[name] == what
	if !known {
		if b.of == nil {
			b.of = map[string]string{}
		}
		b.of[name] = what
		b.changes++
	}
	b.mu.Unlock()
	if known {
		return nil
	}
	return b.save(ctx, state)
}

// forget drops what was begun of a module that goes: one that comes again, as it was, begins anew.
func (b *begun) forget(ctx context.Context, state State, ref fleet.ModuleRef) error {
	b.mu.Lock()
	_, known := b.of[ref.String()]
	if known {
		delete(b.of, ref.String())
		b.changes++
	}
	b.mu.Unlock()
	if !known {
		return nil
	}
	return b.save(ctx, state)
}

// save has all that changed until now kept.
func (b *begun) save(ctx context.Context, state State) (err error) {
	defer func() {
		if err != nil {
			dirty.Poke(b.wake)
		}
	}()
	select {
	case b.saving <- struct{}{}:
		defer func() { <-b.saving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	b.mu.Lock()
	upTo, kept := b.changes, b.durable == b.changes
	data, err := json.Marshal(b.of)
	b.mu.Unlock()
	if kept || err != nil {
		return err
	}
	if err := state.Write(ctx, b.name, data); err != nil {
		return err
	}
	b.mu.Lock()
	b.durable = upTo
	b.mu.Unlock()
	return nil
}

// keep gives the state again what it did not take, until the context ends, and then once more.
func (b *begun) keep(ctx context.Context, state State) {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = b.save(last, state)
			return
		case <-b.wake:
		}
		_ = backoff.Wait(ctx, begunRetry)
		_ = b.save(ctx, state)
	}
}
