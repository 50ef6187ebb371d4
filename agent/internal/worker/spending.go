package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// spentName is where it is kept which deletes count.
const spentName = "deletes"

// spending counts deletes, and keeps the count over restarts: one is noted before it is sent.
type spending struct {
	saving chan struct{} // has a value while one writes the state; several deletes share a write

	mu      sync.Mutex
	spent   localpolicy.Spent
	taken   uint64 // counts deletes
	durable uint64 // of these are noted
}

// load reads what was deleted before. A count that is damaged is one that leaves no room; an error is of a state that may have it, and be read the
// next time.
func (s *spending) load(ctx context.Context, in State, log *slog.Logger, now time.Time) error {
	data, err := in.Read(ctx, spentName)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return nil
	case mayHave(err):
		return fmt.Errorf("what was deleted: %w", err)
	}
	var spent localpolicy.Spent
	if err == nil {
		err = json.Unmarshal(data, &spent)
	}
	if err != nil {
		log.Warn("how many objects were deleted in the last hour cannot be read; a delete budget counts as used up", "error", err)
		spent = localpolicy.Spent{Minutes: []localpolicy.Minute{{At: now.Truncate(time.Minute), N: math.MaxInt32}}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent = spent
	return nil
}

// take counts one delete, which is noted durably where there is a budget. Without one it is counted all the same, should a budget
// come.
func (s *spending) take(ctx context.Context, state State, id fleet.ObjectID, p *localpolicy.Policy, now time.Time) error {
	perHour, limited := p.Budget()
	if !limited {
		perHour = math.MaxInt
	}
	s.mu.Lock()
	ok, until := s.spent.Take(perHour, now)
	if ok {
		s.taken++
	}
	mine := s.taken
	s.mu.Unlock()
	switch {
	case !ok:
		return overBudget(id, perHour, until)
	case !limited:
		return nil
	}
	err := s.save(ctx, state, mine)
	if err != nil {
		s.giveBack(now)
	}
	return err
}

// save has the count up to a delete durable.
func (s *spending) save(ctx context.Context, state State, mine uint64) error {
	select {
	case s.saving <- struct{}{}:
		defer func() { <-s.saving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	done, upTo := s.durable >= mine, s.taken
	data, err := json.Marshal(s.spent)
	s.mu.Unlock()
	if done || err != nil {
		return err
	}
	if err := state.Write(ctx, spentName, data); err != nil {
		return err
	}
	s.mu.Lock()
	s.durable = upTo
	s.mu.Unlock()
	return nil
}

// giveBack takes back a delete that was not carried out.
func (s *spending) giveBack(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent.Give(now)
}

// overBudget says that there is no room for a delete now; nil: there is.
func (a *acceptance) overBudget(id fleet.ObjectID, now time.Time) error {
	perHour, limited := a.policy().Budget()
	if !limited {
		return nil
	}
	a.spent.mu.Lock()
	ok, until := a.spent.spent.Room(perHour, now)
	a.spent.mu.Unlock()
	if ok {
		return nil
	}
	return overBudget(id, perHour, until)
}

// roomAt is when there will be room for a delete again; zero: there is, or there never will be.
func (a *acceptance) roomAt(now time.Time) (until time.Time) {
	if perHour, limited := a.policy().Budget(); limited {
		a.spent.mu.Lock()
		defer a.spent.mu.Unlock()
		_, until = a.spent.spent.Room(perHour, now)
	}
	return until
}

func overBudget(id fleet.ObjectID, perHour int, until time.Time) *apply.Failure {
	return &apply.Failure{Reason: plan.ReasonDeleteBudget, Kind: fleet.ErrDenied, Transient: true, Message: overBudgetText(id, perHour, until)}
}
