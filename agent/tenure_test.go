package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/agent/internal/session"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
)

// An agent that has taken the Lease, and cannot read its state, for the API server has no time just then, reads it again; it ends for what will be
// so the next time, too.
func TestStateThatCannotBeReadIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{o: Options{Log: slog.New(slog.DiscardHandler)}}
		for _, last := range []error{nil, fleet.Errorf(fleet.ErrCorrupt, "inventory: damaged")} {
			began := time.Now()
			answers := []error{fmt.Errorf("inventory: %w", state.ErrUnread), session.ErrRestart, fmt.Errorf("identity: %w", state.ErrUnread), last}
			if err := a.tenure(t.Context(), func() error { return nil }, func() error {
				err := answers[0]
				answers = answers[1:]
				return err
			}); !errors.Is(err, last) || len(answers) > 0 {
				t.Errorf("it ends with %v, and %d answers are left; want %v", err, len(answers), last)
			}
			if waited := time.Since(began); waited < 500*time.Millisecond || waited > time.Minute {
				t.Errorf("it is read again after %s", waited)
			}
		}
	})
}

// An agent that cannot read its state gives the Lease back after a while, for another one may reach an API server that answers; while the Lease
// itself is not renewed, whoever can takes it anyway. It does not end, and takes the Lease again where nobody else has.
func TestLeaseIsGivenBackByWhoCannotReadTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{o: Options{Log: slog.New(slog.DiscardHandler)}}
		began, tenures, away := time.Now(), 0, errors.New("the lease is not renewed")
		covered := func() error {
			if time.Since(began) < time.Hour {
				return away
			}
			return nil
		}
		var gave time.Time
		err := a.tenures(t.Context(), func() error {
			if tenures++; tenures == 1 {
				err := a.tenure(t.Context(), covered, func() error { <-time.After(20 * time.Second); return fmt.Errorf("identity: %w", state.ErrUnread) })
				gave = time.Now()
				return err
			}
			return nil
		})
		if held := gave.Sub(began); err != nil || tenures != 2 || held < time.Hour+unreadFor || held > time.Hour+2*unreadFor {
			t.Errorf("it had the Lease %d times, first for %s: %v", tenures, held, err)
		}
		if left := time.Since(gave); left < 5*time.Second || left > time.Minute {
			t.Errorf("it takes it again after %s", left)
		}
		last := fleet.Errorf(fleet.ErrCorrupt, "inventory: damaged")
		if err := a.tenures(t.Context(), func() error { return last }); !errors.Is(err, last) {
			t.Errorf("it goes on after %v", err)
		}
	})
}

// untaken is a state that can be read, and refuses each write, as where the agent lacks the right to it or the API server cannot encrypt.
type untaken struct{ state.Store }

func (untaken) Take(context.Context, state.Tenure) error { return errors.New("secrets is forbidden") }

type renewed struct{}

func (renewed) Check() error  { return nil }
func (renewed) Epoch() uint64 { return 1 }

// An agent that can read its state and cannot make it its own gives the Lease back as well. One that is stopped meanwhile was stopped, and has not failed.
func TestLeaseIsGivenBackByWhoCannotTakeTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{o: Options{Log: slog.New(slog.DiscardHandler)}}
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		err := a.take(ctx, renewed{}, untaken{}, cluster{})
		if held := time.Since(began); !errors.Is(err, state.ErrUnread) || held < unreadFor || held > 2*unreadFor {
			t.Errorf("it has the Lease for %s: %v", held, err)
		}
		unread := func() error { return state.ErrUnread }
		for name, run := range map[string]func(context.Context) error{
			"tenure":  func(ctx context.Context) error { return a.tenure(ctx, renewed{}.Check, unread) },
			"tenures": func(ctx context.Context) error { return a.tenures(ctx, unread) },
		} {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			if err := quiet(ctx, run(ctx)); err != nil {
				t.Errorf("%s: stopped: %v", name, err)
			}
			stop()
		}
	})
}
