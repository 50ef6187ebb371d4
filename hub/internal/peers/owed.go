package peers

import (
	"context"
	"maps"
	"sync"
	"time"

	"towline.dev/towline/pkg/guard"
)

// tellAgain is how long after a call that was not heard it is told again.
const tellAgain = 5 * time.Second

// owed are the calls that no hub that leads has heard: who calls seldom calls again. There is at most one of each module and catalog that
// takes calls. Losing it costs looks that are late.
type owed struct {
	more chan struct{} // has room for one: there are some

	mu sync.Mutex
	of map[string]*owing
}

// owing is one call.
type owing struct{ tell func(context.Context) error }

func newOwed() owed { return owed{more: make(chan struct{}, 1), of: map[string]*owing{}} }

// hear tells a call, and keeps it if it is not heard. Of one key the latest is kept.
func (o *owed) hear(ctx context.Context, key string, tell func(context.Context) error) error {
	err := within(ctx, tell)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		delete(o.of, key)
		return nil
	}
	o.of[key] = &owing{tell}
	o.wake()
	return err
}

// wake has the calls told again.
func (o *owed) wake() {
	select {
	case o.more <- struct{}{}:
	default: // it is awake
	}
}

// run tells the calls again until they are heard, or ctx ends.
func (o *owed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.more:
		}
		timer := time.NewTimer(tellAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if !o.tellAll(ctx) {
			o.wake()
		}
	}
}

// tellAll tells the calls until one is not heard; false: one was not.
func (o *owed) tellAll(ctx context.Context) bool {
	o.mu.Lock()
	calls := maps.Clone(o.of)
	o.mu.Unlock()
	for key, x := range calls {
		if within(ctx, x.tell) != nil {
			return false
		}
		o.mu.Lock()
		if o.of[key] == x { // or it came once more meanwhile
			delete(o.of, key)
		}
		o.mu.Unlock()
	}
	return true
}

// within gives a call as long as a hub waits for the one that leads.
func within(ctx context.Context, tell func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, leadPatience)
	defer cancel()
	return guard.Run(func() error { return tell(ctx) })
}
