package agent

import (
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
			if err := a.tenure(t.Context(), func() error {
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
