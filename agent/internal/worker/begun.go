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

// Names of what is kept over restarts: which revisions are begun of modules that depend on others, and which of their waves are.
const (
	begunName = "begun"
	wavesName = "waves"
)

// begun keeps over restarts what of a module was begun: it goes on then, whatever became of what comes first.
type begun struct {
	name string
	mu   sync.Mutex
	of   map[string]string // by module
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

// note keeps what is begun of a module, before anything of it is written.
func (b *begun) note(ctx context.Context, state State, ref fleet.ModuleRef, what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := ref.String()
	if b.of[name] == what {
		return nil
	}
	if b.of == nil {
		b.of = map[string]string{}
	}
	b.of[name] = what
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
	return state.Write(ctx, b.name, data)
}
