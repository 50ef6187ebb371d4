package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// begunName is where it is kept which revisions are begun of modules that depend on others.
const begunName = "begun"

// begun keeps over restarts which revision of a module was begun: it goes on then, whatever became of what it depends on.
type begun struct {
	mu sync.Mutex
	of map[string]string // by module
}

// load reads what was begun. What cannot be read is asked for again, where something is still to be applied.
func (b *begun) load(ctx context.Context, state State, log *slog.Logger) {
	data, err := state.Read(ctx, begunName)
	if errors.Is(err, fleet.ErrNotFound) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		err = json.Unmarshal(data, &b.of)
	}
	if err != nil {
		log.Warn("which revisions are begun cannot be read; what is not applied yet waits again for what comes first", "error", err)
		b.of = nil
	}
}

func begunOf(s fleet.Sync) string { return fmt.Sprintf("%d %s", s.Revision, s.Bundle) }

// is reports that the revision of a sync is begun.
func (b *begun) is(s fleet.Sync) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[s.Module.String()] == begunOf(s)
}

// note keeps that the revision of a sync is begun, before anything of it is written.
func (b *begun) note(ctx context.Context, state State, s fleet.Sync) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	name, now := s.Module.String(), begunOf(s)
	if b.of[name] == now {
		return nil
	}
	if b.of == nil {
		b.of = map[string]string{}
	}
	b.of[name] = now
	return b.save(ctx, state)
}

// forget drops what was begun of a module that goes: one that comes again, as it was, begins anew.
func (b *begun) forget(ctx context.Context, state State, ref fleet.ModuleRef) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.of[ref.String()]; !known {
		return nil
	}
	delete(b.of, ref.String())
	return b.save(ctx, state)
}

func (b *begun) save(ctx context.Context, state State) error {
	data, err := json.Marshal(b.of)
	if err != nil {
		return err
	}
	return state.Write(ctx, begunName, data)
}
